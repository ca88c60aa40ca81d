"""Caches of keys or values that grow by a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators.rotary import HALVES, Cached


@dataclass(frozen=True)
class CacheAppend(Cached):
    """`past` with a token more for each sequence, whose heads lie in a row of x from `start` on.

    x: (rows, numbers). past: (rows, heads, tokens, width). Where there are `places`, (rows,) int32,
    and `rotary`, (context, n), the new heads are rotated by row place % context of that. Result:
    (rows, heads, tokens + 1, width).
    """

    name: ClassVar[str] = "cache_append"
    inputs: ClassVar[tuple[str, ...]] = ("x", "past", "places")
    optional: ClassVar[tuple[str, ...]] = ("places", "rotary")
    heads: int
    width: int
    context: int
    start: int = 0
    order: str = HALVES

    def __post_init__(self) -> None:
        self.check()

    def shape_of(self, shapes: Shapes) -> Shape:
        x, past = shapes["x"], shapes["past"]
        rank(self.name, "x", x, 2, "(rows, numbers)")
        if ("places" in shapes) != ("rotary" in shapes):
            raise ShapeError(f"{self.name}: places and rotary must both be there or neither")
        self.check_tokens({"places": x[:1], **shapes})
        rank(self.name, "past", past, 4, "(rows, heads, tokens, width)")
        if past[0] != x[0] or (past[1], past[3]) != (self.heads, self.width):
            raise ShapeError(
                f"{self.name}: past must be ({x[0]}, {self.heads}, tokens, {self.width}), got "
                f"{past}"
            )
        return *past[:2], past[2] + 1, past[3]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        self.shape_of({name: array.shape for name, array in operands.items()})
        return np.concatenate((operands["past"], self.tokens(operands)[:, :, None]), axis=2)

    def rotated(self, operands: Mapping[str, Array], start: int, count: int) -> Array:
        return super().rotated({"places": np.empty(0, np.int32), **operands}, start, count)

    def flops(self, shapes: Shapes) -> int:
        return 4 * shapes["x"][0] * self.heads * self.width if "rotary" in shapes else 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        rows, heads, tokens, width = shapes["past"]
        elements = (tokens + 1) * width
        return {**super().sizes(shapes), "elements": elements, "matrices": rows * heads}
