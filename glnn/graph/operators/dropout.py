"""Dropout as it is at inference: nothing is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Dropout(Contraction):
    """x of any shape, unchanged. Only a view: no kernel runs."""

    name: ClassVar[str] = "dropout"
    view: ClassVar[bool] = True

    def shape_of(self, shapes: Shapes) -> Shape:
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return operands["x"]

    def flops(self, shapes: Shapes) -> int:
        return 0

    def view_layouts(self, given: str) -> tuple[str, str]:
        return given, given

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {}
