"""Layouts of images whose numbers are as small as on the host, for kernels that own whole words.

A GPU stores words of 32 bits, so what writes bytes must own those that share a word with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.layout.layout import DENSE, PACKED, Array, Dim, Layout
from glnn.core.symint import divides
from glnn.errors import LayoutError

ALIGNMENT = 16  # numbers: of bytes one uvec4, one RGBA texel


class Narrow(Layout):
    """A layout of numbers narrower than a word, as the host has them; padding may hold anything."""

    narrow = True

    @property
    def unpacked(self) -> Layout:
        return DENSE

    def pack(self, array: Array) -> Array:
        flat = np.zeros(self.size(array.shape), array.dtype)
        self.fill(flat, array)
        return flat


@dataclass(frozen=True)
class PackedRows(Narrow):
    """`packed16`: as `packed`, each row along the last dimension padded to 16 numbers.

    Where rows are whole sixteens it is `packed`.
    """

    in_rows: ClassVar[bool] = True
    name: str = "packed16"

    def at(self, shape: tuple[int, ...]) -> Layout:
        return PACKED if shape and divides(ALIGNMENT, shape[-1]) else self

    def row(self, shape: tuple[int, ...]) -> int:
        """Return the numbers from one row to the next."""
        return _padded(shape[-1] if shape else 1, ALIGNMENT)

    def size(self, shape: tuple[int, ...]) -> int:
        return prod(shape[:-1]) * self.row(shape)

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        stored = (*shape[:-1], self.row(shape))
        return tuple(Dim(i, 1, n, prod(stored[i + 1 :])) for i, n in enumerate(shape))

    def fill(self, flat: Array, array: Array) -> None:
        self._rows_of(flat, array.shape)[...] = array

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        return np.array(self._rows_of(flat, shape))

    def _rows_of(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """Return the rows in `flat` without their padding."""
        if not shape:
            return flat[:1].reshape(())
        return flat.reshape(*shape[:-1], self.row(shape))[..., : shape[-1]]


@dataclass(frozen=True)
class PackedTiles(Narrow):
    """`packed HxW`, as `packed 2x8`: images (c, h, w) tile by tile, a tile of each of the c images.

    One vertex captures what is in one place: so it may have several images, and several rows.
    """

    high: int
    """Rows of a tile."""
    wide: int
    """Numbers of each."""

    def __post_init__(self) -> None:
        if self.high < 1 or self.wide < 4 or self.wide % 4:
            raise LayoutError(
                f"layout {self.name}: tiles must have rows of whole fours, at least one"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name, as `parse` reads it."""
        return f"packed {self.high}x{self.wide}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return (3,)

    def _tiles(self, shape: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        """Return tiles from top to bottom and left to right; images; a tile's rows and columns."""
        if len(shape) != 3:
            raise LayoutError(f"layout {self.name} takes arrays of 3 dimensions, got shape {shape}")
        c, h, w = shape
        return -(-h // self.high), -(-w // self.wide), c, self.high, self.wide

    def size(self, shape: tuple[int, ...]) -> int:
        return prod(self._tiles(shape))

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        tiles = self._tiles(shape)
        axes, steps = (1, 2, 0, 1, 2), (self.high, self.wide, 1, 1, 1)
        return tuple(
            Dim(axis, step, extent, prod(tiles[i + 1 :]))
            for i, (axis, step, extent) in enumerate(zip(axes, steps, tiles, strict=True))
        )

    def fill(self, flat: Array, array: Array) -> None:
        down, across, c, high, wide = self._tiles(array.shape)
        whole = np.zeros((c, down * high, across * wide), array.dtype)
        whole[:, : array.shape[1], : array.shape[2]] = array
        split = whole.reshape(c, down, high, across, wide)
        flat.reshape(down, across, c, high, wide)[...] = split.transpose(1, 3, 0, 2, 4)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        down, across, c, high, wide = tiles = self._tiles(shape)
        whole = flat.reshape(tiles).transpose(2, 0, 3, 1, 4).reshape(c, down * high, across * wide)
        return np.array(whole[:, : shape[1], : shape[2]])


PACKED_ROWS = PackedRows()


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
