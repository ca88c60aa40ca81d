"""Device memory: blocks that buffers share, and buffers that mirror host arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.layout import Layout
from glnn.core.layout.layout import DENSE, PACKED
from glnn.core.process import is_single_threaded
from glnn.core.types import DType
from glnn.errors import DeviceError, ShapeError
from glnn.gl.device import Device, Fence
from glnn.gl.transfer import (
    Part,
    allocate_buffer,
    copy_in_parts,
    map_buffer,
    pack_words,
    parts,
    parts_in_words,
    threaded_copy,
)

if TYPE_CHECKING:
    import moderngl


MIN_WORDS = 4  # GL has no empty buffers, and kernels read whole vec4


class BufferBlock:
    """A block of `floats` words of `device`, zeros at first. Raises DeviceError without room."""

    host: NDArray[np.uint32] | None = None
    """The words in mapped memory; None where the host cannot access them."""

    def __init__(self, floats: int, device: Device) -> None:
        self.device = device
        self.size = max(floats, MIN_WORDS)
        self.nbytes = 4 * self.size
        device.activate()
        self.copy = self._allocate()

    def _allocate(self) -> moderngl.Buffer:
        return allocate_buffer(self.device, self.size)

    def to_device(self, first: int, last: int) -> None:
        """Make the words from `first` up to `last` that the host wrote visible to the device."""

    def to_host(self, cuts: Sequence[Part]) -> list[Fence]:
        """Start copying the parts `cuts` to mapped memory; return a fence behind each.

        Return an empty list where nothing is copied: the words are visible to the host once the
        device has done all commands so far.
        """
        return []


class UnclearedBlock(BufferBlock):
    """A block of undefined content: it must be written before it is read."""

    def __init__(self, floats: int, device: Device) -> None:
        super().__init__(floats, device)
        self.order = self.size, self.copy.glo
        """The sort key: the smallest first, and of equal ones the oldest."""

    def _allocate(self) -> moderngl.Buffer:
        buffer = self.device.context.buffer(reserve=self.nbytes)
        self.device.check_always(f"allocate {self.nbytes} bytes")
        return buffer


class MappedBlock(BufferBlock):
    """A block of mapped memory, which host and device access directly.

    For devices with `buffer_storage`. The host must not write what the device still reads.
    """

    def _allocate(self) -> moderngl.Buffer:
        buffer, self.host = map_buffer(self.device, self.nbytes)
        return buffer


class StagedBlock(BufferBlock):
    """A block of the device's memory, and mapped staging memory from and to which it is copied.

    For devices with `buffer_storage`.
    """

    def _allocate(self) -> moderngl.Buffer:
        self._staging, self.host = map_buffer(self.device, self.nbytes)
        return super()._allocate()

    def to_device(self, first: int, last: int) -> None:
        self._copy_words(self.copy, self._staging, first, last)
        if last < self.size:
            self.device.flush()  # the device copies while the host writes the next part

    def to_host(self, cuts: Sequence[Part]) -> list[Fence]:
        fences: list[Fence] = []
        for first, last in cuts:
            self._copy_words(self._staging, self.copy, first, last)
            fences.append(self.device.fence())
        self.device.flush()
        return fences

    def _copy_words(
        self, target: moderngl.Buffer, source: moderngl.Buffer, first: int, last: int
    ) -> None:
        offset, size = 4 * first, 4 * (last - first)
        self.device.copy_buffer(target, source, size, read_offset=offset, write_offset=offset)


MEMORIES: Mapping[str, type[BufferBlock]] = {
    "shared": BufferBlock,
    "mapped": MappedBlock,
    "staged": StagedBlock,
}
"""Kinds of memory by their names in files."""


Shape = tuple[int, ...]


class Buffer:
    """An array on the host and its copy on a device, brought up to date only when stale.

    shape, dtype: the array's. layout: its layout on the device, where each number takes a word of
    32 bits, uint8, int8 and bool too, and float16 half of one, unless they are packed. capacity:
    words to allocate at least, for kernels that read beyond the layout. Before `set` all is zero.
    memory: the block that has the copy, on its device only; before `set` the content is the
    block's, and other buffers in the block may overwrite it. offset: the word of `memory` that it
    begins at, where other buffers share that; None where it has the whole block. fixed: set to True
    by the owner of content that never changes.
    """

    def __init__(
        self,
        shape: Shape,
        layout: Layout,
        *,
        capacity: int | None = None,
        memory: BufferBlock | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> None:
        if not dtype.on_gpu:
            raise DeviceError(f"a GPU's memory holds no {dtype.value} numbers")
        self.shape = shape
        self.dtype: DType = dtype
        self._numpy = dtype.numpy
        self.layout = layout
        self._device_dtype = layout.number(dtype)
        self._layout_size = layout.size(shape)  # numbers, padding included
        self.words = -(-self._layout_size * self._device_dtype.itemsize // 4)
        """The words of its memory that the array takes."""
        self.size = max(self.words, capacity or 0, MIN_WORDS)
        self.nbytes = 4 * self.size
        self.pushes = 0
        self.pulls = 0
        self._count = prod(shape)
        self._dense = layout.name in ("R", "packed")  # padding is behind the last number only
        self.shared = memory is not None
        self.fixed = False
        self._host: NDArray[Any] | None = None  # None: zeros, or on the device only
        self._device: Device | None = None
        self._copy: moderngl.Buffer | None = None
        self._memory = memory
        self._view: NDArray[Any] | None = None
        """The array in mapped memory; None where its layout there is no strided array."""
        self._padded_rows: list[Part] | None = None
        """The parts of the view's rows that are copied at once, where these are padded."""
        self._copy_parts = [(0, self.words)]
        """The same parts, in words."""
        self._due_segment = 0
        """The device's segment whose end makes the content visible to the host; 0 for none."""
        self._download_fences: list[Fence] = []
        """The fence behind each part of a download."""
        self._byte_range = (0, -1) if offset is None else (4 * offset, self.nbytes)
        if memory is not None:
            if memory.size < (offset or 0) + self.size:
                raise DeviceError(f"{self.nbytes} bytes do not fit into {memory.nbytes}")
            if offset is not None and memory.host is not None:
                raise DeviceError("what the host sees of a memory begins where that does")
            self._device, self._copy = memory.device, memory.copy
            if memory.host is not None:
                flat = memory.host[: self.words].view(self._device_dtype)[: self._layout_size]
                self._view = view = layout.view(flat, shape)
                if view is not None and view.flags.c_contiguous:
                    self._copy_parts = parts_in_words(view.size, view.itemsize)
                elif view is not None:
                    rows = len(view), view.strides[0]
                    self._padded_rows, self._copy_parts = parts(*rows), parts_in_words(*rows)
        self._host_newer = False
        self._device_newer = False

    def set(self, array: object) -> None:
        """Make `array` (of `shape` and `dtype`) the content, without copying it.

        Raises ShapeError on another shape or dtype.
        """
        if not isinstance(array, np.ndarray) or array.dtype != self._numpy:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else type(array).__name__
            raise ShapeError(f"a buffer takes a {self.dtype.value} NumPy array, got {got}")
        if array.shape != self.shape:
            raise ShapeError(f"a buffer of shape {self.shape} was given shape {array.shape}")
        self._host = array
        self._host_newer = True
        self._device_newer = False

    def put(self, array: NDArray[Any]) -> None:
        """`set` the content and write it to the device, if any. Only inside `Device.perform`."""
        self.set(array)
        device, copy = self._device, self._copy
        if device is not None and copy is not None and not device.closed:
            self._write(device, copy)

    def push(self, device: Device, words: NDArray[np.uint32] | None = None) -> moderngl.Buffer:
        """Return the copy on `device`, allocated on first use and written only if stale.

        words: the content packed by `pack_words`, for a new copy, where known. Raises DeviceError
        where the newest content was on a device that is now closed, or memory runs out.
        """
        copy = self._copy
        if copy is None or self._device is not device or device.closed:
            return self._mirror(device, words)
        if self._host_newer:
            device.activate()
            self._write(device, copy)
        return copy

    @property
    def key(self) -> Hashable:
        """Return the object that identifies the buffer's memory; views of one memory share it."""
        return self if self._memory is None else self._memory

    @property
    def byte_range(self) -> tuple[int, int]:
        """The first byte in its memory, and the bytes; -1 for all to the memory's end."""
        return self._byte_range

    @property
    def first(self) -> int:
        """The first byte of the copy on its device."""
        return self._byte_range[0]

    def _mirror(self, device: Device, content: NDArray[np.uint32] | None) -> moderngl.Buffer:
        """Return a new copy on `device`."""
        if self._device_newer:
            self.pull()
        device.activate()
        self.release()
        if content is None and self._host is not None:
            content = pack_words(self.layout, self._host)
        self.pushes += content is not None
        copy = allocate_buffer(device, self.size, content)
        self._host_newer = False
        self._device, self._copy = device, copy
        return copy

    def _write(self, device: Device, copy: moderngl.Buffer) -> None:
        if self._layout_size and self._host is not None:
            if self._memory is not None and self._memory.host is not None:
                self._write_to_host_memory(self._memory, self._memory.host, self._host)
            elif self._dense:
                dense = np.ascontiguousarray(self._host, self._device_dtype)
                device.write_buffer(copy, dense, self._byte_range[0])
            else:
                device.write_buffer(copy, self.layout.pack(self._host), self._byte_range[0])
            if device.debug:
                device.check(f"write {4 * self.words} bytes")
            self.pushes += 1
        self._host_newer = False

    def _write_to_host_memory(
        self, memory: BufferBlock, words: NDArray[np.uint32], array: NDArray[Any]
    ) -> None:
        """Write `array` to `memory`, whose mapped words are `words`."""
        view, cuts = self._view, self._copy_parts
        if view is None:
            self.layout.fill(words[: self.words].view(self._device_dtype), array)
        elif len(cuts) == 1 or not memory.device.timeline.idle:
            threaded_copy(view, array)
        elif copy_in_parts(
            view, array, done=lambda part: memory.to_device(*cuts[part]), rows=self._padded_rows
        ):
            return  # each part is on its way to the device
        else:
            threaded_copy(view, array)
        memory.to_device(0, self.words)

    def copy_from(self, origin: Buffer, device: Device) -> None:
        """Copy the content of `origin`, of the same layout and shape, on the device."""
        target, source = self.push(device), origin.push(device)
        if self._layout_size and (target is not source or self.first != origin.first):
            size, start = 4 * self.words, self.first
            device.copy_buffer(target, source, size, read_offset=origin.first, write_offset=start)
            device.check(f"copy {4 * self.words} bytes")
        self.mark_written()

    def copy_row(self, row: int, origin: Buffer, device: Device) -> None:
        """Copy the content of `origin` to index `row` of the first dimension, on the device.

        Both are row major. A padded `origin` goes by way of the host.
        """
        target, count = self.push(device), origin._count
        start = self.first + 4 * row * self.layout.dims(self.shape)[0].stride
        if count and origin._dense:
            source, first = origin.push(device), origin.first
            device.copy_buffer(target, source, 4 * count, read_offset=first, write_offset=start)
        elif count:
            dense = np.ascontiguousarray(origin.pull(), self._device_dtype)
            device.write_buffer(target, dense, start)
        device.check(f"copy {4 * count} bytes")
        self.mark_written()

    def mark_written(self) -> None:
        """Note that a kernel wrote the device's copy: the host's array is stale."""
        self._device_newer = True
        self._host_newer = False
        self._host = None
        self._due_segment = 0

    def start_download(self) -> None:
        """Start copying what a kernel wrote to the host. Only inside `Device.perform`.

        `fetch` waits for the copy, unless the device is known to be done.
        """
        memory, device = self._memory, self._device
        if memory is None or memory.host is None or device is None or device.closed:
            return
        if self._device_newer and not self._due_segment:
            for fence in self._download_fences:
                fence.delete()
            self._download_fences = fences = memory.to_host(self._copy_parts)
            self._due_segment = fences[-1].segment if fences else device.timeline.current

    def pull(self) -> NDArray[Any]:
        """Return the array, read from the device only if that has a newer one.

        It stays the buffer's: a caller that changes it must `set` it again. Raises DeviceError
        where the newest content was on a device that is now closed or reset, or another thread
        holds the device.
        """
        if self._device_newer:
            if self._device is not None and not self._device.closed:
                self._device.activate()
            self._host = self._read()
            self._device_newer = False
        if self._host is None:
            self._host = np.zeros(self.shape, self.dtype.numpy)
        return self._host

    def fetch(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the content in `out`, or in a new array. Only inside `Device.perform`.

        out: an array of this shape, to whose dtype numbers are rounded.
        """
        if self._device_newer:
            return self._read(out)
        result = np.empty(self.shape, self.dtype.numpy) if out is None else out
        threaded_copy(result, self.pull())
        return result

    def _read(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read the buffer's content from the device into `out`, or into a new array."""
        device, copy = self._device, self._copy
        if copy is None or device is None or device.closed:
            raise DeviceError(
                "a buffer's content is lost: its device was closed before it was read"
            )
        words = None if self._memory is None else self._memory.host
        if words is not None:
            return self._finish_download(device, words, out)
        flat = self._read_by_gl(device, copy)
        if out is None and self._dense and flat.dtype == self.dtype.numpy:
            return flat[: self._count].reshape(self.shape)
        result = np.empty(self.shape, self.dtype.numpy) if out is None else out
        if self._dense:
            threaded_copy(result, flat[: self._count].reshape(self.shape))
        else:
            result[...] = self.layout.unpack(flat, self.shape)
        return result

    def _finish_download(
        self, device: Device, words: NDArray[np.uint32], out: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Wait for the copy to host-visible memory, `words`, and return its content in `out` or a
        new array.
        """
        self.start_download()
        fences, self._download_fences = self._download_fences, []
        self.pulls += 1
        view = self._view
        result = np.empty(self.shape, self.dtype.numpy) if out is None else out
        if (
            len(fences) > 1
            and view is not None
            and copy_in_parts(
                result,
                view,
                ready=lambda part: fences[part].wait(checked=False),
                rows=self._padded_rows,
            )
        ):
            # Only now: a reset closes the device, whose mapped memory the threads were reading.
            device.check_reset(f"read {result.nbytes} bytes")
            return result
        for fence in fences:
            fence.wait()
        device.wait_for(self._due_segment)
        if view is None:
            flat = words[: self.words].view(self._device_dtype)[: self._layout_size]
            result[...] = self.layout.unpack(flat, self.shape)
        else:
            threaded_copy(result, view)
        return result

    def _read_by_gl(self, device: Device, copy: moderngl.Buffer) -> NDArray[Any]:
        """Return the numbers on the device, read by GL."""
        flat = np.empty(self._layout_size, self._device_dtype)
        if self._layout_size:
            if not is_single_threaded():
                device.finish()  # `read_into` holds Python's lock: other threads would wait, too
            step = f"read {flat.nbytes} bytes"
            try:
                copy.read_into(flat, size=flat.nbytes, offset=self.first)
            finally:
                device.check_reset(step)
            device.check(step)
            self.pulls += 1
        return flat

    def release(self) -> None:
        """Drop the device's copy and keep the host's. GL frees it on the device's next use."""
        self._copy = self._device = self._memory = self._view = None
        self._byte_range = (0, -1)
        self._host_newer = self._host is not None


CHUNK = 1 << 20  # bytes of one copy in `repeat`


def repeat(device: Device, buffer: Buffer, part: Part, numbers: NDArray[Any]) -> None:
    """Fill `part` of the memory of `buffer`, a range of bytes, with `numbers` over and over.

    They are uploaded once, and copied on the device. The caller marks `buffer` as written.
    """
    first, last = part
    if first >= last or not numbers.nbytes:
        return
    times = max(min(CHUNK, last - first) // numbers.nbytes, 1)
    size = times * numbers.nbytes
    words = np.empty(-(-size // 4), np.uint32)
    words.view(numbers.dtype)[: times * numbers.size].reshape(times, -1)[:] = numbers
    target, source = buffer.push(device), allocate_buffer(device, len(words), words)
    for start in range(first, last, size):
        count = min(size, last - start)
        device.copy_buffer(target, source, count, write_offset=buffer.first + start)
    device.check(f"copy {last - first} bytes")


def gather(device: Device, buffer: Buffer, ranges: Sequence[Part]) -> NDArray[Any]:
    """Return the numbers of `buffer` in `ranges` of its memory, one range after the other.

    The device gathers them in a small buffer, which is read at once: a driver that moves buffers
    that are read to the host's memory does not move the large one.
    """
    layout = PACKED if buffer.layout.narrow else DENSE
    count = sum(last - first for first, last in ranges)
    gathered = Buffer((count,), layout, dtype=buffer.dtype)
    target, source = gathered.push(device), buffer.push(device)
    size, offset = layout.number(buffer.dtype).itemsize, 0
    for first, last in ranges:
        start, nbytes = buffer.first + size * first, size * (last - first)
        device.copy_buffer(target, source, nbytes, read_offset=start, write_offset=offset)
        offset += nbytes
    device.check(f"copy {offset} bytes")
    gathered.mark_written()
    return gathered.pull()
