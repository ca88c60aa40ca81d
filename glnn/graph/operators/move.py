"""Operators that move numbers and compute nothing: maps from places of the result to the operand's.

Of any dtype, and exact. What the map is becomes uniforms of one kernel (`move`) for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.array_functions import cut
from glnn.errors import ShapeError, shown
from glnn.graph.gathering import Gathering, for_shapes
from glnn.graph.index_map import Axis, IndexMap
from glnn.graph.operator import Constants, Cost, Operator, Reference, SampleSubset, Shapes, Types
from glnn.symint import is_integer
from glnn.types import MOST, Array, Dim, Shape, TensorType

MOST_RANK = 8


class Move(Operator):
    """A result of numbers of x, or of a value where there are none.

    x: any shape of at most 8 dimensions, any dtype, which is the result's. `map` says where each
    place of the result finds its number.
    """

    name: ClassVar[str] = "move"
    any_sizes: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    passes: ClassVar[tuple[str, ...]] = ("x",)
    moves: ClassVar[bool] = True

    @property
    def called(self) -> str:
        """Name of the operator in error messages."""
        return type(self).__name__.lower()

    @property
    def value(self) -> float | int | bool:
        """Number outside of x, where `map` says "constant"."""
        return 0

    @abstractmethod
    def map(self, shape: Shape) -> IndexMap:
        """Return the map from places of the result to those of an x of `shape`."""

    @abstractmethod
    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        """The result's dimensions."""

    @abstractmethod
    def moved(self, x: Array) -> Array:
        """The result by NumPy."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        dims = self.dims(x)
        if max(len(x.dims), len(dims)) > MOST_RANK:
            raise ShapeError(f"{self.called}: at most {MOST_RANK} dimensions, got {x}")
        return (TensorType(dims, x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.of(x)])
        return (np.asarray(self.moved(x), order="C"),)  # which keeps a rank of 0

    def reference_views(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.moved(self.named(arrays)["x"]),)

    def specialize(self, types: Types) -> Reference:
        def move(x: Array) -> tuple[Array, ...]:
            return (np.asarray(self.moved(x), order="C"),)

        def looked_up(x: Array) -> Reference | None:
            gather = Gathering.of(self.moved, x.shape, x.dtype, self.value)
            return None if gather is None else lambda x: (gather(x),)

        return for_shapes(move, looked_up)

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        x = shapes["x"]
        first, *others = self.map(x).dims if x else [()]
        walked = {axis.axis for factors in others for axis in factors}
        return ("x",) if x and first == (Axis(x[0], 0),) and 0 not in walked else ()

    def cost(self, types: Types) -> Cost:
        count = prod(self.infer(types)[0].shape)
        return Cost(0, 8 * count)


@dataclass(frozen=True)
class Transpose(Move):
    """Transposition: x with its dimensions in the order `perm`, which has an axis of x for each of
    the result's.
    """

    array_function: ClassVar[str] = "transpose"
    perm: tuple[int, ...]
    """Permutation of x's axes; negative ones count from the end."""

    def __post_init__(self) -> None:
        whole_numbers(self.called, "perm", self.perm)

    def _order(self, rank: int) -> tuple[int, ...]:
        order = tuple(axis + rank if axis < 0 else axis for axis in self.perm)
        if sorted(order) != list(range(rank)):
            raise ShapeError(f"transpose: perm {self.perm} does not name each of {rank} dimensions")
        return order

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        return tuple(x.dims[axis] for axis in self._order(len(x.dims)))

    def map(self, shape: Shape) -> IndexMap:
        return IndexMap(tuple((Axis(shape[a], a),) for a in self._order(len(shape))))

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        x = shapes["x"]
        if not x or self._order(len(x))[0]:
            return None
        return self.reduce_samples_of(shapes, ("x",), count)

    def moved(self, x: Array) -> Array:
        return np.asarray(x.transpose(self.perm))


