"""Batch normalisation layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import PRODUCT, SCALE_AND_SHIFT
from glnn.layers.arguments import flag, integer, number, only, plain, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope

SHIFT = call("sub", Arg(2), PRODUCT)


class BatchNorm2d(Layer):
    """weight (x - running_mean) / sqrt(running_var + eps) + bias, for x of shape (n, c, ...).

    c is `num_features`. The parameters are of shape (c,); weight and running_var are initially 1,
    the others 0. With `affine=False` there are no weight and bias. momentum: for training only.
    track_running_stats: True, as a result must not depend on what else is in the batch. device,
    dtype: None and None or float32; parameters are float32.
    """

    weight = Parameter["Array | None"]()
    bias = Parameter["Array | None"]()
    running_mean = Parameter[Array]()
    running_var = Parameter[Array]()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        kind = type(self).__name__
        plain(kind, device, dtype)
        self.num_features = integer(f"{kind} num_features", num_features)
        self.eps = number(f"{kind} eps", eps, 0)
        self.momentum = None if momentum is None else number(f"{kind} momentum", momentum, 0, 1)
        self.affine = flag(f"{kind} affine", affine)
        what = f"{kind} track_running_stats"
        only(what, track_running_stats, True, "results do not depend on the rest of the batch")
        names = ("weight", "bias") if self.affine else ()
        names = (*names, "running_mean", "running_var")
        super().__init__(Pointwise(SCALE_AND_SHIFT), dict.fromkeys(names, (self.num_features,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        mean, var = (self.variable(scope, name) for name in ("running_mean", "running_var"))
        deviation = call("sqrt", call("add", Arg(0), self.eps))
        if self.affine:
            weight, bias = self.variable(scope, "weight"), self.variable(scope, "bias")
            scale = scope.add(Pointwise(call("div", Arg(1), deviation)), var, weight)
            shift = scope.add(Pointwise(SHIFT), mean, scale, bias)
        else:
            scale = scope.add(Pointwise(call("div", 1.0, deviation)), var)
            shift = scope.add(Pointwise(call("sub", 0.0, PRODUCT)), mean, scale)
        spread = (scope.channels(value, x) for value in (scale, shift))
        return scope.result(self.op, x, *spread)

    def config(self) -> dict[str, Any]:
        found = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(found, momentum=(self.momentum, 0.1), affine=(self.affine, True))


class BatchNorm1d(BatchNorm2d):
    """The same, for x of shape (n, c) or (n, c, l)."""


class BatchNorm3d(BatchNorm2d):
    """The same, for x of shape (n, c, d, h, w)."""
