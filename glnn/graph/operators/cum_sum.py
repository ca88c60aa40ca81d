"""Sums, or products, of all numbers up to each place along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.array_functions import cum_sum
from glnn.errors import ShapeError
from glnn.graph.interval import Interval, joined, powers
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Shapes, Types
from glnn.graph.operators.reduce import axes_of, check_axes
from glnn.types import Array, TensorType

SUMMED = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class CumSum(Operator):
    """The sum of x's numbers from the first to each one along `axis`. ONNX: CumSum, CumProd.

    x: any shape of at least one dimension, float32, float64, int32 or int64; integers wrap around.
    """

    name: ClassVar[str] = "cum_sum"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    array_function: ClassVar[str] = "cum_sum"
    axis: int
    """Axis of the sums; negative ones count from the end."""
    exclusive: bool = False
    """True where the number at the place itself is left out."""
    reverse: bool = False
    """True where sums begin at the last number instead."""
    multiply: bool = False
    """True where the numbers are multiplied instead of added up."""

    def __post_init__(self) -> None:
        check_axes("cum_sum", (self.axis,))

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        axes_of("cum_sum", (self.axis,), len(x.dims))
        if x.dtype.value not in SUMMED:
            raise ShapeError(f"cum_sum: x must be of {', '.join(SUMMED)}, got {x}")
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.of(x)])
        return (cum_sum(x, self.axis, self.exclusive, self.reverse, self.multiply),)

    def cost(self, types: Types) -> Cost:
        x = self.named(types)["x"]
        return Cost(prod(x.shape), 2 * prod(x.shape) * x.dtype.numpy.itemsize)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        x = intervals[0]
        if x is None or not x.whole:
            return ()
        extent = self.named(types)["x"].shape[self.axis]
        if self.multiply:
            found = powers(joined((x, Interval(1, 1))), extent)
            return () if found is None else (found,)
        return (x.times(0 if self.exclusive else 1, max(extent, 1)),)

    def narrow(self, intervals: Intervals, types: Types) -> CumSum:
        return self

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][self.axis]
