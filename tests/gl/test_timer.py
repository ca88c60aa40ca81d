"""Timers: believed only where they agree with the wall clock, at the length that is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from glnn.gl import Device, Program, Timer
from tests.fake_query import LIES, FakeQuery, Lie


@pytest.fixture
def own_device() -> Iterator[Device]:
    with Device() as device:
        device.capabilities = dataclasses.replace(device.capabilities, timer_query=True)
        yield device


@pytest.fixture
def asked(own_device: Device, monkeypatch) -> Callable[[Lie], FakeQuery]:
    """Gives the device a timer that says what it is told to."""
    return lambda lie: FakeQuery(own_device, lie, monkeypatch)


@pytest.mark.parametrize("share", [1.0, 0.95])
@pytest.mark.parametrize("length", [0.001, 0.002, 0.02])
def test_a_timer_that_agrees_is_believed(
    own_device: Device, asked, share: float, length: float
) -> None:
    query = asked(lambda seconds, first: share * seconds)
    timer = Timer(own_device)
    assert timer.doubt == "not proved yet"
    assert timer.measure(lambda: query.wait(length)) is None
    assert timer.prove(lambda: query.wait(length)) is None and timer.doubt is None
    sample = timer.measure(lambda: query.wait(length), 5)
    assert sample is not None and share * length <= sample.gpu <= sample.wall


@pytest.mark.parametrize("length", [0.001, 0.002, 0.02])
@pytest.mark.parametrize("lie", LIES)
def test_a_timer_that_lies_is_caught(own_device: Device, asked, lie: str, length: float) -> None:
    """Some of them are right where work is repeated, which used to be all that was asked."""
    query = asked(LIES[lie])
    timer = Timer(own_device)
    timer.prove(lambda: query.wait(length))
    sample = timer.measure(lambda: query.wait(length), 5)
    if lie == "nothing of what is short" and length == 0.02:
        return  # it is not short
    assert sample is None
    assert timer.doubt is not None and "timer says" in timer.doubt


def test_what_was_caught_is_believed_no_more(own_device: Device, asked) -> None:
    query = asked(LIES["half"])
    timer = Timer(own_device)
    reason = timer.prove(lambda: query.wait(0.002))
    query.lie = lambda seconds, first: seconds
    assert reason is not None and timer.prove(lambda: query.wait(0.002)) == reason
    assert timer.measure(lambda: query.wait(0.002)) is None


def test_measurements_above_the_wall_clock_are_dropped(own_device: Device, asked) -> None:
    query = asked(lambda seconds, first: seconds)
    timer = Timer(own_device)
    assert timer.prove(lambda: query.wait(0.002)) is None
    factors = iter([1.0, 2.0, 1.0, 2.0, 1.0] + 5 * [2.0])
    query.lie = lambda seconds, first: next(factors) * seconds
    sample = timer.measure(lambda: query.wait(0.002), 5)
    assert sample is not None and sample.gpu <= sample.wall
    assert timer.measure(lambda: query.wait(0.002), 5) is None
    assert timer.doubt is not None and "above the wall clock" in timer.doubt


def test_a_slower_clock_of_the_timer_leaves_no_time_below_zero(own_device: Device, asked) -> None:
    query = asked(lambda seconds, first: 1.005 * seconds)
    timer = Timer(own_device)
    assert timer.prove(lambda: query.wait(0.02)) is None
    sample = timer.measure(lambda: query.wait(0.02), 5)
    assert sample is not None and sample.gpu <= sample.wall


def test_other_work_is_held_against_the_wall_clock_too(own_device: Device, asked) -> None:
    query = asked(lambda seconds, first: seconds)
    timer = Timer(own_device)
    assert timer.prove(lambda: query.wait(0.002)) is None
    query.lie = lambda seconds, first: 0.01 * seconds
    assert timer.measure(lambda: query.wait(0.006)) is None
    assert timer.doubt is not None and "timer says" in timer.doubt
    query.lie = lambda seconds, first: seconds
    assert timer.measure(lambda: query.wait(0.002)) is None


def test_work_of_any_length_is_repeated_long_enough(own_device: Device, asked) -> None:
    query = asked(lambda seconds, first: seconds)
    assert Timer(own_device).prove(lambda: query.wait(0.0005)) is None
    assert query.now >= 60e-3  # 20 ms, and twice as often


def test_without_the_extension_there_is_a_reason(own_device: Device) -> None:
    own_device.capabilities = dataclasses.replace(own_device.capabilities, timer_query=False)
    timer = Timer(own_device)
    assert timer.doubt == timer.prove(lambda: None) == "no timer query"
    assert timer.measure(lambda: None) is None


def test_the_real_query_gives_time_or_a_reason(
    device: Device, scale: Callable[[Device], Program]
) -> None:
    program = scale(device)
    timer = Timer(device)
    reason = timer.prove(lambda: program.dispatch((1, 1, 1)))
    sample = timer.measure(lambda: program.dispatch((1, 1, 1)))
    if device.capabilities.renderer.startswith("llvmpipe"):  # zink over it counts right
        assert reason is not None  # it reads next to nothing for compute
    assert sample is None or (reason is None and sample.gpu <= sample.wall)
    device.check_always("the query")
