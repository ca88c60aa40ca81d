"""Parts of a device's memory that it copies itself: what is written over and over, or read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.gl.buffer import Buffer
from glnn.gl.copying import Part
from glnn.gl.device import Device
from glnn.gl.staging import allocated
from glnn.layout.layout import DENSE, PACKED

PIECE = 1 << 20  # bytes that are copied at once, where fewer are repeated


def repeat(device: Device, buffer: Buffer, part: Part, numbers: NDArray[Any]) -> None:
    """Have `part` of the memory of `buffer`, in bytes, hold `numbers` over and over.

    They go to the device once, and from there to each place. Whoever asks tells `buffer` so.
    """
    first, last = part
    if first >= last or not numbers.nbytes:
        return
    times = max(min(PIECE, last - first) // numbers.nbytes, 1)
    size = times * numbers.nbytes
    words = np.empty(-(-size // 4), np.uint32)
    words.view(numbers.dtype)[: times * numbers.size].reshape(times, -1)[:] = numbers
    target, copy = buffer.push(device), device.context.copy_buffer
    if last - first <= size:
        target.write(words.view(np.uint8)[: last - first], offset=buffer.first + first)
        device.check(f"write {last - first} bytes")
        return
    source = allocated(device, len(words), words)
    for at in range(first, last, size):
        count = min(size, last - at)
        copy(target, source, count, read_offset=0, write_offset=buffer.first + at)
    device.check(f"copy {last - first} bytes")


def gathered(device: Device, buffer: Buffer, places: Sequence[Part]) -> NDArray[Any]:
    """The numbers of `buffer` in `places`, as they lie there, one place behind another.

    The device puts them together, so that little is read, at once, and a driver that keeps what is
    read with the host has no reason to move the rest there.
    """
    layout = PACKED if buffer.layout.narrow else DENSE
    count = sum(last - first for first, last in places)
    found = Buffer((count,), layout, dtype=buffer.dtype)
    target, source, copy = found.push(device), buffer.push(device), device.context.copy_buffer
    size, at = layout.number(buffer.dtype).itemsize, 0
    for first, last in places:
        start, taken = buffer.first + size * first, size * (last - first)
        copy(target, source, taken, read_offset=start, write_offset=at)
        at += taken
    device.check(f"copy {at} bytes")
    found.wrote()
    return found.pull()
