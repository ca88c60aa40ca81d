"""Dropout layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Identity
from glnn.layers.arguments import number
from glnn.layers.layer import Layer


class Dropout(Layer):
    """x of any shape, unchanged: elements are dropped, with probability `p`, in training only."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = number("Dropout p", p, 0, 1)
        super().__init__(Identity())

    def config(self) -> dict[str, Any]:
        return {"p": self.p}
