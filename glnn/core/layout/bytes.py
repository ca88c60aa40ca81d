"""Layouts of images with numbers as small as on the host, for kernels that write whole words.

A GPU stores words of 32 bits: the invocation that writes a byte writes all bytes of its word.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.layout.layout import DENSE, PACKED, Array, Dim, Layout
from glnn.core.symint import divides
from glnn.errors import LayoutError

ALIGNMENT = 16  # numbers: 16 bytes are one uvec4, one RGBA texel


class Narrow(Layout):
    """A layout whose numbers take as many bytes as on the host; padding may hold any value."""

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

    Where the last dimension is a multiple of 16 it is `packed`.
    """

    in_rows: ClassVar[bool] = True
    name: str = "packed16"

    def simplify(self, shape: tuple[int, ...]) -> Layout:
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
        """Return the rows in `flat` without their padding, as a view."""
        if not shape:
            return flat[:1].reshape(())
        return flat.reshape(*shape[:-1], self.row(shape))[..., : shape[-1]]


@dataclass(frozen=True)
class PackedTiles(Narrow):
    """`packed HxW`, as `packed 2x8`: images (c, h, w) in tiles; a position's c tiles are adjacent.

    The outputs that transform feedback captures of one vertex are contiguous: in this layout they
    may be of several images and several rows.
    """

    tile_rows: int
    tile_columns: int

    def __post_init__(self) -> None:
        if self.tile_rows < 1 or self.tile_columns < 4 or self.tile_columns % 4:
            raise LayoutError(
                f"layout {self.name}: tiles must have rows of whole fours, at least one"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The text that `parse` reads."""
        return f"packed {self.tile_rows}x{self.tile_columns}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return (3,)

    def _tiles(self, shape: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        """Return the stored shape: tiles down, tiles across, images, a tile's rows and columns."""
        if len(shape) != 3:
            raise LayoutError(f"layout {self.name} takes arrays of 3 dimensions, got shape {shape}")
        c, h, w = shape
        down, across = -(-h // self.tile_rows), -(-w // self.tile_columns)
        return down, across, c, self.tile_rows, self.tile_columns

    def size(self, shape: tuple[int, ...]) -> int:
        return prod(self._tiles(shape))

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        tiles = self._tiles(shape)
        axes, steps = (1, 2, 0, 1, 2), (self.tile_rows, self.tile_columns, 1, 1, 1)
        return tuple(
            Dim(axis, step, extent, prod(tiles[i + 1 :]))
            for i, (axis, step, extent) in enumerate(zip(axes, steps, tiles, strict=True))
        )

    def fill(self, flat: Array, array: Array) -> None:
        down, across, c, rows, columns = self._tiles(array.shape)
        padded = np.zeros((c, down * rows, across * columns), array.dtype)
        padded[:, : array.shape[1], : array.shape[2]] = array
        split = padded.reshape(c, down, rows, across, columns)
        flat.reshape(down, across, c, rows, columns)[...] = split.transpose(1, 3, 0, 2, 4)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        down, across, c, rows, columns = tiles = self._tiles(shape)
        split = flat.reshape(tiles).transpose(2, 0, 3, 1, 4)
        padded = split.reshape(c, down * rows, across * columns)
        return np.array(padded[:, : shape[1], : shape[2]])


PACKED_ROWS = PackedRows()


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
