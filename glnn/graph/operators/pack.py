"""Pack: numbers of 8 bits, four to a word."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Cost, Operator, Shapes, Types
from glnn.types import Array, DType, TensorType

PACKED = (DType.uint8, DType.int8, DType.bool)


@dataclass(frozen=True)
class Pack(Operator):
    """x as it is, each number of which takes a word on a GPU before, and a byte then.

    x: uint8, int8 or bool, any shape. What comes back to the host is a quarter by it.
    """

    name: ClassVar[str] = "pack"
    passes: ClassVar[tuple[str, ...]] = ("x",)

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if x.dtype not in PACKED:
            raise ShapeError(f"pack: x must be of 8 bits a number, got {x}")
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.named(arrays)["x"].copy(),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 5 * prod(self.named(types)["x"].shape))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"fours": -(-prod(shapes["x"]) // 4)}
