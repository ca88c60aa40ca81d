"""Rows of a packed weight, as a packed weight of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.quantization import FORMATS, QuantizedFormat


@dataclass(frozen=True)
class WeightPart(Operator):
    """Rows `start` to `end` of each of `stacked` matrices that one packed weight has.

    x: (words,) int32, the packed weight of (stacked * n, k) numbers. Result: that of the rows
    (stacked * (end - start), k), which is computed once, by the host.
    """

    name: ClassVar[str] = "weight_part"
    format: str
    """The weight's format, a name of `FORMATS`."""
    n: int
    """Rows of each matrix."""
    k: int
    start: int
    end: int
    stacked: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= self.n:
            raise ShapeError(
                f"{self.name}: rows must be from 0 to {self.n}, got {self.start} to {self.end}"
            )

    @property
    def _packing(self) -> QuantizedFormat:
        return FORMATS[self.format]

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        expected = TensorType((self._packing.words(self.stacked * self.n, self.k),), DType.int32)
        if x != expected:
            raise ShapeError(f"{self.name}: x must be {expected}, got {x}")
        rows = self.stacked * (self.end - self.start)
        return (TensorType((self._packing.words(rows, self.k),), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x, firsts = self.named(arrays)["x"], range(0, self.stacked * self.n, max(self.n, 1))
        spans = [slice(first + self.start, first + self.end) for first in firsts]
        return (self._packing.part(x, self.stacked * self.n, self.k, spans),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)
