"""Addition layer, as at the end of a residual block."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.graph.patterns import SUM
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope


class Add(Layer):
    """x + y, two inputs of one shape, whatever it is."""

    def __init__(self) -> None:
        super().__init__(Pointwise(SUM))

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        x, y = inputs
        if x.type != y.type:
            raise ShapeError(f"Add: y must have the shape of x, {x.type.dims}, got {y.type.dims}")
        return scope.result(self.op, x, y)

    def config(self) -> dict[str, Any]:
        return {}
