"""Timers: believed only where they agree with the wall clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from glnn.device import Device, Program, Timer

if TYPE_CHECKING:
    from typing_extensions import Self


class FakeQuery:
    """A timer query that reads a share of the time that passed inside it."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.elapsed = 0

    def __enter__(self) -> Self:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.elapsed = int(1e9 * self.share * (time.perf_counter() - self.start))


def work() -> None:
    time.sleep(0.002)


@pytest.fixture
def own_device() -> Iterator[Device]:
    with Device() as device:
        device.capabilities = dataclasses.replace(device.capabilities, timer_query=True)
        yield device


@pytest.mark.parametrize("share, believed", [(0.9, True), (0.75, True), (0.5, False), (1.3, False)])
def test_a_timer_is_believed_within_bounds(
    own_device: Device, share: float, believed: bool
) -> None:
    own_device.timer_query = FakeQuery(share)  # type: ignore[assignment]
    timer = Timer(own_device)
    assert timer.measure(work) is None  # not proved yet
    reason = timer.prove(work)
    if believed:
        assert reason is None
        seconds = timer.measure(work)
        assert seconds is not None and 0.5 * share * 0.002 < seconds < 0.02
    else:
        assert reason is not None and "timer says" in reason
        assert timer.measure(work) is None


def test_a_measurement_above_the_wall_clock_is_dropped(own_device: Device) -> None:
    query = FakeQuery(0.9)
    own_device.timer_query = query  # type: ignore[assignment]
    timer = Timer(own_device)
    assert timer.prove(work) is None
    query.share = 2.0
    assert timer.measure(work) is None


def test_a_long_measurement_below_the_wall_clock_ends_the_belief(own_device: Device) -> None:
    query = FakeQuery(0.9)
    own_device.timer_query = query  # type: ignore[assignment]
    timer = Timer(own_device)
    assert timer.prove(work) is None
    query.share = 0.01
    assert timer.measure(lambda: time.sleep(0.006)) is None
    assert timer.doubt is not None and "timer says" in timer.doubt
    query.share = 0.9
    assert timer.measure(work) is None


def test_work_of_any_length_is_repeated_long_enough(own_device: Device) -> None:
    own_device.timer_query = FakeQuery(0.9)  # type: ignore[assignment]
    runs: list[float] = []

    def short() -> None:
        start = time.perf_counter()
        time.sleep(0.0005)
        runs.append(time.perf_counter() - start)

    assert Timer(own_device).prove(short) is None
    assert sum(runs) >= 5e-3 and len(runs) > 2


def test_without_the_extension_there_is_a_reason(own_device: Device) -> None:
    own_device.capabilities = dataclasses.replace(own_device.capabilities, timer_query=False)
    timer = Timer(own_device)
    assert timer.prove(work) == "no timer query"
    assert timer.measure(work) is None


def test_the_real_query_gives_time_or_a_reason(
    device: Device, scale: Callable[[Device], Program]
) -> None:
    program = scale(device)
    timer = Timer(device)
    reason = timer.prove(lambda: program.dispatch((1, 1, 1)))
    seconds = timer.measure(lambda: program.dispatch((1, 1, 1)))
    if device.capabilities.renderer.startswith("llvmpipe"):  # zink over it counts right
        assert reason is not None  # it reads next to nothing for compute
    assert (seconds is None) or reason is None
    device.check_always("the query")
