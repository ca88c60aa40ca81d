"""Inputs of int64 whose numbers were looked at, and are small."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from glnn.errors import ShapeError
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.interval import Interval
from glnn.graph.operators import Within
from glnn.types import Array, DType

MOST = 1 << 20
"""What indices, lengths and masks do not exceed, while their sums along an axis are int32's."""
SMALL = Interval(-MOST, MOST)


def all_small(feeds: Mapping[str, Array]) -> bool:
    """Whether there are arrays of int64 among `feeds`, none with a number beyond `SMALL`."""
    wide = [array for array in feeds.values() if array.dtype == DType.int64.numpy]
    return bool(wide) and all(map(_small, wide))


def _small(array: Array) -> bool:
    return not array.size or bool(array.min() >= -MOST and array.max() <= MOST)


def check_small(name: str, array: Array) -> None:
    """Raise ShapeError where `array` of integers has a number beyond `SMALL`."""
    if not _small(array):
        raise ShapeError(
            f"input {name!r} must have int64 numbers from {-MOST} to {MOST} for this plan; "
            "a session has another one for larger ones"
        )


def has_wide_inputs(graph: Graph) -> bool:
    """Whether inputs are of int64."""
    return any(value.type.dtype is DType.int64 for value in graph.inputs)


def named_small(graph: Graph) -> tuple[str, ...]:
    """The inputs of which `graph` says that they are small."""
    found = (node.inputs[0] for node in graph.nodes if isinstance(node.operator, Within))
    return tuple(value.name for value in found if value is not None)


def with_small_inputs(graph: Graph, left: Collection[str]) -> Graph:
    """`graph` for inputs that are `all_small`, but for those called as one of `left`."""
    here: dict[Value, Value] = {}
    nodes: list[Node] = []
    for value in graph.inputs:
        if value.type.dtype is DType.int64 and value.name not in left:
            here[value] = Value(f"{value.name}, which is small", value.type)
            nodes.append(Node(value.name, Within(SMALL), (value,), (here[value],)))
    nodes += [node.with_values(here) for node in graph.nodes]
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
