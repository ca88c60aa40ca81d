"""A layer that is a loop with a branch in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.graph.compose.control_flow import branch, loop, number
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Matmul, Pointwise, Reduce
from glnn.layers.layer import Layer, Parameter, Scope


class Recurrent(Layer):
    """`steps` times x = tanh(x weight^T) where the sum of x is above 0, else x = 1 - x."""

    weight = Parameter[Array]()

    def __init__(self, size: int, steps: int) -> None:
        self.size, self.steps = size, steps
        super().__init__(Matmul(), {"weight": (size, size)}, fan_in=size)

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "steps": self.steps}

    def express(self, scope: Scope, *inputs: Value) -> Value:
        builder = scope.builder
        body = builder.body("body")
        body.input("i", TensorType((), DType.int32))
        going = body.input("going", TensorType((), DType.bool))
        x = body.input("state", inputs[0].type)
        (total,) = body.add(Reduce("sum", (0, 1), False), x, name="total")
        (above,) = body.add(Pointwise(call("greater", Arg(0), 0.0)), total, name="above")
        then, otherwise = body.body("then"), body.body("otherwise")
        (product,) = then.add(Matmul(), x, self.variable(scope, "weight"), name="product")
        (bent,) = then.add(Pointwise(call("tanh", Arg(0))), product, name="bent")
        (turned,) = otherwise.add(Pointwise(call("sub", 1.0, Arg(0))), x, name="turned")
        (new,) = branch(body, above, (then, [bent]), (otherwise, [turned]), name="if")
        results = loop(
            builder, (body, (going, new)), inputs[0], trips=number(self.steps), name=scope.name
        )
        return scope.named(results[0])

    def expected(self, x: Array) -> Array:
        """What it is to give, in float64."""
        weight, x = self.weight.astype(np.float64), x.astype(np.float64)
        for _ in range(self.steps):
            x = np.tanh(x @ weight.T) if x.sum() > 0 else 1 - x
        return x
