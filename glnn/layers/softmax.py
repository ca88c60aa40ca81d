"""Softmax layer."""

from __future__ import annotations

from typing import Any

from glnn import ops
from glnn.errors import ShapeError
from glnn.layers.layer import Layer


class Softmax(Layer):
    """exp(x), scaled so that it sums to 1 along `dim`, which must not be the batch."""

    def __init__(self, dim: int = -1) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise ShapeError(f"Softmax dim must be an integer, got {dim!r}")
        self.dim = dim
        super().__init__(ops.Softmax(axis=dim))

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}
