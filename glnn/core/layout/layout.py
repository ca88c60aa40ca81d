"""The base of layouts, and the two simple kinds; `morton` has the third.

`R` is row major and dense: the elements one after the other, the end of the whole array padded to
four words, one `vec4`. Seen in another shape it is the same memory.

`R4` is row major with rows that begin on a `vec4`: an array of shape (N, ...) is a matrix of N
rows, each padded to four words. An array of one dimension is a single row. Where rows are whole
fours, and where there is but one, that is `R` (see `Layout.at`).

`packed` is row major and dense, too, and each number takes no more than on the host: a byte, or two
where it is float16. So lie inputs as they come up from the host; `layout.bytes` has more of these.

Padding may hold anything, NaN too, in what kernels read and write; in parameters it is zero.

Anything else is a blocked tag in oneDNN's notation: letters name the array's dimensions in the
order of `dims`, an upper-case letter is a dimension split into blocks, and the blocks' sizes
follow: `nChw4c` has its channels in groups of four, innermost;
`nhwC4c` has them innermost, all of a pixel together; `IO4i4o` stores a matrix of shape
(o, i) as 4 x 4 tiles, the tiles of one `i` side by side. Blocks are padded with zeros.
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
RANGE_ALIGNMENT = 64  # words: no device asks for more than 256 bytes where a range is bound


def aligned(words: int) -> int:
    """Return the words after which another range of the same memory may be bound."""
    return -(-words // RANGE_ALIGNMENT) * RANGE_ALIGNMENT


@dataclass(frozen=True)
class Dim:
    """A dimension of an array's memory: some of an axis of the array, in steps."""

    axis: int
    """The axis of the array."""
    step: int
    """The distance along the axis to the next place of this dimension."""
    extent: int
    """The number of places, padding included; but not what follows a padded row."""
    stride: int
    """Numbers of memory from one place to the next."""


