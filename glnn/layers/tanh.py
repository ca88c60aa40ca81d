"""Hyperbolic tangent layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.layers.layer import Layer


class Tanh(Layer):
    """tanh(x) of every element."""

    def __init__(self) -> None:
        super().__init__(Pointwise(call("tanh", Arg(0))))

    def config(self) -> dict[str, Any]:
        return {}
