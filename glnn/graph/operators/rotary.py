"""Rotary embeddings, and what operators on tokens and caches of keys and values have in common.

A cache has a row for each token, the keys of all heads and then their values, and `context` rows
for a sequence, one sequence behind the other. The operand `places` says for each new token its row:
from that follow the sequence, place // context, and the token's position in it, place % context. A
place below 0 is of no token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Constants, Shapes, Types, rank

MOST_WIDTH = 512  # numbers of a head, which kernels keep in shared memory
HALVES, PAIRS = "halves", "pairs"
ROTARY_ORDERS = (HALVES, PAIRS)


def rotate(x: Array, table: Array, positions: Array, order: str) -> Array:
    """Return rotary embeddings (Su et al. 2021) of `x`, (tokens, heads, width).

    table: (context, n), the cosines and then the sines of n / 2 angles by position; the numbers
    behind the first n of each head stay as they are. order: "halves" rotates number i with
    i + n / 2, "pairs" 2 i with 2 i + 1.
    """
    n = table.shape[1]
    rows = table.astype(x.dtype)[positions][:, None, :]
    cosine, sine = rows[..., : n // 2], rows[..., n // 2 :]
    rotated = np.array(x)
    first, second = (
        (slice(0, n // 2), slice(n // 2, n))
        if order == HALVES
        else (slice(0, n, 2), slice(1, n, 2))
    )
    a, b = x[..., first], x[..., second]
    rotated[..., first] = a * cosine - b * sine
    rotated[..., second] = b * cosine + a * sine
    return rotated


class Cached(HandwrittenOperator):
    """Base of operators that read rows of tokens by `places` and may rotate them by `rotary`.

    x: (tokens, numbers), of which `heads` heads of `width` numbers each begin at `start`.
    """

    optional: ClassVar[tuple[str, ...]] = ("rotary",)
    parameters: ClassVar[tuple[str, ...]] = ("rotary",)
    heads: int
    width: int
    context: int
    start: int
    order: str

    def check(self) -> None:
        """Raise ShapeError unless the attributes fit each other."""
        if min(self.heads, self.width, self.context) < 1 or self.start < 0:
            raise ShapeError(
                f"{self.name}: heads, width and context must be 1 or more and start 0 or more, got "
                f"{self.heads}, {self.width}, {self.context} and {self.start}"
            )
        if self.width > MOST_WIDTH:
            raise ShapeError(f"{self.name}: width must be at most {MOST_WIDTH}, got {self.width}")
        if self.order not in ROTARY_ORDERS:
            raise ShapeError(
                f"{self.name}: order must be one of {ROTARY_ORDERS}, got {self.order!r}"
            )

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, one in operands.items():
            wanted = DType.int32 if name == "places" else DType.float32
            if one.dtype is not wanted:
                raise ShapeError(f"{self.name}: {name} must be {wanted.value}, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.compute(self.named(arrays)),)

    def check_tokens(self, shapes: Shapes) -> None:
        """Raise ShapeError unless x, places and rotary fit."""
        x, places, rotary = shapes["x"], shapes["places"], shapes.get("rotary")
        rank(self.name, "x", x, 2, "(tokens, numbers)")
        rank(self.name, "places", places, 1, "(tokens,)")
        if x[0] != places[0]:
            raise ShapeError(f"{self.name}: x {x} and places {places} must have as many tokens")
        if x[1] < self.start + self.heads * self.width:
            raise ShapeError(
                f"{self.name}: x {x} ends before {self.heads} heads of {self.width} from "
                f"{self.start} on"
            )
        if rotary is not None:
            rank(self.name, "rotary", rotary, 2, "(context, numbers)")
            if rotary[0] != self.context or rotary[1] % 2 or rotary[1] > self.width:
                raise ShapeError(
                    f"{self.name}: rotary must be ({self.context}, an even number up to "
                    f"{self.width}), got {rotary}"
                )

    def check_cache(self, cache: Shape, heads: int) -> None:
        """Raise ShapeError unless `cache` has rows of so many heads, of whole sequences."""
        rank(self.name, "cache", cache, 2, "(rows, numbers)")
        numbers = 2 * heads * self.width
        if cache[1] != numbers or cache[0] % self.context:
            raise ShapeError(
                f"{self.name}: cache must be (a multiple of {self.context}, {numbers}), got {cache}"
            )

    def tokens(self, operands: Mapping[str, Array]) -> Array:
        """Return the heads of x, (tokens, heads, width), rotated where that is asked for."""
        return self.rotated(operands, self.start, self.heads)

    def rotated(self, operands: Mapping[str, Array], start: int, count: int) -> Array:
        """Return `count` heads of x from `start` on, rotated where that is asked for."""
        x, places = operands["x"], operands["places"]
        heads = x[:, start : start + count * self.width].reshape(len(x), count, self.width)
        if "rotary" not in operands:
            return heads
        return rotate(heads, operands["rotary"], places % self.context, self.order)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        rotary = shapes.get("rotary")
        return {
            "tokens": shapes["x"][0],
            "heads": self.heads,
            "width": self.width,
            "context": self.context,
            "start": self.start,
            "rotary_dim": 0 if rotary is None else rotary[1],
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"PAIRS": int(self.order == PAIRS)}


@dataclass(frozen=True)
class Rotary(Cached):
    """x with the heads from `start` on rotated, and nothing else of it.

    x: (tokens, numbers). places: (tokens,) int32. rotary: (context, n). Result: (tokens, heads
    width).
    """

    name: ClassVar[str] = "rotary"
    inputs: ClassVar[tuple[str, ...]] = ("x", "places")
    optional: ClassVar[tuple[str, ...]] = ()
    heads: int
    width: int
    context: int
    start: int = 0
    order: str = HALVES

    def __post_init__(self) -> None:
        self.check()

    def shape_of(self, shapes: Shapes) -> Shape:
        self.check_tokens(shapes)
        return shapes["x"][0], self.heads * self.width

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self.tokens(operands).reshape(len(operands["x"]), -1)

    def flops(self, shapes: Shapes) -> int:
        return 4 * shapes["x"][0] * self.heads * self.width
