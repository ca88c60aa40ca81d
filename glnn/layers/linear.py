"""Linear layer."""

from __future__ import annotations

from math import prod
from typing import Any

from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.operators import Matmul
from glnn.layers.arguments import flag, integer
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.types import Shape


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
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.out_features, self.in_features)}
        if flag("Linear bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(Matmul(), shapes, fan_in=self.in_features, seed=seed)

    @property
    def operands(self) -> dict[str, Array]:
        given = self.parameters
        return {"e1" if name == "bias" else name: array for name, array in given.items()}

    @property
    def epilogue(self) -> Epilogue | None:
        return BIASED if "bias" in self.shapes else None

    def infer(self, *shapes: Shape) -> Shape:
        (x,) = shapes
        if len(x) > 2:
            features = prod(x[1:])
            fits = "" if features == self.in_features else f", and in_features must be {features}"
            raise ShapeError(
                f"Linear: x must have shape (n, {self.in_features}), got {x}: "
                f"put a Flatten before it{fits}"
            )
        return super().infer(x)

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }
