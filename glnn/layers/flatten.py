"""Flatten layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.arguments import index, with_unusual
from glnn.layers.layer import Layer


class Flatten(Layer):
    """x of shape (n, ...) with the dimensions from `start_dim` to `end_dim` as a single one.

    Negative ones count from the end. The batch stays by itself.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = index("Flatten start_dim", start_dim)
        self.end_dim = index("Flatten end_dim", end_dim)
        super().__init__(operators.Flatten(self.start_dim, self.end_dim))

    def config(self) -> dict[str, Any]:
        return with_unusual({}, start_dim=(self.start_dim, 1), end_dim=(self.end_dim, -1))
