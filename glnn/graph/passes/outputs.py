"""Outputs that are nothing but an input seen in another shape."""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Expand
from glnn.types import TensorType


def own_outputs(
    graph: Graph, types: dict[Value, TensorType]
) -> tuple[Graph, dict[Value, TensorType]]:
    """`graph` with a copy of each input of which an output is a view.

    So whatever comes back has been on the device, and no output is memory that the next run writes
    its input to. types: of every value, sizes known; those of the new ones are added.
    """
    inputs = set(graph.inputs)
    for value in dict.fromkeys(graph.outputs):
        nodes = list(graph.nodes)
        node = graph.producers.get(value)
        source = node
        while source is not None and source.operator.view and source.inputs[0] is not None:
            if source.inputs[0] in inputs:
                break
            source = graph.producers.get(source.inputs[0])
        if node is None or source is None or not source.operator.view:
            continue
        if not types[value].dtype.on_gpu or 0 in types[value].shape:
            continue
        seen = Value(f"{value.name}: view", value.type)
        copy = Node(node.name, Expand(types[value].shape), (seen,), (value,))
        at = nodes.index(node)
        nodes[at : at + 1] = [replace(node, outputs=(seen,)), copy]
        nodes[at + 2 :] = [_reading(one, value, seen) for one in nodes[at + 2 :]]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
        types = {**types, seen: types[value]}
    return graph, types


def _reading(node: Node, value: Value, instead: Value) -> Node:
    """`node`, which reads `instead` where it read `value`."""
    if value not in node.reads:
        return node
    return replace(
        node,
        inputs=tuple(instead if v is value else v for v in node.inputs),
        extras=tuple(instead if v is value else v for v in node.extras),
    )
