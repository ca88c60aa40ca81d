"""Sigmoid layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.layers.layer import Layer


class Sigmoid(Layer):
    """1 / (1 + exp(-x)) of every element."""

    def __init__(self) -> None:
        super().__init__(Pointwise(call("sigmoid", Arg(0))))

    def config(self) -> dict[str, Any]:
        return {}
