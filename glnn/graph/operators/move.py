"""Operators that only move numbers: maps from indices of the result to indices of the operand.

They take any dtype and are exact. One kernel (`move`) computes all; the map is in its uniforms.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glnn.core.array_functions import cut, pad
from glnn.core.symint import is_integer
from glnn.core.types import MOST, Array, Dim, Shape, TensorType
from glnn.errors import ShapeError, shown
from glnn.graph.gathering import Gathering, for_shapes
from glnn.graph.index_map import EDGES, Axis, Edge, IndexMap
from glnn.graph.interval import Interval, hull
from glnn.graph.operator import (
    Constants,
    Cost,
    Intervals,
    Operator,
    Reference,
    SampleSubset,
    Shapes,
    Types,
)

MOST_RANK = 8


class Move(Operator):
    """An operator whose result has elements of x, or a constant outside of x.

    x: any shape of at most 8 dimensions, any dtype, which is the result's. `map` gives the index in
    x of each element of the result.
    """

    name: ClassVar[str] = "move"
    any_sizes: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    passes: ClassVar[tuple[str, ...]] = ("x",)
    moves: ClassVar[bool] = True

    @property
    def display_name(self) -> str:
        """Name of the operator in error messages."""
        return type(self).__name__.lower()

    @property
    def value(self) -> float | int | bool:
        """The constant outside of x, where the edge of `map` is "constant"."""
        return 0

    @abstractmethod
    def map(self, shape: Shape) -> IndexMap:
        """Return the map from indices of the result to those of an x of `shape`."""

    @abstractmethod
    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the result's dimensions."""

    @abstractmethod
    def move(self, x: Array) -> Array:
        """Compute the result by NumPy."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        dims = self.dims(x)
        if max(len(x.dims), len(dims)) > MOST_RANK:
            raise ShapeError(f"{self.display_name}: at most {MOST_RANK} dimensions, got {x}")
        return (TensorType(dims, x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.from_array(x)])
        return (np.asarray(self.move(x), order="C"),)  # which keeps a rank of 0

    def reference_views(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.move(self.named(arrays)["x"]),)

    def specialize(self, types: Types) -> Reference:
        def move(x: Array) -> tuple[Array, ...]:
            return (np.asarray(self.move(x), order="C"),)

        def gathering(x: Array) -> Reference | None:
            gather = Gathering.from_move(self.move, x.shape, x.dtype, self.value)
            return None if gather is None else lambda x: (gather(x),)

        return for_shapes(move, gathering)

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
        whole_numbers(self.display_name, "perm", self.perm)

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

    def move(self, x: Array) -> Array:
        return np.asarray(x.transpose(self.perm))


@dataclass(frozen=True)
class Expand(Move):
    """x broadcast to `shape`, by NumPy's rule."""

    array_function: ClassVar[str] = "broadcast_to"
    shape: Shape

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "shape", self.shape, 0)

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

    def move(self, x: Array) -> Array:
        return np.broadcast_to(x, self.shape)


@dataclass(frozen=True)
class Slice(Move):
    """x from `starts` to before `ends` in `steps`, along `axes`, as Python's slices.

    Negative starts and ends count from the end, and are clamped to the dimension; with a negative
    step, an end of -(size + 1) or less includes the first element.
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

    def walks(self, shape: Shape) -> list[tuple[int, int, int]]:
        """Return the first index, the number of indices, and the step along each axis."""
        result = [(0, size, 1) for size in shape]
        axes = normalize_axes("slice", self.axes, len(shape))
        for axis, *bounds in zip(axes, self.starts, self.ends, self.steps, strict=True):
            result[axis] = _walk(shape[axis], *bounds)
        return result

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        axes = normalize_axes("slice", self.axes, len(x.dims))
        free = [dim if i not in axes else 0 for i, dim in enumerate(x.dims)]
        for axis in axes:
            if isinstance(x.dims[axis], str):
                raise ShapeError(f"slice: the size {x.dims[axis]!r} of {x} is not known yet")
        known = tuple(0 if isinstance(dim, str) else dim for dim in x.dims)
        walks = self.walks(known)
        return tuple(walks[i][1] if i in axes else dim for i, dim in enumerate(free))

    def map(self, shape: Shape) -> IndexMap:
        walks = enumerate(self.walks(shape))
        return IndexMap(tuple((Axis(n, i, first, step),) for i, (first, n, step) in walks))

    def move(self, x: Array) -> Array:
        return cut(x, self.starts, self.ends, self.axes, self.steps)


def slice_bounds(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index and the end of Python's slice of a dimension of `size`.

    As `slice.indices`, which would turn SymInts into numbers.
    """
    least, most = (0, size) if step > 0 else (-1, size - 1)

    def clamped(bound: int) -> int:
        bound = bound + size if bound < 0 else bound
        return least if bound < least else most if bound > most else bound

    return clamped(start), clamped(end)


