"""Bilinear layer."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.compose.add import joined, parted
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import Flatten, Matmul, Pointwise, Reduce, Transpose, Unsqueeze
from glnn.graph.patterns import SUM
from glnn.layers.arguments import flag, integer, plain
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope
from glnn.types import Shape


class Bilinear(Layer):
    """x^T weight[k] y + bias[k] for each k, of x (..., in1_features) and y (..., in2_features).

    weight: (out_features, in1_features, in2_features). bias: (out_features,), or None with
    `bias=False`. device, dtype: None and None or float32; parameters are float32.
    """

    weight = Parameter[Array]()
    bias = Parameter["Array | None"]()

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        plain("Bilinear", device, dtype)
        self.in1_features = integer("Bilinear in1_features", in1_features)
        self.in2_features = integer("Bilinear in2_features", in2_features)
        self.out_features = integer("Bilinear out_features", out_features)
        sizes = self.out_features, self.in1_features, self.in2_features
        shapes: dict[str, Shape] = {"weight": sizes}
        if flag("Bilinear bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(Matmul(), shapes, fan_in=self.in1_features, seed=seed)

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x, y), add = inputs, scope.add
        before = x.type.dims[:-1]
        wanted = (*before, self.in1_features), (*before, self.in2_features)
        if not x.type.dims or (x.type.dims, y.type.dims) != wanted:
            got = f"{x.type.dims} and {y.type.dims}"
            sizes = f"(..., {self.in1_features}) and (..., {self.in2_features})"
            raise ShapeError(f"Bilinear: x and y must have shapes {sizes}, got {got}")
        x, y = (joined(add, one, 0, len(before)) for one in (x, y))
        # The weight as a matrix (out in2, in1), whose product with x is a matrix for each row.
        weight = add(Flatten(0, 1), add(Transpose((0, 2, 1)), self.variable(scope, "weight")))
        made = parted(add, add(self.op, x, weight), 1, self.out_features, self.in2_features)
        total = Reduce("sum", (2,), False, formula("a * b"))
        result = add(total, made, add(Unsqueeze((1,)), y))
        if "bias" in self.shapes:
            result = add(Pointwise(SUM), result, self.variable(scope, "bias"))
        if before:
            return scope.named(parted(add, result, 0, *before))
        return scope.named(add(Flatten(0, 1), result))

    def config(self) -> dict[str, Any]:
        return {
            "in1_features": self.in1_features,
            "in2_features": self.in2_features,
            "out_features": self.out_features,
            "bias": "bias" in self.shapes,
        }
