"""Attention of new tokens over those in a cache."""

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
class CachedAttention(Cached):
    """softmax(scale Q K^T) V of new tokens' queries and the cached tokens up to each.

    x: (tokens, numbers), queries of `heads` heads from `start` on, rotated if there is `rotary`.
    cache: (rows, 2 kv_heads width). places: (tokens,) int32. Head h reads head h kv_heads // heads
    of the cache (Ainslie et al. 2023). window: how many tokens are seen, itself too; 0 for all.
    cap: scores s become cap tanh(s / cap); 0 for none. Result: (tokens, heads width); zeros for a
    token without a place.
    """

    name: ClassVar[str] = "cached_attention"
    inputs: ClassVar[tuple[str, ...]] = ("x", "cache", "places")
    heads: int
    kv_heads: int
    width: int
    context: int
    scale: float
    window: int = 0
    cap: float = 0.0
    start: int = 0
    order: str = HALVES

    def __post_init__(self) -> None:
        self.check()
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.window < 0 or self.cap < 0:
            raise ShapeError(
                f"cached_attention: kv_heads must divide heads, window and cap must be 0 or more, "
                f"got {self.kv_heads} of {self.heads}, {self.window} and {self.cap}"
            )

    def shape_of(self, shapes: Shapes) -> Shape:
        self.check_tokens(shapes)
        self.check_cache(shapes["cache"], self.kv_heads)
        return shapes["x"][0], self.heads * self.width

    def compute(self, operands: Mapping[str, Array]) -> Array:
        queries, places = self.tokens(operands), operands["places"]
        cache = operands["cache"].reshape(-1, 2, self.kv_heads, self.width)
        result = np.zeros(queries.shape, queries.dtype)
        group = self.heads // self.kv_heads
        for token, place in enumerate(places):
            if not 0 <= place < len(cache):
                continue
            first = place - place % self.context
            if self.window:
                first = max(first, place - self.window + 1)
            keys, values = cache[first : place + 1].transpose(1, 2, 0, 3)  # (heads, tokens, width)
            asked = queries[token].reshape(self.kv_heads, group, self.width)
            scores = (asked @ keys.swapaxes(1, 2)) * queries.dtype.type(self.scale)
            if self.cap:
                scores = self.cap * np.tanh(scores / self.cap)
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            mean = (powers / powers.sum(-1, keepdims=True)) @ values
            result[token] = mean.reshape(self.heads, self.width)
        return result.reshape(len(places), -1)

    def flops(self, shapes: Shapes) -> int:
        # The length of sequences is not known: half of the context stands for it.
        return shapes["x"][0] * self.heads * (self.context // 2 + 1) * (4 * self.width + 6)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {
            **super().sizes(shapes),
            "rows": shapes["cache"][0],
            "kv_heads": self.kv_heads,
            "group": self.heads // self.kv_heads,
            "window": self.window or self.context,
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {**super().defines(shapes), "CAPPED": int(self.cap > 0)}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return {"whole": 1} where heads are whole vec4."""
        return {"whole": int(self.width % 4 == 0)}

    def scalars(self) -> dict[str, float]:
        return {"scale": self.scale, "cap": self.cap}

    def depth(self, shapes: Shapes) -> int:
        return self.context

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name != "places":
            return numbers
        rows = max(shapes["cache"][0], 1)
        return (numbers.astype(np.int64) % rows).astype(np.int32)
