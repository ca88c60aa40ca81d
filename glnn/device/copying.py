"""Copies in the host's memory: large ones by several threads, as one alone does not fill a bus."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.process import HELPERS

Array = NDArray[Any]
LEAST = 1 << 20  # bytes that are worth a thread; two such are worth two
MOST = 8  # threads


def copy(target: Array, source: Array) -> None:
    """Have `target` hold the numbers of `source`, of the same shape, rounded to its type."""
    parts = min(target.nbytes // LEAST, most_threads())
    flat = target.flags.c_contiguous and source.flags.c_contiguous
    if parts < 2 or not flat or target.dtype != source.dtype:
        np.copyto(target, source, casting="unsafe")
    else:
        COPIERS.copy(target.reshape(-1), source.reshape(-1), parts)


def most_threads() -> int:
    """How many threads copy at the most: half of what this process has processors for."""
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have none
        processors = os.cpu_count() or 1
    return min(processors // 2, MOST)


class Copiers:
    """Threads that copy parts of arrays. They begin when first needed, and know nothing of GL."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # a fork has none of its parent's

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._parts: SimpleQueue[tuple[Array, Array, SimpleQueue[None]]] = SimpleQueue()
        self._threads = 0

    def copy(self, target: Array, source: Array, parts: int) -> None:
        """Copy the vector `source` in so many `parts`, one of them in this thread."""
        self._more(parts - 1)
        cuts = [len(target) * i // parts for i in range(parts + 1)]
        done: SimpleQueue[None] = SimpleQueue()
        left = 0
        try:
            for first, last in pairwise(cuts[1:]):
                self._parts.put((target[first:last], source[first:last], done))
                left += 1
            np.copyto(target[: cuts[1]], source[: cuts[1]])
        finally:
            for _ in range(left):  # also when interrupted: the memory may go away after this
                done.get()

    def _more(self, threads: int) -> None:
        with self._lock:
            while self._threads < threads:
                HELPERS.start(self._serve, "glnn copies")
                self._threads += 1

    def _serve(self) -> None:
        while True:
            target, source, done = self._parts.get()
            np.copyto(target, source)
            del target, source  # else they live until the next part
            done.put(None)


COPIERS = Copiers()