@dataclass(frozen=True)
class Expand(Move):
    """x broadcast to `shape`, by NumPy's rule: its dimensions are the last ones, or 1."""

    array_function: ClassVar[str] = "broadcast_to"
    shape: Shape

    def __post_init__(self) -> None:
        whole_numbers(self.called, "shape", self.shape, 0)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        last = self.shape[len(self.shape) - len(x.shape) :]
        if len(last) == len(x.shape) and all(
            n in (1, to) for n, to in zip(x.shape, last, strict=True)
        ):
            return self.shape
        raise ShapeError(f"expand: {x} does not broadcast to {self.shape}")

    def map(self, shape: Shape) -> IndexMap:
        before = len(self.shape) - len(shape)
        axes = []
        for i, size in enumerate(self.shape):
            walks = i >= before and shape[i - before] == size
            axes.append((Axis(size, i - before if walks else None),))
        return IndexMap(tuple(axes))

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return no operands, as the attribute `shape` fixes the number of samples."""
        return ()

    def moved(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)


@dataclass(frozen=True)
class Slice(Move):
    """x from `starts` on to before `ends` in `steps`, along `axes`, as Python's slices.

    Negative starts and ends count from the end, those beyond the ends stop there; going backwards,
    an end at or before -(size + 1) takes in the first.
    """

    array_function: ClassVar[str] = "cut"
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    axes: tuple[int, ...]
    """Axes that are sliced, each at most once; negative ones count from the end."""
    steps: tuple[int, ...]
    """Step along each of the axes, not 0."""

    def __post_init__(self) -> None:
        for name in ("starts", "ends", "axes", "steps"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(map(is_integer, values)):
                raise ShapeError(f"slice: {name} must be integers, got {shown(values)}")
        if not len(self.starts) == len(self.ends) == len(self.axes) == len(self.steps):
            raise ShapeError(f"slice: as many starts, ends and steps as axes, got {self}")
        if 0 in self.steps:
            raise ShapeError(f"slice: steps must not be 0, got {self.steps}")

    def _walks(self, shape: Shape) -> list[tuple[int, int, int]]:
        """Return along each axis the first place, the number of places, and the step between
        them.
        """
        found = [(0, size, 1) for size in shape]
        axes = normalised("slice", self.axes, len(shape))
        for axis, *bounds in zip(axes, self.starts, self.ends, self.steps, strict=True):
            found[axis] = _walk(shape[axis], *bounds)
        return found

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        axes = normalised("slice", self.axes, len(x.dims))
        free = [dim if i not in axes else 0 for i, dim in enumerate(x.dims)]
        for axis in axes:
            if isinstance(x.dims[axis], str):
                raise ShapeError(f"slice: the size {x.dims[axis]!r} of {x} is not known yet")
        known = tuple(0 if isinstance(dim, str) else dim for dim in x.dims)
        walks = self._walks(known)
        return tuple(walks[i][1] if i in axes else dim for i, dim in enumerate(free))

    def map(self, shape: Shape) -> IndexMap:
        walks = enumerate(self._walks(shape))
        return IndexMap(tuple((Axis(n, i, first, step),) for i, (first, n, step) in walks))

    def moved(self, x: Array) -> Array:
        return cut(x, self.starts, self.ends, self.axes, self.steps)


def slice_bounds(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first place and the end of Python's slice of a dimension of `size`.

    As `slice.indices` does, which takes the numbers of SymInts.
    """
    least, most = (0, size) if step > 0 else (-1, size - 1)

    def placed(place: int) -> int:
        place = place + size if place < 0 else place
        return least if place < least else most if place > most else place

    return placed(start), placed(end)


def _walk(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """The first place, how many, and the step of Python's slice of a dimension of `size`."""
    first, last = slice_bounds(size, start, end, step)
    count = -(-(last - first) // step) if step > 0 else -(-(first - last) // -step)
    return first, count if count > 0 else 0, step


@dataclass(frozen=True)
class Flip(Move):
    """Flip: x reversed along `axes`."""

    array_function: ClassVar[str] = "flip"
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.called, "axes", self.axes)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        normalised("flip", self.axes, len(x.dims))
        return x.dims

    def map(self, shape: Shape) -> IndexMap:
        axes = normalised("flip", self.axes, len(shape))
        turned = (
            Axis(n, i, n - 1, -1) if i in axes and n else Axis(n, i) for i, n in enumerate(shape)
        )
        return IndexMap(tuple((axis,) for axis in turned))

    def moved(self, x: Array) -> Array:
        return np.flip(x, self.axes)


def whole_numbers(operator: str, name: str, values: object, least: int = -MOST) -> None:
    """Raise ShapeError unless `values` is a tuple of integers of at least `least`, at most MOST."""
    if not isinstance(values, tuple) or not all(
        is_integer(v) and least <= v <= MOST for v in values
    ):
        what = f"integers of at least {least} and at most {MOST}"
        raise ShapeError(f"{operator}: {name} must be a tuple of {what}, got {shown(values)}")


def normalised(operator: str, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return `axes` as numbers from 0 on. Raises ShapeError where one is not below `rank`, or is
    there twice.
    """
    found = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if any(not 0 <= axis < rank for axis in found) or len(set(found)) < len(found):
        raise ShapeError(f"{operator}: axes must name dimensions of {rank}, each once, got {axes}")
    return found
