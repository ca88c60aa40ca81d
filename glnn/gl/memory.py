"""Device memory that several buffers use, one after the other, and its ways to and from the host.

What a driver's own transfers cost (an H200 by ES 3.2, 4 MiB): up 0.37 ms, down 0.45 ms behind a
shader. Memory of the host's that the device sees itself (EXT_buffer_storage, coherent maps) costs a
copy in the host's memory, which threads share, and 0.1 ms on the bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.gl.copying import Part
from glnn.gl.device import Device
from glnn.gl.mapping import mapped
from glnn.gl.staging import allocated
from glnn.gl.timeline import Fence

if TYPE_CHECKING:
    import moderngl

LEAST = 4  # floats: GL has no empty buffers, and kernels read whole vec4


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

    def _allocated(self) -> moderngl.Buffer:
        return allocated(self.device, self.size)

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


MEMORIES: Mapping[str, type[SharedMemory]] = {
    "shared": SharedMemory,
    "mapped": MappedMemory,
    "staged": StagedMemory,
}
"""Kinds of memory by their names in files."""
