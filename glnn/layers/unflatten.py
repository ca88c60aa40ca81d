"""Unflatten layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.layers.arguments import index
from glnn.layers.layer import ANY, Layer


class Unflatten(Layer):
    """x with its dimension `dim` as several, of sizes `unflattened_size`, one of which may be -1.

    A negative dim counts from the end. The numbers stay in their order.
    """

    takes = ANY

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim = index("Unflatten dim", dim)
        if not isinstance(unflattened_size, (list, tuple)) or not unflattened_size:
            got = shown(unflattened_size)
            raise ShapeError(f"Unflatten unflattened_size must be sizes, got {got}")
        what = "Unflatten unflattened_size"
        self.unflattened_size = tuple(index(what, size) for size in unflattened_size)
        super().__init__(operators.Unflatten(self.dim, self.unflattened_size))

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "unflattened_size": self.unflattened_size}
