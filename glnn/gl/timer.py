"""GPU time: timer queries, believed only after they proved themselves, and timestamps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_int64, c_uint, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.trace_spans import duration
from glnn.errors import DeviceError
from glnn.gl.device import Device

LEAST_WALL = 20e-3  # seconds: in less, the delay until a driver submits commands weighs too much
MOST_WALL = 4.0  # seconds: queries count 32-bit nanoseconds
SHARE = 0.1  # of the wall time that the timer may miss
AHEAD = 0.01  # of the wall time by which two clocks may differ
ASKING = 16  # times the submission of an empty query: the longest submission of a piece of work
TRIES = 3  # as other processes may disturb a measurement
GPU_DISJOINT = 0x8FBB


@dataclass(frozen=True)
class TimerSample:
    """Seconds of the same work, from its submission to its end, by the wall clock and by the timer.

    runs: the timer's seconds of each undisturbed run, where the sample is the medians of several.
    """

    wall: float
    gpu: float
    runs: tuple[float, ...] = field(default=(), compare=False)


class Timer:
    """Measures the GPU time of work, where the driver's timer is reliable.

    A timer that was wrong once is not used any more, whatever the work: drivers that count all but
    the first of several commands, or nothing of some, are right now and then.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._proved = False
        self._doubt = None if device.capabilities.timer_query else "no timer query"

    @property
    def doubt(self) -> str | None:
        """Why the timer is not reliable, in a few words; None while it is."""
        return "not proved yet" if self._doubt is None and not self._proved else self._doubt

    @cached_property
    def overhead(self) -> float:
        """Seconds by which a run's wall time may exceed its GPU time, however short it is.

        It is the time to submit work and to learn of its end, measured by empty queries.
        """
        waits, submits = [], []
        for _ in range(9):
            sample, _, submit = self._run(lambda: None, 1)
            waits.append(sample.wall - sample.gpu)
            submits.append(submit)
        return _median(waits) + ASKING * _median(submits)

    def prove(self, work: Callable[[], None]) -> str | None:
        """Return why the timer cannot be trusted for repeated `work`, in a few words; None if it
        can.

        Repeats `work` (GL commands, nothing that waits) for at least 20 ms, then twice as often:
        the timer must agree with the wall clock on both times, and on their difference.
        """
        if self._doubt is not None:
            return self._doubt
        return self._device.perform(partial(self._prove, work))

    def _prove(self, work: Callable[[], None]) -> str | None:
        self._run(work, 1)  # compiles, allocates
        for _ in range(TRIES):
            result = self._contradiction(work)
            if result is None:
                self._proved = True
                return None
        self._doubt = result
        return result

    def measure(self, work: Callable[[], None], repeat: int = 1) -> TimerSample | None:
        """Return the median seconds of a run of `work`; None where the timer is not reliable.

        Both times are of the same `repeat` runs, and the timer's is the shorter one in each. They
        must not differ by more than submission and waiting take, which proves the timer at this
        length of work. Call `prove` for `work` first.
        """
        if self.doubt is not None:
            return None
        return self._device.perform(partial(self._measure, work, repeat))

    def _measure(self, work: Callable[[], None], repeat: int) -> TimerSample | None:
        samples = []
        for _ in range(repeat):
            sample, disturbed, _ = self._run(work, 1)
            if not disturbed and sample.wall <= MOST_WALL and not exceeds_wall_clock(sample):
                samples.append(TimerSample(sample.wall, min(sample.gpu, sample.wall)))
        if len(samples) <= repeat // 2:
            self._doubt = "the timer was disturbed or above the wall clock in most runs"
            return None
        runs = tuple(s.gpu for s in samples)
        sample = TimerSample(_median([s.wall for s in samples]), _median(runs), runs)
        self._doubt = self._missing(sample)
        return sample if self._doubt is None else None

    def contradiction(self, sample: TimerSample) -> str | None:
        """Return why the two times in `sample` cannot both be right; None where they can."""
        if exceeds_wall_clock(sample):
            return f"{_says(sample)}; it cannot be more"
        return self._missing(sample)

    def _contradiction(self, work: Callable[[], None]) -> str | None:
        """Return how timer and wall clock disagree on repeated `work`; None where they agree."""
        repeats = 1
        while True:
            once, disturbed, _ = self._run(work, repeats)
            if once.wall >= LEAST_WALL or repeats >= 2**20:
                break
            repeats *= 2
        if once.wall > MOST_WALL:
            return f"it takes {duration(once.wall)}, the timer counts to {duration(MOST_WALL)}"
        if 2 * once.wall > MOST_WALL:
            twice, twice_disturbed = TimerSample(2 * once.wall, 2 * once.gpu), False
        else:
            twice, twice_disturbed, _ = self._run(work, 2 * repeats)
        if disturbed or twice_disturbed:
            return "the timer was disturbed, as by a GPU that changes its speed"
        for sample in (once, twice):
            if reason := self.contradiction(sample):
                return reason
        difference = TimerSample(twice.wall - once.wall, twice.gpu - once.gpu)
        if abs(difference.wall - difference.gpu) > SHARE * twice.wall:
            most = f"they may differ by {duration(SHARE * twice.wall)}"
            return f"of twice the work, {_says(difference)} more; {most}"
        return None

    def _missing(self, sample: TimerSample) -> str | None:
        """Return a message where the timer misses more of the wall time than the tolerance, else
        None.
        """
        most = self.overhead + SHARE * sample.wall
        if sample.wall - sample.gpu <= most:
            return None
        return f"{_says(sample)}; at most {duration(most)} may be missing"

    def _run(self, work: Callable[[], None], repeats: int) -> tuple[TimerSample, bool, float]:
        """Time `repeats` calls of `work`; return the sample, True if the timer was disturbed, and
        the seconds that the submission took.
        """
        device = self._device
        query = device.timer_query
        device.finish()
        self.disturbed()  # a call resets it
        start = perf_counter()
        with query:
            for _ in range(repeats):
                work()
        submit = perf_counter() - start
        device.finish()
        wall = perf_counter() - start
        return TimerSample(wall, 1e-9 * query.elapsed), self.disturbed(), submit

    def disturbed(self) -> bool:
        """Return True where the driver reports that timings since the last call are invalid."""
        if self._device.capabilities.api != "es":
            return False
        value = ctypes.c_int()
        ask = self._device.load("glGetIntegerv", None, ctypes.c_uint, ctypes.c_void_p)
        ask(GPU_DISJOINT, ctypes.byref(value))
        return bool(value.value)


