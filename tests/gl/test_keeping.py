"""A device's context while its thread is the process's only one. Each test is a process."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from glnn.core.process import KEPT_CONTEXT

pytestmark = pytest.mark.skipif(
    not KEPT_CONTEXT.is_supported, reason="Python tells of threads' starts from 3.12 on"
)
Run = Callable[..., CompletedProcess[str]]

START = """
import _thread, ctypes, gc, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from glnn.gl import Device, gpus
from glnn.gl.egl import Egl
from glnn.errors import DeviceError

calls = []

def opened():
    device = Device()  # by EGL, where that gives any
    egl = device._gl._egl
    make = egl.eglMakeCurrent
    egl.eglMakeCurrent = lambda *a: calls.append(a[3]) or make(*a)
    return device

def runs(device, count=5):
    calls.clear()
    for _ in range(count):
        assert device.perform(lambda: device._gl.is_current())
    return [bool(context) for context in calls]

def current():
    return Egl().eglGetCurrentContext()

def name():
    return threading.current_thread().name

device = opened()
"""


def check(python: Run, code: str, **environment: str) -> None:
    done = python(START + code, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_runs_alone_make_it_current_once(python: Run) -> None:
    check(
        python,
        """
assert runs(device) == [True]
assert runs(device) == []
device.release()
device.release()
assert current() is None and runs(device) == [True]
""",
    )


def test_with_another_thread_each_run_leaves(python: Run) -> None:
    check(
        python,
        """
runs(device)
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
assert current() is None
assert runs(device, 3) == [True, False] * 3
done.set()
thread.join()
assert runs(device, 3) == [True]
""",
    )


@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work).start()",
        "threading.Timer(0, work).start()",
        "pool = ThreadPoolExecutor(1); pool.submit(work)",
        "_thread.start_new_thread(work, ())",
    ],
)
def test_a_thread_that_is_started_has_it_at_once(python: Run, start: str) -> None:
    check(
        python,
        f"""
runs(device)
answers, done = [], threading.Event()
def work():
    try:
        answers.append(device.perform(name))
    except DeviceError as error:
        answers.append(error)
    done.set()
{start}
assert done.wait(30)
assert answers == ["glnn device"], answers
assert device.perform(name) == "glnn device"
""",
    )


def test_a_thread_started_during_work_has_it_after_that(python: Run) -> None:
    check(
        python,
        """
runs(device)
answers = []
thread = threading.Thread(target=lambda: answers.append(device.perform(name)))
device.perform(thread.start)
thread.join(30)
assert answers == ["glnn device"]
""",
    )


FOREIGN = """
libc = ctypes.CDLL(None)
Start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

def foreign(work):  # by a C library: Python's event of starting threads does not tell of it
    def call(_):
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)
        done.set()
    callback, thread = Start(call), ctypes.c_ulong()
    kept.append(callback)
    assert libc.pthread_create(ctypes.byref(thread), None, callback, None) == 0
    return thread

answers, kept, done = [], [], threading.Event()
runs(device)
"""


def test_a_foreign_thread_is_told_of_release(python: Run) -> None:
    check(
        python,
        FOREIGN
        + """
libc.pthread_join(foreign(lambda: device.perform(name)), None)
assert isinstance(answers[0], DeviceError), answers
assert "'MainThread' keeps the device" in str(answers[0]) and "release()" in str(answers[0])
device.release()
libc.pthread_join(foreign(lambda: device.perform(name)), None)
assert answers[1] == "glnn device", answers
""",
    )


def test_a_foreign_thread_waits_for_the_keepers_next_use(python: Run) -> None:
    check(
        python,
        FOREIGN
        + """
import glnn.gl.context_thread
glnn.gl.context_thread.KEPT_SECONDS = 60
foreign(lambda: device.perform(name))
while not device._shared_context._worker.started:
    pass
assert device.perform(name) == "glnn device"
assert done.wait(30) and answers == ["glnn device"], answers
""",
    )


def test_a_foreign_thread_that_asks_during_work_has_it_after_that(python: Run) -> None:
    check(
        python,
        FOREIGN
        + """
import glnn.gl.context_thread
glnn.gl.context_thread.KEPT_SECONDS = 60

def work():
    foreign(lambda: device.perform(name))
    while not device._shared_context._worker.started:
        pass

device.perform(work)
assert done.wait(30) and answers == ["glnn device"], answers
""",
    )


def test_held_after_it_was_kept_it_stays_where_threads_begin(python: Run) -> None:
    check(
        python,
        """
answers = []

def ask():
    try:
        device.perform(name)
    except DeviceError as error:
        answers.append(str(error))

runs(device)
device.activate()
for target in (int, ask):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert current() is not None
device.release()
assert current() is None
assert "held by the thread 'MainThread'" in answers.pop(), answers
""",
    )


def test_released_during_work_it_is_kept_again_after_that(python: Run) -> None:
    check(
        python,
        """
