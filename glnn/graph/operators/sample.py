"""Numbers drawn by the probabilities that logits say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Constants, Shapes, Types, rank

RULES = ("temperature", "top_k", "top_p", "min_p")
"""The columns of a row of rules."""
MOST = 1 << 24
"""Logits of a row, which kernels count as floats."""
NOT_A_NUMBER = -1
"""The result for logits of which one is NaN, or the greatest infinite."""


def candidates(scores: Array, top_k: int, top_p: float, min_p: float) -> Array:
    """Return which of the logits `scores`, of one row, may be drawn, in the order of their numbers.

    top_k: of so many greatest; 0 of all. top_p: of the fewest of these that have this probability
    together. min_p: of those whose probability is at least so much of the greatest's. Of equal
    logits all are candidates, or none.
    """
    exps = np.exp(scores - scores.max())
    least = -np.inf
    if 0 < top_k < len(scores):
        least = np.partition(scores, -top_k)[-top_k]
    if top_p < 1:
        likely = np.sort(scores[scores >= least])[::-1]
        together = np.cumsum(np.exp(likely - likely[0]))
        count = int(np.searchsorted(together, top_p * together[-1]))
        least = max(least, likely[min(count, len(likely) - 1)])
    return np.flatnonzero((scores >= least) & (exps >= min(min_p, 1)))


def draw(scores: Array, tokens: Array, temperature: float, random: float) -> int:
    """Return one of `tokens` by the probabilities of their logits divided by `temperature`.

    random: a number from 0 to 1: that token is drawn with which the sum of the probabilities of
    those before it, and of its own, exceeds it.
    """
    with np.errstate(over="ignore"):  # by a temperature of almost 0, of what is unlikely
        exps = np.exp((scores[tokens] - scores[tokens].max()) / temperature)
    together = np.cumsum(exps)
    place = int(np.searchsorted(together, max(random, 0) * together[-1], side="right"))
    return int(tokens[min(place, len(tokens) - 1)])


@dataclass(frozen=True)
class Sample(HandwrittenOperator):
    """A number of each row of logits, drawn by their probabilities.

    x: (rows, n), logits. rules: (rows, 4), temperature, top_k, top_p and min_p of each row: see
    `candidates`; a temperature of 0 or less takes the first of the greatest. random: (rows,) from 0
    to 1. Result: (rows,) int32, NOT_A_NUMBER for a row with a NaN, or of which the greatest is
    infinite.
    """

    name: ClassVar[str] = "sample"
    inputs: ClassVar[tuple[str, ...]] = ("x", "rules", "random")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, one in operands.items():
            if one.dtype is not DType.float32:
                raise ShapeError(f"sample: {name} must be float32, got {one}")
        shapes = {name: one.shape for name, one in operands.items()}
        return (TensorType(self.shape_of(shapes), DType.int32),)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, rules, random = shapes["x"], shapes["rules"], shapes["random"]
        rank("sample", "x", x, 2, "(rows, n)")
        if rules != (x[0], len(RULES)) or random != (x[0],):
            raise ShapeError(
                f"sample: rules must be ({x[0]}, {len(RULES)}) and random ({x[0]},), got {rules} "
                f"and {random}"
            )
        if not 0 < x[1] <= MOST:
            raise ShapeError(f"sample: rows must be of 1 to {MOST} logits, got {x}")
        return (x[0],)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.compute(self.named(arrays)),)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, rules, random = operands["x"], operands["rules"], operands["random"]
        result = np.full(len(x), NOT_A_NUMBER, np.int32)
        for row, (temperature, top_k, top_p, min_p) in enumerate(rules.tolist()):
            scores = x[row].astype(np.float64)
            if not np.isfinite(scores.max()):
                continue
            if temperature <= 0:
                result[row] = scores.argmax()
                continue
            tokens = candidates(scores, int(top_k), top_p, min_p)
            result[row] = draw(scores, tokens, temperature, float(random[row]))
        return result

    def flops(self, shapes: Shapes) -> int:
        rows, n = shapes["x"]
        return 40 * rows * n

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        rows, n = shapes["x"]
        return {"rows": rows, "n": n}

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name == "x":
            return numbers
        if name == "random":
            return np.full(numbers.shape, 0.4, np.float32)
        rules = [(0.0, 0, 1, 0), (1.0, 0, 1, 0), (0.7, 5, 1, 0), (1.5, 0, 0.6, 0), (1.0, 0, 1, 0.2)]
        return np.resize(np.array(rules, np.float32), numbers.shape)
