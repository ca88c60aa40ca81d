"""Dropout layers."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from glnn.graph.builder import constant
from glnn.graph.expression import Arg, Expr, Scalar, call
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pointwise
from glnn.layers.arguments import flag, number, with_unusual
from glnn.layers.layer import Layer, Scope, Training

MOST = 4096  # layers that have numbers of their own
LEAST = -1.0507009873554805 * 1.6732632423543772
"""The limit of SELU of x as x falls."""


class Dropout(Layer):
    """x of any shape, unchanged; in training 0 with probability `p`, else x / (1 - p).

    What is dropped is told by the seed of the training, how many batches there were, the layer and
    the place alone: it is the same on every backend. inplace: changes nothing here, where memory
    is planned. Srivastava et al. 2014, Dropout: A simple way to prevent neural networks from
    overfitting.
    """

    whole: ClassVar[bool] = False
    """True where whole channels are dropped."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        kind = type(self).__name__
        self.p = number(f"{kind} p", p, 0, 1)
        self.inplace = flag(f"{kind} inplace", inplace)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if scope.training is None or not self.p or not x.type.dims:
            return super().express(scope, x)
        operands = drop_operands(
            scope, scope.training, x, self.p, self.replacements(), whole=self.whole
        )
        return scope.result(*operands)

    def replacements(self) -> tuple[Expr, Expr]:
        """Return the expressions, of a number Arg(0), for one that is dropped and one that is
        kept.
        """
        return scale_kept(self.p)

    def config(self) -> dict[str, Any]:
        return with_unusual({"p": self.p}, inplace=(self.inplace, False))


class Dropout1d(Dropout):
    """Dropout of whole channels of x (n, c, l)."""

    whole = True


class Dropout2d(Dropout):
    """Dropout of whole channels of x (n, c, h, w). Tompson et al. 2015,
    Efficient Object Localization Using Convolutional Networks.
    """

    whole = True


class Dropout3d(Dropout):
    """Dropout of whole channels of x (n, c, d, h, w)."""

    whole = True


class AlphaDropout(Dropout):
    """x of any shape, unchanged; in training with probability `p` what SELU tends to, and all of it
    so scaled and shifted that means of 0 and variances of 1 stay.

    See Dropout. Klambauer et al. 2017, Self-Normalizing Neural Networks.
    """

    def replacements(self) -> tuple[Expr, Expr]:
        if self.p == 1:
            return scale_kept(self.p)
        scale = 1 / sqrt((1 - self.p) * (1 + self.p * LEAST**2))
        shift = -scale * LEAST * self.p
        return Scalar(scale * LEAST + shift), call("add", call("mul", Arg(0), scale), shift)


class FeatureAlphaDropout(AlphaDropout):
    """AlphaDropout of whole channels of x (n, c, ...)."""

    whole = True


def scale_kept(p: float) -> tuple[Expr, Expr]:
    """Return expressions of Arg(0): 0 where it is dropped with probability p, and its value where
    it is kept.
    """
    return Scalar(0.0), call("mul", Arg(0), 1 / (1 - p) if p < 1 else 1.0)


def drop_operands(
    scope: Scope,
    training: Training,
    x: Value,
    p: float,
    replacements: tuple[Expr, Expr],
    *,
    whole: bool = False,
) -> tuple[Pointwise, Value, Value, Value, Value]:
    """Return the operator that drops numbers of x with probability p, and its operands.

    training: that of `scope`. x has a dimension at least, and all sizes are known. replacements:
    see `scale_kept`. whole: whether those of a channel are dropped together.
    """
    samples, *sizes = x.type.shape
    if whole:
        sizes = [*sizes[:1], *(1 for _ in sizes[1:])]
    layer = len(training.counting)
    training.counting.append(scope.name)
    rows = np.arange(samples) * MOST + layer % MOST
    places = constant(np.arange(prod(sizes), dtype=np.int32).reshape(1, *sizes))
    first = constant(rows.astype(np.int32).reshape(-1, *(1,) * len(sizes)))
    drawn = call("threefry_uniform", Arg(1), Arg(2), training.seed, Arg(3))
    result = call("where", call("less", drawn, float(p)), *replacements)
    return Pointwise(result), x, places, first, training.passes
