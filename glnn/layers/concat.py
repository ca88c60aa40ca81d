"""Concatenation layer."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.graph.operators.concat import MOST_INPUTS
from glnn.layers.arguments import integer
from glnn.layers.layer import ANY, Layer


class Concat(Layer):
    """The channels of `count` inputs of shape (n, c, ...) behind one another; only c may differ."""

    takes = ANY

    def __init__(self, count: int = 2) -> None:
        self.count = integer("Concat count", count, least=2)
        if self.count > MOST_INPUTS:
            raise ShapeError(f"Concat count must be at most {MOST_INPUTS}, got {self.count}")
        super().__init__(operators.Concat())

    @property
    def inputs(self) -> int:
        return self.count

    def config(self) -> dict[str, Any]:
        return {"count": self.count}
