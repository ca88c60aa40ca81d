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


MIN_WORDS = 4  # floats: GL has no empty buffers, and kernels read whole vec4


class BufferBlock:
    """A block of `floats` words of `device`, zeros at first. Raises DeviceError without room."""

    host: NDArray[np.uint32] | None = None
    """The words as the host sees them, where it does."""

    def __init__(self, floats: int, device: Device) -> None:
        self.device = device
        self.size = max(floats, MIN_WORDS)
        self.nbytes = 4 * self.size
        device.activate()
        self.copy = self._allocated()

    def _allocated(self) -> moderngl.Buffer:
        return allocate_buffer(self.device, self.size)

    def to_device(self, first: int, last: int) -> None:
        """Have the device see the words from `first` up to `last` that the host wrote."""

    def to_host(self, cuts: Sequence[Part]) -> list[Fence]:
        """Have the host see words in parts, and give what tells when it sees each.

        None where that is when the device has done all it was told to.
        """
        return []


class UnclearedBlock(BufferBlock):
    """A block whose words are what the driver left there: for whoever writes before it reads."""

    def __init__(self, floats: int, device: Device) -> None:
        super().__init__(floats, device)
        self.order = self.size, self.copy.glo
        """By it the smallest come first, and of these the oldest."""

    def _allocated(self) -> moderngl.Buffer:
        made = self.device.context.buffer(reserve=self.nbytes)
        self.device.check_always(f"allocate {self.nbytes} bytes")
        return made


class MappedBlock(BufferBlock):
    """Room in the host's memory that the device reads and writes where it lies.

    For devices with `buffer_storage`. The host must not write what the device still reads.
    """

    def _allocated(self) -> moderngl.Buffer:
        made, self.host = map_buffer(self.device, self.nbytes)
        return made


class StagedBlock(BufferBlock):
    """Room on the device and, beside it, in the host's memory: one command copies to the other.

    For devices with `buffer_storage`.
    """

    def _allocated(self) -> moderngl.Buffer:
        self._staging, self.host = map_buffer(self.device, self.nbytes)
        return super()._allocated()

    def to_device(self, first: int, last: int) -> None:
        self._move(self.copy, self._staging, first, last)
        if last < self.size:
            self.device.flush()  # the host goes on with what follows

    def to_host(self, cuts: Sequence[Part]) -> list[Fence]:
        fences: list[Fence] = []
        for first, last in cuts:
            self._move(self._staging, self.copy, first, last)
            fences.append(self.device.fence())
        self.device.flush()
        return fences

    def _move(
        self, target: moderngl.Buffer, source: moderngl.Buffer, first: int, last: int
    ) -> None:
        at, size = 4 * first, 4 * (last - first)
        self.device.copy_buffer(target, source, size, read_offset=at, write_offset=at)


MEMORIES: Mapping[str, type[BufferBlock]] = {
    "shared": BufferBlock,
    "mapped": MappedBlock,
    "staged": StagedBlock,
}
"""Kinds of memory by their names in files."""


Shape = tuple[int, ...]


