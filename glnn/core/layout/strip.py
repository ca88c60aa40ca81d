"""Strips: strided layouts of some channels of a wider image, or some columns of a wider matrix.

`nhwC4c 16/64` is a tensor whose channels begin at offset 16 of pixels of 64 numbers; `R4 16/64` is
the same for a matrix, whose rows are the pixels. So the producer of an operand of a Concat writes
its channels into the result's memory, and the consumer of a slice of channels reads them in place.
The other numbers of a pixel belong to other tensors: a kernel that writes a strip writes whole vec4
of it, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from glnn.core.layout.layout import ROW_ALIGNMENT, Array, Dim, Layout
from glnn.core.types import Shape, word
from glnn.errors import LayoutError


@dataclass(frozen=True)
class Strip(Layout):
    """A layout of channels that take a part of each pixel's memory, as an operand of a Concat."""

    base: Layout
    """The layout of the same tensor in memory of its own: `nhwC4c` or `R4`."""
    offset: int = field()  # overrides the default of Layout
    """The numbers of a pixel before the first channel, a multiple of ROW_ALIGNMENT."""
    pixel_stride: int
    """The numbers from one pixel to the next, a multiple of ROW_ALIGNMENT."""

    def __post_init__(self) -> None:
        aligned = self.offset % ROW_ALIGNMENT == 0 and self.pixel_stride % ROW_ALIGNMENT == 0
        if not aligned or self.offset >= self.pixel_stride:
            raise LayoutError(
                f"layout {self.name}: expected multiples of {ROW_ALIGNMENT}, the first less than "
                "the second"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The text that `parse` reads."""
        return f"{self.base.name} {self.offset}/{self.pixel_stride}"

    @property
    def unpacked(self) -> Layout:
        return self.base

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.base.ranks or (2,)

    def resized(self, before: Shape, after: Shape) -> Strip:
        """Return the layout of a tensor of shape `after` that replaces one of shape `before`."""
        added = self._pixel_words(after) - self._pixel_words(before)
        return replace(self, pixel_stride=self.pixel_stride + added)

    def size(self, shape: Shape) -> int:
        count = self._pixel_words(shape)
        if self.offset + count > self.pixel_stride:
            raise LayoutError(f"layout {self.name} has no room for {count} numbers of a pixel")
        return self.base.size(shape) // count * self.pixel_stride if count else 0

    def dims(self, shape: Shape) -> tuple[Dim, ...]:
        count = self._pixel_words(shape)
        return tuple(
            replace(dim, stride=dim.stride // count * self.pixel_stride) if dim.axis != 1 else dim
            for dim in self.base.dims(shape)
        )

    def pack(self, array: Array) -> Array:
        flat = np.zeros(self.size(array.shape), word(array.dtype))
        self.fill(flat, array)
        return flat

    def fill(self, flat: Array, array: Array) -> None:
        if array.size:
            count = self._pixel_words(array.shape)
            self._own_words(flat, count)[:] = self.base.pack(array).reshape(-1, count)

    def unpack(self, flat: Array, shape: Shape) -> Array:
        if flat.size != self.size(shape):
            raise LayoutError(
                f"layout {self.name}: {shape} takes {self.size(shape)} numbers, got {flat.size}"
            )
        if not prod(shape):
            return np.zeros(shape, flat.dtype)
        words = np.ascontiguousarray(self._own_words(flat, self._pixel_words(shape))).reshape(-1)
        return self.base.unpack(words, shape)

    def _pixel_words(self, shape: Shape) -> int:
        """Return how many numbers of a pixel the tensor takes, a multiple of ROW_ALIGNMENT."""
        if len(shape) not in self.ranks:
            raise LayoutError(f"layout {self.name} takes no array of shape {shape}")
        return -(-shape[1] // ROW_ALIGNMENT) * ROW_ALIGNMENT

    def _own_words(self, flat: Array, count: int) -> Array:
        """Return the tensor's `count` numbers of each pixel in `flat`, as a view."""
        return flat.reshape(-1, self.pixel_stride)[:, self.offset : self.offset + count]


def without_strip(layout: Layout) -> Layout:
    """Return the base of a Strip; any other layout unchanged."""
    return layout.base if isinstance(layout, Strip) else layout
