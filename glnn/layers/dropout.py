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

MOST_LAYERS = 4096  # dropout layers with different random numbers
SELU_LIMIT = -1.0507009873554805 * 1.6732632423543772
"""The limit of SELU(x) for x towards minus infinity."""


class Dropout(Layer):
    """x, unchanged; in training each element is 0 with probability `p`, else x / (1 - p).

    x has any shape. The random numbers depend only on the training's seed, the number of batches
    before, the layer and the element's index: they are the same on every backend. inplace: has no
    effect, as memory is planned. Srivastava et al. 2014, Dropout: A simple way to prevent neural
    networks from overfitting.
    """

    whole: ClassVar[bool] = False
    """True to drop whole channels."""

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
        """Return the expressions of a dropped and of a kept element, which is Arg(0)."""
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
    """x, unchanged; in training each element is the limit of SELU with probability `p`.

    The result is scaled and shifted to preserve a mean of 0 and a variance of 1. See `Dropout`.
    Klambauer et al. 2017, Self-Normalizing Neural Networks.
    """

    def replacements(self) -> tuple[Expr, Expr]:
        if self.p == 1:
            return scale_kept(self.p)
        scale = 1 / sqrt((1 - self.p) * (1 + self.p * SELU_LIMIT**2))
        shift = -scale * SELU_LIMIT * self.p
        return Scalar(scale * SELU_LIMIT + shift), call("add", call("mul", Arg(0), scale), shift)


class FeatureAlphaDropout(AlphaDropout):
    """AlphaDropout of whole channels of x (n, c, ...)."""

    whole = True


def scale_kept(p: float) -> tuple[Expr, Expr]:
    """Return `Dropout.replacements`: 0 for a dropped element, Arg(0) / (1 - p) for a kept one."""
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
    """Return the operator that drops elements of x with probability p, and its operands.

    training: that of `scope`. x: has at least one dimension and known sizes. replacements: see
    `Dropout.replacements`. whole: whether whole channels are dropped.
    """
    samples, *sizes = x.type.shape
    if whole:
        sizes = [*sizes[:1], *(1 for _ in sizes[1:])]
    layer = len(training.counting)
    training.counting.append(scope.name)
    streams = np.arange(samples) * MOST_LAYERS + layer % MOST_LAYERS  # one for each sample
    index = constant(np.arange(prod(sizes), dtype=np.int32).reshape(1, *sizes))
    stream = constant(streams.astype(np.int32).reshape(-1, *(1,) * len(sizes)))
    random = call("threefry_uniform", Arg(1), Arg(2), training.seed, Arg(3))
    result = call("where", call("less", random, float(p)), *replacements)
    return Pointwise(result), x, index, stream, training.passes