class Buffer:
    """An array on the host and its copy on a device, brought up to date only when stale.

    shape, dtype: the array's. layout: how it lies on the device, where each number takes a word of
    32 bits, uint8, int8 and bool too, and float16 half of one, unless they are packed. capacity:
    words to allocate at least, for readers that take more than the layout holds. Before anything is
    set, all is zero.
    memory: where the copy lies, on that device only; it is as it is before anything is set, and
    whoever shares it may overwrite this array. offset: the word of `memory` that it begins at,
    where others lie beside it; None where it has all of that. fixed: set by who knows that the
    content never changes.
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
        self._number = layout.number(dtype)  # what each is there
        self._used = layout.size(shape)
        self.words = -(-self._used * self._number.itemsize // 4)
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
        self._view: NDArray[Any] | None = None  # of mapped memory that has it in rows
        self._padded_rows: list[Part] | None = None  # of the view, in which it is copied
        self._copy_parts = [(0, self.words)]
        self._due_segment = (
            0  # the segment of the device's work after which the host sees its content
        )
        self._download_fences: list[Fence] = []  # behind each part that is on its way to the host
        self._byte_range = (0, -1) if offset is None else (4 * offset, self.nbytes)
        if memory is not None:
            if memory.size < (offset or 0) + self.size:
                raise DeviceError(f"{self.nbytes} bytes do not fit into {memory.nbytes}")
            if offset is not None and memory.host is not None:
                raise DeviceError("what the host sees of a memory begins where that does")
            self._device, self._copy = memory.device, memory.copy
            if memory.host is not None:
                flat = memory.host[: self.words].view(self._number)[: self._used]
                self._view = view = layout.view(flat, shape)
                if view is not None and view.flags.c_contiguous:
                    self._copy_parts = parts_in_words(view.size, view.itemsize)
                elif view is not None:
                    rows = len(view), view.strides[0]
                    self._padded_rows, self._copy_parts = parts(*rows), parts_in_words(*rows)
        self._host_newer = False
        self._device_newer = False

    def set(self, array: object) -> None:
        """Take `array` (of `shape` and `dtype`) as the content; it is kept, and not copied here.

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
        """`set`, and have it on the device, where that is known. Only inside `Device.perform`."""
        self.set(array)
        device, copy = self._device, self._copy
        if device is not None and copy is not None and not device.closed:
            self._write(device, copy)

    def push(self, device: Device, words: NDArray[np.uint32] | None = None) -> moderngl.Buffer:
        """The copy on `device`, made where there is none and written only if stale.

        words: what was set, as `pack_words` has it, where that is known for a new copy. Raises
        DeviceError where the newest content was on a device that is now closed, or memory runs out.
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
        """The byte of the copy on its device that it begins at."""
        return self._byte_range[0]

    def _mirror(self, device: Device, content: NDArray[np.uint32] | None) -> moderngl.Buffer:
        """A new copy on `device`."""
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
        if self._used and self._host is not None:
            if self._memory is not None and self._memory.host is not None:
                self._write_to_host_memory(self._memory, self._memory.host, self._host)
            elif self._dense:
                dense = np.ascontiguousarray(self._host, self._number)
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
        """Write `array` to `memory`, which the host sees as `words`."""
        view, cuts = self._view, self._copy_parts
        if view is None:
            self.layout.fill(words[: self.words].view(self._number), array)
        elif len(cuts) == 1 or not memory.device.timeline.idle:
            threaded_copy(view, array)
        elif copy_in_parts(
            view, array, done=lambda part: memory.to_device(*cuts[part]), rows=self._padded_rows
        ):
            return  # the device began with the first part
        else:
            threaded_copy(view, array)
        memory.to_device(0, self.words)

    def copy_from(self, origin: Buffer, device: Device) -> None:
        """Take the content of `origin`, a buffer of the same layout and shape, on the device."""
        target, source = self.push(device), origin.push(device)
        if self._used and (target is not source or self.first != origin.first):
            size, at = 4 * self.words, self.first
            device.copy_buffer(target, source, size, read_offset=origin.first, write_offset=at)
            device.check(f"copy {4 * self.words} bytes")
        self.mark_written()

    def copy_row(self, row: int, origin: Buffer, device: Device) -> None:
        """Take the content of `origin` as place `row` along the first dimension, on the device.

        Both are row major. What is padded within goes by way of the host.
        """
        target, count = self.push(device), origin._count
        start = self.first + 4 * row * self.layout.dims(self.shape)[0].stride
        if count and (origin._dense):
            source, first = origin.push(device), origin.first
            device.copy_buffer(target, source, 4 * count, read_offset=first, write_offset=start)
        elif count:
            device.write_buffer(target, np.ascontiguousarray(origin.pull(), self._number), start)
        device.check(f"copy {4 * count} bytes")
        self.mark_written()

    def mark_written(self) -> None:
        """Note that a kernel wrote the device's copy: the host's is stale now."""
        self._device_newer = True
        self._host_newer = False
        self._host = None
        self._due_segment = 0

    def start_download(self) -> None:
        """Have what a kernel wrote on its way to the host. Only inside `Device.perform`.

        `fetch` waits for that, and need not wait where the device is known to be done.
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
        """The array, fetched from the device only if that has a newer one.

        It stays the buffer's own: whoever changes it must `set` it again. Raises DeviceError
        where the newest content was on a device that is now closed or reset, or another thread
        has the device.
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
        """The array as `pull` gives it, but the caller's own: `out`, where given, or a new one.

        out: of this shape; what its dtype does not hold is rounded. Only inside `Device.perform`.
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
        arrivals, self._download_fences = self._download_fences, []
        self.pulls += 1
        view = self._view
        result = np.empty(self.shape, self.dtype.numpy) if out is None else out
        if (
            len(arrivals) > 1
            and view is not None
            and copy_in_parts(
                result,
                view,
                ready=lambda part: arrivals[part].wait(checked=False),
                rows=self._padded_rows,
            )
        ):
            device.check_reset(f"read {result.nbytes} bytes")  # only now that nobody reads
            return result
        for fence in arrivals:
            fence.wait()
        device.wait_for(self._due_segment)
        if view is None:
            flat = words[: self.words].view(self._number)[: self._used]
            result[...] = self.layout.unpack(flat, self.shape)
        else:
            threaded_copy(result, view)
        return result

    def _read_by_gl(self, device: Device, copy: moderngl.Buffer) -> NDArray[Any]:
        """The device's words, copied by GL."""
        flat = np.empty(self._used, self._number)
        if self._used:
            if not is_single_threaded():
                device.finish()  # else Python's other threads wait, too
            step = f"read {flat.nbytes} bytes"
            try:
                copy.read_into(flat, size=flat.nbytes, offset=self.first)
            finally:
                device.check_reset(step)
            device.check(step)
            self.pulls += 1
        return flat

    def release(self) -> None:
        """Give the device's copy up; the host's stays. GL frees it on the device's next use."""
        self._copy = self._device = self._memory = self._view = None
        self._byte_range = (0, -1)
        self._host_newer = self._host is not None


