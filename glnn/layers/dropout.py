"""Dropout layer."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from glnn.graph.builder import constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Pointwise
from glnn.layers.arguments import flag, number, with_unusual
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope, Training

MOST = 4096  # layers that have numbers of their own


class Dropout(Layer):
    """x of any shape, unchanged; in training 0 with probability `p`, else x / (1 - p).

    What is dropped is told by the seed of the training, how many batches there were, the layer and
    the place alone: it is the same on every backend. inplace: changes nothing here, where memory
    is planned. Srivastava et al. 2014, Dropout: A simple way to prevent neural networks from
    overfitting.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.p = number("Dropout p", p, 0, 1)
        self.inplace = flag("Dropout inplace", inplace)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if scope.training is None or not self.p or not x.type.dims:
            return super().express(scope, x)
        return scope.result(*dropped(scope, scope.training, x, self.p))

    def config(self) -> dict[str, Any]:
        return with_unusual({"p": self.p}, inplace=(self.inplace, False))


def dropped(
    scope: Scope, training: Training, x: Value, p: float
) -> tuple[Pointwise, Value, Value, Value, Value]:
    """What makes x in which numbers are 0 with probability p, and others x / (1 - p), and of what.

    training: that of `scope`. x has a dimension at least, and all sizes are known.
    """
    samples, *sizes = x.type.shape
    layer = len(training.counting)
    training.counting.append(scope.name)
    rows = np.arange(samples) * MOST + layer % MOST
    places = constant(np.arange(prod(sizes), dtype=np.int32).reshape(1, *sizes))
    first = constant(rows.astype(np.int32).reshape(-1, *(1,) * len(sizes)))
    drawn = call("threefry_uniform", Arg(1), Arg(2), training.seed, Arg(3))
    kept = call("mul", Arg(0), 1 / (1 - p) if p < 1 else 1.0)
    chosen = call("where", call("less", drawn, float(p)), 0.0, kept)
    return Pointwise(chosen), x, places, first, training.passes
