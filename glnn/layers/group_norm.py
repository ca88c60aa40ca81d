"""Normalisation of each sample's channels: group and instance normalisation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Normalize
from glnn.layers.arguments import flag, integer, number, plain, with_unusual
from glnn.layers.batch_norm import by_running
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope


class GroupNorm(Layer):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (n, num_channels, ...).

    mean, variance: of each of `num_groups` groups of a sample's channels. weight, initially 1, and
    bias, initially 0: (num_channels,); with `affine=False` there are none. device, dtype: None and
    None or float32; parameters are float32.
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
        found = {"num_groups": self.num_groups, "num_channels": self.num_channels, "eps": self.eps}
        return with_unusual(found, affine=(self.affine, True))


class InstanceNorm2d(Layer):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (n, num_features, h, w).

    mean, variance: of each channel of each sample. weight, initially 1, and bias, initially 0:
    (num_features,), with `affine=True` only. momentum: for training only. track_running_stats:
    whether at inference running_mean and running_var, (num_features,), initially 0 and 1, take
    their place, as in BatchNorm2d; training leaves these as they are. device, dtype: None and None
    or float32; parameters are float32.
    """

    running: ClassVar[tuple[str, ...]] = ("running_mean", "running_var")
    weight = Parameter["Array | None"]()
    bias = Parameter["Array | None"]()
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
        kind = type(self).__name__
        plain(kind, device, dtype)
        self.num_features = integer(f"{kind} num_features", num_features)
        self.eps = number(f"{kind} eps", eps, 0)
        self.momentum = None if momentum is None else number(f"{kind} momentum", momentum, 0, 1)
        self.affine = flag(f"{kind} affine", affine)
        self.track_running_stats = flag(f"{kind} track_running_stats", track_running_stats)
        names = ("weight", "bias") if self.affine else ()
        names = (*names, *self.running) if self.track_running_stats else names
        op = Normalize(groups=0, eps=self.eps)
        super().__init__(op, dict.fromkeys(names, (self.num_features,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if len(dims) != self.rank or dims[1] != self.num_features:
            places = ", ".join(("d", "h", "w")[-(self.rank - 2) :]) if self.rank > 3 else "l"
            kind, expected = type(self).__name__, f"(n, {self.num_features}, {places})"
            raise ShapeError(f"{kind}: x must have shape {expected}, got {dims}")
        if self.track_running_stats and scope.training is None:
            return by_running(self, scope, inputs[0], self.eps)
        own = (self.variable(scope, name) for name in ("weight", "bias") if self.affine)
        return scope.result(self.op, *inputs, *own)

    def config(self) -> dict[str, Any]:
        found = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(
            found,
            momentum=(self.momentum, 0.1),
            affine=(self.affine, False),
            track_running_stats=(self.track_running_stats, False),
        )


class InstanceNorm1d(InstanceNorm2d):
    """The same, for x of shape (n, num_features, l)."""

    rank = 3


class InstanceNorm3d(InstanceNorm2d):
    """The same, for x of shape (n, num_features, d, h, w)."""

    rank = 5
