"""Two small products one after the other, with a function behind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.expression import Arg, Expr
from glnn.graph.operator import Shapes, rank
from glnn.types import Array, Shape

SUM = Arg(0)


@dataclass(frozen=True)
class Perceptron(Contraction):
    """outer(second [inner(first [x, 1]), 1]) of images of one pixel: a layer and another behind it.

    x: (n, c, 1, 1). first: (hidden, c + 1). second: (o, hidden + 1). The last column of either is a
    bias. Result: (n, o, 1, 1). So a squeeze-and-excitation makes the scales of its channels (Hu et
    al. 2018, section 3.2).
    """

    name: ClassVar[str] = "perceptron"
    samples: ClassVar[bool] = True
    deepens: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("first", "second")
    inner: Expr = SUM
    """What is made of each hidden sum, Arg(0)."""
    outer: Expr = SUM
    """What is made of each sum of the result, Arg(0)."""

    def __post_init__(self) -> None:
        for expr in (self.inner, self.outer):
            if expr.arity > 1:
                raise ShapeError(f"perceptron: {expr.text()} must be of one sum")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, first, second = (shapes[name] for name in ("x", "first", "second"))
        rank(self.name, "x", x, 4, "(n, c, 1, 1)")
        rank(self.name, "first", first, 2, "(hidden, c + 1)")
        rank(self.name, "second", second, 2, "(o, hidden + 1)")
        if x[2:] != (1, 1) or first[1] != x[1] + 1 or second[1] != first[0] + 1:
            raise ShapeError(
                f"perceptron: x {x}, first {first} and second {second} do not fit: they must be "
                "(n, c, 1, 1), (hidden, c + 1) and (o, hidden + 1)"
            )
        return x[0], second[0], 1, 1

    def compute(self, operands: Mapping[str, Array]) -> Array:
        found = operands["x"].reshape(operands["x"].shape[:2])
        for name, expr in (("first", self.inner), ("second", self.outer)):
            weight = operands[name].astype(found.dtype, copy=False)
            sums = found @ weight[:, :-1].T + weight[:, -1]
            found = np.asarray(expr.evaluate(sums), found.dtype)
        return found.reshape(*found.shape, 1, 1)

    def flops(self, shapes: Shapes) -> int:
        (hidden, deep), (o, wide) = shapes["first"], shapes["second"]
        functions = hidden * self.inner.flops + o * self.outer.flops
        return shapes["x"][0] * (2 * hidden * deep + 2 * o * wide + functions)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (n, c, *_), (hidden, _), (o, _) = (shapes[name] for name in ("x", "first", "second"))
        return {"n": n, "c": c, "hidden": hidden, "o": o}

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (n, c, *_), (hidden, _) = shapes["x"], shapes["first"]
        made = depth + (c - depth) % 4  # a whole quad or not, as before
        return {**shapes, "x": (n, made, 1, 1), "first": (hidden, made + 1)}
