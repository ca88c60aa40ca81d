"""Attention of new tokens over those in a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from glnn.core.array_functions import softmax
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators.rotary import HALVES, Cached


@dataclass(frozen=True)
class CachedAttention(Cached):
    """softmax(scale Q K^T) V of new tokens' queries and the cached tokens up to each.

    x: (tokens, numbers), queries of `heads` heads from `start` on, rotated if there is `rotary`.
    cache: (rows, 2 kv_heads width). places: (tokens,) int32. Head h reads head h kv_heads // heads
    of the cache (Ainslie et al. 2023). window: how many tokens are seen, itself too; 0 for all.
    cap: scores s become cap tanh(s / cap); 0 for none. keys_start, values_start: where x has the
    tokens' own keys, which are rotated like the queries, and values; the cache need not have them
    then, and no two tokens are of one sequence. -1 where they are in the cache. Result: (tokens,
    heads width); zeros for a token without a place.
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
    keys_start: int = field(default=-1, kw_only=True)
    values_start: int = field(default=-1, kw_only=True)

    def __post_init__(self) -> None:
        self.check()
        if (self.keys_start < 0) != (self.values_start < 0):
            raise ShapeError(
                f"{self.name}: keys_start and values_start must both be 0 or more, or both -1, "
                f"got {self.keys_start} and {self.values_start}"
            )
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.window < 0 or self.cap < 0:
            raise ShapeError(
                f"cached_attention: kv_heads must divide heads, window and cap must be 0 or more, "
                f"got {self.kv_heads} of {self.heads}, {self.window} and {self.cap}"
            )

    @property
    def has_own_keys(self) -> bool:
        """True where x has the tokens' own keys and values."""
        return self.keys_start >= 0

    def shape_of(self, shapes: Shapes) -> Shape:
        self.check_tokens(shapes)
        self.check_cache(shapes["cache"], self.kv_heads)
        last = max(self.keys_start, self.values_start) + self.kv_heads * self.width
        if self.has_own_keys and shapes["x"][1] < last:
            raise ShapeError(
                f"{self.name}: x {shapes['x']} ends before the keys and values of {self.kv_heads} "
                f"heads of {self.width} from {self.keys_start} and {self.values_start} on"
            )
        return shapes["x"][0], self.heads * self.width

    def compute(self, operands: Mapping[str, Array]) -> Array:
        queries = self.tokens(operands)
        result = np.zeros(queries.shape, queries.dtype)
        for token, place, first in self._visible_rows(operands):
            rows = range(first, place if self.has_own_keys else place + 1)
            scores, values = self._scores(operands, token, queries[token], rows, with_token=True)
            mean = softmax(scores) @ values
            result[token] = mean.reshape(self.heads, self.width)
        return result.reshape(len(queries), -1)

    def _visible_rows(self, operands: Mapping[str, Array]) -> Iterator[tuple[int, int, int]]:
        """Yield each token that has a row in the cache, that row, and the first row it reads."""
        for token, place in enumerate(operands["places"]):
            if 0 <= place < len(operands["cache"]):
                first = place - place % self.context
                yield token, place, max(first, place - self.window + 1) if self.window else first

    def _scores(
        self,
        operands: Mapping[str, Array],
        token: int,
        queries: Array,
        rows: range,
        with_token: bool,
    ) -> tuple[Array, Array]:
        """Return the scores (kv_heads, group, n) and the values (kv_heads, n, width) of `rows`.

        with_token: True to append those of the token itself where x has its key and value.
        """
        cache = operands["cache"].reshape(-1, 2, self.kv_heads, self.width)
        keys, values = cache[rows.start : rows.stop].transpose(1, 2, 0, 3)
        if with_token and self.has_own_keys:
            key = self.rotated(operands, self.keys_start, self.kv_heads)[token]
            end = self.values_start + self.kv_heads * self.width
            value = operands["x"][token, self.values_start : end].reshape(key.shape)
            keys = np.concatenate((keys, key[:, None]), axis=1)
            values = np.concatenate((values, value[:, None]), axis=1)
        grouped = queries.reshape(self.kv_heads, -1, self.width)
        scores = (grouped @ keys.swapaxes(1, 2)) * queries.dtype.type(self.scale)
        return self.cap * np.tanh(scores / self.cap) if self.cap else scores, values

    def flops(self, shapes: Shapes) -> int:
        # The length of sequences is not known: half of the greatest is assumed.
        keys = (self.window or self.context) // 2 + 1
        return shapes["x"][0] * self.heads * keys * (4 * self.width + 6)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {
            **super().sizes(shapes),
            "rows": shapes["cache"][0],
            "kv_heads": self.kv_heads,
            "group": self.heads // self.kv_heads,
            "window": self.window or self.context,
            "keys_start": self.keys_start,
            "values_start": self.values_start,
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        macros = {"CAPPED": int(self.cap > 0), "OWN_KEYS": int(self.has_own_keys)}
        return {**super().defines(shapes), **macros}

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
        places = (numbers.astype(np.int64) % rows).astype(np.int32)
        places[:1] = rows - 1  # the most tokens that there may be: drivers end long loops
        return places


@dataclass(frozen=True)
class AttentionParts(CachedAttention):
    """`CachedAttention` to each part of `keys` tokens; AttentionSum reduces the parts.

    Result: (tokens, heads parts (width + 4)). Each part has the sum of the values times their
    weights exp(score - maximum), the maximum, the sum of the weights, 1 if the token has a place,
    and a 0. A part without tokens has -3e38 for the maximum, and zeros. The first part includes the
    token itself where x has its key.
    """

    name: ClassVar[str] = "attention_parts"
    keys: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys < 1:
            raise ShapeError(f"attention_parts: keys must be 1 or more, got {self.keys}")

    @property
    def parts(self) -> int:
        """The number of parts of the longest sequence."""
        return -(-(self.window or self.context) // self.keys)

    def shape_of(self, shapes: Shapes) -> Shape:
        tokens, _ = super().shape_of(shapes)
        return tokens, self.heads * self.parts * (self.width + 4)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        queries = self.tokens(operands)
        result = np.zeros((len(queries), self.heads, self.parts, self.width + 4), queries.dtype)
        result[..., self.width] = -3e38
        for token, place, first in self._visible_rows(operands):
            result[token, ..., self.width + 2] = 1
            last = place if self.has_own_keys else place + 1
            for part, begin in enumerate(range(first, max(last, first + 1), self.keys)):
                rows, own = range(begin, min(begin + self.keys, last)), part == 0
                scores, values = self._scores(operands, token, queries[token], rows, own)
                greatest = scores.max(-1, keepdims=True)
                weights = np.exp(scores - greatest)
                part_result = result[token, :, part]
                part_result[:, : self.width] = (weights @ values).reshape(self.heads, self.width)
                part_result[:, self.width] = greatest.ravel()
                part_result[:, self.width + 1] = weights.sum(-1).ravel()
        return result.reshape(len(queries), -1)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {**super().sizes(shapes), "keys": self.keys, "parts": self.parts}


@dataclass(frozen=True)
class AttentionSum(HandwrittenOperator):
    """Attention, reduced from the parts of AttentionParts or PartialAttention.

    Result: (tokens, heads width).
    """

    name: ClassVar[str] = "attention_sum"
    heads: int
    width: int
    parts: int
    zeros: bool = False
    """True where rows without a softmax are zeros, not NaN."""

    def __post_init__(self) -> None:
        if min(self.heads, self.width, self.parts) < 1:
            raise ShapeError(
                f"attention_sum: heads, width and parts must be 1 or more, got {self.heads}, "
                f"{self.width} and {self.parts}"
            )

    def shape_of(self, shapes: Shapes) -> Shape:
        x, numbers = shapes["x"], self.heads * self.parts * (self.width + 4)
        rank(self.name, "x", x, 2, "(tokens, numbers)")
        if x[1] != numbers:
            raise ShapeError(f"attention_sum: x must be (tokens, {numbers}), got {x}")
        return x[0], self.heads * self.width

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"].reshape(-1, self.heads, self.parts, self.width + 4)
        sums, greatest = x[..., : self.width], x[..., self.width]
        with np.errstate(invalid="ignore", over="ignore"):
            factors = np.exp(greatest - greatest.max(-1, keepdims=True))
            total = (factors * x[..., self.width + 1]).sum(-1)
            result = (factors[..., None] * sums).sum(2)
            valid = x[..., 0, self.width + 2] != 0
            if self.zeros:
                valid &= np.isfinite(total) & (total > 0)
            result = np.where(valid[..., None], result / np.where(valid, total, 1)[..., None], 0)
        return result.reshape(len(x), -1)

    def flops(self, shapes: Shapes) -> int:
        return 3 * shapes["x"][0] * shapes["x"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {
            "tokens": shapes["x"][0],
            "heads": self.heads,
            "width": self.width,
            "parts": self.parts,
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"ZEROS": int(self.zeros)}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return {"whole": 1} where heads are whole vec4."""
        return {"whole": int(self.width % 4 == 0)}

    def depth(self, shapes: Shapes) -> int:
        return self.parts
