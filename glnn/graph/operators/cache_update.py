"""Keys and values of new tokens put into a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.operator import Shapes
from glnn.graph.operators.rotary import HALVES, Cached


@dataclass(frozen=True)
class CacheUpdate(Cached):
    """`cache` with the rows of new tokens: their keys, rotated if there is `rotary`, and values.

    x: (tokens, numbers), keys of `heads` heads from `start` on, values from `values_start` on.
    cache: (rows, 2 heads width). places: (tokens,) int32. rotary: (context, n). Result: as cache,
    whose memory it takes where a backend can. No two places are equal.
    """

    name: ClassVar[str] = "cache_update"
    inputs: ClassVar[tuple[str, ...]] = ("x", "cache", "places")
    updates: ClassVar[str | None] = "cache"
    heads: int
    width: int
    context: int
    start: int = 0
    values_start: int = 0
    order: str = HALVES

    def __post_init__(self) -> None:
        self.check()
        if self.values_start < 0:
            raise ShapeError(
                f"cache_update: values_start must be 0 or more, got {self.values_start}"
            )

    def shape_of(self, shapes: Shapes) -> Shape:
        self.check_tokens(shapes)
        self.check_cache(shapes["cache"], self.heads)
        if shapes["x"][1] < self.values_start + self.heads * self.width:
            raise ShapeError(
                f"cache_update: x {shapes['x']} ends before {self.heads} heads of {self.width} "
                f"from {self.values_start} on"
            )
        return shapes["cache"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, places, cache = operands["x"], operands["places"], operands["cache"]
        count, half = len(places), self.heads * self.width
        there = (places >= 0) & (places < len(cache))
        result = np.array(cache)
        keys = self.tokens(operands).reshape(count, half)
        values = x[:, self.values_start : self.values_start + half]
        result[places[there]] = np.concatenate((keys, values), axis=1)[there]
        return result

    def flops(self, shapes: Shapes) -> int:
        return 4 * shapes["x"][0] * self.heads * self.width

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        rows, numbers = shapes["cache"]
        more = {"rows": rows, "numbers": numbers, "values_start": self.values_start}
        return {**super().sizes(shapes), **more}

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name != "places":
            return numbers
        rows = max(shapes["cache"][0], 1)
        step = next(n for n in (7, 5, 3, 1) if rows % n or n == 1)  # each place once
        return ((np.arange(len(numbers)) * step + 3) % rows).astype(np.int32)
