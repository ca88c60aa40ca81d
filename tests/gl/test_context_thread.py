"""Devices used by several threads, by forked processes, and after the driver reset the context."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from glnn.core.layout import parse
from glnn.errors import DeviceError
from glnn.gl import Buffer, Device, Program
from glnn.gl.egl import Egl
from tests.conftest import NO_GL
from tests.gl.test_device import check_fetch, count_alive, in_thread

Run = Callable[..., CompletedProcess[str]]
MakeProgram = Callable[[Device], Program]


def name_of_thread() -> str:
    return threading.current_thread().name


def current_context() -> int | None:
    context: int | None = Egl().eglGetCurrentContext()
    return context


def workers() -> set[threading.Thread]:
    """The threads that devices have, those of other tests, too."""
    return {thread for thread in threading.enumerate() if thread.name == "glnn device"}


def test_alone_a_thread_does_its_work_itself_and_can_leave_the_context() -> None:
    before, others = current_context(), workers()
    with Device() as device:
        assert current_context() == before
        assert device.perform(name_of_thread) == name_of_thread()
        assert device.perform(current_context) not in (None, before)
        device.release()
        assert current_context() == before
        assert workers() == others


ANYWHERE = """
import os, random, signal, threading
from glnn.gl import Device

def interrupt(*_):
    raise KeyboardInterrupt

def name():
    return threading.current_thread().name

signal.signal(signal.SIGALRM, interrupt)
devices, draw, answers = [Device(), Device()], random.Random(1), []
for _ in range(3000):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1e-4 * draw.random())
            while True:
                draw.choice(devices).perform(name)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
for device in devices:
    assert device.perform(name) == "MainThread"

def ask():
    answers.extend(device.perform(name) for device in devices)

thread = threading.Thread(target=ask, daemon=True)
thread.start()
thread.join(30)
print(*answers, flush=True)
os._exit(0)  # whoever hangs is not waited for
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timer")
def test_ctrl_c_at_whatever_place_leaves_the_device_to_other_threads(python: Run) -> None:
    done = python(ANYWHERE)
    assert done.stdout.split() == ["glnn", "device"] * 2, done.stdout + done.stderr


def test_work_of_several_threads_is_done_in_one(fetch: MakeProgram) -> None:
    others = workers()
    with Device() as device:
        program = device.perform(lambda: fetch(device))

        def work() -> str:
            device.perform(lambda: check_fetch(device, program))
            return device.perform(lambda: device.perform(name_of_thread))

        assert work() == name_of_thread()
        assert in_thread(work) == "glnn device"
        assert work() == "glnn device"  # the first thread's, too
        with ThreadPoolExecutor(8) as pool:
            assert {f.result() for f in [pool.submit(work) for _ in range(64)]} == {"glnn device"}
        assert len(workers() - others) == 1
    assert workers() <= others
    with pytest.raises(DeviceError, match="closed"):
        work()


def test_a_thread_that_asks_second_waits_for_the_first(fetch: MakeProgram) -> None:
    with Device() as device:
        inside, done = threading.Event(), []

        def first() -> None:
            inside.set()
            time.sleep(0.05)
            check_fetch(device, fetch(device))
            done.append("first")

        def second() -> None:
            inside.wait()
            device.perform(lambda: done.append("second"))

        other = threading.Thread(target=second)
        other.start()
        device.perform(first)
        other.join()
        assert done == ["first", "second"]


def test_errors_come_to_who_asked_with_their_traceback() -> None:
    def fail() -> None:
        raise KeyError("mine")

    with Device() as device:
        in_thread(lambda: device.perform(name_of_thread))
        with pytest.raises(KeyError, match="mine") as caught:
            device.perform(fail)
        assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert device.perform(name_of_thread) == "glnn device"


def test_devices_nest_and_other_contexts_are_left_as_they_were(fetch: MakeProgram) -> None:
    with Device() as outer, Device() as inner:

        def work() -> None:
            before = current_context()
            inner.perform(lambda: check_fetch(inner, fetch(inner)))
            with Device():
                pass
            assert current_context() == before
            check_fetch(outer, fetch(outer))

        outer.perform(work)
        in_thread(lambda: inner.perform(name_of_thread))
        outer.perform(work)


def test_devices_that_a_thread_holds_have_each_their_own_context(fetch: MakeProgram) -> None:
    """Their fences, too: GL deletes none of another context, and reports GL_INVALID_VALUE there."""
    with Device() as one, Device() as other:
        one.activate()
        fence = one.perform(one.fence)
        other.activate()
        one.perform(fence.wait)
        assert fence.is_signaled
        other.perform(lambda: other.check_always("nothing"))
        assert one.perform(one._gl.is_current) and other._gl.is_current()
        for device in (one, other, one):
            check_fetch(device, fetch(device))
            device.perform(lambda device=device: device.check_always("all of it"))
        for device in (one, other):
            device.release()


def test_work_within_anothers_within_its_own_has_its_context() -> None:
    with Device() as one, Device() as other:

        def innermost() -> bool:
            fence = one.fence()
            return fence.wait() and one._gl.is_current()

        def within() -> bool:
            return one.perform(innermost) and other._gl.is_current()

        assert one.perform(lambda: other.perform(within) and one._gl.is_current())
        for device in (one, other):
            device.perform(lambda device=device: device.check_always("all of it"))


