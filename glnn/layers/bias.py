"""Bias layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import SUM
from glnn.layers.arguments import integer
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope


class Bias(Layer):
    """x + bias, for x of shape (n, features, ...). bias: (features,), initially 0."""

    bias = Parameter[Array]()

    def __init__(self, features: int) -> None:
        self.features = integer("Bias features", features)
        super().__init__(Pointwise(SUM), {"bias": (self.features,)})

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        bias = scope.channels(self.variable(scope, "bias"), x)
        return scope.result(self.op, x, bias)

    def config(self) -> dict[str, Any]:
        return {"features": self.features}
