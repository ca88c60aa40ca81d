"""Layers that combine several inputs."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph import operators
from glnn.graph.expression import Arg, call, formula
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pointwise, Reduce
from glnn.graph.operators.concat import MOST_INPUTS
from glnn.graph.patterns import SUM
from glnn.layers.arguments import index, integer, number
from glnn.layers.layer import ANY, Layer
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


class Concat(Layer):
    """The channels of `count` inputs of shape (n, c, ...) behind one another; only c may differ."""

    takes = ANY

    def __init__(self, count: int = 2) -> None:
        self.count = integer("Concat count", count, least=2)
        if self.count > MOST_INPUTS:
            raise ShapeError(f"Concat count must be at most {MOST_INPUTS}, got {self.count}")
        super().__init__(operators.Concat())

    @property
    def inputs(self) -> int:
        return self.count

    def config(self) -> dict[str, Any]:
        return {"count": self.count}


class CosineSimilarity(Layer):
    """The cosine of the angle between x and y, two inputs of one shape, along `dim`, which is left
    out.

    eps: what the norm of each is at least.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim = index("CosineSimilarity dim", dim)
        self.eps = number("CosineSimilarity eps", eps, 0)
        super().__init__(Identity())

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        x, y = inputs
        if x.type != y.type:
            got = f"{x.type.dims} and {y.type.dims}"
            raise ShapeError(f"CosineSimilarity: x and y must have one shape, got {got}")
        axes = (self.dim,)
        squares = Reduce("sum", axes, False, formula("square(a)"))
        product = scope.add(Reduce("sum", axes, False, formula("a * b")), x, y)
        over = (call("maximum", call("sqrt", Arg(1 + i)), float(self.eps)) for i in range(2))
        cosine = call("div", Arg(0), call("mul", *over))
        norms = (scope.add(squares, one) for one in (x, y))
        return scope.result(Pointwise(cosine), product, *norms)

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "eps": self.eps}
