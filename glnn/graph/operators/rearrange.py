"""A composition of several moves of numbers as a single move."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

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
    """Shape of x."""
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
        """True where an axis walks beyond the end of a dimension."""
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

    def moved(self, x: Array) -> Array:
        flat = [axis for factors in self.axes for axis in factors]
        walked = [[one for one in flat if one.axis == axis] for axis in range(x.ndim)]
        first = [sum(one.start for one in along) for along in walked]
        last = [
            start + sum(max(one.step, 0) * max(one.size - 1, 0) for one in along)
            for start, along in zip(first, walked, strict=True)
        ]
        beyond = [max(end + 1 - size, 0) for end, size in zip(last, self.shape, strict=True)]
        if any(beyond):
            x = np.pad(x, [(0, more) for more in beyond])
        begun = x[tuple(slice(start, None) for start in first)]
        strides = [0 if one.axis is None else one.step * x.strides[one.axis] for one in flat]
        found = as_strided(begun, [one.size for one in flat], strides, writeable=False)
        sizes = [prod(one.size for one in factors) for factors in self.axes]
        return np.array(found, order="C").reshape(sizes)
