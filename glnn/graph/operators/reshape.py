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
    """x in the shape `dims`, one of which may be -1, what is left. A view where x is dense."""

    name: ClassVar[str] = "reshape"
    view: ClassVar[bool] = True
    dims: Shape

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        count, rest = prod(x.shape), prod(n for n in self.dims if n >= 0)
        left = count // rest if rest else 0
        shape = tuple(left if n < 0 else n for n in self.dims)
        if self.dims.count(-1) > 1 or prod(shape) != count:
            raise ShapeError(f"reshape: x of {x} cannot be {self.dims}")
        return (TensorType(shape, x.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        return (x.reshape(self.dims),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)
