"""New memory of a device that has its own, filled by way of memory that both see.

What GL itself is given with an allocation crosses the bus slowly: 512 MB in 0.40 s (an H200 by
ES 3.2, driver 580). Copied by threads to mapped memory, and from there by the device, in 0.03 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.gl.copying import copy as copied
from glnn.gl.device import Device
from glnn.gl.mapping import mapped
from glnn.gl.timeline import Fence

if TYPE_CHECKING:
    import moderngl

LEAST = 1 << 20  # bytes: below, GL's own way is as fast
WORDS = 1 << 22  # of each of the two buffers


class Staging:
    """Two buffers in the host's memory, which the device copies from in turn."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._halves = [mapped(device, 4 * WORDS) for _ in range(2)]
        self._fences: list[Fence | None] = [None, None]
        self._turn = 0

    @classmethod
    def of(cls, device: Device) -> Staging:
        """Return the staging memory of `device`, created on first use."""
        if device.staging is None:
            device.staging = cls(device)
        found: Staging = device.staging
        return found

    def fill(self, copy: moderngl.Buffer, words: NDArray[np.uint32]) -> None:
        """Have `copy` hold `words` from its beginning on."""
        for first in range(0, len(words), WORDS):
            part = words[first : first + WORDS]
            buffer, seen = self._next()
            copied(seen[: len(part)], part)
            self._move(copy, buffer, first, len(part))
            self._fences[self._turn] = self._device.fence()
            self._device.flush()  # while the host fills the other

    def clear(self, copy: moderngl.Buffer, start: int, end: int) -> None:
        """Have `copy` hold zeros in the words from `start` up to `end`."""
        buffer, seen = self._next()
        seen[: end - start] = 0
        for first in range(start, end, WORDS):
            self._move(copy, buffer, first, min(end - first, WORDS))
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
        copy = self._device.context.copy_buffer
        copy(target, source, 4 * count, read_offset=0, write_offset=4 * first)


def allocated(
    device: Device, words: int, content: NDArray[np.uint32] | None = None
) -> moderngl.Buffer:
    """A new buffer of `words`, with `content` at its beginning, and zeros behind it.

    Only where the device may be used. Raises DeviceError where memory runs out.
    """
    device.collect()  # which may be what there is room for
    offers, nbytes = device.capabilities, 4 * words
    # Content comes with the allocation, not by Buffer.clear(): after that NVIDIA's driver (580)
    # shows shaders the last write but one.
    if nbytes < LEAST or not (offers.buffer_storage and offers.own_memory):
        whole = np.zeros(words, np.uint32) if content is None or len(content) < words else content
        if content is not None and whole is not content:
            whole[: len(content)] = content
        made = device.context.buffer(whole)
        device.check_always(f"allocate {nbytes} bytes")
        return made
    made = device.context.buffer(reserve=nbytes)
    device.check_always(f"allocate {nbytes} bytes")
    staging, given = Staging.of(device), 0 if content is None else len(content)
    if given < words:
        staging.clear(made, given, words)
    if content is not None:
        staging.fill(made, content)
    return made
