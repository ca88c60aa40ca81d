"""Ways to wait for a device, and devices that let other programs go first."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glnn.core.settings import Settings
from glnn.errors import DeviceError, GlnnError
from glnn.gl import Buffer, Device
from glnn.gl import device as device_module
from glnn.gl.device import SHARED, poll
from glnn.gl.egl import Display, EglContext
from glnn.gl.window import WindowContext
from glnn.runtime.buffer_set import BufferSet
from glnn.runtime.device_array import DeviceArray
from glnn.session import InferenceSession

FEEDS = {"input": np.random.default_rng(3).random((2, 1, 28, 28), np.float32)}


class Clock:
    """A time that passes by sleeping, and by `step` each time it is asked for."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        self.now += self.step
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("how", ["spin", "sleep"])
def test_it_is_asked_until_it_is_over_or_the_time_is(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(1e-6)
    monkeypatch.setattr(device_module, "time", clock)
    assert poll(lambda: clock.now > 0.05, how, float("inf"))
    if how == "spin":
        assert not clock.slept
    else:  # late by a quarter of the time or 1 ms, whichever is less
        assert clock.slept[0] == 5e-5 and max(clock.slept) == 1e-3 and clock.now < 0.0511
        assert clock.slept == sorted(clock.slept)
    begun = clock.now
    assert not poll(lambda: False, how, 0.01)
    assert 0.01 <= clock.now - begun < 0.0101
    assert poll(lambda: True, how, 0.0)


def fences_of(device: Device, work: Callable[[], object]) -> int:
    """Return the number of fences that `work` makes."""
    before = device.timeline.current
    work()
    return device.timeline.current - before


def test_the_last_fence_is_waited_for_where_nothing_was_asked_for_behind_it() -> None:
    with Device() as device:
        kept = [device.perform(device.fence, fenced=True)]
        assert fences_of(device, device.finish) == 0 and kept[0].is_signaled
        assert fences_of(device, device.finish) == 0
        device.perform(lambda: None)  # may have given commands
        assert fences_of(device, device.finish) == 1

        def nested() -> None:
            kept.append(device.perform(device.fence, fenced=True))

        device.perform(nested)  # in which commands may follow
        assert fences_of(device, device.finish) == 1 and kept[-1].is_signaled
        kept.append(device.perform(device.fence, fenced=True))
        assert fences_of(device, lambda: device.perform(device.wait)) == 1
        device.activate()  # commands may be given at any time until it is released
        kept.append(device.perform(device.fence, fenced=True))
        assert fences_of(device, device.finish) == 1
        device.release()
        device.perform(device.fence, fenced=True)  # nobody keeps it
        assert fences_of(device, device.finish) == 1
        kept.append(device.perform(device.fence, fenced=True))
        kept[-1].delete()  # it cannot be waited for any more
        device.finish()
        assert device.timeline.completed >= kept[-1].segment


def test_a_thread_of_the_devices_own_may_have_been_given_more() -> None:
    with Device() as device:
        kept: list[Any] = []
        thread = threading.Thread(
            target=lambda: kept.append(device.perform(device.fence, fenced=True))
        )
        thread.start()
        thread.join()
        assert fences_of(device, device.finish) == 1 and kept[0].is_signaled


def test_a_run_without_outputs_is_waited_for_by_its_own_fence() -> None:
    with Device() as device:
        plan = InferenceSession("lenet", "feedback", device=device).plan(
            {name: array.shape for name, array in FEEDS.items()}
        )
        plan.run(FEEDS, ())
        assert fences_of(device, device.finish) == 0
        assert device.timeline.completed + 1 == device.timeline.current


def test_a_run_begins_at_once_and_is_waited_for_by_one_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is told of all of it before the host goes on with its outputs."""
    with Device() as device:
        session = InferenceSession("lenet", "compute", device=device)
        right = session.run(None, FEEDS)[0]
        flushed: list[int] = []
        flush, launch, take = device._flush, BufferSet.launch, Buffer.fetch
        monkeypatch.setattr(device, "_flush", lambda: flushed.append(1) or flush())

        def launching(self: BufferSet) -> None:
            launch(self)
            flushed.clear()

        def taking(self: Buffer, *arguments: Any) -> Any:
            assert flushed
            return take(self, *arguments)

        monkeypatch.setattr(BufferSet, "launch", launching)
        monkeypatch.setattr(Buffer, "fetch", taking)
        results: list[Any] = []
        run = partial(session.run, None, FEEDS)
        assert fences_of(device, lambda: results.extend(run())) == 1
        np.testing.assert_array_equal(results[0], right)


def test_every_fence_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that nobody waits for, as of steps behind which others are waited for."""
    with Device() as device:
        functions, live = device._fence_functions, [0]
        make, delete = functions.make, functions.delete

        def making(*arguments: Any) -> Any:
            live[0] += 1
            return make(*arguments)

        def deleting(*arguments: Any) -> Any:
            live[0] -= 1
            return delete(*arguments)

        monkeypatch.setattr(functions, "make", making)
        monkeypatch.setattr(functions, "delete", deleting)
        session = InferenceSession("lenet", "compute", device=device)
        name, shapes = session.get_outputs()[0].name, {"input": FEEDS["input"].shape}
        plan = session.plan(shapes)
        for _ in range(9):
            for _ in range(2):
                plan.run(FEEDS, ())
            device.finish()
            session.run(None, FEEDS)
            session.run(None, FEEDS, out={name: DeviceArray})
            session.run_async(None, FEEDS).result()
        assert live[0] <= 2  # of the runs that the plan knows of


@pytest.mark.parametrize("wait", ["spin", "sleep"])
def test_devices_wait_as_they_are_asked_to(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    polled = poll

    def noted(over: Callable[[], bool], how: str, seconds: float) -> bool:
        ways.append(how)
        return polled(over, how, seconds)

    monkeypatch.setattr("glnn.gl.device.poll", noted)
    right = InferenceSession("lenet", "cpu").run(None, FEEDS)[0]
    with Device(wait=wait) as device:
        for backend in ("compute", "feedback"):
            session = InferenceSession("lenet", backend, device=device)
            np.testing.assert_allclose(session.run(None, FEEDS)[0], right, atol=1e-5)
            found = session.run_async(None, FEEDS).result(60)[0]
            np.testing.assert_allclose(found, right, atol=1e-5)
        fence = device.perform(device.fence)
        assert device.perform(lambda: fence.wait(10.0)) and fence.is_signaled
        device.finish()
        assert device.timeline.idle and set(ways) == {wait}


@pytest.fixture
def low() -> Device:
    """A device of low priority, the one that sessions share."""
    device = SHARED.open(priority="low")
    if device.capabilities.platform == WindowContext.what:
        pytest.skip("windows are the main thread's")
    return device


def test_a_low_priority_is_that_of_its_threads(low: Device) -> None:
    assert low.low_priority and SHARED.open(priority="low") is low is not SHARED.open()
    found: list[Any] = low.perform(lambda: [threading.current_thread().name])
    assert found == ["glnn device"]  # not this thread, which keeps its own
    if sys.platform == "linux":
        nice = low.perform(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert nice == max(10, os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))


def test_a_low_priority_sends_each_launch_off_by_itself(
    low: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glnn.gl.device.give_way", lambda: given.append(1))
    given: list[int] = []
    session = InferenceSession("lenet", "compute", priority="low")
    right = InferenceSession("lenet", "cpu").run(None, FEEDS)[0]
    assert session.backend.device is low
    np.testing.assert_allclose(session.run(None, FEEDS)[0], right, atol=1e-5)
    steps = len(session.plan({"input": (2, 1, 28, 28)}).steps)
    given.clear()
    session.run(None, FEEDS)
    assert len(given) >= steps - 1


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_context_is_asked_for_with_its_priority(known: bool, wanted: bool) -> None:
    given: list[list[int]] = []

    def create(display: int, config: Any, shared: Any, attributes: Any) -> int:
        given.append(list(attributes))
        return 7

    offers = {"EGL_KHR_surfaceless_context", "EGL_KHR_no_config_context"}
    offers |= {"EGL_IMG_context_priority"} if known else set()
    egl: Any = SimpleNamespace(
        low_priority=wanted,
        display=lambda display: Display("1.5", frozenset(offers)),
        eglBindAPI=lambda api: 1,
        eglCreateContext=create,
        eglMakeCurrent=lambda *arguments: 1,
        address=lambda name: 1,
    )
    EglContext(egl, "test", 1, [SimpleNamespace(api="es", major=3, minor=2)])  # type: ignore[list-item]
    (attributes,) = given
    asked = dict(zip(attributes[:-1:2], attributes[1::2], strict=True))
    assert asked.get(0x3100) == (0x3103 if known and wanted else None)


@pytest.mark.parametrize("name", ["priority", "wait"])
@pytest.mark.parametrize("value", ["", "LOW", 5, ["low"]])
def test_what_is_no_priority_or_way_to_wait(name: str, value: Any) -> None:
    with pytest.raises(DeviceError, match=f"{name} must be one of "):
        Device(**{name: value})


def test_the_environment_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_environment({}).wait == "block"
    found = Settings.from_environment({"GLNN_WAIT": "spin", "GLNN_PRIORITY": "low"})
    assert (found.wait, found.priority) == ("spin", "low")
    for name in ("GLNN_WAIT", "GLNN_PRIORITY"):
        with pytest.raises(GlnnError, match=f"{name}: expected .*, got 'fast'"):
            Settings.from_environment({name: "fast"})
    monkeypatch.setenv("GLNN_WAIT", "spin")
    assert SHARED.open().timeline.wait_mode == "spin"
    assert SHARED.open(wait="block").timeline.wait_mode == "block"


def test_they_are_not_for_a_device_that_is_given(low: Device) -> None:
    with pytest.raises(GlnnError, match="priority and wait are for the Device that"):
        InferenceSession("lenet", device=low, wait="spin")
    assert InferenceSession("lenet", "cpu", priority="low").backend.device is None


def test_a_driver_without_fences_is_waited_for_all_the_same() -> None:
    """There glFinish is what is left."""
    with Device() as device:
        finish, finished = device._finish, []
        device._finish = lambda: finished.append(device._gl.is_current()) or finish()
        device.finish()
        assert not finished and device.timeline.idle
        device._fence_functions.make = lambda *arguments: None
        device.finish()
        assert finished == [True] and device.timeline.idle
