"""Clocks of work on a device: its timestamps, its timer, or the host's clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, ClassVar

from numpy.typing import NDArray

from glnn.backends import Launch
from glnn.compiler.plan import Plan
from glnn.core.trace_spans import Span
from glnn.errors import DeviceError
from glnn.gl import Device, Timer, Timestamps
from glnn.gl.timer import TRIES, TimerSample, exceeds_wall_clock
from glnn.profiling.profile import profile

DISTURBED = "the timestamps were disturbed or above the clock on the wall"
Works = Sequence[tuple[str, Launch]]
"""Pieces of work by name."""


@dataclass(frozen=True)
class WorkTimes:
    """The times of a few pieces of work, in seconds of `time.perf_counter`."""

    submit_spans: tuple[Span, ...]
    """The times at which the host submitted each piece."""
    wait_spans: tuple[Span, ...]
    """The times at which the host waited."""
    device_spans: tuple[Span, ...]
    """The times at which the device worked on each piece."""


class Clock(ABC):
    """Measures when the device works. Only inside `Backend.perform`."""

    about: ClassVar[str]
    """The clock's name, for people."""
    on_device: ClassVar[bool] = True
    """True for a clock of the device."""

    @abstractmethod
    def perform(self, works: Works) -> WorkTimes | None:
        """Run `works` in their order; return None where the clock's times are contradictory."""


@dataclass(frozen=True)
class HostClock(Clock):
    """A clock that waits for every piece before the next one."""

    about: ClassVar[str] = "the host's clock, each step waited for before the next"
    on_device: ClassVar[bool] = False

    finish: Callable[[], None]

    def perform(self, works: Works) -> WorkTimes:
        submits, waits, steps = [], [], []
        for name, work in works:
            start = perf_counter()
            work()
            submitted = perf_counter()
            self.finish()
            end = perf_counter()
            submits.append(Span(name, start, submitted))
            waits.append(Span("wait", submitted, end))
            steps.append(Span(name, start, end))
        return WorkTimes(tuple(submits), tuple(waits), tuple(steps))


@dataclass(frozen=True)
class StampClock(Clock):
    """A clock of the device's timestamps before and after every piece."""

    about: ClassVar[str] = "the device's timestamps"

    device: Device
    timer: Timer

    def perform(self, works: Works) -> WorkTimes | None:
        stamps, count = Timestamps(self.device, 2 * len(works)), 2 * len(works)
        try:
            self.device.finish()
            self.timer.disturbed()  # a call resets it
            submits = []
            for i, (name, work) in enumerate(works):
                start = perf_counter()
                stamps.mark(2 * i)
                work()
                stamps.mark(2 * i + 1)
                submits.append(Span(name, start, perf_counter()))
            self.device.finish()
            end = perf_counter()
            since_first = stamps.since_first()
            first = (end + perf_counter()) / 2 - since_first
            points = stamps.read(count)
        finally:
            stamps.release()
        start, last = submits[0].start, points[-1]
        backwards = any(a > b for a, b in pairwise(points))
        if (
            backwards
            or self.timer.disturbed()
            or exceeds_wall_clock(TimerSample(end - start, last))
        ):
            return None
        scale = min(1.0, (end - start) / last) if last else 1.0
        first = max(start, min(first, end - scale * last))  # two clocks differ a little
        times = [first + scale * point for point in points]
        steps = (
            Span(span.name, times[2 * i], min(times[2 * i + 1], end))
            for i, span in enumerate(submits)
        )
        return WorkTimes(tuple(submits), (Span("wait", submits[-1].end, end),), tuple(steps))

    def doubt(self, works: Works) -> str | None:
        """Time each of `works` by itself; return why the timestamps are unreliable, None where they
        are reliable.
        """
        for work in works:
            for _ in range(TRIES):  # something else may have kept the machine busy
                reason = self._doubt_of(work)
                if reason is None:
                    break
            else:
                return f"step {work[0]}: {reason}"
        return None

    def _doubt_of(self, work: tuple[str, Launch]) -> str | None:
        sample = self.perform([work])
        self.device.check_always("timestamps")
        if sample is None:
            return DISTURBED
        wall = sample.wait_spans[-1].end - sample.submit_spans[0].start
        return self.timer.contradiction(TimerSample(wall, sample.device_spans[0].seconds))


@dataclass(frozen=True)
class TimerClock(Clock):
    """A clock of the device's timer, which measures durations: steps are placed end to end."""

    about: ClassVar[str] = (
        "the device's timer, medians of other runs: steps are placed one after the other, from "
        "where the host asks for the first"
    )

    finish: Callable[[], None]
    total: float
    """Seconds of all steps together."""
    steps: Sequence[float]
    """Seconds of each step."""

    def perform(self, works: Works) -> WorkTimes:
        submits = []
        for name, work in works:
            start = perf_counter()
            work()
            submits.append(Span(name, start, perf_counter()))
        self.finish()
        start, end = submits[0].start, perf_counter()
        durations = self.steps if len(works) == len(self.steps) else [self.total]
        scale = min(1.0, (end - start) / max(sum(durations), 1e-12))
        steps, time = [], start
        for span, seconds in zip(submits, durations, strict=True):
            steps.append(Span(span.name, time, min(time + scale * seconds, end)))
            time = steps[-1].end
        return WorkTimes(tuple(submits), (Span("wait", submits[-1].end, end),), tuple(steps))


def works_of(plan: Plan) -> Works:
    """Return the launch of each step of `plan`, by the step's name."""
    return [(s.name, launch) for s, launch in zip(plan.steps, plan.launches, strict=True)]


def clock_for(plan: Plan, feeds: Mapping[str, NDArray[Any]]) -> tuple[Clock, str | None]:
    """Return the best reliable clock for the steps of `plan`, and why no better one is reliable.

    Only inside `Backend.perform`. Runs the steps a few times.
    """
    host, device = HostClock(plan.backend.finish), plan.backend.device
    if device is None:
        return host, None
    if not device.capabilities.timer_query:
        return host, "no timer query"
    stamped = StampClock(device, Timer(device))
    works = works_of(plan)
    if not works:
        return host, None
    plan.upload(feeds)
    host.perform(works)  # the first run takes longer
    plan.upload(feeds)
    try:
        doubt = stamped.doubt(works)
    except DeviceError as error:
        if device.lost is not None:
            raise
        return _by_timer(plan, feeds, host, str(error))
    return (stamped, None) if doubt is None else (host, doubt)


def _by_timer(
    plan: Plan, feeds: Mapping[str, NDArray[Any]], host: HostClock, why: str
) -> tuple[Clock, str | None]:
    """Return a clock by the timer, as there are no timestamps. why: the reason for that."""
    profiled = profile(plan, feeds, repeat=3)
    seconds = [1e-3 * step.kernel_ms for step in profiled.layers if step.kernel_ms is not None]
    if profiled.kernel_ms is None or len(seconds) < len(profiled.layers):
        return host, f"{why}; {profiled.timer}"
    return TimerClock(plan.backend.finish, 1e-3 * profiled.kernel_ms, seconds), why
