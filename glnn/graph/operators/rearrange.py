"""Several moves of numbers one after another, as one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.index_map import Axis, IndexMap
from glnn.graph.operator import Shapes
from glnn.graph.operators.move import Move
from glnn.types import Array, Dim, Shape, TensorType


@dataclass(frozen=True)
class Rearrange(Move):
    """x of a shape that is known, its numbers where `axes` says: einops' rearrange, with slices.

    So a transposition of the pieces that dimensions are cut into, and a slice of that, are one.
    """

    shape: Shape
    """That of x."""
    axes: tuple[tuple[Axis, ...], ...]
    """For each dimension of the result what it is a product of, the outermost first; of a dimension
    of x each walks part of. What walks beyond the end of one place by place finds 0 there."""

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
        """Whether it walks beyond the end of a dimension."""
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

    def along(self, shapes: Shapes) -> tuple[str, ...]:
        """None: `shape` says how many samples there are."""
        return ()

    def moved(self, x: Array) -> Array:
        flat = [axis for factors in self.axes for axis in factors]
        places: list[Array] = [np.zeros((1,) * len(flat), np.intp) for _ in self.shape]
        for i, axis in enumerate(flat):
            if axis.axis is not None:
                steps = axis.start + axis.step * np.arange(axis.size)
                along = (*(1,) * i, axis.size, *(1,) * (len(flat) - i - 1))
                places[axis.axis] = places[axis.axis] + steps.reshape(along)
        sizes = [axis.size for axis in flat]
        outside = np.zeros((), bool)
        for i, (place, size) in enumerate(zip(places, self.shape, strict=True)):
            outside = outside | (place >= size)
            places[i] = np.minimum(place, size - 1)
        found = np.broadcast_to(np.where(outside, x.dtype.type(0), x[tuple(places)]), sizes)
        return found.reshape([prod(axis.size for axis in factors) for factors in self.axes])
