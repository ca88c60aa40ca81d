"""Linear layer."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.compose.add import joined, parted
from glnn.graph.graph import Value
from glnn.graph.operators import Matmul, Pointwise, Squeeze
from glnn.graph.patterns import SUM
from glnn.layers.arguments import flag, integer, plain
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope
from glnn.types import Dim


class Linear(Layer):
    """x @ weight.T + bias, for x of shape (..., in_features).

    weight: (out_features, in_features). bias: (out_features,), or None with `bias=False`.
    device, dtype: None and None or float32; parameters are float32.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Linear", device, dtype)
        self.in_features = integer("Linear in_features", in_features)
        self.out_features = integer("Linear out_features", out_features)
        shapes: dict[str, tuple[int, ...]] = {"weight": (self.out_features, self.in_features)}
        if flag("Linear bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(Matmul(), shapes, fan_in=self.in_features, seed=seed)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        self._check(x.type.dims)
        *before, _ = x.type.dims
        if len(before) != 1:
            result = self._product(scope, joined(scope.add, x, 0, len(before)), last=False)
            if before:
                return scope.named(parted(scope.add, result, 0, *before))
            return scope.result(Squeeze((0,)), result)
        return self._product(scope, x, last=True)

    def _product(self, scope: Scope, x: Value, *, last: bool) -> Value:
        """Return the product with the matrix x, as the layer's result where it is the last."""
        add = scope.result if last else scope.add
        operands = x, self.variable(scope, "weight")
        if "bias" not in self.shapes:
            return add(self.op, *operands)
        bias = self.variable(scope, "bias")
        return add(Pointwise(SUM), scope.add(self.op, *operands), bias)

    def _check(self, x: tuple[Dim, ...]) -> None:
        """Raise ShapeError, with what would help, where x cannot be so."""
        if x[-1:] == (self.in_features,):
            return
        features, fits = prod(n for n in x[1:] if isinstance(n, int)), ""
        if len(x) > 2:
            fits = ": put a Flatten before it"
            fits += "" if features == self.in_features else f", and in_features must be {features}"
        raise ShapeError(f"Linear: x must have shape (..., {self.in_features}), got {x}{fits}")

    def config(self) -> dict[str, Any]:
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }
