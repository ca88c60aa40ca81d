"""Gradients that are made no larger than so much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from glnn.errors import ShapeError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.layers.arguments import number
from glnn.training.adding import Adding

LEAST = 1e-6  # what PyTorch adds to a norm before it divides by it


@dataclass(frozen=True)
class Clipping:
    """What bounds gradients, in this order: first each number, then the norm of all together."""

    norm: float | None = None
    """What the norm of all gradients together is at most; None: anything."""
    value: float | None = None
    """What the size of each number is at most; None: anything."""

    def __post_init__(self) -> None:
        for name in ("norm", "value"):
            given = getattr(self, name)
            if given is not None and number(f"clip_{name}", given, 0) == 0:
                raise ShapeError(f"clip_{name} must be greater than 0, got 0")

    def clipped(self, add: Adding, gradients: Mapping[str, Value]) -> dict[str, Value]:
        """`gradients` within the bounds."""
        found = dict(gradients)
        if self.value is not None:
            most = float(self.value)
            found = {n: add.pointwise("clip(a, b, c)", g, -most, most) for n, g in found.items()}
        if self.norm is None:
            return found
        squares = [add.total(formula("square(a)"), g) for g in found.values()]
        whole = reduce(lambda one, other: add.pointwise("a + b", one, other), squares)
        most = float(self.norm)
        factor = add.pointwise("minimum(a / (sqrt(b) + c), 1.0)", most, whole, LEAST)
        return {name: add.pointwise("a * b", g, factor) for name, g in found.items()}