def _walk(size: int, start: int, end: int, step: int) -> tuple[int, int, int]:
    """Return the first index, the number, and the step of Python's slice of a dimension."""
    first, last = slice_bounds(size, start, end, step)
    count = -(-(last - first) // step) if step > 0 else -(-(first - last) // -step)
    return first, count if count > 0 else 0, step


@dataclass(frozen=True)
class Flip(Move):
    """Flip: x reversed along `axes`."""

    array_function: ClassVar[str] = "flip"
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "axes", self.axes)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        normalize_axes("flip", self.axes, len(x.dims))
        return x.dims

    def map(self, shape: Shape) -> IndexMap:
        axes = normalize_axes("flip", self.axes, len(shape))
        flipped = (
            Axis(n, i, n - 1, -1) if i in axes and n else Axis(n, i) for i, n in enumerate(shape)
        )
        return IndexMap(tuple((axis,) for axis in flipped))

    def move(self, x: Array) -> Array:
        return np.flip(x, self.axes)


def whole_numbers(operator: str, name: str, values: object, least: int = -MOST) -> None:
    """Raise ShapeError unless `values` is a tuple of integers of at least `least`, at most MOST."""
    if not isinstance(values, tuple) or not all(
        is_integer(v) and least <= v <= MOST for v in values
    ):
        what = f"integers of at least {least} and at most {MOST}"
        raise ShapeError(f"{operator}: {name} must be a tuple of {what}, got {shown(values)}")


