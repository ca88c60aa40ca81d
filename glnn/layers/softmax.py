"""Softmax layer."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.layers.arguments import index
from glnn.layers.layer import Layer
from glnn.types import Shape


class Softmax(Layer):
    """exp(x), scaled so that it sums to 1 along `dim`, which must not be the batch.

    dim: None is 1, as in PyTorch, where x has not three dimensions: there PyTorch takes the batch.
    """

    def __init__(self, dim: int | None = None) -> None:
        self.dim = None if dim is None else index("Softmax dim", dim)
        super().__init__(operators.Softmax(axis=1 if self.dim is None else self.dim))

    def infer(self, *shapes: Shape) -> Shape:
        if self.dim is None and len(shapes[0]) == 3:
            raise ShapeError(f"Softmax dim must be given, 1 or 2, for x of shape {shapes[0]}")
        return super().infer(*shapes)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}
