"""Rectified linear layer with learned slopes."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.layers.arguments import integer, number, plain
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope


class PReLU(Layer):
    """x where it is positive, weight x where it is not, for x of shape (n, c, ...), or any.

    weight: (num_parameters,), initially `init`: a number for all, or one for each channel. device,
    dtype: None and None or float32; parameters are float32.
    """

    weight = Parameter[Array]()

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("PReLU", device, dtype)
        self.num_parameters = integer("PReLU num_parameters", num_parameters)
        self.init = number("PReLU init", init, -inf)
        op = Pointwise(call("leaky_relu", Arg(0), Arg(1)))
        super().__init__(op, {"weight": (self.num_parameters,)})

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], self.init, np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,), weight = inputs, self.variable(scope, "weight")
        if self.num_parameters > 1:
            if len(x.type.dims) < 2:
                raise ShapeError(f"PReLU: x must have shape (n, c, ...), got {x.type.dims}")
            weight = scope.channels(weight, x)
        return scope.result(self.op, x, weight)

    def config(self) -> dict[str, Any]:
        return {"num_parameters": self.num_parameters, "init": self.init}
