"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError, shown
from glnn.graph import operators
from glnn.graph.compose.batch_norm import BatchNorm, samples_per_channel
from glnn.graph.expression import PRODUCT, SCALE_AND_SHIFT, Arg, Expr, Scalar, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Normalize, Pointwise
from glnn.layers.arguments import flag, integer, number, only, plain, with_unusual
from glnn.layers.layer import Layer, Parameter, Scope, Training

SHIFT = call("sub", Arg(2), PRODUCT)


class _ChannelNorm(Layer):
    """Normalisation of each channel of x of shape (n, num_features, ...).

    weight and bias are None without `affine`.
    """

    running: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")
    weight = Parameter["Array | None"]()
    bias = Parameter["Array | None"]()

    def _check_arguments(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        device: None,
        dtype: DTypeLike | None,
    ) -> tuple[str, ...]:
        """Check the arguments, set the attributes, and return the affine parameters' names."""
        kind = type(self).__name__
        plain(kind, device, dtype)
        self.num_features = integer(f"{kind} num_features", num_features)
        self.eps = number(f"{kind} eps", eps, 0)
        self.momentum = None if momentum is None else number(f"{kind} momentum", momentum, 0, 1)
        self.affine = flag(f"{kind} affine", affine)
        return ("weight", "bias") if self.affine else ()

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)


class BatchNorm2d(_ChannelNorm):
    """weight (x - running_mean) / sqrt(running_var + eps) + bias, for x of shape (n, c, ...).

    c is `num_features`. The parameters have shape (c,); weight and running_var are initially 1, the
    others 0. With `affine=False`, weight and bias are None. Training normalises by the mean and
    variance of the batch, and updates running_mean and running_var with the weight `momentum`
    (running_var by the unbiased variance); None: to the means over all batches.
    track_running_stats: True, as a sample's result must not depend on the rest of the batch.
    device: None. dtype: None or float32.
    """

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
        names = self._check_arguments(num_features, eps, momentum, affine, device, dtype)
        what = f"{type(self).__name__} track_running_stats"
        only(what, track_running_stats, True, "results do not depend on the rest of the batch")
        shapes = dict.fromkeys((*names, *self.running), (self.num_features,))
        super().__init__(Pointwise(SCALE_AND_SHIFT), shapes)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if scope.training is not None:
            return self._normalize_by_batch(scope, scope.training, x)
        return normalize_by_running_stats(self, scope, x, self.eps)

    def _normalize_by_batch(self, scope: Scope, training: Training, x: Value) -> Value:
        """Return the result by the batch's statistics, and add the updates of the running ones."""
        names = ("weight", "bias") if self.affine else ()
        parameters = [self.variable(scope, name) for name in names]
        if self.affine:
            _ = scope.channels(parameters[0], x)  # raises ShapeError where x does not fit
        y, mean, var = scope.all(BatchNorm(eps=self.eps), x, *parameters)
        samples = samples_per_channel(x.type.shape)
        momentum: Expr = Scalar(self.momentum or 0.0)
        passes: tuple[Value, ...] = ()
        if self.momentum is None:
            training.counting.append(scope.name)
            passes = (training.passes,)
            momentum = formula("1.0 / (cast_float32(c) + 1.0)")
        for name, batch_value, factor in (
            ("running_mean", mean, 1.0),
            ("running_var", var, samples / (samples - 1)),
        ):
            variable = self.variable(scope, name)
            running = training.updates.get(variable, variable)
            difference = call("sub", call("mul", Arg(1), factor), Arg(0))
            updated = call("add", Arg(0), call("mul", difference, momentum))
            training.updates[variable] = scope.add(
                Pointwise(updated), running, batch_value, *passes
            )
        return y

    def config(self) -> dict[str, Any]:
        config = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(config, momentum=(self.momentum, 0.1), affine=(self.affine, True))


class BatchNorm1d(BatchNorm2d):
    """BatchNorm2d for x of shape (n, c) or (n, c, l)."""


