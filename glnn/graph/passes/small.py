"""Narrow int64 inputs whose numbers were checked and are small."""

from __future__ import annotations

from collections.abc import Collection

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.interval import Interval
from glnn.graph.operators import Within
from glnn.types import MAX_SMALL, DType

SMALL = Interval(-MAX_SMALL, MAX_SMALL)
"""Bounds of the numbers of such inputs."""


def has_wide_inputs(graph: Graph) -> bool:
    """Return True where any input is of int64."""
    return any(value.type.dtype is DType.int64 for value in graph.inputs)


def named_small(graph: Graph) -> tuple[str, ...]:
    """The inputs of which `graph` says that they are small."""
    found = (node.inputs[0] for node in graph.nodes if isinstance(node.operator, Within))
    return tuple(value.name for value in found if value is not None)


def with_small_inputs(graph: Graph, left: Collection[str]) -> Graph:
    """Return `graph` for inputs that are `types.all_small`, except for those named in `left`."""
    here: dict[Value, Value] = {}
    nodes: list[Node] = []
    for value in graph.inputs:
        if value.type.dtype is DType.int64 and value.name not in left:
            here[value] = Value(f"{value.name}, which is small", value.type)
            nodes.append(Node(value.name, Within(SMALL), (value,), (here[value],)))
    nodes += [node.with_values(here) for node in graph.nodes]
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
