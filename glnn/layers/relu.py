"""Rectified linear layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.layers.arguments import flag, with_unusual
from glnn.layers.layer import Layer


class ReLU(Layer):
    """max(x, 0) of every element; NaN stays NaN.

    inplace: changes nothing here, where memory is planned.
    """

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = flag("ReLU inplace", inplace)
        super().__init__(Pointwise(call("relu", Arg(0))))

    def config(self) -> dict[str, Any]:
        return with_unusual({}, inplace=(self.inplace, False))