runs(device)
device.perform(device.release)
assert current() is not None and runs(device) == []
thread = threading.Thread(target=int)
thread.start()
thread.join()
assert current() is None and runs(device) == [True]
""",
    )


def test_a_foreign_thread_closes_it(python: Run) -> None:
    check(
        python,
        FOREIGN
        + """
libc.pthread_join(foreign(device.close), None)
assert answers == [None]
try:
    device.perform(name)
    raise SystemExit("not closed")
except DeviceError as error:
    assert "closed" in str(error)
for _ in range(2):
    other = opened()
    runs(other)
    assert runs(other)[-1:] != [True]  # Python may count the foreign thread for ever
    other.release()
    assert current() is None
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other.perform, name).result(30) == "glnn device"
""",
    )


def test_dropped_it_is_left(python: Run) -> None:
    check(
        python,
        """
for _ in range(2):
    runs(device)
    assert current() is not None
    del device
    gc.collect()
    assert current() is None
    thread = threading.Thread(target=print)
    thread.start()
    thread.join()
    device = opened()
""",
    )


def test_devices_take_turns(python: Run) -> None:
    check(
        python,
        """
runs(device)
mine = current()
other = opened()
assert current() == mine and gpus() and current() == mine
assert runs(device) == []
runs(other, 1)
theirs = current()
assert theirs != mine and runs(other) == []
runs(device, 1)
assert current() == mine
device.perform(lambda: runs(other, 1))
assert current() == mine and runs(device) == []
runs(other)
device.close()
assert current() == theirs and runs(other) == []
with ThreadPoolExecutor(1) as pool:
    assert pool.submit(other.perform, name).result(30) == "glnn device"
""",
    )


@pytest.mark.parametrize("count", [0, 2])
def test_where_ctrl_c_interrupts_that_it_is_left_another_thread_has_it(
    python: Run, count: int
) -> None:
    check(
        python,
        f"""
runs(device)
other, leave = opened(), device._gl.leave

def interrupted():
    device._gl.leave = leave
    raise KeyboardInterrupt

device._gl.leave = interrupted
try:
    runs(other, 1)
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    pass
runs(device, {count})
with ThreadPoolExecutor(1) as pool:
    for one in (device, other):
        assert pool.submit(one.perform, name).result(30) == "glnn device"
""",
    )


def test_anothers_context_is_restored_and_not_replaced(python: Run) -> None:
    check(
        python,
        """
from glnn.gl.context import ES_VERSIONS
anothers = next(iter(Egl().candidates("device")))[1](ES_VERSIONS)
before = current()
assert runs(device, 2) == [True, False, True] * 2
assert current() == before
anothers.leave()
runs(device)
assert current() not in (None, before)
anothers.make_current()  # while the device's is kept
assert device.perform(device._gl.is_current)
assert current() == before
anothers.leave()
assert runs(device) == [True]
""",
    )


def test_lost_it_is_not_in_the_way_of_the_next(python: Run) -> None:
    check(
        python,
        """
runs(device)
device._reset_status = lambda: 0x8253
try:
    device.perform(device.finish)
    raise SystemExit("not lost")
except DeviceError as error:
    assert "reset" in str(error)
fresh = device.reopen()
assert fresh.perform(fresh._gl.is_current) and fresh._gl.is_current()
with ThreadPoolExecutor(1) as pool:
    assert pool.submit(fresh.perform, name).result(30) == "glnn device"
""",
    )


def test_a_fork_starts_threads_and_ends(python: Run) -> None:
    check(
        python,
        """
runs(device)
child = os.fork()
if not child:
    calls.clear()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    device.release()
    os._exit(len(calls))
assert os.waitpid(child, 0)[1] == 0
assert runs(device) == []
""",
        PYTHONWARNINGS="ignore::DeprecationWarning",  # of forks, since the driver has threads
    )


def test_windows_of_others_can_be_opened(python: Run, display: str) -> None:
    code = """
loaded = sys.modules.get("glfw")
assert runs(device) == [True] and loaded is None
try:
    import glfw
except ImportError:
    raise SystemExit(0)
assert current() is None
glfw.init()
glfw.window_hint(glfw.VISIBLE, False)
window = glfw.create_window(1, 1, "another's", None, None)
glfw.make_context_current(window)
runs(device)
assert current() is None and glfw.get_current_context()
glfw.make_context_current(None)
assert runs(device, 2) == [True, False] * 2
glfw.destroy_window(window)
"""
    check(python, code, DISPLAY=display)


def test_threads_that_copy_are_no_others(python: Run) -> None:
    """They begin in the middle of work, and the context is kept after it and from then on."""
    check(
        python,
        """
import numpy as np
from glnn.gl import transfer

transfer.MIN_PART, transfer.COPY_POOL.most = 1024, 4

def work():
    transfer.threaded_copy(np.zeros(4096, np.int32), np.ones(4096, np.int32))
    return device._gl.is_current()

runs(device)
assert device.perform(work) and threading.active_count() == 4
assert current() is not None and runs(device, 3) == []
thread = threading.Thread(target=lambda: runs(device))
thread.start()
thread.join()
assert current() is None and device.perform(name) == "glnn device"
""",
    )
