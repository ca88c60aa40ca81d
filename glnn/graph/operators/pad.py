"""Operators that move numbers beyond the ends of a tensor: more around it, again, and around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.array_functions import pad
from glnn.errors import ShapeError, shown
from glnn.graph.index_map import EDGES, Axis, Edge, IndexMap
from glnn.graph.interval import Interval, joined
from glnn.graph.operator import Intervals, Types
from glnn.graph.operators.move import Move, normalised, whole_numbers
from glnn.types import Array, Dim, Shape, TensorType


@dataclass(frozen=True)
class Pad(Move):
    """Pad: x with more places around it, or cropped where a number is negative.

    What a place gets that is outside: `fill`; or by x's own numbers, of which there must be some.
    """

    array_function: ClassVar[str] = "pad"
    moves: ClassVar[bool] = False  # what it fills with is a number of its own
    before: tuple[int, ...]
    """Places before the first, for each dimension."""
    after: tuple[int, ...]
    """Places behind the last."""
    edge: Edge = "constant"
    fill: float | int | bool = 0

    def __post_init__(self) -> None:
        whole_numbers(self.called, "before", self.before)
        whole_numbers(self.called, "after", self.after)
        if self.edge not in EDGES[1:]:
            raise ShapeError(f"pad: edge must be one of {EDGES[1:]}, got {shown(self.edge)}")

    @property
    def value(self) -> float | int | bool:
        return self.fill

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        shape = x.shape
        if not len(shape) == len(self.before) == len(self.after):
            raise ShapeError(f"pad: a number for each dimension of {x}, got {self}")
        found = []
        for size, before, after in zip(shape, self.before, self.after, strict=True):
            if size + before + after < 0 or (not size and self.edge != "constant"):
                raise ShapeError(f"pad: {x} has too few places for {self}")
            found.append(size + before + after)
        return tuple(found)

    def map(self, shape: Shape) -> IndexMap:
        sizes = (n + b + a for n, b, a in zip(shape, self.before, self.after, strict=True))
        axes = ((Axis(n, i, -b),) for i, (n, b) in enumerate(zip(sizes, self.before, strict=True)))
        return IndexMap(tuple(axes), self.edge)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        (x,) = super().value_ranges(intervals, types)
        return (joined((x, Interval.of_number(self.fill))),)

    def moved(self, x: Array) -> Array:
        return pad(x, self.before, self.after, self.edge, self.fill)


@dataclass(frozen=True)
class Tile(Move):
    """Tile: x repeated along each dimension as often as `repeats` says."""

    array_function: ClassVar[str] = "tile"
    repeats: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.called, "repeats", self.repeats, 0)

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        shape = x.shape
        if len(shape) != len(self.repeats):
            raise ShapeError(f"tile: a number for each dimension of {x}, got {self.repeats}")
        return tuple(n * count for n, count in zip(shape, self.repeats, strict=True))

    def map(self, shape: Shape) -> IndexMap:
        axes = enumerate(zip(self.repeats, shape, strict=True))
        return IndexMap(tuple((Axis(count), Axis(n, i)) for i, (count, n) in axes))

    def moved(self, x: Array) -> Array:
        return np.tile(x, self.repeats)


@dataclass(frozen=True)
class Roll(Move):
    """x moved by `shifts` along `axes`; what leaves at one end comes in at the other."""

    array_function: ClassVar[str] = "roll"
    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        whole_numbers(self.called, "shifts", self.shifts)
        whole_numbers(self.called, "axes", self.axes)
        if len(self.shifts) != len(self.axes):
            raise ShapeError(f"roll: as many shifts as axes, got {self}")

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        normalised("roll", self.axes, len(x.dims))
        return x.dims

    def map(self, shape: Shape) -> IndexMap:
        starts = [0] * len(shape)
        axes = normalised("roll", self.axes, len(shape))
        for axis, shift in zip(axes, self.shifts, strict=True):
            starts[axis] = -shift % shape[axis] if shape[axis] else 0
        axes_of = enumerate(zip(shape, starts, strict=True))
        return IndexMap(tuple((Axis(n, i, start),) for i, (n, start) in axes_of), "wrap")

    def moved(self, x: Array) -> Array:
        return np.roll(x, self.shifts, self.axes)
