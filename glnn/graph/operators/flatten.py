"""Each sample as one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Contraction, Shapes
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Flatten(Contraction):
    """x of shape (n, ...) as (n, all the rest). Only a view: no kernel runs."""

    name: ClassVar[str] = "flatten"
    view: ClassVar[bool] = True

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"flatten: x must have shape (n, ...), got {x}")
        return x[0], prod(x[1:])

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return operands["x"].reshape(self.shape_of({"x": operands["x"].shape}))

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, row = self.shape_of(shapes)
        return {"n": n, "row": row}
