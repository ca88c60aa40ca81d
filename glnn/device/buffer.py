"""Device memory that mirrors host arrays."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.device.device import Device
from glnn.errors import DeviceError, ShapeError
from glnn.layout import Layout
from glnn.process import alone
from glnn.types import DType

if TYPE_CHECKING:
    import moderngl

Shape = tuple[int, ...]
LEAST = 4  # floats: GL has no empty buffers, and kernels read whole vec4


class SharedMemory:
    """Room for `floats` on `device` that several buffers use, one after the other; zeros at first.

    Raises DeviceError where memory runs out.
    """

    def __init__(self, floats: int, device: Device) -> None:
        self.device = device
        self.size = max(floats, LEAST)
        self.nbytes = 4 * self.size
        device.activate()
        self.copy = device.context.buffer(np.zeros(self.size, np.float32))
        device.check_always(f"allocate {self.nbytes} bytes")


class Buffer:
    """An array on the host and its copy on a device, brought up to date only when stale.

    shape, dtype: the array's; each number takes a word of 32 bits on the device, uint8, int8 and
    bool too. layout: how it lies there. capacity: words to allocate at least,
    for readers that take more than the layout holds. Before anything is set, all is zero. memory:
    where the copy lies, on that device only; it is as it is before anything is set, and whoever
    shares it may overwrite this array. fixed: set by who knows that the content never changes.
    """

    def __init__(
        self,
        shape: Shape,
        layout: Layout,
        *,
        capacity: int | None = None,
        memory: SharedMemory | None = None,
        dtype: DType = DType.float32,
    ) -> None:
        if dtype is DType.float16 or not dtype.on_gpu:
            raise DeviceError(f"a GPU's memory holds no {dtype.value} numbers")
        self.shape = shape
        self.dtype: DType = dtype
        self.layout = layout
        self.size = max(layout.size(shape), capacity or 0, LEAST)
        self.nbytes = 4 * self.size
        self.pushes = 0
        self.pulls = 0
        self._used = layout.size(shape)
        self._count = prod(shape)
        self._dense = layout.name == "R" and self._used == self._count
        # Of one row the padding is behind the last number.
        self._begins = self._dense or (layout.name == "R" and (len(shape) < 2 or shape[0] == 1))
        self.shared = memory is not None
        self.fixed = False
        self._host: NDArray[Any] | None = None  # None: zeros, or on the device only
        self._device: Device | None = None
        self._copy: moderngl.Buffer | None = None
        if memory is not None:
            if memory.size < self.size:
                raise DeviceError(f"{self.nbytes} bytes do not fit into {memory.nbytes}")
            self._device, self._copy = memory.device, memory.copy
        self._host_newer = False
        self._device_newer = False

    def set(self, array: object) -> None:
        """Take `array` (of `shape` and `dtype`) as the content; it is kept, and not copied here.

        Raises ShapeError on another shape or dtype.
        """
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype.numpy:
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

    def push(self, device: Device) -> moderngl.Buffer:
        """The copy on `device`, made where there is none and written only if stale.

        Raises DeviceError where the newest content was on a device that is now closed, or memory
        runs out.
        """
        copy = self._copy
        if copy is None or self._device is not device or device.closed:
            return self._mirror(device)
        if self._host_newer:
            device.activate()
            self._write(device, copy)
        return copy

    def _mirror(self, device: Device) -> moderngl.Buffer:
        """A new copy on `device`."""
        if self._device_newer:
            self.pull()
        device.activate()
        self.release()
        # Content comes with the allocation, not by Buffer.clear(): after that NVIDIA's driver (580)
        # shows shaders the last write but one.
        content = np.zeros(self.size, self.dtype.word)
        if self._host is not None and self._used:
            content[: self._used] = self.layout.pack(self._host)
            self.pushes += 1
        copy = device.context.buffer(content)
        device.check_always(f"allocate {self.nbytes} bytes")
        self._host_newer = False
        self._device, self._copy = device, copy
        return copy

    def _write(self, device: Device, copy: moderngl.Buffer) -> None:
        if self._used and self._host is not None:
            if self._dense:
                copy.write(np.ascontiguousarray(self._host, self.dtype.word))
            else:
                copy.write(self.layout.pack(self._host))
            device.check(f"write {4 * self._used} bytes")
            self.pushes += 1
        self._host_newer = False

    def copy_from(self, other: Buffer, device: Device) -> None:
        """Take the content of `other`, a buffer of the same layout and shape, on the device."""
        target, source = self.push(device), other.push(device)
        if self._used and target is not source:
            device.context.copy_buffer(target, source, 4 * self._used)
            device.check(f"copy {4 * self._used} bytes")
        self.wrote()

    def wrote(self) -> None:
        """Note that a kernel wrote the device's copy: the host's is stale now."""
        self._device_newer = True
        self._host_newer = False
        self._host = None

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

    def fetch(self) -> NDArray[Any]:
        """The array as `pull` gives it, but the caller's own: it is not kept here.

        Only inside `Device.perform`.
        """
        return self._read() if self._device_newer else np.array(self.pull())

    def _read(self) -> NDArray[Any]:
        """What the device has."""
        device, copy = self._device, self._copy
        if copy is None or device is None or device.closed:
            raise DeviceError(
                "a buffer's content is lost: its device was closed before it was read"
            )
        flat = np.empty(self._used, self.dtype.word)
        if self._used:
            if not alone():
                device.finish()  # else Python's other threads wait, too
            step = f"read {4 * self._used} bytes"
            try:
                copy.read_into(flat, size=4 * self._used)
            finally:
                device.check_reset(step)
            device.check(step)
            self.pulls += 1
        found = (
            flat[: self._count].reshape(self.shape)
            if self._begins
            else self.layout.unpack(flat, self.shape)
        )
        return found.astype(self.dtype.numpy, copy=False)

    def release(self) -> None:
        """Give the device's copy up; the host's stays. GL frees it on the device's next use."""
        self._copy = self._device = None
        self._host_newer = self._host is not None