def exceeds_wall_clock(sample: TimerSample) -> bool:
    """Return True where the GPU timer exceeds the wall clock by more than its tolerance."""
    return sample.gpu > (1 + AHEAD) * sample.wall


def _says(sample: TimerSample) -> str:
    timer, clock = (duration(seconds) for seconds in (sample.gpu, sample.wall))
    return f"the timer says {timer} where the clock on the wall says {clock}"


def _median(seconds: Sequence[float]) -> float:
    return float(np.median(seconds))  # `statistics` imports fractions and decimals: slow starts


TIMESTAMP, QUERY_COUNTER_BITS, QUERY_RESULT = 0x8E28, 0x8864, 0x8866


class Timestamps:
    """The device's time at `count` points among its commands, for use inside `Device.perform`.

    A point is passed once all commands before it are done (glQueryCounter, of
    EXT_disjoint_timer_query and ARB_timer_query). Call `release` at the end. Raises DeviceError
    where the driver has no timestamps.
    """

    def __init__(self, device: Device, count: int) -> None:
        if not device.capabilities.timer_query:
            raise DeviceError(f"{device.capabilities.renderer} has no timer query")
        self._device, self._count = device, count
        suffix = "EXT" if device.capabilities.api == "es" else ""
        load = device.load
        bits = c_int()
        load(f"glGetQueryiv{suffix}", None, c_uint, c_uint, c_void_p)(
            TIMESTAMP, QUERY_COUNTER_BITS, byref(bits)
        )
        if not bits.value:
            raise DeviceError(f"{device.capabilities.renderer} has no timestamps")
        self._period = 1 << min(bits.value, 64)  # nanoseconds after which it counts from 0 again
        self._mark = load(f"glQueryCounter{suffix}", None, c_uint, c_uint)
        self._result = load(f"glGetQueryObjectui64v{suffix}", None, c_uint, c_uint, c_void_p)
        self._delete = load(f"glDeleteQueries{suffix}", None, c_int, c_void_p)
        # Not by the extension's name: glGetInteger64vEXT of NVIDIA's driver (580) writes nothing.
        self._now = load("glGetInteger64v", None, c_uint, c_void_p)
        self._names = (c_uint * count)()
        load(f"glGenQueries{suffix}", None, c_int, c_void_p)(count, self._names)

    def mark(self, point: int) -> None:
        """Submit the command that records the device's time at `point`."""
        self._mark(self._names[point], TIMESTAMP)

    def read(self, count: int) -> list[float]:
        """Return the seconds from the first point to each of the first `count` marked points.

        Waits for the device.
        """
        value, times = c_uint64(), []
        for name in self._names[:count]:
            self._result(name, QUERY_RESULT, byref(value))
            times.append(value.value)
        return [1e-9 * ((time - times[0]) % self._period) for time in times]

    def since_first(self) -> float:
        """Return the seconds from the first point until now, on the device's clock."""
        first, now = c_uint64(), c_int64()
        self._now(TIMESTAMP, byref(now))
        self._result(self._names[0], QUERY_RESULT, byref(first))
        return 1e-9 * ((now.value - first.value) % self._period)

    def release(self) -> None:
        """Delete the queries."""
        if not self._device.closed:
            self._delete(self._count, self._names)
