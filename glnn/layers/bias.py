"""Bias layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.arguments import integer
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter


class Bias(Layer):
    """x + bias, for x of shape (n, features, ...). bias: (features,), initially 0."""

    bias = Parameter[Array]()

    def __init__(self, features: int) -> None:
        self.features = integer("Bias features", features)
        super().__init__(operators.Bias(), {"bias": (self.features,)})

    def config(self) -> dict[str, Any]:
        return {"features": self.features}
