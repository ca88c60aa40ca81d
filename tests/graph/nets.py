"""Graphs in the making, for tests of passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glnn.core.types import TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise
from tests import oracle

Change = Callable[[Graph, dict[Value, TensorType]], Graph]
"""A pass, with types of all values."""


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


def changed(graph: Graph, change: Change, rng: Callable[..., np.ndarray]) -> Graph:
    """Return `graph` after one pass alone, which must give the same results in float64."""
    result = change(graph, dict(graph.infer_types({v.name: v.type for v in graph.inputs})))
    given = [rng(value.type.shape).astype(np.float64) for value in graph.inputs]
    expected = graph.reference(*given)
    for found, right in zip(result.reference(*given), expected, strict=True):
        assert found.shape == right.shape
        assert found.size == 0 or oracle.error(found, right) <= 1e-12
    return result
