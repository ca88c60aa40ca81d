"""Hyperbolic tangent layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Activation
from glnn.layers.layer import Layer


class Tanh(Layer):
    """tanh(x) of every element."""

    def __init__(self) -> None:
        super().__init__(Activation("tanh"))

    def config(self) -> dict[str, Any]:
        return {}
