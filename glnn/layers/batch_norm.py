"""Batch normalisation layer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from glnn.graph.compose.batch_norm import BatchNorm, count
from glnn.graph.expression import Arg, Expr, Scalar, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import PRODUCT, SCALE_AND_SHIFT
from glnn.layers.arguments import flag, integer, number, only, plain, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope, Training

SHIFT = call("sub", Arg(2), PRODUCT)


class BatchNorm2d(Layer):
    """weight (x - running_mean) / sqrt(running_var + eps) + bias, for x of shape (n, c, ...).

    c is `num_features`. The parameters are of shape (c,); weight and running_var are initially 1,
    the others 0. With `affine=False` there are no weight and bias. In training a batch's own mean
    and variance take the place of the running ones, and `momentum` is how much of them these get
    (of the variance, that of a sample); None: so much that they are the means of all batches.
    track_running_stats: True, as a result must not depend on what else is in the batch. device,
    dtype: None and None or float32; parameters are float32.
    """

    running: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")
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
        if scope.training is not None:
            return self._of_batch(scope, scope.training, x)
        return by_running(self, scope, x, self.eps)

    def _of_batch(self, scope: Scope, training: Training, x: Value) -> Value:
        """The result by the statistics of the batch, which the running ones get a part of."""
        names = ("weight", "bias") if self.affine else ()
        parameters = [self.variable(scope, name) for name in names]
        if self.affine:
            _ = scope.channels(parameters[0], x)  # says so where x does not fit
        y, mean, var = scope.all(BatchNorm(eps=self.eps), x, *parameters)
        numbers = count(x.type.shape)
        part: Expr = Scalar(self.momentum or 0.0)
        more: tuple[Value, ...] = ()
        if self.momentum is None:
            training.counting.append(scope.name)
            more = (training.passes,)
            part = formula("1.0 / (cast_float32(c) + 1.0)")
        for name, now, factor in (
            ("running_mean", mean, 1.0),
            ("running_var", var, numbers / (numbers - 1)),
        ):
            value = self.variable(scope, name)
            before = training.updates.get(value, value)
            way = call("sub", call("mul", Arg(1), factor), Arg(0))
            moved = call("add", Arg(0), call("mul", way, part))
            training.updates[value] = scope.add(Pointwise(moved), before, now, *more)
        return y

    def config(self) -> dict[str, Any]:
        found = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(found, momentum=(self.momentum, 0.1), affine=(self.affine, True))


class BatchNorm1d(BatchNorm2d):
    """The same, for x of shape (n, c) or (n, c, l)."""


class BatchNorm3d(BatchNorm2d):
    """The same, for x of shape (n, c, d, h, w)."""


def by_running(layer: Layer, scope: Scope, x: Value, eps: float) -> Value:
    """The result of a layer that normalises x (n, c, ...) by its running_mean and running_var, each
    (c,), and scales and shifts it by weight and bias where it has them.
    """
    mean, var = (layer.variable(scope, name) for name in ("running_mean", "running_var"))
    deviation = call("sqrt", call("add", Arg(0), eps))
    if "weight" in layer.shapes:
        weight, bias = layer.variable(scope, "weight"), layer.variable(scope, "bias")
        scale = scope.add(Pointwise(call("div", Arg(1), deviation)), var, weight)
        shift = scope.add(Pointwise(SHIFT), mean, scale, bias)
    else:
        scale = scope.add(Pointwise(call("div", 1.0, deviation)), var)
        shift = scope.add(Pointwise(call("sub", 0.0, PRODUCT)), mean, scale)
    spread = (scope.channels(value, x) for value in (scale, shift))
    return scope.result(Pointwise(SCALE_AND_SHIFT), x, *spread)
