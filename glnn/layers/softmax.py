"""Softmax layers."""

from __future__ import annotations

from typing import Any, ClassVar

from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.layers.arguments import index
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope


class Softmax(Layer):
    """exp(x), scaled so that it sums to 1 along `dim`; negative ones count from the end.

    dim: None is 1, and 0 where x has one dimension, as in PyTorch; where x has three, PyTorch takes
    the batch, and here it must be given.
    """

    log: ClassVar[bool] = False

    def __init__(self, dim: int | None = None) -> None:
        self.dim = None if dim is None else index(f"{type(self).__name__} dim", dim)
        axis = 1 if self.dim is None else self.dim
        super().__init__(operators.Softmax(axis=axis, log=self.log))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if self.dim is None and len(dims) == 3:
            kind = type(self).__name__
            raise ShapeError(f"{kind} dim must be given, 1 or 2, for x of shape {dims}")
        if self.dim is None and len(dims) == 1:
            return scope.result(operators.Softmax(axis=0, log=self.log), *inputs)
        return scope.result(self.op, *inputs)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim}


class LogSoftmax(Softmax):
    """The logarithm of Softmax, of the same arguments."""

    log = True


class Softmin(Softmax):
    """Softmax of -x, of the same arguments."""

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        return super().express(scope, scope.add(operators.Pointwise(formula("-a")), x))


class Softmax2d(Layer):
    """Softmax along the channels of images, x of shape (n, c, h, w) or (c, h, w)."""

    def __init__(self) -> None:
        super().__init__(operators.Softmax(axis=-3))

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims = inputs[0].type.dims
        if len(dims) not in (3, 4):
            raise ShapeError(f"Softmax2d: x must have shape (n, c, h, w) or (c, h, w), got {dims}")
        return super().express(scope, *inputs)

    def config(self) -> dict[str, Any]:
        return {}