def test_a_device_that_was_activated_waits_for_its_release() -> None:
    with Device() as device:
        device.activate()
        error = in_thread(lambda: device.perform(name_of_thread))
        assert isinstance(error, DeviceError)
        assert f"held by the thread {name_of_thread()!r}" in str(error)
        assert device.perform(name_of_thread) == name_of_thread()
        device.release()
        device.release()
        assert in_thread(lambda: device.perform(name_of_thread)) == "glnn device"
        with pytest.raises(DeviceError, match="held by the thread 'glnn device'"):
            device.activate()


def test_what_other_threads_drop_is_freed(fetch: MakeProgram) -> None:
    kinds = ("Buffer", "Program", "Texture", "VertexArray")
    with Device() as device:

        def work() -> None:
            device.perform(lambda: check_fetch(device, fetch(device)))
            buffer = Buffer((4,), parse("R"))
            device.perform(lambda: buffer.push(device))

        def alive(times: int) -> list[int]:
            with ThreadPoolExecutor(4) as pool:
                for future in [pool.submit(work) for _ in range(times)]:
                    future.result()
            gc.collect()
            return device.perform(lambda: [count_alive(device, kind) for kind in kinds])

        assert alive(4) == alive(40)


def test_a_dropped_device_ends_its_thread() -> None:
    others, devices = workers(), [Device()]
    in_thread(lambda: devices[0].perform(name_of_thread))
    assert len(workers() - others) == 1
    devices.clear()
    gc.collect()
    assert workers() <= others


def test_who_waits_while_a_device_closes_is_answered() -> None:
    device, begun = Device(), threading.Event()

    def slow() -> str:
        begun.set()
        time.sleep(0.1)
        return "done"

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(device.perform, slow)
        begun.wait()
        others = [pool.submit(device.perform, name_of_thread) for _ in range(3)]
        device.close()
        assert first.result(10) == "done"
        for other in others:
            error = other.exception(10)
            assert error is None or "closed" in str(error)


INTERRUPTED = """
import _thread, signal, threading, time
from glnn import Device
signal.signal(signal.SIGINT, signal.default_int_handler)
device = Device()
thread = threading.Thread(target=device.perform, args=(lambda: None,))
thread.start()
thread.join()
threading.Timer(0.3, _thread.interrupt_main).start()
try:
    device.perform(lambda: time.sleep(1))
except KeyboardInterrupt:
    print("interrupted", device.perform(lambda: "usable"))
    {end}
"""


@pytest.mark.parametrize("end", ["pass", "device.close()", "raise SystemExit(0)"])
def test_an_interrupt_reaches_who_waits(python: Run, end: str) -> None:
    result = python(INTERRUPTED.format(end=end))
    assert (result.returncode, result.stdout) == (0, "interrupted usable\n"), result.stderr


AT_WORK = """
import threading, time
from glnn import Device
device = Device()
work = lambda: time.sleep(0.5)
threading.Thread(target=device.perform, args=(work,), daemon=True).start()
time.sleep(0.1)
"""


def test_the_end_of_the_process_waits_for_work(python: Run) -> None:
    result = python(AT_WORK)
    assert (result.returncode, result.stderr) == (0, "")


FORKS = """
import multiprocessing, threading
import glnn.gl
from glnn.backends import open_backend
from glnn.compiler import evaluate
from glnn.errors import DeviceError
from glnn.session import InferenceSession
import numpy as np

x = np.ones((1, 1, 28, 28), np.float32)
before = {}
if BEFORE:
    before = {name: InferenceSession("lenet", name) for name in ("auto", "feedback", "cpu")}
    right = [session.run(None, {"input": x})[0] for session in before.values()][0]

def busy():
    while True:
        for session in before.values():
            session.run(None, {"input": x})

def child(answers):
    uses = [glnn.gl.Device, glnn.gl.gpus, lambda: open_backend("auto")]
    uses += [lambda: open_backend("feedback"), lambda: InferenceSession("lenet")]
    if BEFORE:
        uses += [lambda: before["auto"].run(None, {"input": x})]
        uses += [lambda: before["feedback"].run(None, {"input": x})]
        uses += [before["auto"].backend.device.activate, lambda: before["auto"].model(x)]
    said = []
    for use in uses:
        try:
            use()
            said.append("nothing")
        except DeviceError as error:
            said.append("spawn" if '"spawn"' in str(error) else str(error))
    for session in before.values():
        if session.backend.device is not None:
            session.backend.device.close()
            session.backend.device.release()
    if BEFORE:
        cpu = [before["cpu"], InferenceSession("lenet", "cpu")]
        assert all(np.allclose(s.run(None, {"input": x})[0], right, atol=1e-5) for s in cpu)
    answers.put(sorted(set(said)))

if __name__ == "__main__":
    for _ in range(BUSY):
        threading.Thread(target=busy, daemon=True).start()
    context = multiprocessing.get_context("fork")
    seen = []
    for _ in range(COUNT):
        answers = context.SimpleQueue()
        process = context.Process(target=child, args=(answers,))
        process.start()
        process.join(20)
        if process.exitcode is None:
            process.kill()
            seen.append("hangs")
        elif process.exitcode:
            seen.append("fails")
        else:
            seen.append(answers.get())
    print({str(one): seen.count(one) for one in seen})
"""


