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
    """x of shape (n, ...) with its dimensions from `start` to `end` as one, which is not the first.

    Negative ones count from the end. Only a view: no kernel runs.
    """

    name: ClassVar[str] = "flatten"
    view: ClassVar[bool] = True
    start: int = 1
    end: int = -1

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"flatten: x must have shape (n, ...), got {x}")
        start, end = (i + len(x) if i < 0 else i for i in (self.start, self.end))
        if not 0 <= start <= end < len(x):
            raise ShapeError(f"flatten: x {x} has no dimensions from {self.start} to {self.end}")
        if start == 0 < end:
            raise ShapeError(f"flatten: the first dimension of x {x} is the batch and stays")
        return (*x[:start], prod(x[start : end + 1]), *x[end + 1 :])

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return operands["x"].reshape(self.shape_of({"x": operands["x"].shape}))

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, *row = self.shape_of(shapes)
        return {"n": n, "row": prod(row)}
