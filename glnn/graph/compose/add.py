"""The protocol by which a layer adds operators to a graph."""

from __future__ import annotations

from typing import Protocol

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Flatten, Unflatten, Unsqueeze
from glnn.types import Dim


class Add(Protocol):
    """Adds a node of one result to a graph that is being built."""

    def __call__(self, operator: Operator, *inputs: Value) -> Value:
        """Add a node that applies `operator` to `inputs`, and return its result."""


def joined(add: Add, x: Value, start: int, count: int) -> Value:
    """Reshape x so that `count` dimensions from `start` on are one: a new one of size 1 where it is
    0.
    """
    if count == 0:
        return add(Unsqueeze((start,)), x)
    return x if count == 1 else add(Flatten(start, start + count - 1), x)


def parted(add: Add, x: Value, axis: int, *dims: Dim) -> Value:
    """Reshape x so that its dimension `axis` becomes several, of which one may be a symbol.

    Raises ShapeError for more symbols.
    """
    sizes = tuple(-1 if isinstance(dim, str) else dim for dim in dims)
    if sizes.count(-1) > 1:
        raise ShapeError(f"only one of the sizes {dims} may be unknown")
    return x if len(dims) == 1 else add(Unflatten(axis, sizes), x)
