"""GPU time by timer queries, believed only after they have proved themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from time import perf_counter

from glnn.device.device import Device

LEAST_WALL = 5e-3  # seconds: below, finishing alone weighs too much
MOST_WALL = 4.0  # seconds: queries count 32-bit nanoseconds
LEAST_SHARE, MOST_SHARE = 0.7, 1.1
GPU_DISJOINT = 0x8FBB


class Timer:
    """Measures the GPU time of work, where the driver's timer can be believed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._doubt: str | None = "not proved yet"

    @property
    def doubt(self) -> str | None:
        """Why the timer is not believed, in a few words; None while it is."""
        return self._doubt

    def prove(self, work: Callable[[], None]) -> str | None:
        """None if the timer is to be believed, else why not, in a few words.

        Repeats `work` (GL commands, nothing that waits) for at least 5 ms and compares the
        timer with the wall clock.
        """
        self._doubt = None
        if not self._device.capabilities.timer_query:
            self._doubt = "no timer query"
            return self._doubt
        return self._device.perform(partial(self._prove, work))

    def _prove(self, work: Callable[[], None]) -> str | None:
        self._run(work, 1)  # compiles, allocates
        repeats = 1
        while True:
            gpu, wall, disjoint = self._run(work, repeats)
            if wall >= LEAST_WALL or repeats >= 2**20:
                break
            repeats *= 2
        if wall > MOST_WALL:
            self._doubt = "longer than the timer can count"
        elif disjoint:
            self._doubt = "timer disturbed"
        else:
            self._compare(gpu, wall)
        return self._doubt

    def _compare(self, gpu: float, wall: float) -> None:
        if not LEAST_SHARE <= gpu / wall <= MOST_SHARE:
            self._doubt = f"timer says {1e3 * gpu:.3g} ms of {1e3 * wall:.3g} ms"

    def measure(self, work: Callable[[], None]) -> float | None:
        """Seconds of GPU time that `work` takes, None where the timer is not believed.

        Work long enough to be compared with the wall clock puts the timer to the proof again.
        """
        if self._doubt is not None:
            return None
        gpu, wall, disjoint = self._device.perform(partial(self._run, work, 1))
        if disjoint or wall > MOST_WALL or gpu > MOST_SHARE * wall:
            return None
        if wall >= LEAST_WALL:
            self._compare(gpu, wall)
        return gpu if self._doubt is None else None

    def _run(self, work: Callable[[], None], repeats: int) -> tuple[float, float, bool]:
        """Seconds by the timer and by the wall clock, and whether the timer was disturbed."""
        device = self._device
        query = device.timer_query
        device.finish()
        self._disjoint()  # asking resets it
        start = perf_counter()
        with query:
            for _ in range(repeats):
                work()
        device.finish()
        wall = perf_counter() - start
        gpu = 1e-9 * query.elapsed
        return gpu, wall, self._disjoint()

    def _disjoint(self) -> bool:
        if self._device.capabilities.api != "es":
            return False
        value = ctypes.c_int()
        ask = self._device.load("glGetIntegerv", None, ctypes.c_uint, ctypes.c_void_p)
        ask(GPU_DISJOINT, ctypes.byref(value))
        return bool(value.value)
