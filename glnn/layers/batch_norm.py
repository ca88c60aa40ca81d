"""Batch normalisation layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import SCALE_AND_SHIFT
from glnn.layers.arguments import integer, number
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope

SHIFT = call("sub", Arg(0), call("mul", Arg(1), Arg(2)))


class BatchNorm2d(Layer):
    """weight (x - running_mean) / sqrt(running_var + eps) + bias, for x of shape (n, c, ...).

    c is `num_features`. The parameters are of shape (c,); weight and running_var are initially 1,
    the others 0.
    """

    weight = Parameter[Array]()
    bias = Parameter[Array]()
    running_mean = Parameter[Array]()
    running_var = Parameter[Array]()

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        self.num_features = integer("BatchNorm2d num_features", num_features)
        self.eps = number("BatchNorm2d eps", eps, 0)
        names = ("weight", "bias", "running_mean", "running_var")
        super().__init__(Pointwise(SCALE_AND_SHIFT), dict.fromkeys(names, (self.num_features,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        weight, bias, mean, var = (self.variable(scope, name) for name in self.shapes)
        scale = scope.add(Pointwise(call("div", Arg(0), _deviation(self.eps))), weight, var)
        shift = scope.add(Pointwise(SHIFT), bias, mean, scale)
        rank = len(x.type.dims)
        spread = (scope.channels(value, rank) for value in (scale, shift))
        return scope.result(self.op, x, *spread)

    def config(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "eps": self.eps}


def _deviation(eps: float) -> Expr:
    """The square root of Arg(1) + eps."""
    return call("sqrt", call("add", Arg(1), eps))
