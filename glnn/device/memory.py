"""Device memory that several buffers use, one after the other, and its ways to and from the host.

What a driver's own transfers cost (an H200 by ES 3.2, 4 MiB): up 0.37 ms, down 0.45 ms behind a
shader. Memory of the host's that the device sees itself (EXT_buffer_storage, coherent maps) costs a
copy in the host's memory, which threads share, and 0.1 ms on the bus.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_ssize_t, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.device.copying import Part
from glnn.device.device import Device
from glnn.device.timeline import Fence
from glnn.errors import DeviceError

if TYPE_CHECKING:
    import moderngl

LEAST = 4  # floats: GL has no empty buffers, and kernels read whole vec4
COPY_WRITE_BUFFER = 0x8F37
MAP_READ, MAP_WRITE, MAP_PERSISTENT, MAP_COHERENT, DYNAMIC_STORAGE = 0x1, 0x2, 0x40, 0x80, 0x100


class SharedMemory:
    """Room for `floats` on `device`; zeros at first. Raises DeviceError where memory runs out."""

    host: NDArray[np.uint32] | None = None
    """The words as the host sees them, where it does."""

    def __init__(self, floats: int, device: Device) -> None:
        self.device = device
        self.size = max(floats, LEAST)
        self.nbytes = 4 * self.size
        device.activate()
        self.copy = self._allocated()
        device.check_always(f"allocate {self.nbytes} bytes")

    def _allocated(self) -> moderngl.Buffer:
        return self.device.context.buffer(np.zeros(self.size, np.float32))

    def to_device(self, first: int, last: int) -> None:
        """Have the device see the words from `first` up to `last` that the host wrote."""

    def to_host(self, cuts: Sequence[Part]) -> list[Fence]:
        """Have the host see words in parts, and give what tells when it sees each.

        None where that is when the device has done all it was told to.
        """
        return []


class MappedMemory(SharedMemory):
    """Room in the host's memory that the device reads and writes where it lies.

    For devices with `buffer_storage`. The host must not write what the device still reads.
    """

    def _allocated(self) -> moderngl.Buffer:
        made, self.host = mapped(self.device, self.nbytes)
        return made


class StagedMemory(SharedMemory):
    """Room on the device and, beside it, in the host's memory: one command copies to the other.

    For devices with `buffer_storage`.
    """

    def _allocated(self) -> moderngl.Buffer:
        self._staging, self.host = mapped(self.device, self.nbytes)
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
        copy = self.device.context.copy_buffer
        copy(target, source, size, read_offset=at, write_offset=at)


def mapped(device: Device, nbytes: int) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
    """A buffer of zeros that stays mapped, coherently, and its words.

    They go away with the buffer. Raises DeviceError where there is no such memory.
    """
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
        raise DeviceError(f"map {nbytes} bytes: no memory on {device.capabilities.renderer}")
    words: Any = (ctypes.c_uint32 * (nbytes // 4)).from_address(address)
    seen = np.frombuffer(words, np.uint32)
    seen[:] = 0
    return buffer, seen
