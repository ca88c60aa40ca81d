"""Values that no run changes, as what they are made of: what a session's weights are known by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from glnn.graph.epilogue import Epilogue
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Operator
from glnn.types import Array, DType


@dataclass(frozen=True)
class Leaf:
    """A constant or a variable of a graph, by itself."""

    value: Value

    def read(self) -> Array:
        """Its array as it is now."""
        if self.value.kind is Kind.VARIABLE:
            return self.value.data.read()  # type: ignore[union-attr]
        return self.value.data  # type: ignore[return-value]


@dataclass(frozen=True)
class Made:
    """Result number `index` of an operator applied to constants."""

    operator: Operator
    operands: tuple[Constant | None, ...]
    epilogue: Epilogue | None
    extras: tuple[Constant, ...]
    index: int


Constant = Leaf | Made
"""Two are equal where they are made in one way of the same constants and variables."""


def constant(graph: Graph, value: Value, known: dict[Value, Constant]) -> Constant:
    """What `value`, which no run changes, is made of. known: what was found before; added to."""
    if value not in known:
        node = graph.producers.get(value)
        if node is None:
            known[value] = Leaf(value)
        else:
            known[value] = Made(
                node.operator,
                tuple(None if v is None else constant(graph, v, known) for v in node.inputs),
                node.epilogue,
                tuple(constant(graph, v, known) for v in node.extras),
                node.outputs.index(value),
            )
    return known[value]


def leaves(of: Constant) -> Iterator[Leaf]:
    """The constants and variables that it is made of."""
    if isinstance(of, Leaf):
        yield of
        return
    for operand in (*of.operands, *of.extras):
        if operand is not None:
            yield from leaves(operand)


def evaluated(of: Constant) -> Array:
    """Its array: floats are computed in 64 bits and rounded once."""
    if isinstance(of, Leaf):
        return of.read()
    found = np.asarray(_evaluate(of, {}))
    return found.astype(np.float32) if found.dtype == np.float64 else found


def _evaluate(of: Constant, known: dict[Constant, Array]) -> Array:
    if of not in known:
        if isinstance(of, Leaf):
            array = of.read()
            known[of] = array.astype(np.float64) if DType.of(array).kind == "float" else array
        else:
            operands = (None if c is None else _evaluate(c, known) for c in of.operands)
            results = of.operator.reference(*operands)
            found = results[of.index]
            if of.epilogue is not None and of.index == 0:
                found = of.epilogue.evaluate(found, *(_evaluate(c, known) for c in of.extras))
            known[of] = found
    return known[of]


Constants = Mapping[Value, Constant]
