"""Transfers between the memory of host and device: threads, mapped and staging buffers."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_ssize_t, c_uint, c_void_p
from itertools import pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.layout import Layout
from glnn.core.process import HELPERS, processors
from glnn.core.types import TensorType
from glnn.errors import NoRoomError
from glnn.gl.device import Device, Fence

if TYPE_CHECKING:
    import moderngl


Array = NDArray[Any]
Part = tuple[int, int]
"""The first number of a part, and the one behind the last."""
MIN_PART = 1 << 20  # bytes of a part
MAX_PARTS = 8  # parts
ALIGNMENT = 256  # bytes: whole lines of caches


def parts(count: int, size: int = 4) -> list[Part]:
    """The parts in which so many numbers or rows of `size` bytes are copied."""
    most, unit = min(size * count // MIN_PART, MAX_PARTS, count), max(ALIGNMENT // size, 1)
    if most < 2:
        return [(0, count)]
    cuts = [count * i // most // unit * unit for i in range(most)]
    return list(pairwise([*cuts, count]))


def parts_in_words(count: int, size: int) -> list[Part]:
    """The words of 32 bits, of memory, that each of these parts takes."""
    return [(a * size // 4, -(-b * size // 4)) for a, b in parts(count, size)]


def threaded_copy(target: Array, source: Array) -> None:
    """Have `target` hold the numbers of `source`, of the same shape, rounded to its type."""
    if target.nbytes < MIN_PART or not copy_in_parts(target, source):
        np.copyto(target, source, casting="unsafe")


def copy_in_parts(
    target: Array,
    source: Array,
    ready: Callable[[int], object] = lambda part: None,
    done: Callable[[int], object] = lambda part: None,
    rows: Sequence[Part] | None = None,
) -> bool:
    """Copy `source` to `target`, arrays of the same shape; whether their types and strides let it.

    ready: called in this thread before a part is read, with its number; done: after it was written.
    rows: the parts, along the first axis, of arrays whose rows may be padded; without it those of
    `parts`.
    """
    if target.dtype != source.dtype or target.itemsize > 4:
        return False
    if rows is None:
        if not (target.flags.c_contiguous and source.flags.c_contiguous):
            return False
        target, source = target.reshape(-1), source.reshape(-1)
        rows = parts(len(target), target.itemsize)
    COPY_POOL.copy(target, source, rows, ready, done)
    return True


def _most_threads() -> int:
    """Return the largest number of copying threads: half of the processors of this process."""
    return min(processors() // 2, MAX_PARTS)


class CopyJob:
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


class CopyPool:
    """Threads that copy parts of arrays. They begin when first needed, and know nothing of GL."""

    def __init__(self) -> None:
        self.most = _most_threads()
        """The most threads that copy at once, the caller included."""
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # a fork has none of its parent's

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[CopyJob, Array, Array, int]] = SimpleQueue()
        self._threads = 0

    def copy(
        self,
        target: Array,
        source: Array,
        cuts: Sequence[Part],
        ready: Callable[[int], object],
        done: Callable[[int], object],
    ) -> None:
        """Copy `source` in the parts `cuts`, the last one in this thread; see `copy_in_parts`."""
        if len(cuts) == 1:
            ready(0)
            np.copyto(target, source)
            done(0)
            return
        self._start_threads(min(len(cuts), self.most) - 1)
        job, left = CopyJob(), 0
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

    def _start_threads(self, threads: int) -> None:
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


COPY_POOL = CopyPool()


def pack_words(layout: Layout, array: NDArray[Any]) -> NDArray[np.uint32] | None:
    """The words of `array` as it lies on a device in `layout`; None where it is empty."""
    type = TensorType.from_array(array)
    used, words, number = layout.size(type.shape), layout.words(type), layout.number(type.dtype)
    if not used:
        return None
    flat = np.ascontiguousarray(layout.pack(array), number)
    if flat.nbytes == 4 * words:
        return flat.reshape(-1).view(np.uint32)
    result = np.zeros(words, np.uint32)
    result.view(number)[:used] = flat
    return result


COPY_WRITE_BUFFER = 0x8F37
MAP_READ, MAP_WRITE, MAP_PERSISTENT, MAP_COHERENT, DYNAMIC_STORAGE = 0x1, 0x2, 0x40, 0x80, 0x100


def map_buffer(device: Device, nbytes: int) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
    """A buffer of zeros that stays mapped, coherently, and its words.

    They go away with the buffer. Raises NoRoomError where there is no such memory.
    """
    device.collect_garbage()  # which may be what there is room for
    buffer = device.context.buffer(reserve=nbytes)
    access = MAP_READ | MAP_WRITE | MAP_PERSISTENT | MAP_COHERENT
    bind = device.load("glBindBuffer", None, c_uint, c_uint)
    store = device.load("glBufferStorageEXT", None, c_uint, c_ssize_t, c_void_p, c_uint)
    see = device.load("glMapBufferRange", c_void_p, c_uint, c_ssize_t, c_ssize_t, c_uint)
    bind(COPY_WRITE_BUFFER, buffer.glo)
    store(COPY_WRITE_BUFFER, nbytes, None, access | DYNAMIC_STORAGE)
    address: int | None = see(COPY_WRITE_BUFFER, 0, nbytes, access)
    bind(COPY_WRITE_BUFFER, 0)
    device.check_always(f"map {nbytes} bytes")
    if address is None:
        raise NoRoomError(f"map {nbytes} bytes: no memory on {device.capabilities.renderer}")
    words: Any = (ctypes.c_uint32 * (nbytes // 4)).from_address(address)
    seen = np.frombuffer(words, np.uint32)
    seen[:] = 0
    return buffer, seen


MIN_STAGED = 1 << 20  # bytes: below, GL's own way is as fast
STAGING_WORDS = 1 << 22  # of each of the two buffers


class StagingBuffers:
    """Two buffers in the host's memory, which the device copies from in turn."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._halves = [map_buffer(device, 4 * STAGING_WORDS) for _ in range(2)]
        self._fences: list[Fence | None] = [None, None]
        self._turn = 0

    @classmethod
    def for_device(cls, device: Device) -> StagingBuffers:
        """Return the staging memory of `device`, created on first use."""
        if device.staging is None:
            device.staging = cls(device)
        result: StagingBuffers = device.staging
        return result

    def fill(self, copy: moderngl.Buffer, words: NDArray[np.uint32]) -> None:
        """Have `copy` hold `words` from its beginning on."""
        for first in range(0, len(words), STAGING_WORDS):
            part = words[first : first + STAGING_WORDS]
            buffer, seen = self._next()
            threaded_copy(seen[: len(part)], part)
            self._move(copy, buffer, first, len(part))
            self._fences[self._turn] = self._device.fence()
            self._device.flush()  # while the host fills the other

    def clear(self, copy: moderngl.Buffer, start: int, end: int) -> None:
        """Have `copy` hold zeros in the words from `start` up to `end`."""
        buffer, seen = self._next()
        seen[: end - start] = 0
        for first in range(start, end, STAGING_WORDS):
            self._move(copy, buffer, first, min(end - first, STAGING_WORDS))
        self._fences[self._turn] = self._device.fence()

    def _next(self) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
        """The other buffer, once the device reads it no more."""
        self._turn = 1 - self._turn
        fence, self._fences[self._turn] = self._fences[self._turn], None
        if fence is not None:
            fence.wait()
        return self._halves[self._turn]

    def _move(
        self, target: moderngl.Buffer, source: moderngl.Buffer, first: int, count: int
    ) -> None:
        self._device.copy_buffer(target, source, 4 * count, write_offset=4 * first)


def allocate_buffer(
    device: Device, words: int, content: NDArray[np.uint32] | None = None
) -> moderngl.Buffer:
    """A new buffer of `words`, with `content` at its beginning, and zeros behind it.

    Only where the device may be used. Raises DeviceError where memory runs out.
    """
    device.collect_garbage()  # which may be what there is room for
    offers, nbytes = device.capabilities, 4 * words
    # Content comes with the allocation, not by Buffer.clear(): after that NVIDIA's driver (580)
    # shows shaders the last write but one.
    if nbytes < MIN_STAGED or not (offers.buffer_storage and offers.dedicated_memory):
        whole = np.zeros(words, np.uint32) if content is None or len(content) < words else content
        if content is not None and whole is not content:
            whole[: len(content)] = content
        made = device.context.buffer(whole)
        device.check_always(f"allocate {nbytes} bytes")
        return made
    made = device.context.buffer(reserve=nbytes)
    device.check_always(f"allocate {nbytes} bytes")
    staging, filled = StagingBuffers.for_device(device), 0 if content is None else len(content)
    if filled < words:
        staging.clear(made, filled, words)
    if content is not None:
        staging.fill(made, content)
    return made
