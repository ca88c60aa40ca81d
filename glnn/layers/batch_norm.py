"""Batch normalisation layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.graph.operators import BatchNorm
from glnn.graph.operators.batch_norm import scale_and_shift
from glnn.layers.arguments import flag, integer, number, only, plain, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.types import Shape


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
        super().__init__(BatchNorm(), dict.fromkeys(names, (self.num_features,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)

    def scale_and_shift(self) -> tuple[Array, Array]:
        """What x is multiplied by, and what is then added: float64 arrays of shape (c,)."""
        weight = np.ones(self.num_features) if self.weight is None else self.weight
        bias = np.zeros(self.num_features) if self.bias is None else self.bias
        return scale_and_shift(weight, bias, self.running_mean, self.running_var, self.eps)

    @property
    def operands(self) -> dict[str, Array]:
        scale, shift = self.scale_and_shift()
        return {"scale": scale.astype(np.float32), "shift": shift.astype(np.float32)}

    @property
    def operand_shapes(self) -> Mapping[str, Shape]:
        return dict.fromkeys(self.op.parameters, (self.num_features,))

    def config(self) -> dict[str, Any]:
        found = {"num_features": self.num_features, "eps": self.eps}
        return with_unusual(found, momentum=(self.momentum, 0.1), affine=(self.affine, True))


class BatchNorm1d(BatchNorm2d):
    """The same, for x of shape (n, c) or (n, c, l)."""


class BatchNorm3d(BatchNorm2d):
    """The same, for x of shape (n, c, d, h, w)."""
