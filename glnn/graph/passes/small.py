"""Inputs of int64 whose numbers were looked at, and are small."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.interval import Interval
from glnn.graph.operators import Within
from glnn.types import Array, DType

MOST = 1 << 20
"""What indices, lengths and masks do not exceed, while their sums along an axis are int32's."""
SMALL = Interval(-MOST, MOST)


def all_small(feeds: Mapping[str, Array]) -> bool:
    """Whether there are arrays of int64 among `feeds`, none with a number beyond `SMALL`."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy and array.size]
    return bool(wide) and all(one.min() >= -MOST and one.max() <= MOST for one in wide)


def with_small_inputs(graph: Graph, left: Collection[str]) -> Graph:
    """`graph` for inputs that are `all_small`, but for those called as one of `left`."""
    here: dict[Value, Value] = {}
    nodes: list[Node] = []
    for value in graph.inputs:
        if value.type.dtype is DType.int64 and value.name not in left:
            here[value] = Value(f"{value.name}, which is small", value.type)
            nodes.append(Node(value.name, Within(SMALL), (value,), (here[value],)))
    for node in graph.nodes:
        inputs = tuple(None if v is None else here.get(v, v) for v in node.inputs)
        extras = tuple(here.get(v, v) for v in node.extras)
        nodes.append(replace(node, inputs=inputs, extras=extras))
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
