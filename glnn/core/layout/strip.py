"""Layouts of a part of memory: some channels of wider images, or some columns of wider rows.

`nhwC4c 16/64` are channels that begin at number 16 of a pixel that takes 64, `R4 16/64` the same of
a matrix whose rows are the pixels. What makes some channels of a concatenation writes them to where
they belong, and a slice of channels is read where it lies. The other numbers belong to somebody
else: what writes a strip writes whole vec4 of its own, and no others.
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
    """A layout of channels that are a part of each pixel's memory, as operands of a Concat are."""

    whole: Layout
    """The layout of the tensor that has these channels alone: `nhwC4c` or `R4`."""
    first: int = field()  # a layout has 0
    """The first of them, counted in numbers from where a pixel begins; whole vec4 are before it."""
    wide: int
    """Numbers from one pixel to the next, whole vec4."""

    def __post_init__(self) -> None:
        if self.first % ROW_ALIGNMENT or self.wide % ROW_ALIGNMENT or self.first >= self.wide:
            raise LayoutError(
                f"layout {self.name}: expected multiples of {ROW_ALIGNMENT}, the first less than "
                "the second"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The text that `parse` reads."""
        return f"{self.whole.name} {self.first}/{self.wide}"

    @property
    def unpacked(self) -> Layout:
        return self.whole

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.whole.ranks or (2,)

    def resized(self, before: Shape, after: Shape) -> Strip:
        """Return the layout for a tensor of shape `after` in the place of one of shape `before`."""
        return replace(self, wide=self.wide + self._pixel_words(after) - self._pixel_words(before))

    def size(self, shape: Shape) -> int:
        taken = self._pixel_words(shape)
        if self.first + taken > self.wide:
            raise LayoutError(f"layout {self.name} has no room for {taken} numbers of a pixel")
        return self.whole.size(shape) // taken * self.wide if taken else 0

    def dims(self, shape: Shape) -> tuple[Dim, ...]:
        taken = self._pixel_words(shape)
        return tuple(
            replace(dim, stride=dim.stride // taken * self.wide) if dim.axis != 1 else dim
            for dim in self.whole.dims(shape)
        )

    def pack(self, array: Array) -> Array:
        flat = np.zeros(self.size(array.shape), word(array.dtype))
        self.fill(flat, array)
        return flat

    def fill(self, flat: Array, array: Array) -> None:
        if array.size:
            taken = self._pixel_words(array.shape)
            self._own_words(flat, taken)[:] = self.whole.pack(array).reshape(-1, taken)

    def unpack(self, flat: Array, shape: Shape) -> Array:
        if flat.size != self.size(shape):
            raise LayoutError(
                f"layout {self.name}: {shape} takes {self.size(shape)} numbers, got {flat.size}"
            )
        if not prod(shape):
            return np.zeros(shape, flat.dtype)
        words = np.ascontiguousarray(self._own_words(flat, self._pixel_words(shape))).reshape(-1)
        return self.whole.unpack(words, shape)

    def _pixel_words(self, shape: Shape) -> int:
        """Return the numbers of a pixel that are the tensor's own, whole vec4."""
        if len(shape) not in self.ranks:
            raise LayoutError(f"layout {self.name} takes no array of shape {shape}")
        return -(-shape[1] // ROW_ALIGNMENT) * ROW_ALIGNMENT

    def _own_words(self, flat: Array, count: int) -> Array:
        """Return the tensor's own numbers in `flat`, pixel by pixel."""
        return flat.reshape(-1, self.wide)[:, self.first : self.first + count]


def without_strip(layout: Layout) -> Layout:
    """Return the layout of the tensor with memory of its own, where `layout` is a part of others'
    memory.
    """
    return layout.whole if isinstance(layout, Strip) else layout
