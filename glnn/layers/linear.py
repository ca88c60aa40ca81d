"""Linear layer."""

from __future__ import annotations

from typing import Any

from glnn.layers.arguments import flag, integer
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.ops import Matmul


class Linear(Layer):
    """x @ weight.T + bias, for x of shape (n, in_features).

    weight: (out_features, in_features). bias: (out_features,), or None with `bias=False`.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, seed: int = 0
    ) -> None:
        self.in_features = integer("Linear in_features", in_features)
        self.out_features = integer("Linear out_features", out_features)
        shapes: dict[str, tuple[int, ...]] = {"weight": (out_features, in_features)}
        if flag("Linear bias", bias):
            shapes["bias"] = (out_features,)
        super().__init__(Matmul(), shapes, fan_in=in_features, seed=seed)

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }
