"""Arg-max and arg-min: the places of the extremes along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Shapes, Types
from glnn.graph.operators.reduce import Reduce, axes_of, check_axes, reduced
from glnn.types import Array, DType, TensorType


@dataclass(frozen=True)
class ArgReduce(Operator):
    """The index of the greatest or least number along `axis`. x0: any shape; the result is int32.

    NaN counts as the most extreme, as NumPy has it. Raises ShapeError where the axis is empty.
    """

    name: ClassVar[str] = "reduce"
    variadic: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x0",)
    kind: Literal["max", "min"]
    """The extreme that is looked for: the greatest or the least."""
    axis: int
    """Axis of the reduction; negative ones count from the end."""
    keepdims: bool = False
    """True where the axis stays, of size 1."""
    last: bool = False
    """True where the last of several equal extremes is taken instead of the first."""

    def __post_init__(self) -> None:
        if self.kind not in ("max", "min"):
            raise ShapeError(f"arg_reduce: kind must be max or min, got {self.kind!r}")
        check_axes("arg_reduce", (self.axis,))

    @property
    def values(self) -> Reduce:
        """Return the reduction that gives the extremes themselves."""
        return Reduce(self.kind, (self.axis,), self.keepdims)

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        if len(types) != 1 or types[0] is None:
            raise ShapeError(f"arg_reduce: expected one operand, got {len(types)}")
        x = types[0]
        (axis,) = axes_of("arg_reduce", (self.axis,), len(x.dims))
        if x.dims[axis] == 0:
            raise ShapeError(f"arg_reduce: nothing to take the {self.kind} of in {x}")
        return (TensorType(reduced(x.dims, (axis,), self.keepdims), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = (array for array in arrays if array is not None)
        (result,) = self.infer([TensorType.of(x)])
        find = np.argmax if self.kind == "max" else np.argmin
        if self.last:
            found = x.shape[self.axis] - 1 - find(np.flip(x, self.axis), self.axis)
        else:
            found = find(x, self.axis)
        return (np.asarray(found, np.int32).reshape(result.shape),)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (Interval(0, self.named(types)["x0"].shape[self.axis] - 1),)

    def narrow(self, intervals: Intervals, types: Types) -> ArgReduce:
        return self

    def cost(self, types: Types) -> Cost:
        x = self.named(types)["x0"]
        (result,) = self.infer(types)
        moved = prod(x.shape) * x.dtype.numpy.itemsize + 4 * prod(result.shape)
        return Cost(prod(x.shape), moved)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x0"][self.axis]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"depth": self.depth(shapes), "outputs": prod(self.shape_of(shapes))}

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """Return that the reduction is not divisible into parts."""
        return {"divisible": 0}
