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
    """The times at which the host asked for each piece."""
    wait_spans: tuple[Span, ...]
    """The times at which the host waited."""
    device_spans: tuple[Span, ...]
    """The times at which the device worked on each piece."""


class Clock(ABC):
    """Measures when work is done. To be used inside `Backend.perform`."""

    about: ClassVar[str]
    """The clock's name, for people."""
    on_device: ClassVar[bool] = True
    """Whether the clock is the device's."""

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
        asked, waited, done = [], [], []
        for name, work in works:
            start = perf_counter()
            work()
            issued = perf_counter()
            self.finish()
            end = perf_counter()
            asked.append(Span(name, start, issued))
            waited.append(Span("wait", issued, end))
            done.append(Span(name, start, end))
        return WorkTimes(tuple(asked), tuple(waited), tuple(done))


@dataclass(frozen=True)
class StampClock(Clock):
    """The device notes its time before and after every piece."""

    about: ClassVar[str] = "the device's timestamps"

    device: Device
    timer: Timer

    def perform(self, works: Works) -> WorkTimes | None:
        stamps, count = Timestamps(self.device, 2 * len(works)), 2 * len(works)
        try:
            self.device.finish()
            self.timer.disturbed()  # asking resets it
            asked = []
            for i, (name, work) in enumerate(works):
                start = perf_counter()
                stamps.mark(2 * i)
                work()
                stamps.mark(2 * i + 1)
                asked.append(Span(name, start, perf_counter()))
            self.device.finish()
            end = perf_counter()
            ago = stamps.since_first()
            first = (end + perf_counter()) / 2 - ago
            points = stamps.read(count)
        finally:
            stamps.release()
        start, last = asked[0].start, points[-1]
        backwards = any(a > b for a, b in pairwise(points))
        if (
            backwards
            or self.timer.disturbed()
            or exceeds_wall_clock(TimerSample(end - start, last))
        ):
            return None
        scale = min(1.0, (end - start) / last) if last else 1.0
        first = max(start, min(first, end - scale * last))  # two clocks differ a little
        at = [first + scale * point for point in points]
        done = (Span(span.name, at[2 * i], min(at[2 * i + 1], end)) for i, span in enumerate(asked))
        return WorkTimes(tuple(asked), (Span("wait", asked[-1].end, end),), tuple(done))

    def doubt(self, works: Works) -> str | None:
        """Return why the timestamps of `works` are unreliable, each waited for; None where they are
        reliable.
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
    """The device's timer knows how long each piece takes, not when it begins."""

    about: ClassVar[str] = (
        "the device's timer, medians of other runs: steps are placed one after the other, from "
        "where the host asks for the first"
    )

    finish: Callable[[], None]
    whole: float
    """Seconds of all steps."""
    steps: Sequence[float]
    """Seconds of each."""

    def perform(self, works: Works) -> WorkTimes:
        asked = []
        for name, work in works:
            start = perf_counter()
            work()
            asked.append(Span(name, start, perf_counter()))
        self.finish()
        start, end = asked[0].start, perf_counter()
        seconds = self.steps if len(works) == len(self.steps) else [self.whole]
        scale = min(1.0, (end - start) / max(sum(seconds), 1e-12))
        done, at = [], start
        for span, one in zip(asked, seconds, strict=True):
            done.append(Span(span.name, at, min(at + scale * one, end)))
            at = done[-1].end
        return WorkTimes(tuple(asked), (Span("wait", asked[-1].end, end),), tuple(done))


def works_of(plan: Plan) -> Works:
    """Return the steps of `plan`, each by itself."""
    return [(s.name, launch) for s, launch in zip(plan.steps, plan.launches, strict=True)]


def clock_for(plan: Plan, feeds: Mapping[str, NDArray[Any]]) -> tuple[Clock, str | None]:
    """Return the best reliable clock of the steps of `plan`, and why no better one is.

    To be called inside `Backend.perform`; runs the steps a few times.
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
    host.perform(works)  # what is done for the first time takes longer
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
    """Return the timer's clock where there are no timestamps, as `why` says."""
    profiled = profile(plan, feeds, repeat=3)
    seconds = [1e-3 * step.kernel_ms for step in profiled.layers if step.kernel_ms is not None]
    if profiled.kernel_ms is None or len(seconds) < len(profiled.layers):
        return host, f"{why}; {profiled.timer}"
    return TimerClock(plan.backend.finish, 1e-3 * profiled.kernel_ms, seconds), why
