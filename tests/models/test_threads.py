"""Sessions used by several threads, and again after the driver reset their device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn import ops
from glnn.backends import NAMES, open_backend
from glnn.errors import DeviceError, ShapeError
from glnn.gl import Device
from glnn.gl.window import WindowContext
from glnn.model import Model
from glnn.session import InferenceSession

Array = NDArray[np.float32]
GL = ("compute", "feedback")


def available(name: str) -> str:
    try:
        open_backend(name)
    except DeviceError as error:
        pytest.skip(str(error))
    return name


def in_threads(work: Callable[[int], Any], count: int) -> list[Any]:
    """What `work` gives for each number below `count`, each in a thread of its own, at once."""
    results: list[Any] = [None] * count

    def one(i: int) -> None:
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def images(rng) -> Array:
    return np.abs(rng((12, 1, 28, 28)))


@pytest.mark.parametrize("name", NAMES)
def test_any_thread_may_run_a_session(name: str, images: Array) -> None:
    session = InferenceSession("lenet", available(name))
    expected = session.run(None, {"input": images[:1]})[0]
    for result in in_threads(lambda i: session.run(None, {"input": images[:1]})[0], 3):
        np.testing.assert_array_equal(result, expected)


ALONE_FIRST = """
import _thread, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from glnn.session import InferenceSession

session = InferenceSession("lenet", {name!r})
feeds = {{"input": np.ones((1, 1, 28, 28), np.float32)}}
expected = [session.run(None, feeds)[0] for _ in range(3)][0]
answers, done = [], threading.Event()

def work():
    try:
        answers.append((session.run(None, feeds)[0] == expected).all())
    except Exception as error:
        answers.append(error)
    done.set()

{start}
assert done.wait(60) and answers == [True], answers
work()
assert answers == [True, True], answers
"""


@pytest.mark.parametrize("name", GL)
@pytest.mark.parametrize(
    "start",
    [
        "threading.Thread(target=work).start()",
        "pool = ThreadPoolExecutor(1); pool.submit(work)",
        "_thread.start_new_thread(work, ())",
    ],
)
def test_a_thread_uses_at_once_what_the_first_used_alone(
    name: str, start: str, python: Callable[..., Any]
) -> None:
    done = python(ALONE_FIRST.format(name=available(name), start=start))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", NAMES)
def test_sessions_and_backends_at_once_give_what_they_give_alone(
    first: str, images: Array, rng: Any
) -> None:
    names = [available(first), "cpu", first]
    sessions = [InferenceSession("lenet", name) for name in names]
    batches = [images[i : i + 1 + i % 3] for i in range(6)]
    a, b = rng((9, 33)), rng((33, 5))
    alone = [[s.run(None, {"input": x})[0] for x in batches] for s in sessions]
    product = ops.matmul(a, b, backend=first)

    def work(number: int) -> None:
        for i in range(12):
            which, x = (number + i) % len(sessions), (number * 5 + i) % len(batches)
            got = sessions[which].run(None, {"input": batches[x]})[0]
            np.testing.assert_array_equal(got, alone[which][x])
            np.testing.assert_array_equal(ops.matmul(a, b, backend=first), product)

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, i) for i in range(6)]:
            future.result()


@pytest.mark.parametrize("name", GL)
def test_runs_of_several_threads_overlap_and_are_right_in_any_order(name: str, rng: Any) -> None:
    """With other sizes, arrays for the results, and errors among them."""
    session = InferenceSession("lenet", available(name))
    feeds = [{"input": np.abs(rng((1 + i % 2, 1, 28, 28)))} for i in range(8)]
    alone = [session.run(None, one)[0] for one in feeds]
    output = session.get_outputs()[0].name
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait(60)
        for i in range(12):
            which = (5 * number + i) % 8
            out = {output: np.empty_like(alone[which])} if i % 3 == 0 else None
            (got,) = session.run(None, feeds[which], out=out)
            np.testing.assert_array_equal(got, alone[which])
            assert out is None or got is out[output]
            if i % 5 == number % 5:
                with pytest.raises(ShapeError, match="out"):
                    session.run(None, feeds[which], out={output: np.empty((3, 3), np.float32)})
                assert session.run([], feeds[which])[0].shape == alone[which].shape

    assert in_threads(work, 8) == [None] * 8
    executor: Any = session._executor
    plans = (*executor._plans.values(), *executor.range_plans)
    assert max(len(plan._sets) for plan in plans) == 2


def test_threads_share_a_device_and_a_models_sessions(images: Array) -> None:
    name = available("feedback")
    devices = in_threads(lambda i: open_backend(name).device, 4)
    assert set(devices) == {open_backend(name).device}
    model = InferenceSession("lenet", name).model
    expected = model(images[:1], name)
    executor = model._executor(name)
    assert in_threads(lambda i: model._executor(name) is executor, 3) == [True] * 3
    for result in in_threads(lambda i: model(images[:1], name), 3):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", GL)
def test_a_server_does_not_grow(name: str) -> None:
    script = Path(__file__).parents[1] / "server.py"
    done = subprocess.run(
        [sys.executable, str(script), available(name), "150"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", GL)
@pytest.mark.parametrize("given", [False, True])
def test_a_session_runs_again_after_its_context_was_lost(
    name: str, given: bool, images: Array
) -> None:
    available(name)
    device = Device(limits="es31-minimum") if given else None
    model = InferenceSession("lenet", "cpu").model
    one, two = (InferenceSession(model, name, device=device) for _ in range(2))
    feeds = {"input": images[:2]}
    expected = one.run(None, feeds)[0]
    two.run(None, feeds)
    lost = one.backend.device
    assert lost is not None
    lost._reset_status = lambda: 0x8254
    with pytest.raises(DeviceError, match=r"was reset by its driver \(innocent\)"):
        one.run(None, feeds)
    np.testing.assert_array_equal(one.run(None, feeds)[0], expected)
    np.testing.assert_array_equal(two.run(None, feeds)[0], expected)
    fresh = one.backend.device
    assert fresh is not None and fresh is two.backend.device and not fresh.closed
    assert fresh is not lost and fresh.capabilities == lost.capabilities
    assert (one.backend.name, two.backend.name) == (name, name)
    if given:
        fresh.close()
    else:
        assert open_backend(name).device is fresh


def test_a_model_that_is_called_goes_on_after_a_reset(small: Model) -> None:
    name = available("feedback")
    x = np.ones((1, 3), np.float32)
    expected = small(x, name)
    lost = open_backend(name).device
    assert lost is not None
    lost._reset_status = lambda: 0x8253
    with pytest.raises(DeviceError, match="guilty"):
        small(x, name)
    np.testing.assert_array_equal(small(x, name), expected)


def test_threads_meet_a_reset(images: Array) -> None:
    name = available("feedback")
    device = Device()
    if device.capabilities.platform == WindowContext.what:
        pytest.skip("the next window would have to be opened in the main thread")
    session = InferenceSession("lenet", name, device=device)
    feeds = {"input": images[:1]}
    expected = session.run(None, feeds)[0]
    in_threads(lambda i: session.run(None, feeds), 2)
    device._reset_status = lambda: 0x8253
    for result in in_threads(lambda i: session.run(None, feeds), 6):
        if isinstance(result, DeviceError):
            assert "reset by its driver" in str(result)
        else:
            np.testing.assert_array_equal(result[0], expected)
    assert device.closed
    for result in in_threads(lambda i: session.run(None, feeds)[0], 6):
        np.testing.assert_array_equal(result, expected)
    assert session.backend.device is device.reopen()
    device.reopen().close()
