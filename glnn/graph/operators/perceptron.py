"""Multi-layer perceptrons: small products one after the other, each with a function behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.expression import Arg, Expr
from glnn.graph.operator import Shapes
from glnn.types import Array, Shape

SUM = Arg(0)
QUAD = 4  # numbers that a kernel reads and makes at once


def padded(width: int) -> int:
    """The columns that a layer of so many results has in memory."""
    return -(-width // QUAD) * QUAD


@dataclass(frozen=True)
class Perceptron(Contraction):
    """f2(W2 f1(W1 x + b1) + b2) and so on: fully connected layers, one behind another.

    x: (n, c), or images of one pixel (n, c, 1, 1). weights: one dimension, layer after layer a row
    of each term; biases: one dimension, layer after layer a row. Rows are padded to whole fours, by
    what is not looked at. Result: (n, o), or (n, o, 1, 1). So a squeeze-and-excitation makes the
    scales of its channels (Hu et al. 2018, section 3.2), and a classifier its scores.
    """

    name: ClassVar[str] = "perceptron"
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weights", "biases")
    halves: ClassVar[tuple[str, ...]] = ("weights",)
    widths: tuple[int, ...]
    """Number of results of each layer."""
    functions: tuple[Expr, ...]
    """Function that each layer applies to each of its sums, Arg(0)."""

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.functions) or min(self.widths) < 1:
            raise ShapeError(
                f"perceptron: expected a width of at least 1 and a function for each layer, got "
                f"{self.widths} and {len(self.functions)} functions"
            )
        for expr in self.functions:
            if expr.arity > 1:
                raise ShapeError(f"perceptron: {expr.text()} must be of one sum")

    def sides(self, c: int) -> dict[str, Shape]:
        """The shapes of the weights and of the biases for samples of `c` numbers."""
        rows = [(terms, padded(width)) for terms, width in self.layers(c)]
        weights = sum(terms * wide for terms, wide in rows)
        return {"weights": (weights,), "biases": (sum(wide for _, wide in rows),)}

    def layers(self, c: int) -> Iterator[tuple[int, int]]:
        """The terms and the results of each layer, for samples of `c` numbers."""
        return zip((c, *self.widths), self.widths, strict=False)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, own = shapes["x"], {name: shapes[name] for name in self.parameters}
        if len(x) not in (2, 4) or x[2:] not in ((), (1, 1)):
            raise ShapeError(f"perceptron: x must be (n, c) or (n, c, 1, 1), got {x}")
        if (expected := self.sides(x[1])) != own:
            raise ShapeError(
                f"perceptron: weights and biases must be {tuple(expected.values())} for x {x} and "
                f"widths {self.widths}, got {tuple(own.values())}"
            )
        return x[0], self.widths[-1], *x[2:]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        found = x.reshape(x.shape[:2])
        weights, biases = (operands[n].astype(x.dtype, copy=False) for n in self.parameters)
        for (terms, width), expr in zip(self.layers(x.shape[1]), self.functions, strict=True):
            wide = padded(width)
            weight, weights = weights[: terms * wide].reshape(terms, wide), weights[terms * wide :]
            bias, biases = biases[:width], biases[wide:]
            found = np.asarray(expr.evaluate(found @ weight[:, :width] + bias), x.dtype)
        return found.reshape(*found.shape, *x.shape[2:])

    def flops(self, shapes: Shapes) -> int:
        n, c, *_ = shapes["x"]
        layers = zip(self.layers(c), self.functions, strict=True)
        return n * sum(width * (2 * terms + 1 + f.flops) for (terms, width), f in layers)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *_ = shapes["x"]
        return {"n": n, "c": c, "o": self.widths[-1]}

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, c, *rest = shapes["x"]
        made = depth + (c - depth) % QUAD  # a whole quad or not, as before
        return {**shapes, "x": (n, made, *rest), **self.sides(made)}
