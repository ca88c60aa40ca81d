"""Operators that look numbers up by an operand of indices."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.symint import is_integer
from glnn.core.types import Array, Dim, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Cost, Operator, Shapes, Types, shrink_size
from glnn.graph.operators.move import MOST_RANK, normalize_axes, whole_numbers


class Lookup(Operator):
    """Base class of gathers: numbers of x, of any dtype, at the places of `index` (int32 or int64).

    An index of -1 is the last one. Where the indices are known, one out of range is a ShapeError,
    and so it is in a run where they are an input (`graph.passes.index_bounds`); where they are
    computed, the nearest one in range is taken.
    """

    name: ClassVar[str] = "gather"
    fp16_operands: ClassVar[tuple[str, ...]] = ("x",)
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    passes: ClassVar[tuple[str, ...]] = ("x",)

    @property
    def display_name(self) -> str:
        """Name of the operator in error messages."""
        return type(self).__name__

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "index")

    @abstractmethod
    def dims(self, x: TensorType, index: TensorType) -> tuple[Dim, ...]:
        """The result's dimensions."""

    @abstractmethod
    def axes(self, rank: int, index: Shape) -> tuple[tuple[int | None, int | None], ...]:
        """Return for each dimension of the result those of x and of `index` that it walks along.

        rank: of x. index: its shape.
        """

    @abstractmethod
    def indexed_axes(self, rank: int, index: Shape) -> tuple[int, ...]:
        """The dimensions of x along which indices say the place."""

    @abstractmethod
    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the number of places that an index chooses from; several for a tuple of
        indices.
        """

    @abstractmethod
    def gather(self, x: Array, index: Array) -> Array:
        """The result by NumPy, for indices in range, none of which is negative."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, index = operands["x"], operands["index"]
        check_index(self.display_name, index)
        dims = self.dims(x, index)
        if max(len(dims), len(x.dims), len(index.dims)) > MOST_RANK:
            raise ShapeError(
                f"{self.display_name}: at most {MOST_RANK} dimensions, got {x} and {index}"
            )
        if len(constants) > 1 and constants[1] is not None:
            in_range(self.display_name, constants[1], TensorType(self.bounds(x)).shape)
        elif 0 in self.bounds(x) and 0 not in dims:
            raise ShapeError(f"{self.display_name}: {x} has no place for an index")
        return (TensorType(dims, x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, index = operands["x"], operands["index"]
        (result,) = self.infer([TensorType.from_array(x), TensorType.from_array(index)])
        if not prod(result.shape):
            return (np.zeros(result.shape, x.dtype),)
        bounds = self.bounds(TensorType.from_array(x))
        return (np.asarray(self.gather(x, clamp_index(index, bounds)), order="C"),)

    def shrink(self, shapes: Shapes) -> Shapes:
        """A smaller table."""
        x, looked = shapes["x"], self.indexed_axes(len(shapes["x"]), shapes["index"])
        return {**shapes, "x": tuple(shrink_size(n) if i in looked else n for i, n in enumerate(x))}

    def cost(self, types: Types) -> Cost:
        count = prod(self.infer(types)[0].shape)
        operands = self.named(types)
        return Cost(0, 8 * count + 4 * prod(operands["index"].shape))


@dataclass(frozen=True)
class Gather(Lookup):
    """The slices of x along `axis` that the indices name: numpy.take.

    x: any shape; index: any shape, whose dimensions take the place of that axis. Rows of a matrix
    (axis 0) are an embedding.
    """

    array_function: ClassVar[str] = "gather"
    axis: int = 0

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "axis", (self.axis,))

    def dims(self, x: TensorType, index: TensorType) -> tuple[Dim, ...]:
        (axis,) = normalize_axes(self.display_name, (self.axis,), len(x.dims))
        return (*x.dims[:axis], *index.dims, *x.dims[axis + 1 :])

    def axes(self, rank: int, index: Shape) -> tuple[tuple[int | None, int | None], ...]:
        axis = self.axis % rank
        before, after = range(axis), range(axis + 1, rank)
        return (
            *((i, None) for i in before),
            *((None, i) for i in range(len(index))),
            *((i, None) for i in after),
        )

    def indexed_axes(self, rank: int, index: Shape) -> tuple[int, ...]:
        return (self.axis % rank,)

    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        return (x.dims[self.axis],)

    def gather(self, x: Array, index: Array) -> Array:
        return np.take(x, index, self.axis)


@dataclass(frozen=True)
class GatherElements(Lookup):
    """For each place of `index` the number of x at that place, but along `axis` at the index.

    index: of x's rank, nowhere larger but along the axis: numpy.take_along_axis.
    """

    axis: int = 0

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "axis", (self.axis,))

    def dims(self, x: TensorType, index: TensorType) -> tuple[Dim, ...]:
        check_elements(self.display_name, x, index, self.axis)
        return index.dims

    def axes(self, rank: int, index: Shape) -> tuple[tuple[int | None, int | None], ...]:
        return tuple((None if i == self.axis % rank else i, i) for i in range(rank))

    def indexed_axes(self, rank: int, index: Shape) -> tuple[int, ...]:
        return (self.axis % rank,)

    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        return (x.dims[self.axis],)

    def gather(self, x: Array, index: Array) -> Array:
        axis = self.axis % x.ndim
        cut = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
        return np.take_along_axis(x[cut], index, axis)


