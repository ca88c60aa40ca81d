"""Copies in the host's memory: large ones in parts, by several threads, as one fills no bus."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.layout import Layout
from glnn.process import HELPERS, processors
from glnn.types import TensorType

Array = NDArray[Any]
Part = tuple[int, int]
"""The first number of a part, and the one behind the last."""
LEAST = 1 << 20  # bytes of a part
MOST = 8  # parts
ALIGNMENT = 256  # bytes: whole lines of caches


def parts(count: int, size: int = 4) -> list[Part]:
    """The parts in which so many numbers of `size` bytes are copied."""
    most, unit = min(size * count // LEAST, MOST), ALIGNMENT // size
    if most < 2:
        return [(0, count)]
    cuts = [count * i // most // unit * unit for i in range(most)]
    return list(pairwise([*cuts, count]))


def parts_in_words(count: int, size: int) -> list[Part]:
    """The words of 32 bits, of memory, that each of these parts takes."""
    return [(a * size // 4, -(-b * size // 4)) for a, b in parts(count, size)]


def copy(target: Array, source: Array) -> None:
    """Have `target` hold the numbers of `source`, of the same shape, rounded to its type."""
    if target.nbytes < LEAST or not copied_in_parts(target, source):
        np.copyto(target, source, casting="unsafe")


def copied_in_parts(
    target: Array,
    source: Array,
    ready: Callable[[int], object] = lambda part: None,
    done: Callable[[int], object] = lambda part: None,
) -> bool:
    """Copy `source` to `target`, arrays of the same shape; whether their types and strides let it.

    ready: called in this thread before a part is read, with its number in `parts`; done: after it
    was written.
    """
    flat = target.flags.c_contiguous and source.flags.c_contiguous
    if not flat or target.dtype != source.dtype or target.itemsize > 4:
        return False
    COPIERS.copy(target.reshape(-1), source.reshape(-1), ready, done)
    return True


def _most_threads() -> int:
    """Return the largest number of copying threads: half of the processors of this process."""
    return min(processors() // 2, MOST)


class Job:
    """A copy of which threads do parts. Whoever ends it knows that no part is written after."""

    def __init__(self) -> None:
        self.over: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        """The parts that threads have done, and what went wrong."""
        self._changed = threading.Condition(threading.Lock())
        self._writing, self._ended = 0, False

    def write(self, part: Array, source: Array, number: int) -> None:
        """Copy a part, unless the job has ended."""
        with self._changed:
            if self._ended:
                return
            self._writing += 1
        error: BaseException | None = None
        try:
            np.copyto(part, source)
        except BaseException as raised:  # whoever asked gets it
            error = raised
        with self._changed:
            self._writing -= 1
            self._changed.notify_all()
        self.over.put((number, error))

    def end(self) -> None:
        """Let no part begin, and wait for those that are being written."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._writing)


class Copiers:
    """Threads that copy parts of arrays. They begin when first needed, and know nothing of GL."""

    def __init__(self) -> None:
        self.most = _most_threads()
        """The most threads that copy at once, the caller included."""
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # a fork has none of its parent's

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[Job, Array, Array, int]] = SimpleQueue()
        self._threads = 0

    def copy(
        self,
        target: Array,
        source: Array,
        ready: Callable[[int], object],
        done: Callable[[int], object],
    ) -> None:
        """Copy the vector `source`, the last part of it in this thread; see `copied_in_parts`."""
        cuts = parts(len(target), target.itemsize)
        if len(cuts) == 1:
            ready(0)
            np.copyto(target, source)
            done(0)
            return
        self._more(min(len(cuts), self.most) - 1)
        job, left = Job(), 0
        try:
            for number, (first, last) in enumerate(cuts):
                ready(number)
                part, read = target[first:last], source[first:last]
                if self._threads and number < len(cuts) - 1:
                    self._tasks.put((job, part, read, number))
                    left += 1
                else:
                    np.copyto(part, read)
                    done(number)
            for _ in range(left):
                number, error = job.over.get()
                if error is not None:
                    raise error
                done(number)
        finally:
            job.end()  # also when interrupted: the memory may go away after this

    def _more(self, threads: int) -> None:
        if self._threads < threads:
            with self._lock, suppress(RuntimeError):  # there may be none to be had any more
                while self._threads < threads:
                    HELPERS.start(self._serve, "glnn copies")
                    self._threads += 1

    def _serve(self) -> None:
        while True:
            job, part, source, number = self._tasks.get()
            job.write(part, source, number)
            del job, part, source  # else they live until the next part


COPIERS = Copiers()


def packed(layout: Layout, array: NDArray[Any]) -> NDArray[np.uint32] | None:
    """The words of `array` as it lies on a device in `layout`; None where it is empty."""
    type = TensorType.of(array)
    used, words, number = layout.size(type.shape), layout.words(type), layout.number(type.dtype)
    if not used:
        return None
    flat = np.ascontiguousarray(layout.pack(array), number)
    if flat.nbytes == 4 * words:
        return flat.reshape(-1).view(np.uint32)
    found = np.zeros(words, np.uint32)
    found.view(number)[:used] = flat
    return found
