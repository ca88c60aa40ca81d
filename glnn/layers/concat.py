"""Concatenation layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.graph.operators.concat import MOST
from glnn.layers.arguments import integer
from glnn.layers.layer import Array, Layer


class Concat(Layer):
    """The channels of `count` inputs of shape (n, c, ...) behind one another; only c may differ."""

    def __init__(self, count: int = 2) -> None:
        self.count = integer("Concat count", count, least=2)
        super().__init__(operators.Concat(self.count))

    def __call__(self, *inputs: Array, backend: str = "auto") -> Array:
        if len(inputs) <= MOST or len(inputs) != self.count:
            return super().__call__(*inputs, backend=backend)
        joined = inputs[0]
        for start in range(1, len(inputs), MOST - 1):
            part = (joined, *inputs[start : start + MOST - 1])
            joined = Concat(len(part))(*part, backend=backend)
        return joined

    def config(self) -> dict[str, Any]:
        return {"count": self.count}