def normalize_axes(operator: str, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return `axes` counted from 0. Raises ShapeError where one is not of `rank` dimensions, or two
    are the same.
    """
    result = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if any(not 0 <= axis < rank for axis in result) or len(set(result)) < len(result):
        raise ShapeError(f"{operator}: axes must name dimensions of {rank}, each once, got {axes}")
    return result


@dataclass(frozen=True)
class Pad(Move):
    """Pad: x with elements around it, or cropped where a number is negative.

    The padding is `fill`, or elements of x as `edge` says; x must not be empty then.
    """

    array_function: ClassVar[str] = "pad"
    moves: ClassVar[bool] = False  # `fill` is no element of x
    before: tuple[int, ...]
    """Elements before the first, for each dimension."""
    after: tuple[int, ...]
    """Elements behind the last."""
    edge: Edge = "constant"
    fill: float | int | bool = 0

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "before", self.before)
        whole_numbers(self.display_name, "after", self.after)
        if self.edge not in EDGES[1:]:
            raise ShapeError(f"pad: edge must be one of {EDGES[1:]}, got {shown(self.edge)}")

    @property
    def value(self) -> float | int | bool:
        return self.fill

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        shape = x.shape
        if not len(shape) == len(self.before) == len(self.after):
            raise ShapeError(f"pad: a number for each dimension of {x}, got {self}")
        sizes = []
        for size, before, after in zip(shape, self.before, self.after, strict=True):
            if size + before + after < 0 or (not size and self.edge != "constant"):
                raise ShapeError(f"pad: {x} has too few places for {self}")
            sizes.append(size + before + after)
        return tuple(sizes)

    def map(self, shape: Shape) -> IndexMap:
        sizes = (n + b + a for n, b, a in zip(shape, self.before, self.after, strict=True))
        axes = ((Axis(n, i, -b),) for i, (n, b) in enumerate(zip(sizes, self.before, strict=True)))
        return IndexMap(tuple(axes), self.edge)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        (x,) = super().value_ranges(intervals, types)
        return (hull((x, Interval.of_number(self.fill))),)

    def move(self, x: Array) -> Array:
        return pad(x, self.before, self.after, self.edge, self.fill)


@dataclass(frozen=True)
class Tile(Move):
    """Tile: x repeated along each dimension as often as `repeats` says."""

    array_function: ClassVar[str] = "tile"
    repeats: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "repeats", self.repeats, 0)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        shape = x.shape
        if len(shape) != len(self.repeats):
            raise ShapeError(f"tile: a number for each dimension of {x}, got {self.repeats}")
        return tuple(n * count for n, count in zip(shape, self.repeats, strict=True))

    def map(self, shape: Shape) -> IndexMap:
        axes = enumerate(zip(self.repeats, shape, strict=True))
        return IndexMap(tuple((Axis(count), Axis(n, i)) for i, (count, n) in axes))

    def move(self, x: Array) -> Array:
        return np.tile(x, self.repeats)


@dataclass(frozen=True)
class Roll(Move):
    """x shifted by `shifts` along `axes`, cyclically."""

    array_function: ClassVar[str] = "roll"
    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.display_name, "shifts", self.shifts)
        whole_numbers(self.display_name, "axes", self.axes)
        if len(self.shifts) != len(self.axes):
            raise ShapeError(f"roll: as many shifts as axes, got {self}")

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        normalize_axes("roll", self.axes, len(x.dims))
        return x.dims

    def map(self, shape: Shape) -> IndexMap:
        starts = [0] * len(shape)
        axes = normalize_axes("roll", self.axes, len(shape))
        for axis, shift in zip(axes, self.shifts, strict=True):
            starts[axis] = -shift % shape[axis] if shape[axis] else 0
        axes_of = enumerate(zip(shape, starts, strict=True))
        return IndexMap(tuple((Axis(n, i, start),) for i, (n, start) in axes_of), "wrap")

    def move(self, x: Array) -> Array:
        return np.roll(x, self.shifts, self.axes)


@dataclass(frozen=True)
class Rearrange(Move):
    """x of a known shape, rearranged as `axes` says: einops' rearrange, with slices.

    It splits dimensions into factors, transposes and slices these in one step.
    """

    shape: Shape
    """Shape of x."""
    axes: tuple[tuple[Axis, ...], ...]
    """The factors of each dimension of the result, the outermost first; each is a range of a
    dimension of x. A range of step 1 from 0 on may go beyond the end, where elements are 0."""

    def __post_init__(self) -> None:
        for axis in (axis for factors in self.axes for axis in factors):
            if axis.axis is None or not axis.size:
                continue
            size = self.shape[axis.axis] if 0 <= axis.axis < len(self.shape) else 0
            last = axis.start + (axis.size - 1) * axis.step
            padded = axis.start == 0 and axis.step == 1
            if not (0 <= axis.start < size and last >= 0 and (padded or last < size)):
                raise ShapeError(f"rearrange: {axis} is not within x of shape {self.shape}")

    @property
    def padded(self) -> bool:
        """True where a range goes beyond the end of a dimension."""
        return any(
            axis.axis is not None and axis.start == 0 and axis.size > self.shape[axis.axis]
            for factors in self.axes
            for axis in factors
        )

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        if x.dims != self.shape:
            raise ShapeError(f"rearrange: x must have shape {self.shape}, got {x}")
        return tuple(prod(axis.size for axis in factors) for factors in self.axes)

    def map(self, shape: Shape) -> IndexMap:
        factors = tuple(factors or (Axis(1),) for factors in self.axes)
        return IndexMap(factors, "constant" if self.padded else "none")

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return no operands, as the attribute `shape` fixes the number of samples."""
        return ()

    def move(self, x: Array) -> Array:
        flat = [axis for factors in self.axes for axis in factors]
        by_axis = [[one for one in flat if one.axis == axis] for axis in range(x.ndim)]
        first = [sum(one.start for one in ranges) for ranges in by_axis]
        last = [
            start + sum(max(one.step, 0) * max(one.size - 1, 0) for one in ranges)
            for start, ranges in zip(first, by_axis, strict=True)
        ]
        padding = [max(end + 1 - size, 0) for end, size in zip(last, self.shape, strict=True)]
        if any(padding):
            x = np.pad(x, [(0, count) for count in padding])
        begin = x[tuple(slice(start, None) for start in first)]
        strides = [0 if one.axis is None else one.step * x.strides[one.axis] for one in flat]
        view = as_strided(begin, [one.size for one in flat], strides, writeable=False)
        sizes = [prod(one.size for one in factors) for factors in self.axes]
        return np.array(view, order="C").reshape(sizes)
