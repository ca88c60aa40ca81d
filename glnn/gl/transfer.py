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
MAX_PARTS = 8
ALIGNMENT = 256  # bytes of each part but the last are a multiple of this, of whole cache lines


def parts(count: int, size: int = 4) -> list[Part]:
    """Return the parts in which `count` numbers or rows of `size` bytes each are copied."""
    number, unit = min(size * count // MIN_PART, MAX_PARTS, count), max(ALIGNMENT // size, 1)
    if number < 2:
        return [(0, count)]
    starts = [count * i // number // unit * unit for i in range(number)]
    return list(pairwise([*starts, count]))


def parts_in_words(count: int, size: int) -> list[Part]:
    """Return the range of 32-bit words of each of the `parts`."""
    return [(a * size // 4, -(-b * size // 4)) for a, b in parts(count, size)]


def threaded_copy(target: Array, source: Array) -> None:
    """Copy `source` to `target`, an array of the same shape, rounding to the type of `target`."""
    if target.nbytes < MIN_PART or not copy_in_parts(target, source):
        np.copyto(target, source, casting="unsafe")


def copy_in_parts(
    target: Array,
    source: Array,
    ready: Callable[[int], object] = lambda part: None,
    done: Callable[[int], object] = lambda part: None,
    rows: Sequence[Part] | None = None,
) -> bool:
    """Copy `source` to `target`, arrays of the same shape; return False where their types or
    strides do not allow it.

    ready: called in this thread before a part is read, with its number; done: after it was written.
    rows: the parts along the first axis, for arrays with padded rows; None for those of `parts`.
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
    """Return the most threads that copy: half of the processors of this process."""
    return min(processors() // 2, MAX_PARTS)


class CopyJob:
    """A copy whose parts are copied by threads. After `end` no part is written any more."""

    def __init__(self) -> None:
        self.finished: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        """The numbers of the parts that threads have copied, each with its error or None."""
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
        except BaseException as raised:  # the caller of `copy` raises it
            error = raised
        with self._changed:
            self._writing -= 1
            self._changed.notify_all()
        self.finished.put((number, error))

    def end(self) -> None:
        """Let no further part begin, and wait for those that are being written."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._writing)


class CopyPool:
    """Threads that copy parts of arrays, started when first needed. They do not use GL."""

    def __init__(self) -> None:
        self.most = _most_threads()
        """The most threads that copy at once, the caller included."""
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)  # a fork has no threads of its parent

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[tuple[CopyJob, Array, Array, int]] = SimpleQueue()
        self._threads = 0

    def copy(
        self,
        target: Array,
        source: Array,
        parts: Sequence[Part],
        ready: Callable[[int], object],
        done: Callable[[int], object],
    ) -> None:
        """Copy `source` in `parts`, the last one in this thread; see `copy_in_parts`."""
        if len(parts) == 1:
            ready(0)
            np.copyto(target, source)
            done(0)
            return
        self._start_threads(min(len(parts), self.most) - 1)
        job, pending = CopyJob(), 0
        try:
            for number, (first, last) in enumerate(parts):
                ready(number)
                target_part, source_part = target[first:last], source[first:last]
                if self._threads and number < len(parts) - 1:
                    self._tasks.put((job, target_part, source_part, number))
                    pending += 1
                else:
                    np.copyto(target_part, source_part)
                    done(number)
            for _ in range(pending):
                number, error = job.finished.get()
                if error is not None:
                    raise error
                done(number)
        finally:
            job.end()  # also when interrupted: the memory may go away after this

    def _start_threads(self, threads: int) -> None:
        if self._threads < threads:
            with self._lock, suppress(RuntimeError):  # the system may allow no further thread
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
    """Return the 32-bit words of `array` packed in `layout`; None where it is empty."""
    type = TensorType.from_array(array)
    count, words, dtype = layout.size(type.shape), layout.words(type), layout.number(type.dtype)
    if not count:
        return None
    flat = np.ascontiguousarray(layout.pack(array), dtype)
    if flat.nbytes == 4 * words:
        return flat.reshape(-1).view(np.uint32)
    result = np.zeros(words, np.uint32)
    result.view(dtype)[:count] = flat
    return result


COPY_WRITE_BUFFER = 0x8F37
MAP_READ, MAP_WRITE, MAP_PERSISTENT, MAP_COHERENT, DYNAMIC_STORAGE = 0x1, 0x2, 0x40, 0x80, 0x100


def map_buffer(device: Device, nbytes: int) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
    """Return a buffer of zeros that stays mapped, coherently, and its words.

    The words are valid as long as the buffer. Raises NoRoomError where mapping fails.
    """
    device.collect_garbage()  # whose memory may be needed
    buffer = device.context.buffer(reserve=nbytes)
    access = MAP_READ | MAP_WRITE | MAP_PERSISTENT | MAP_COHERENT
    bind = device.load("glBindBuffer", None, c_uint, c_uint)
    store = device.load("glBufferStorageEXT", None, c_uint, c_ssize_t, c_void_p, c_uint)
    map_range = device.load("glMapBufferRange", c_void_p, c_uint, c_ssize_t, c_ssize_t, c_uint)
    bind(COPY_WRITE_BUFFER, buffer.glo)
    store(COPY_WRITE_BUFFER, nbytes, None, access | DYNAMIC_STORAGE)
    address: int | None = map_range(COPY_WRITE_BUFFER, 0, nbytes, access)
    bind(COPY_WRITE_BUFFER, 0)
    device.check_always(f"map {nbytes} bytes")
    if address is None:
        raise NoRoomError(f"map {nbytes} bytes: no memory on {device.capabilities.renderer}")
    memory: Any = (ctypes.c_uint32 * (nbytes // 4)).from_address(address)
    words = np.frombuffer(memory, np.uint32)
    words[:] = 0
    return buffer, words


MIN_STAGED = 1 << 20  # bytes, below which an upload by GL alone is as fast
STAGING_WORDS = 1 << 22  # of each of the two buffers


class StagingBuffers:
    """Two mapped buffers in the host's memory: the host fills one, the device copies the other."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffers = [map_buffer(device, 4 * STAGING_WORDS) for _ in range(2)]
        self._fences: list[Fence | None] = [None, None]
        """The fence behind the last copy from each buffer."""
        self._current = 0
        """The index of the buffer that was used last."""

    @classmethod
    def for_device(cls, device: Device) -> StagingBuffers:
        """Return the staging memory of `device`, created on first use."""
        if device.staging is None:
            device.staging = cls(device)
        result: StagingBuffers = device.staging
        return result

    def fill(self, copy: moderngl.Buffer, words: NDArray[np.uint32]) -> None:
        """Write `words` to the beginning of `copy`."""
        for first in range(0, len(words), STAGING_WORDS):
            part = words[first : first + STAGING_WORDS]
            buffer, mapped = self._next()
            threaded_copy(mapped[: len(part)], part)
            self._copy(copy, buffer, first, len(part))
            self._fences[self._current] = self._device.fence()
            self._device.flush()  # the device copies while the host fills the other buffer

    def clear(self, copy: moderngl.Buffer, start: int, end: int) -> None:
        """Write zeros to the words of `copy` from `start` up to `end`."""
        buffer, mapped = self._next()
        mapped[: end - start] = 0
        for first in range(start, end, STAGING_WORDS):
            self._copy(copy, buffer, first, min(end - first, STAGING_WORDS))
        self._fences[self._current] = self._device.fence()

    def _next(self) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
        """Return the other buffer and its words, once the device has copied them."""
        self._current = 1 - self._current
        fence, self._fences[self._current] = self._fences[self._current], None
        if fence is not None:
            fence.wait()
        return self._buffers[self._current]

    def _copy(
        self, target: moderngl.Buffer, source: moderngl.Buffer, first: int, count: int
    ) -> None:
        self._device.copy_buffer(target, source, 4 * count, write_offset=4 * first)


def allocate_buffer(
    device: Device, words: int, content: NDArray[np.uint32] | None = None
) -> moderngl.Buffer:
    """Return a new buffer of `words`, with `content` at its beginning, and zeros behind it.

    Only inside `perform`, or after `activate`. Raises DeviceError where memory runs out.
    """
    device.collect_garbage()  # whose memory may be needed
    offers, nbytes = device.capabilities, 4 * words
    # Content comes with the allocation, not by Buffer.clear(): after that NVIDIA's driver (580)
    # shows shaders the last write but one.
    if nbytes < MIN_STAGED or not (offers.buffer_storage and offers.dedicated_memory):
        padded = np.zeros(words, np.uint32) if content is None or len(content) < words else content
        if content is not None and padded is not content:
            padded[: len(content)] = content
        buffer = device.context.buffer(padded)
        device.check_always(f"allocate {nbytes} bytes")
        return buffer
    buffer = device.context.buffer(reserve=nbytes)
    device.check_always(f"allocate {nbytes} bytes")
    staging, filled = StagingBuffers.for_device(device), 0 if content is None else len(content)
    if filled < words:
        staging.clear(buffer, filled, words)
    if content is not None:
        staging.fill(buffer, content)
    return buffer
