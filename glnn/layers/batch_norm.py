"""Batch normalisation layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glnn.graph.operators import BatchNorm
from glnn.graph.operators.batch_norm import scale_and_shift
from glnn.layers.arguments import integer, number
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.types import Shape


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
        super().__init__(BatchNorm(), dict.fromkeys(names, (self.num_features,)))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name in ("weight", "running_var"), np.float32)

    def scale_and_shift(self) -> tuple[Array, Array]:
        """What x is multiplied by, and what is then added: float64 arrays of shape (c,)."""
        return scale_and_shift(
            self.weight, self.bias, self.running_mean, self.running_var, self.eps
        )

    @property
    def operands(self) -> dict[str, Array]:
        scale, shift = self.scale_and_shift()
        return {"scale": scale.astype(np.float32), "shift": shift.astype(np.float32)}

    @property
    def operand_shapes(self) -> Mapping[str, Shape]:
        return dict.fromkeys(self.op.parameters, (self.num_features,))

    def config(self) -> dict[str, Any]:
        return {"num_features": self.num_features, "eps": self.eps}
