"""The Hybrid Morton Order layouts of Rovder 2017, section 8.2, and column major, the simplest.

    Layout -> Base (Y X Base)*          as R, C, C 4 2 C, R 4 4 R 2 2 R

A matrix is cut into chunks of Y rows and X columns, each of these into smaller ones, and so on.
`Base` is the order of the chunks of a level: R row by row, C column by column. Underscores may
replace the blanks. The sizes of a level divide those of the level above; the matrix is padded with
zeros to whole chunks. An array of more dimensions is a contiguous stack of matrices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.layout.layout import ROW_ALIGNMENT, Dim, Layout
from glnn.core.types import DType
from glnn.errors import LayoutError

Array = NDArray[Any]


@dataclass(frozen=True)
class Morton(Layout):
    """A Hybrid Morton Order layout of matrices.

    bases: the order of the chunks at each level, outermost first. chunks: the rows and columns of
    a chunk at each level below the first.
    """

    name: str
    bases: tuple[str, ...]
    chunks: tuple[tuple[int, int], ...]
    narrow: bool = False

    def __post_init__(self) -> None:
        for (rows, columns), (inner_rows, inner_columns) in zip(
            self.chunks, self.chunks[1:], strict=False
        ):
            if rows % inner_rows or columns % inner_columns:
                raise LayoutError(
                    f"layout {self.name}: chunks of {inner_rows} x {inner_columns} "
                    f"do not divide chunks of {rows} x {columns}"
                )

    @property
    def ranks(self) -> tuple[int, ...]:
        return (2,)

    @classmethod
    def parse(cls, text: str) -> Morton | None:
        """Return the layout that `text` names; None where it names no layout of this kind."""
        words = text.replace("_", " ").split()
        name = " ".join(words)
        if not re.fullmatch(r"[RC]( [1-9][0-9]* [1-9][0-9]* [RC])*", name):
            return None
        sizes = zip(words[1::3], words[2::3], strict=True)
        return cls(name, tuple(words[0::3]), tuple((int(y), int(x)) for y, x in sizes))

    def padded(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the stored rows and columns of each matrix of an array of `shape`."""
        if len(shape) < 2:
            raise LayoutError(f"layout {self.name} is for matrices, got shape {shape}")
        plain = (ROW_ALIGNMENT, 1) if self.bases == ("C",) else (1, ROW_ALIGNMENT)
        high, wide = self.chunks[0] if self.chunks else plain
        return -(-shape[-2] // high) * high, -(-shape[-1] // wide) * wide

    def size(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers an array of `shape` takes, padding included."""
        return prod(shape[:-2]) * prod(self.padded(shape))

    def index(self, shape: tuple[int, ...], row: Any, column: Any) -> Any:
        """Return the position of element (row, column) of a matrix of `shape`.

        row, column: integers or arrays.
        """
        rows, columns = self.padded(shape)
        position = 0
        for base, (high, wide) in zip(self.bases, (*self.chunks, (1, 1)), strict=True):
            down, across = row // high, column // wide
            if base == "R":
                chunk = down * (columns // wide) + across
            else:
                chunk = across * (rows // high) + down
            position = position + chunk * (high * wide)
            row, column, rows, columns = row % high, column % wide, high, wide
        return position

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        split, order = self.axes(shape)
        stack, depth = len(shape) - 2, len(self.bases)
        chunks = (*self.chunks, (1, 1))
        steps = [1] * stack + [high for high, _ in chunks] + [wide for _, wide in chunks]
        axes = [*range(stack), *[stack] * depth, *[stack + 1] * depth]
        extents = [split[i] for i in order]
        return tuple(
            Dim(axes[i], steps[i], split[i], prod(extents[position + 1 :]))
            for position, i in enumerate(order)
        )

    def axes(self, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the shape of the padded array split at every level, and the stored order of its
        axes.
        """
        rows, columns = self.padded(shape)
        levels = [(rows, columns), *self.chunks, (1, 1)]
        pairs = list(pairwise(levels))
        stack = list(shape[:-2])
        split = [a // b for (a, _), (b, _) in pairs] + [a // b for (_, a), (_, b) in pairs]
        depth = len(pairs)
        order = list(range(len(stack)))
        for level, base in enumerate(self.bases):
            down, across = len(stack) + level, len(stack) + depth + level
            order += [down, across] if base == "R" else [across, down]
        return stack + split, order

    def pack(self, array: Array) -> Array:
        """Return the elements of `array` in stored order, a contiguous vector of words; padding is
        0.
        """
        split, order = self.axes(array.shape)
        number = self.number(DType.from_array(array))
        source: Array = array
        padded = (*array.shape[:-2], *self.padded(array.shape))
        if padded != array.shape:
            source = np.zeros(padded, number)
            source[..., : array.shape[-2], : array.shape[-1]] = array
        stored = source.reshape(split).transpose(order)
        return np.ascontiguousarray(stored, number).reshape(-1)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """Return the array of `shape` that `flat` stores, as a new array."""
        if flat.size != self.size(shape):
            raise LayoutError(
                f"layout {self.name}: {shape} takes {self.size(shape)} floats, got {flat.size}"
            )
        split, order = self.axes(shape)
        stored = flat.reshape([split[a] for a in order])
        padded = stored.transpose(np.argsort(order)).reshape(*shape[:-2], *self.padded(shape))
        return np.array(padded[..., : shape[-2], : shape[-1]])