@dataclass(frozen=True)
class GatherND(Lookup):
    """The slices of x at the tuples of indices along the last dimension of `index`.

    index: (b1 ..., i1 ..., k): its first `batch` dimensions are x's first ones, of which each pair
    is looked up by itself; k numbers name a place of x's next k dimensions. Result: (b1 ..., i1
    ..., what is left of x's dimensions).
    """

    batch: int = 0

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "batch", (self.batch,), 0)

    def _depth(self, x: TensorType, index: TensorType) -> int:
        return tuple_depth(self.display_name, x, index, self.batch)

    def dims(self, x: TensorType, index: TensorType) -> tuple[Dim, ...]:
        depth = self._depth(x, index)
        return (*index.dims[:-1], *x.dims[self.batch + depth :])

    def axes(self, rank: int, index: Shape) -> tuple[tuple[int | None, int | None], ...]:
        return (
            *((i, i) for i in range(self.batch)),
            *((None, i) for i in range(self.batch, len(index) - 1)),
            *((i, None) for i in range(self.batch + index[-1], rank)),
        )

    def indexed_axes(self, rank: int, index: Shape) -> tuple[int, ...]:
        return tuple(range(self.batch, self.batch + index[-1]))

    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        return x.dims[self.batch :]

    def gather(self, x: Array, index: Array) -> Array:
        ones = (1,) * (index.ndim - 1 - self.batch)
        lead: tuple[Array, ...] = np.indices(x.shape[: self.batch], sparse=True)
        places = (*(one.reshape(one.shape + ones) for one in lead), *np.moveaxis(index, -1, 0))
        return np.asarray(x[places])


def check_index(operator: str, index: TensorType) -> None:
    """Raise ShapeError unless the indices are int32 or int64."""
    if index.dtype not in (DType.int32, DType.int64):
        raise ShapeError(f"{operator}: index must be int32 or int64, got {index}")


def check_elements(operator: str, x: TensorType, index: TensorType, axis: int) -> None:
    """Raise ShapeError unless `index` fits into x but along `axis`."""
    (axis,) = normalize_axes(operator, (axis,), len(x.dims))
    fits = len(index.dims) == len(x.dims) and all(
        i == axis or n == m or (is_integer(n) and is_integer(m) and n <= m)
        for i, (n, m) in enumerate(zip(index.dims, x.dims, strict=True))
    )
    if not fits:
        raise ShapeError(f"{operator}: index must fit into {x} but along {axis}, got {index}")


def tuple_depth(operator: str, x: TensorType, index: TensorType, batch: int = 0) -> int:
    """Return the number of indices in a tuple of `index`. Raises ShapeError where it does not fit
    x.
    """
    depth = index.dims[-1] if index.dims else None
    if not is_integer(depth) or not 1 <= depth <= len(x.dims) - batch:
        what = f"tuples of 1 to {len(x.dims) - batch} indices along its last dimension"
        raise ShapeError(f"{operator}: index must have {what}, got {index} for {x}")
    if index.dims[:batch] != x.dims[:batch] or len(index.dims) <= batch:
        raise ShapeError(f"{operator}: the first {batch} dimensions of {x} and {index} differ")
    return depth


def in_range(operator: str, index: Array, bounds: tuple[int, ...]) -> None:
    """Raise ShapeError where an index, of tuples if there are several bounds, is out of range."""
    sizes = np.array(bounds[: index.shape[-1]] if len(bounds) > 1 else bounds[0])
    wrong = (index < -sizes) | (index >= sizes)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        size = np.broadcast_to(sizes, index.shape)[at]
        raise ShapeError(
            f"{operator}: index must be from {-size} to {size - 1}, got {index[at]} at {list(at)}"
        )


def clamp_index(index: Array, bounds: tuple[Dim, ...]) -> Array:
    """Count negative indices from the end, and clamp those that are out of range."""
    sizes = np.array(bounds[: index.shape[-1]] if len(bounds) > 1 else bounds[0])
    wrapped = np.where(index < 0, index + sizes, index)
    return np.asarray(np.clip(wrapped, 0, sizes - 1))
