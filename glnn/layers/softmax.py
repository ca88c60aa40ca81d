"""Softmax layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.arguments import index
from glnn.layers.layer import Layer


class Softmax(Layer):
    """exp(x), scaled so that it sums to 1 along `dim`, which must not be the batch."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = index("Softmax dim", dim)
        super().__init__(operators.Softmax(axis=self.dim))

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}
