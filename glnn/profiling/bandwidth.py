"""The bandwidth of a backend's memory, by a copy."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from glnn.backends import Backend
from glnn.core.layout.layout import DENSE
from glnn.profiling.timing import time_work
from glnn.runtime.store import Store

WORDS = 1 << 25  # beyond the caches of any device
LEAST_WORDS = 1 << 20
SHARE = 8  # of the memory that is free: both arrays take a quarter of it
REPEAT = 5


def copy_bandwidth(backend: Backend) -> float:
    """Return the bytes a second that a copy of a large array reads and writes.

    Raises NoRoomError where there is no memory for two arrays of 4 MiB.
    """
    free = backend.perform(backend.available)
    words = WORDS if free is None else max(min(WORDS, free // 4 // SHARE), LEAST_WORDS)
    return 8 * words / (_host(words) if backend.device is None else _device(backend, words))


def _host(words: int) -> float:
    """Return the seconds of a copy by NumPy."""
    source, target, times = np.ones(words, np.float32), np.zeros(words, np.float32), []
    for _ in range(REPEAT):
        start = perf_counter()
        np.copyto(target, source)
        times.append(perf_counter() - start)
    return median(times)


def _device(backend: Backend, words: int) -> float:
    """Return the seconds of a copy by the device."""

    def arrays() -> list[Store]:
        return [backend.allocate((words,), DENSE, backend.memory(words)) for _ in range(2)]

    source, target = backend.perform(arrays)
    return time_work(backend, lambda: backend.copy(source, target), REPEAT).seconds
