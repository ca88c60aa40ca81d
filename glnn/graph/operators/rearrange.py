"""Several moves of numbers one after another, as one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.index_map import Axis, IndexMap
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
    of x each walks part of. Nowhere do they leave x."""

    def __post_init__(self) -> None:
        for axis in (axis for factors in self.axes for axis in factors):
            if axis.axis is None or not axis.size:
                continue
            size = self.shape[axis.axis] if 0 <= axis.axis < len(self.shape) else 0
            last = axis.start + (axis.size - 1) * axis.step
            if not (0 <= axis.start < size and 0 <= last < size):
                raise ShapeError(f"rearrange: {axis} is not within x of shape {self.shape}")

    def dims(self, x: TensorType) -> tuple[Dim, ...]:
        if x.dims != self.shape:
            raise ShapeError(f"rearrange: x must have shape {self.shape}, got {x}")
        return tuple(prod(axis.size for axis in factors) for factors in self.axes)

    def map(self, shape: Shape) -> IndexMap:
        return IndexMap(tuple(factors or (Axis(1),) for factors in self.axes))

    def moved(self, x: Array) -> Array:
        flat = [axis for factors in self.axes for axis in factors]
        places: list[Array] = [np.zeros((1,) * len(flat), np.intp) for _ in self.shape]
        for i, axis in enumerate(flat):
            if axis.axis is not None:
                steps = axis.start + axis.step * np.arange(axis.size)
                along = (*(1,) * i, axis.size, *(1,) * (len(flat) - i - 1))
                places[axis.axis] = places[axis.axis] + steps.reshape(along)
        found = np.broadcast_to(x[tuple(places)], [axis.size for axis in flat])
        return found.reshape([prod(axis.size for axis in factors) for factors in self.axes])
