"""Operators that put updates where an operand of indices says."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from glnn.core.types import Array, Dim, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Shapes, Types
from glnn.graph.operators.gather import (
    check_elements,
    check_index,
    clamp_index,
    in_range,
    tuple_depth,
)
from glnn.graph.operators.move import MOST_RANK, whole_numbers

Reduction = Literal["none", "add", "mul", "max", "min"]
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
REDUCED = ("float32", "float64", "int32", "int64")  # what updates are reduced of
_AT: dict[str, Any] = {
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


class Put(Operator):
    """x with updates at some places: the last one, or that and all of them reduced in their order.

    The first number that is reduced is x's own. Of any dtype for "none", else of `REDUCED`.
    Kernels use no atomics: each result looks its own updates up, in the same order on all backends.
    """

    name: ClassVar[str] = "scatter"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    passes: ClassVar[tuple[str, ...]] = ("x", "updates")
    reduction: Reduction

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "index", "updates")

    @property
    def display_name(self) -> str:
        """Name of the operator in error messages."""
        return type(self).__name__

    def check(self, x: TensorType, index: TensorType, updates: TensorType) -> None:
        """Raise ShapeError where the types do not go together."""
        check_index(self.display_name, index)
        if self.reduction not in REDUCTIONS:
            raise ShapeError(f"{self.display_name}: reduction must be one of {REDUCTIONS}")
        if updates.dtype is not x.dtype or max(len(x.dims), len(updates.dims)) > MOST_RANK:
            raise ShapeError(f"{self.display_name}: updates must be like x of {x}, got {updates}")
        if self.reduction != "none" and x.dtype.value not in REDUCED:
            raise ShapeError(
                f"{self.display_name}: {self.reduction} is for {', '.join(REDUCED)}, got {x}"
            )

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        (either,) = super().value_ranges(intervals, types)
        if self.reduction in ("none", "max", "min"):
            return (either,)
        updates = self.named(types)["updates"]
        if self.reduction == "add":
            return (either.times(0, 1 + prod(updates.shape)),)
        return ()

    def cost(self, types: Types) -> Cost:
        x, index, updates = (prod(one.shape) for one in self.named(types).values())
        return Cost(updates, 4 * (2 * x + index + updates))


class Scatter(Put):
    """Base class of scatters whose indices are as a model has them, perhaps computed.

    Each result then walks all indices that may name its place, so that it costs as many steps as
    the result has numbers, times the indices along the axis, or times all tuples.
    """

    @abstractmethod
    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the number of places that an index chooses from; several for a tuple of
        indices.
        """

    @abstractmethod
    def update_indices(self, x: Shape, index: Array) -> tuple[Array, ...]:
        """Return the NumPy index into x of each update. index: in range, none negative."""

    @abstractmethod
    def check_shapes(self, x: TensorType, index: TensorType, updates: TensorType) -> None:
        """Raise ShapeError where the shapes do not go together."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, index, updates = operands["x"], operands["index"], operands["updates"]
        self.check(x, index, updates)
        self.check_shapes(x, index, updates)
        if len(constants) > 1 and constants[1] is not None:
            in_range(self.display_name, constants[1], TensorType(self.bounds(x)).shape)
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, index, updates = operands["x"], operands["index"], operands["updates"]
        self.infer([TensorType.from_array(array) for array in (x, index, updates)])
        result = np.array(x)
        if updates.size:
            at = self.update_indices(
                x.shape, clamp_index(index, self.bounds(TensorType.from_array(x)))
            )
            put(result, at, updates, self.reduction)
        return (result,)

    def sort_updates(self, x: Shape, index: Array) -> tuple[ScatterSorted, Array]:
        """The same for indices that are known, and the table that stands in for them.

        Each place then takes but its own updates. Raises ShapeError where one is out of range.
        """
        bounds = TensorType(self.bounds(TensorType(x))).shape
        in_range(self.display_name, index, bounds)
        at = self.update_indices(x, clamp_index(index, bounds))
        depth = len(at)
        sizes = x[:depth]
        ids = np.ravel_multi_index(at, sizes).reshape(-1) if index.size else np.zeros(0, np.int64)
        return ScatterSorted(depth, self.reduction), table(ids, prod(sizes))


@dataclass(frozen=True)
class ScatterElements(Scatter):
    """Each number of `updates` at its own place in x, but along `axis` where `index` says.

    index, updates: of x's rank and one shape, nowhere larger than x but along the axis.
    """

    axis: int = 0
    reduction: Reduction = "none"

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "axis", (self.axis,))

    def check_shapes(self, x: TensorType, index: TensorType, updates: TensorType) -> None:
        check_elements(self.display_name, x, index, self.axis)
        if updates.dims != index.dims:
            raise ShapeError(f"{self.display_name}: updates must be as {index}, got {updates}")

    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        return (x.dims[self.axis],)

    def update_indices(self, x: Shape, index: Array) -> tuple[Array, ...]:
        indices: list[Array] = list(np.indices(index.shape, sparse=True))
        indices[self.axis] = index
        return tuple(np.broadcast_arrays(*indices))


@dataclass(frozen=True)
class ScatterND(Scatter):
    """Slices of `updates` at the tuples of indices along the last dimension of `index`.

    index: (i1 ..., k), k numbers naming a place of x's first k dimensions. updates: (i1 ..., what
    is left of x's dimensions). Rows of a matrix added up by "add" are `index_add`.
    """

    reduction: Reduction = "none"

    def check_shapes(self, x: TensorType, index: TensorType, updates: TensorType) -> None:
        depth = tuple_depth(self.display_name, x, index)
        expected = (*index.dims[:-1], *x.dims[depth:])
        if updates.dims != expected:
            raise ShapeError(
                f"{self.display_name}: updates must have shape {expected}, got {updates}"
            )

    def bounds(self, x: TensorType) -> tuple[Dim, ...]:
        return x.dims

    def update_indices(self, x: Shape, index: Array) -> tuple[Array, ...]:
        return tuple(np.moveaxis(index, -1, 0))


@dataclass(frozen=True)
class ScatterSorted(Put):
    """x with updates, whose places `index` has in order: see `Scatter.sort_updates`.

    index: for each place of x's first `leading` dimensions where its updates begin, one number
    more, and then the updates' own numbers.
    """

    leading: int
    """Number of leading dimensions of x that a place has."""
    reduction: Reduction = "none"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, index, updates = operands["x"], operands["index"], operands["updates"]
        self.check(x, index, updates)
        count = prod(x.shape[: self.leading]) + 1
        rest = x.shape[self.leading :]
        leading = updates.shape[: len(updates.shape) - len(rest)]
        if index.shape != (count + prod(leading),) or updates.shape != (*leading, *rest):
            raise ShapeError(f"{self.display_name}: {index} and {updates} do not fit {x}")
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, index, updates = operands["x"], operands["index"], operands["updates"]
        self.infer([TensorType.from_array(array) for array in (x, index, updates)])
        count, rest = prod(x.shape[: self.leading]), x.shape[self.leading :]
        rows, result = updates.reshape(-1, *rest), np.array(x).reshape(count, *rest)
        ids = np.repeat(np.arange(count), np.diff(index[: count + 1]))
        put(result, (ids,), rows[index[count + 1 :]], self.reduction)
        return (result.reshape(x.shape),)

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name != "index":
            return numbers
        count = prod(shapes["x"][: self.leading])
        ids = numbers[count + 1 :] % max(count, 1)
        return table(ids, count)


def table(ids: Array, count: int) -> Array:
    """Return the offsets at which the updates of each of `count` places begin, followed by the
    updates' numbers in that order, int32.

    ids: the place of each update.
    """
    starts = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=count))])
    return np.concatenate([starts, np.argsort(ids, kind="stable")]).astype(np.int32)


def put(result: Array, at: tuple[Array, ...], updates: Array, reduction: Reduction) -> None:
    """Write `updates` into `result`, one after the other."""
    with np.errstate(all="ignore"):
        if reduction == "none":
            result[at] = updates
        else:
            _AT[reduction](result, at, updates)