class BatchNorm3d(BatchNorm2d):
    """BatchNorm2d for x of shape (n, c, d, h, w)."""


def normalize_by_running_stats(layer: Layer, scope: Scope, x: Value, eps: float) -> Value:
    """Return the result of a layer that normalises x (n, c, ...) by its running_mean and
    running_var, and scales and shifts it by its weight and bias, if any.
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
    operands = (scope.channels(value, x) for value in (scale, shift))
    return scope.result(Pointwise(SCALE_AND_SHIFT), x, *operands)


class GroupNorm(Layer):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (n, num_channels, ...).

    mean, variance: of each of `num_groups` groups of a sample's channels. weight, initially 1, and
    bias, initially 0: (num_channels,), or None with `affine=False`. device: None. dtype: None or
    float32.
    """

    weight = Parameter["Array | None"]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("GroupNorm", device, dtype)
        self.num_groups = integer("GroupNorm num_groups", num_groups)
        self.num_channels = integer("GroupNorm num_channels", num_channels)
        if self.num_channels % self.num_groups:
            raise ShapeError(
                f"GroupNorm num_groups must divide num_channels {self.num_channels}, "
                f"got {self.num_groups}"
            )
        self.eps = number("GroupNorm eps", eps, 0)
        self.affine = flag("GroupNorm affine", affine)
        names = ("weight", "bias") if self.affine else ()
        op = Normalize(groups=self.num_groups, eps=self.eps)
        super().__init__(op, dict.fromkeys(names, (self.num_channels,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name == "weight", np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if len(dims) < 2 or dims[1] != self.num_channels:
            expected = f"(n, {self.num_channels}, ...)"
            raise ShapeError(f"GroupNorm: x must have shape {expected}, got {dims}")
        return super().express(scope, *inputs)

    def config(self) -> dict[str, Any]:
        config = {"num_groups": self.num_groups, "num_channels": self.num_channels, "eps": self.eps}
        return with_unusual(config, affine=(self.affine, True))


class InstanceNorm2d(_ChannelNorm):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (n, num_features, h, w).

    mean, variance: of each channel of each sample. weight, initially 1, and bias, initially 0:
    (num_features,), or None with `affine=False`. momentum: for training only. track_running_stats:
    whether inference uses running_mean and running_var, (num_features,), initially 0 and 1, as in
    BatchNorm2d; training does not update them. device: None. dtype: None or float32.
    """

    running_mean = Parameter["Array | None"]()
    running_var = Parameter["Array | None"]()
    rank: ClassVar[int] = 4
    """The number of dimensions of x."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        names = self._check_arguments(num_features, eps, momentum, affine, device, dtype)
        what = f"{type(self).__name__} track_running_stats"
        self.track_running_stats = flag(what, track_running_stats)
        names = (*names, *self.running) if self.track_running_stats else names
        op = Normalize(groups=0, eps=self.eps)
        super().__init__(op, dict.fromkeys(names, (self.num_features,)))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if len(dims) != self.rank or dims[1] != self.num_features:
            places = ", ".join(("d", "h", "w")[-(self.rank - 2) :]) if self.rank > 3 else "l"
            kind, expected = type(self).__name__, f"(n, {self.num_features}, {places})"
            raise ShapeError(f"{kind}: x must have shape {expected}, got {dims}")
        if self.track_running_stats and scope.training is None:
            return normalize_by_running_stats(self, scope, inputs[0], self.eps)
        parameters = (self.variable(scope, name) for name in ("weight", "bias") if self.affine)
        return scope.result(self.op, *inputs, *parameters)

    def config(self) -> dict[str, Any]:
        config = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(
            config,
            momentum=(self.momentum, 0.1),
            affine=(self.affine, False),
            track_running_stats=(self.track_running_stats, False),
        )


class InstanceNorm1d(InstanceNorm2d):
    """InstanceNorm2d for x of shape (n, num_features, l)."""

    rank = 3


class InstanceNorm3d(InstanceNorm2d):
    """InstanceNorm2d for x of shape (n, num_features, d, h, w)."""

    rank = 5


class _Norm(Layer):
    """Normalisation over the last dimensions of x, which have the sizes `normalized_shape`."""

    weight = Parameter["Array | None"]()

    def __init__(self, shape: object, names: tuple[str, ...], centred: bool, eps: float) -> None:
        self.normalized_shape = _shape(f"{type(self).__name__} normalized_shape", shape)
        op = Normalize(dims=len(self.normalized_shape), centred=centred, eps=eps)
        super().__init__(op, dict.fromkeys(names, self.normalized_shape))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name == "weight", np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims, last = inputs[0].type.dims, self.normalized_shape
        if dims[-len(last) :] != last:
            expected = f"(..., {', '.join(map(str, last))})"
            raise ShapeError(f"{type(self).__name__}: x must have shape {expected}, got {dims}")
        return super().express(scope, *inputs)


class LayerNorm(_Norm):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (..., *normalized_shape).

    mean, variance: over the dimensions of normalized_shape, an integer or several. weight,
    initially 1, and bias, initially 0, have this shape; both are None without `elementwise_affine`,
    and bias is None without `bias`. device: None. dtype: None or float32.

    A GPU sums in float32: where the sum of a row, or of its squared distances from the mean,
    exceeds 3.4e38, results may be 0 or NaN. The cpu backend sums in float64.
    """

    bias = Parameter["Array | None"]()

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("LayerNorm", device, dtype)
        self.eps = number("LayerNorm eps", eps, 0)
        self.elementwise_affine = flag("LayerNorm elementwise_affine", elementwise_affine)
        self._biased = flag("LayerNorm bias", bias)
        names = ("weight", "bias")[: 1 + self._biased] if self.elementwise_affine else ()
        super().__init__(normalized_shape, names, True, self.eps)

    def config(self) -> dict[str, Any]:
        config = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        affine = (self.elementwise_affine, True)
        return with_unusual(config, elementwise_affine=affine, bias=(self._biased, True))


class RMSNorm(_Norm):
    """weight x / sqrt(the mean of x^2 + eps), for x of shape (..., *normalized_shape).

    The mean: over the dimensions of normalized_shape, an integer or several. weight: of this shape,
    initially 1, or None without `elementwise_affine`. eps: None is float32's, 2^-23. device: None.
    dtype: None or float32.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("RMSNorm", device, dtype)
        self.eps = None if eps is None else number("RMSNorm eps", eps, 0)
        self.elementwise_affine = flag("RMSNorm elementwise_affine", elementwise_affine)
        least = float(np.finfo(np.float32).eps) if self.eps is None else self.eps
        names = ("weight",) if self.elementwise_affine else ()
        super().__init__(normalized_shape, names, False, least)

    def config(self) -> dict[str, Any]:
        config = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        return with_unusual(config, elementwise_affine=(self.elementwise_affine, True))


def _shape(what: str, value: object) -> Shape:
    """Return `value`, an integer or several, as a shape."""
    if not isinstance(value, (list, tuple)):
        return (integer(what, value),)
    if not value:
        raise ShapeError(f"{what} must be an integer or several, got {shown(value)}")
    return tuple(integer(what, size) for size in value)


class LocalResponseNorm(Layer):
    """x / (k + alpha / size s) ** beta, for x of shape (n, c, ...).

    s: the sum of squares over a window of `size` channels around each channel.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = integer("LocalResponseNorm size", size)
        self.alpha = number("LocalResponseNorm alpha", alpha, 0)
        self.beta = number("LocalResponseNorm beta", beta, 0)
        self.k = number("LocalResponseNorm k", k, 0)
        super().__init__(operators.LocalResponseNorm(self.size, self.alpha, self.beta, self.k))

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}
