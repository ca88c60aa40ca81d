"""Layers that join and split dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.graph import Value
from glnn.layers.arguments import index, with_unusual
from glnn.layers.layer import ANY, Layer
from glnn.layers.scope import Scope


class Flatten(Layer):
    """x of shape (n, ...) with the dimensions from `start_dim` to `end_dim` as a single one.

    Negative ones count from the end. The batch stays by itself.
    """

    takes = ANY

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = index("Flatten start_dim", start_dim)
        self.end_dim = index("Flatten end_dim", end_dim)
        super().__init__(operators.Flatten(self.start_dim, self.end_dim))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        rank = len(dims)
        if self.start_dim in (0, -rank) and self.end_dim in (*range(1, rank), *range(1 - rank, 0)):
            raise ShapeError(f"Flatten: the first dimension of x {dims} is the batch and stays")
        return scope.result(self.op, *inputs)

    def config(self) -> dict[str, Any]:
        return with_unusual({}, start_dim=(self.start_dim, 1), end_dim=(self.end_dim, -1))


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