CHUNK = 1 << 20  # bytes that are copied at once, where fewer are repeated


def repeat(device: Device, buffer: Buffer, part: Part, numbers: NDArray[Any]) -> None:
    """Have `part` of the memory of `buffer`, in bytes, hold `numbers` over and over.

    They go to the device once, and from there to each place. Whoever asks tells `buffer` so.
    """
    first, last = part
    if first >= last or not numbers.nbytes:
        return
    times = max(min(CHUNK, last - first) // numbers.nbytes, 1)
    size = times * numbers.nbytes
    words = np.empty(-(-size // 4), np.uint32)
    words.view(numbers.dtype)[: times * numbers.size].reshape(times, -1)[:] = numbers
    target, source = buffer.push(device), allocate_buffer(device, len(words), words)
    for at in range(first, last, size):
        count = min(size, last - at)
        device.copy_buffer(target, source, count, write_offset=buffer.first + at)
    device.check(f"copy {last - first} bytes")


def gather(device: Device, buffer: Buffer, places: Sequence[Part]) -> NDArray[Any]:
    """The numbers of `buffer` in `places`, as they lie there, one place behind another.

    The device puts them together, so that little is read, at once, and a driver that keeps what is
    read with the host has no reason to move the rest there.
    """
    layout = PACKED if buffer.layout.narrow else DENSE
    count = sum(last - first for first, last in places)
    gathered = Buffer((count,), layout, dtype=buffer.dtype)
    target, source = gathered.push(device), buffer.push(device)
    size, at = layout.number(buffer.dtype).itemsize, 0
    for first, last in places:
        start, taken = buffer.first + size * first, size * (last - first)
        device.copy_buffer(target, source, taken, read_offset=start, write_offset=at)
        at += taken
    device.check(f"copy {at} bytes")
    gathered.mark_written()
    return gathered.pull()