class Layout(ABC):
    """A bijection between an array's elements and places in a flat run of numbers.

    A number takes a word of 32 bits, or half of one where it is float16, unless it is packed.
    """

    name: str
    in_rows: ClassVar[bool] = False
    """Whether rows follow one another, padded or not."""
    narrow: bool = False
    """Whether numbers are as small as the host's."""
    first: int = 0
    """The place of the first element."""

    @property
    def unpacked(self) -> Layout:
        """The layout of a tensor that is computed elementwise of one in this layout."""
        return self

    def number(self, dtype: DType) -> np.dtype[Any]:
        """Return the type of a number of `dtype` in memory."""
        return dtype.numpy if self.narrow else dtype.word

    @property
    def ranks(self) -> tuple[int, ...] | None:
        """The ranks of arrays that the layout takes; None where any."""
        return None

    @property
    def zeros(self) -> bool:
        """True where the padding of a result must be zero, as its readers multiply it by
        weights.
        """
        return False

    def at(self, shape: tuple[int, ...]) -> Layout:
        """Return the simplest layout in which an array of `shape` is the same memory."""
        return self

    def seen_as(self, layout: Layout, shape: tuple[int, ...]) -> bool:
        """Return True where an array of `shape` is the same memory in `layout`, apart from
        padding.
        """
        return self._rows(shape) == layout._rows(shape)

    def _rows(self, shape: tuple[int, ...]) -> Layout:
        """Return the simplest layout in which the numbers of an array of `shape` have the same
        places.
        """
        return self.at(shape)

    @abstractmethod
    def size(self, shape: tuple[int, ...]) -> int:
        """Return the numbers that an array of `shape` takes, padding included."""

    def words(self, type: TensorType) -> int:
        """Return the words of 32 bits that a tensor of `type` takes."""
        return -(-self.size(type.shape) * self.number(type.dtype).itemsize // 4)

    @abstractmethod
    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        """Return the dimensions of memory of an array of `shape`, outermost first."""

    @abstractmethod
    def pack(self, array: Array) -> Array:
        """Return the elements of `array` in stored order, a contiguous vector; padding is 0.

        They are int32 where `array` has integers or bools, 0 and 1 for these, float16 where it has
        these, else float32.
        """

    def fill(self, flat: Array, array: Array) -> None:
        """Have the vector `flat` hold `array` in stored order; what its padding holds is open."""
        flat[:] = self.pack(array)

    @abstractmethod
    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        """Return the array of `shape` that `flat` stores, as a new array."""

    def view(self, flat: Array, shape: tuple[int, ...]) -> Array | None:
        """Return the array of `shape` that `flat` stores, in the same memory; None where its
        numbers are in another order.
        """
        return None


@dataclass(frozen=True)
class RowMajor(Layout):
    """`R` and `R4`: rows one after the other."""

    in_rows: ClassVar[bool] = True
    name: str = "R"
    alignment: int = 1
    """Numbers to a multiple of which each row is padded."""
    narrow: bool = False

    def at(self, shape: tuple[int, ...]) -> Layout:
        dense = not self.narrow and same(self.row(shape), DENSE.row(shape))
        return DENSE if dense else self

    def rows(self, shape: tuple[int, ...]) -> int:
        """Return the number of rows: arrays of fewer than two dimensions are one."""
        return shape[0] if len(shape) > 1 else 1

    def row(self, shape: tuple[int, ...]) -> int:
        """Return the words from one row to the next; of a single row, all that it takes."""
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
    """`packed`: as `R`, but of numbers as small as the host's."""

    name: str = "packed"
    narrow: bool = True

    @property
    def unpacked(self) -> Layout:
        return DENSE

    def at(self, shape: tuple[int, ...]) -> Layout:
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
    """A layout named by a blocked tag. `letters` gives the array's dimensions in order."""

    name: str
    letters: str
    order: tuple[str, ...]  # outer dimensions, outermost first
    blocks: tuple[tuple[int, str], ...]  # inner blocks, outermost first
    narrow: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        return (len(self.letters),)

    @property
    def zeros(self) -> bool:
        return self.name == "nChw4c"

    def _rows(self, shape: tuple[int, ...]) -> Layout:
        single = self.name == CHANNELS_LAST and same(prod(shape[2:]), 1)
        return PADDED.at(shape) if single else self

    @cached_property
    def _units(self) -> tuple[int, ...]:
        """For each dimension, to a multiple of what it is padded."""
        return tuple(prod(n for n, one in self.blocks if one == dim) for dim in self.letters)

    def _block(self, dim: str) -> int:
        return self._units[self.letters.index(dim)]

    def _check_rank(self, shape: tuple[int, ...]) -> None:
        if len(shape) != len(self.letters):
            raise LayoutError(
                f"layout {self.name} takes arrays of {len(self.letters)} dimensions, "
                f"got shape {shape}"
            )

    def padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored sizes of an array of `shape`."""
        self._check_rank(shape)
        return tuple([-(-n // unit) * unit for n, unit in zip(shape, self._units, strict=True)])

    def size(self, shape: tuple[int, ...]) -> int:
        return prod(self.padded(shape))

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        padded = self.padded(shape)
        left = {d: self._block(d) for d in self.letters}
        axes_found: list[tuple[str, int, int]] = []  # letter, step, extent
        for dim in self.order:
            axes_found.append((dim, left[dim], padded[self.letters.index(dim)] // left[dim]))
        for size, dim in self.blocks:
            left[dim] //= size
            axes_found.append((dim, left[dim], size))
        extents = [extent for _, _, extent in axes_found]
        return tuple(
            Dim(self.letters.index(dim), step, extent, prod(extents[i + 1 :]))
            for i, (dim, step, extent) in enumerate(axes_found)
        )

    def axes(self, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the shape of the padded array split at every block, and the stored order of its
        axes.
        """
        return self._split(self.padded(shape)), self._axes()

    def _axes(self) -> list[int]:
        """Return the place of each stored axis after every dimension is split as (outer, its
        blocks...).
        """
        place: dict[tuple[str, int], int] = {}
        for dim in self.letters:
            for level in range(1 + sum(letter == dim for _, letter in self.blocks)):
                place[dim, level] = len(place)
        seen = dict.fromkeys(self.letters, 0)
        axes = [place[dim, 0] for dim in self.order]
        for _, letter in self.blocks:
            seen[letter] += 1
            axes.append(place[letter, seen[letter]])
        return axes

    def _split(self, padded: tuple[int, ...]) -> list[int]:
        shape: list[int] = []
        for n, dim in zip(padded, self.letters, strict=True):
            shape += [n // self._block(dim), *(s for s, letter in self.blocks if letter == dim)]
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
        whole = flat.reshape([split[a] for a in axes]).transpose(np.argsort(axes)).reshape(padded)
        return np.array(whole[tuple(slice(n) for n in shape)])


def _padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _check_size(layout: Layout, flat: Array, shape: tuple[int, ...]) -> None:
    if flat.size != layout.size(shape):
        raise LayoutError(
            f"layout {layout.name}: {shape} takes {layout.size(shape)} floats, got {flat.size}"
        )
