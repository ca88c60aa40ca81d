"""Rows of weights that stay quantized in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Shapes, Types, rank
from glnn.graph.operators.gather import clamp_index
from glnn.graph.operators.quantized_matmul import WithPackedWeight


@dataclass(frozen=True)
class QuantizedRows(WithPackedWeight):
    """Rows of a weight that stays packed, as numbers: the embedding of tokens.

    index: (rows,) int32; negative ones count from the end, for one beyond the weight's rows the
    nearest is taken. weight: (words,) int32, the
    packed weight of (n, k) numbers. Result: (rows, k).
    """

    name: ClassVar[str] = "quantized_rows"
    inputs: ClassVar[tuple[str, ...]] = ("index",)
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    has_epilogue: ClassVar[bool] = True
    format: str
    n: int
    k: int

    def __post_init__(self) -> None:
        self.check()

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, one in operands.items():
            if one.dtype is not DType.int32:
                raise ShapeError(f"{self.name}: {name} must be int32, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "index", shapes["index"], 1, "(rows,)")
        self.check_weight(shapes["weight"])
        return shapes["index"][0], self.k

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        index = clamp_index(operands["index"], (self.n,))
        return (self.packing.unpack(operands["weight"], self.n, self.k, index),)

    def flops(self, shapes: Shapes) -> int:
        return 2 * shapes["index"][0] * self.k

    def fixed_layouts(self) -> Mapping[str, str]:
        return {"weight": "R", "index": "R"}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {**super().sizes(shapes), "rows": shapes["index"][0]}