@pytest.mark.parametrize("busy", [0, 3])
def test_forks_after_gl_was_used_are_told_to_spawn(python: Run, busy: int) -> None:
    count = 50 if os.environ.get("GLNN_EXHAUSTIVE") else 20
    result = python(f"BEFORE, BUSY, COUNT = True, {busy}, {count}\n{FORKS}")
    assert result.stdout == str({"['spawn']": count}) + "\n", result.stderr


def test_a_fork_before_gl_is_used_uses_it(python: Run) -> None:
    result = python(f"BEFORE, BUSY, COUNT = False, 0, 3\n{FORKS}")
    assert result.stdout == str({"['nothing']": 3}) + "\n", result.stderr


NO_GL_FORK = """
import os
from glnn.backends import open_backend
print(open_backend("auto").name, flush=True)
if os.fork() == 0:
    print(open_backend("auto").name, flush=True)
    os._exit(0)
os.wait()
"""


def test_where_gl_never_opened_a_fork_may_try(python: Run) -> None:
    assert python(NO_GL_FORK, **NO_GL).stdout == "cpu\ncpu\n"


@pytest.mark.parametrize("alone, step", [(False, "finish"), (True, "read 16 bytes")])
@pytest.mark.parametrize("status, guilt", [(0x8253, "guilty"), (0x8254, "innocent")])
def test_a_reset_context_raises_and_closes(
    status: int,
    guilt: str,
    alone: bool,
    step: str,
    fetch: MakeProgram,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glnn.gl.buffer.is_single_threaded", lambda: alone)
    device = Device(limits="es31-minimum")
    buffer = Buffer((4,), parse("R"))
    buffer.push(device)
    buffer.mark_written()
    device._reset_status = lambda: status
    with pytest.raises(DeviceError, match=rf"{step}: .* reset by its driver \({guilt}\)"):
        buffer.pull()
    assert device.closed and device.lost
    for use in (device.activate, device.finish, lambda: device.perform(name_of_thread)):
        with pytest.raises(DeviceError, match="reset by its driver"):
            use()
    with device.reopen() as again:
        assert device.reopen() is again and again.capabilities == device.capabilities
        again.perform(lambda: check_fetch(again, fetch(again)))


def test_a_read_that_fails_for_a_reset_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glnn.gl.buffer.is_single_threaded", lambda: True)

    class Lost:
        def read_into(self, *_: object, **__: object) -> None:
            raise RuntimeError("cannot map the buffer")

    with Device() as device:
        buffer = Buffer((4,), parse("R"))
        buffer.push(device)
        buffer.mark_written()
        monkey: Any = buffer
        monkey._copy, device._reset_status = Lost(), lambda: 0x8253
        with pytest.raises(DeviceError, match=r"read 16 bytes: .* reset by its driver"):
            buffer.pull()


def test_waiting_and_gl_errors_notice_a_reset() -> None:
    for notice in (lambda d: d.finish(), lambda d: d.check_always("x")):
        with Device() as device:
            device.activate()
            device.load("glEnable", None, ctypes.c_uint)(0x1234)
            device._reset_status = lambda: 0x8255
            with pytest.raises(DeviceError, match=r"reset by its driver \(unknown\)"):
                notice(device)


def test_whoever_waits_has_the_context() -> None:
    """Without one there is nothing to wait for: what is thought to be done then may not be."""
    with Device() as device:
        fence, current = device.fence, []
        device.fence = lambda: current.append(device._gl.is_current()) or fence()
        device.finish()
        device.perform(device.finish)
        assert in_thread(device.finish) is None
        device.finish()
        assert current == [True] * 4


def test_a_reset_in_the_devices_thread_ends_it() -> None:
    others, device = workers(), Device()
    in_thread(lambda: device.perform(name_of_thread))
    device._reset_status = lambda: 0x8253
    for _ in range(2):
        error = in_thread(lambda: device.perform(device.finish))
        assert isinstance(error, DeviceError) and "reset by its driver" in str(error)
    deadline = time.monotonic() + 10
    while workers() - others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers() <= others


def test_contexts_tell_of_resets_where_the_display_can(device: Device) -> None:
    egl = device._gl
    if "EGL_EXT_create_context_robustness" not in getattr(egl, "_extensions", ()):
        pytest.skip("this display cannot be asked to tell of resets")
    strategy = np.zeros(1, np.int32)
    device.activate()
    ask = device.load("glGetIntegerv", None, ctypes.c_uint, ctypes.c_void_p)
    ask(0x8256, strategy.ctypes.data)  # GL_RESET_NOTIFICATION_STRATEGY
    assert strategy[0] == 0x8252  # GL_LOSE_CONTEXT_ON_RESET
    assert device._reset_status() == 0
