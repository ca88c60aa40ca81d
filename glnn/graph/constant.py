"""Values that no run changes, as what they are made of: what a session's weights are known by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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


@dataclass(frozen=True, eq=False)
class Made:
    """Result number `index` of an operator applied to constants."""

    operator: Operator
    operands: tuple[Constant | None, ...]
    epilogue: Epilogue | None
    extras: tuple[Constant, ...]
    index: int

    @cached_property
    def parts(self) -> tuple[tuple[Constant, tuple[int | None, ...]], ...]:
        """All that it is made of, each with the places of its operands, itself last.

        Equal ones are one, and nothing calls itself: graphs are deep, and share what they read.
        """
        listed: list[tuple[Constant, tuple[int | None, ...]]] = []
        places: dict[int, int] = {}  # by identity
        known: dict[Any, int] = {}
        stack: list[Constant] = [self]
        while stack:
            part = stack[-1]
            reads = () if isinstance(part, Leaf) else (*part.operands, *part.extras)
            if waiting := [r for r in reads if r is not None and id(r) not in places]:
                stack += reversed(waiting)
                continue
            stack.pop()
            if id(part) in places:
                continue
            at = tuple(None if r is None else places[id(r)] for r in reads)
            if (key := (_own(part), at)) not in known:
                known[key] = len(listed)
                listed.append((part, at))
            places[id(part)] = known[key]
        return tuple(listed)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple((_own(part), at) for part, at in self.parts)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Made) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash


Constant = Leaf | Made
"""Two are equal where they are made in one way of the same constants and variables."""


def _own(part: Constant) -> Any:
    """What it is but for its operands."""
    if isinstance(part, Leaf):
        return part
    return part.operator, part.epilogue, part.index, len(part.operands)


def constant(graph: Graph, value: Value, known: dict[Value, Constant]) -> Constant:
    """What `value`, which no run changes, is made of. known: what was found before; added to."""
    stack = [value]
    while stack:
        one = stack[-1]
        node = graph.producers.get(one)
        if node is not None and (waiting := [v for v in node.reads if v not in known]):
            stack += waiting
            continue
        stack.pop()
        if one in known:
            continue
        if node is None:
            known[one] = Leaf(one)
            continue
        known[one] = Made(
            node.operator,
            tuple(None if v is None else known[v] for v in node.inputs),
            node.epilogue,
            tuple(known[v] for v in node.extras),
            node.outputs.index(one),
        )
    return known[value]


def leaves(of: Constant) -> tuple[Leaf, ...]:
    """The constants and variables that it is made of."""
    if isinstance(of, Leaf):
        return (of,)
    return tuple(part for part, _ in of.parts if isinstance(part, Leaf))


def evaluated(of: Constant) -> Array:
    """Its array: floats are computed in 64 bits and rounded once."""
    if isinstance(of, Leaf):
        return of.read()
    arrays: list[Array] = []
    for part, at in of.parts:
        if isinstance(part, Leaf):
            array = part.read()
            arrays.append(array.astype(np.float64) if DType.of(array).kind == "float" else array)
            continue
        given = [None if i is None else arrays[i] for i in at]
        count = len(part.operands)
        found = part.operator.reference(*given[:count])[part.index]
        if part.epilogue is not None and part.index == 0:
            extras = [array for array in given[count:] if array is not None]
            found = part.epilogue.evaluate(found, *extras)
        arrays.append(found.astype(np.float64) if found.dtype == np.float16 else found)
    found = np.asarray(arrays[-1])
    return found.astype(np.float32) if found.dtype == np.float64 else found


Constants = Mapping[Value, Constant]
