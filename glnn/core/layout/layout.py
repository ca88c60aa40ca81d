"""The base of layouts, and the row-major and blocked kinds; `morton` has the third.

`R` is row major and dense; the end of the whole array is padded to four words, one `vec4`. An array
keeps its memory when it is reshaped.

`R4` is row major with rows aligned to a `vec4`: an array of shape (N, ...) is a matrix of N rows,
each padded to four words. An array of one dimension is a single row. Where the words of a row are a
multiple of four, and where there is a single row, `R4` is `R` (see `Layout.simplify`).

`packed` is row major and dense, and each number takes as many bytes as on the host: one, or two for
float16. Inputs that are uploaded have this layout; `layout.bytes` has more layouts of this kind.

Padding may hold any value, also NaN, in tensors that kernels read and write; in parameters it is 0.

Any other name is a blocked tag in oneDNN's notation: letters name the array's dimensions, outermost
first, an upper-case letter is a dimension split into blocks, and the blocks' sizes follow. `nChw4c`
has channels in groups of four, innermost; `nhwC4c` has all channels of a pixel together; `IO4i4o`
stores a matrix of shape (o, i) as 4 x 4 tiles, the tiles of one `i` side by side. Blocks are padded
with zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.core.cached_property import cached_property
from glnn.core.symint import same
from glnn.core.types import DType, TensorType
from glnn.errors import LayoutError

Array = NDArray[Any]
CHANNELS_LAST = "nhwC4c"
ROW_ALIGNMENT = 4  # floats: one vec4, one RGBA texel
RANGE_ALIGNMENT = 64  # words: no device requires more than 256 bytes for a bound range's offset


def aligned(words: int) -> int:
    """Round `words` up to an offset at which a range of memory may be bound."""
    return -(-words // RANGE_ALIGNMENT) * RANGE_ALIGNMENT


@dataclass(frozen=True)
class Dim:
    """A dimension of an array in memory: an axis of the array, or a part of it."""

    axis: int
    """The axis of the array."""
    step: int
    """The distance along the axis between neighbours in this dimension."""
    extent: int
    """The number of positions, padding included, but without the padding at the end of a row."""
    stride: int
    """The distance in memory, in numbers, between neighbours in this dimension."""


class Layout(ABC):
    """A bijection between an array's elements and positions in a flat vector of numbers.

    A number takes a word of 32 bits, or half a word for float16, unless the layout is packed.
    """

    name: str
    in_rows: ClassVar[bool] = False
    """Whether the array is stored row by row, with or without padding."""
    narrow: bool = False
    """Whether numbers take as many bytes as on the host, instead of a word."""
    offset: int = 0
    """The position of the first element."""

    @property
    def unpacked(self) -> Layout:
        """The layout of the result of an elementwise operation on a tensor in this layout."""
        return self

    def number(self, dtype: DType) -> np.dtype[Any]:
        """Return the type of a number of `dtype` in memory."""
        return dtype.numpy if self.narrow else dtype.word

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The ranks of arrays that the layout takes; None for any rank."""
        return None

    @property
    def zero_padding(self) -> bool:
        """True where a kernel must write zeros to a result's padding: consumers multiply it by
        weights.
        """
        return False

    def simplify(self, shape: tuple[int, ...]) -> Layout:
        """Return the simplest layout in which an array of `shape` is the same memory."""
        return self

    def is_same_memory(self, layout: Layout, shape: tuple[int, ...]) -> bool:
        """Return True where an array of `shape` is the same memory in `layout`, but for its
        padding.
        """
        return self._simplify_without_padding(shape) == layout._simplify_without_padding(shape)

    def _simplify_without_padding(self, shape: tuple[int, ...]) -> Layout:
        """Return the simplest layout in which the elements of an array of `shape` have the same
        positions.
        """
        return self.simplify(shape)

    @abstractmethod
    def size(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers an array of `shape` takes, padding included."""

    def words(self, type: TensorType) -> int:
        """Return how many words of 32 bits a tensor of `type` takes."""
        return -(-self.size(type.shape) * self.number(type.dtype).itemsize // 4)

    @abstractmethod
    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Return the dimensions in memory of an array of `shape`, outermost first."""

    @abstractmethod
    def pack(self, array: Array) -> Array:
        """Return the elements of `array` in stored order, a contiguous vector; padding is 0.

        The vector is int32 for integers and bools (as 0 and 1), float16 for float16, else float32.
        """

    def fill(self, flat: Array, array: Array) -> None:
        """Write `array` in stored order to the vector `flat`; its padding is unspecified."""
        flat[:] = self.pack(array)

    @abstractmethod
    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """Return the array of `shape` that `flat` stores, as a new array."""

    def view(self, flat: Array, shape: tuple[int, ...]) -> Array | None:
        """Return the array of `shape` that `flat` stores, as a view; None where there is no such
        view.
        """
        return None


@dataclass(frozen=True)
class RowMajor(Layout):
    """`R` and `R4`: row by row."""

    in_rows: ClassVar[bool] = True
    name: str = "R"
    alignment: int = 1
    """Rows are padded to a multiple of this many numbers."""
    narrow: bool = False

    def simplify(self, shape: tuple[int, ...]) -> Layout:
        is_dense = not self.narrow and same(self.row(shape), DENSE.row(shape))
        return DENSE if is_dense else self

    def rows(self, shape: tuple[int, ...]) -> int:
        """Return the number of rows; arrays of fewer than two dimensions are one row."""
        return shape[0] if len(shape) > 1 else 1

    def row(self, shape: tuple[int, ...]) -> int:
        """Return the words from one row to the next; for a single row, its size."""
        inner = prod(shape[1:]) if len(shape) > 1 else prod(shape)
        return _padded(inner, ROW_ALIGNMENT if same(self.rows(shape), 1) else self.alignment)

    def size(self, shape: tuple[int, ...]) -> int:
        return _padded(self.rows(shape) * self.row(shape), ROW_ALIGNMENT)

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
        if len(shape) > 1:
            strides[0] = self.row(shape)
        return tuple(
            Dim(axis, 1, extent, stride)
            for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True))
        )

    def pack(self, array: Array) -> Array:
        size, number = self.size(array.shape), self.number(DType.from_array(array))
        if size == array.size:
            return np.ascontiguousarray(array, number).reshape(-1)
        flat = np.zeros(size, number)
        if array.size:
            rows = self.rows(array.shape)
            self._matrix(flat, array.shape)[:] = array.reshape(rows, -1)
        return flat

    def fill(self, flat: Array, array: Array) -> None:
        if array.size:
            self._matrix(flat, array.shape)[:] = array.reshape(self.rows(array.shape), -1)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        return np.array(self.view(flat, shape))

    def view(self, flat: Array, shape: tuple[int, ...]) -> Array:
        _check_size(self, flat, shape)
        return self._matrix(flat, shape).reshape(shape)

    def _matrix(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """Return the rows in `flat` without their padding."""
        rows, row = self.rows(shape), self.row(shape)
        inner = prod(shape) // rows if rows else 0
        return flat[: rows * row].reshape(rows, row)[:, :inner]


@dataclass(frozen=True)
class Packed(RowMajor):
    """`packed`: as `R`, but numbers take as many bytes as on the host."""

    name: str = "packed"
    narrow: bool = True

    @property
    def unpacked(self) -> Layout:
        return DENSE

    def simplify(self, shape: tuple[int, ...]) -> Layout:
        return self

    def pack(self, array: Array) -> Array:
        flat = np.zeros(self.size(array.shape), array.dtype)
        self.fill(flat, array)
        return flat


DENSE = RowMajor()
PADDED = RowMajor("R4", ROW_ALIGNMENT)
PACKED = Packed()


@dataclass(frozen=True)
class Blocked(Layout):
    """A layout named by a blocked tag. letters: the names of the array's dimensions, in order."""

    name: str
    letters: str
    order: tuple[str, ...]  # outer dimensions, outermost first
    blocks: tuple[tuple[int, str], ...]  # inner blocks, outermost first
    narrow: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return (len(self.letters),)

    @property
    def zero_padding(self) -> bool:
        return self.name == "nChw4c"

    def _simplify_without_padding(self, shape: tuple[int, ...]) -> Layout:
        single_pixel = self.name == CHANNELS_LAST and same(prod(shape[2:]), 1)
        return PADDED.simplify(shape) if single_pixel else self

    @cached_property
    def _block_sizes(self) -> tuple[int, ...]:
        """The product of the block sizes of each dimension, to a multiple of which it is padded."""
        return tuple(prod(n for n, one in self.blocks if one == dim) for dim in self.letters)

    def _block_size(self, dim: str) -> int:
        return self._block_sizes[self.letters.index(dim)]

    def _check_rank(self, shape: tuple[int, ...]) -> None:
        if len(shape) != len(self.letters):
            raise LayoutError(
                f"layout {self.name} takes arrays of {len(self.letters)} dimensions, "
                f"got shape {shape}"
            )

    def padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored sizes of an array of `shape`."""
        self._check_rank(shape)
        pairs = zip(shape, self._block_sizes, strict=True)
        return tuple([-(-n // block) * block for n, block in pairs])

    def size(self, shape: tuple[int, ...]) -> int:
        return prod(self.padded(shape))

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        padded = self.padded(shape)
        step = {d: self._block_size(d) for d in self.letters}
        stored: list[tuple[str, int, int]] = []  # letter, step, extent
        for dim in self.order:
            stored.append((dim, step[dim], padded[self.letters.index(dim)] // step[dim]))
        for size, dim in self.blocks:
            step[dim] //= size
            stored.append((dim, step[dim], size))
        extents = [extent for _, _, extent in stored]
        return tuple(
            Dim(self.letters.index(dim), distance, extent, prod(extents[i + 1 :]))
            for i, (dim, distance, extent) in enumerate(stored)
        )

    def axes(self, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the shape of the padded array split at every block, and the stored order of its
        axes.
        """
        return self._split(self.padded(shape)), self._axes()

    def _axes(self) -> list[int]:
        """Return the stored order of the axes that `_split` makes."""
        axis: dict[tuple[str, int], int] = {}  # by dimension, and level: 0, then its blocks
        for dim in self.letters:
            for level in range(1 + sum(letter == dim for _, letter in self.blocks)):
                axis[dim, level] = len(axis)
        level_of = dict.fromkeys(self.letters, 0)
        order = [axis[dim, 0] for dim in self.order]
        for _, dim in self.blocks:
            level_of[dim] += 1
            order.append(axis[dim, level_of[dim]])
        return order

    def _split(self, padded: tuple[int, ...]) -> list[int]:
        """Return the padded shape with each dimension split into (outer, its blocks...)."""
        shape: list[int] = []
        for n, dim in zip(padded, self.letters, strict=True):
            shape += [n // self._block_size(dim), *(s for s, d in self.blocks if d == dim)]
        return shape

    def pack(self, array: Array) -> Array:
        padded, number = self.padded(array.shape), self.number(DType.from_array(array))
        source: Array = array
        if padded != array.shape:
            source = np.zeros(padded, number)
            source[tuple(slice(n) for n in array.shape)] = array
        split = source.reshape(self._split(padded)).transpose(self._axes())
        return np.ascontiguousarray(split, number).reshape(-1)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        _check_size(self, flat, shape)
        padded = self.padded(shape)
        split, axes = self._split(padded), self._axes()
        stored = flat.reshape([split[a] for a in axes])
        array = stored.transpose(np.argsort(axes)).reshape(padded)
        return np.array(array[tuple(slice(n) for n in shape)])


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _check_size(layout: Layout, flat: Array, shape: tuple[int, ...]) -> None:
    if flat.size != layout.size(shape):
        raise LayoutError(
            f"layout {layout.name}: {shape} takes {layout.size(shape)} floats, got {flat.size}"
        )
