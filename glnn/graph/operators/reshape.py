"""The same numbers in another shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Cost, Known, Operator, Types
from glnn.types import Array, Shape, TensorType


@dataclass(frozen=True)
class Reshape(Operator):
    """x as `shape`, in row-major order. Only a view: no kernel runs.

    As rows are padded, the first dimension stays.
    """

    name: ClassVar[str] = "reshape"
    view: ClassVar[bool] = True
    shape: Shape
    """The result's."""

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if prod(x.shape) != prod(self.shape) or x.shape[:1] != self.shape[:1]:
            raise ShapeError(f"reshape: x, {x}, is not {self.shape} in another shape")
        return (TensorType(self.shape, x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.named(arrays)["x"].reshape(self.shape),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)
