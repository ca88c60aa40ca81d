"""Graphs in the making, for tests of passes."""

from __future__ import annotations

import numpy as np

from glnn.graph.builder import Builder, constant
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise


class Net:
    """A graph in the making, of operators called one after the other."""

    def __init__(self, seed: int) -> None:
        self.builder = Builder("net")
        self._numbers = np.random.default_rng(seed)

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=operator.name)[0]

    def of(self, text: str, *given: Value) -> Value:
        return self(Pointwise(formula(text)), *given)

    def fixed(self, *shape: int) -> Value:
        return constant(self._numbers.normal(size=shape).astype(np.float32))
