"""Gated linear unit layer."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pointwise, Slice
from glnn.layers.arguments import index
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope


class GLU(Layer):
    """The first half of x along `dim` times the sigmoid of the second half.

    dim: of an even size; negative ones count from the end. Dauphin et al. 2017, Language Modeling
    with Gated Convolutional Networks.
    """

    def __init__(self, dim: int = -1) -> None:
        self.dim = index("GLU dim", dim)
        super().__init__(Identity())

    def half(self, dims: tuple[int | str, ...]) -> int:
        """Half the size along `dim` of x of `dims`. Raises ShapeError where there is none."""
        rank = len(dims)
        size = dims[self.dim] if -rank <= self.dim < rank else None
        if not isinstance(size, int) or size % 2:
            raise ShapeError(f"GLU: x must have an even size along {self.dim}, got {dims}")
        return size // 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        half, axis = self.half(x.type.dims), self.dim
        value = scope.add(Slice((0,), (half,), (axis,), (1,)), x)
        gate = scope.add(Slice((half,), (2 * half,), (axis,), (1,)), x)
        return scope.result(Pointwise(formula("a * sigmoid(b)")), value, gate)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}
