"""Copy outputs that are views of inputs, and pack large outputs of 8 bits a number."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from glnn.core.types import TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Expand, Pack, Pointwise
from glnn.graph.operators.reorder import PACKED

LEAST_PACKED, MOST_PACKED = 1 << 14, 1 << 25
"""Least and most numbers of 8 bits of an output that is packed: for fewer the launch takes longer
than it saves; the words of more exceed the storage block that every device has."""


def copy_input_views(
    graph: Graph, types: dict[Value, TensorType]
) -> tuple[Graph, dict[Value, TensorType]]:
    """Return `graph` with a copy in place of each output that is a view of an input.

    Else the next run would write its input to the memory of the output. types: of every value,
    sizes known; those of the new ones are added.
    """
    inputs = set(graph.inputs)
    for value in dict.fromkeys(graph.outputs):
        nodes = list(graph.nodes)
        node = graph.producers.get(value)
        first = node  # of the chain of views that ends in `value`
        while first is not None and first.operator.view and first.inputs[0] is not None:
            if first.inputs[0] in inputs:
                break
            first = graph.producers.get(first.inputs[0])
        if node is None or first is None or not first.operator.view:
            continue
        if not types[value].dtype.on_gpu or 0 in types[value].shape:
            continue
        view = Value(f"{value.name}: view", value.type)
        copy = Node(node.name, Expand(types[value].shape), (view,), (value,))
        index = nodes.index(node)
        nodes[index : index + 1] = [replace(node, outputs=(view,)), copy]
        nodes[index + 2 :] = [_with_input(one, value, view) for one in nodes[index + 2 :]]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
        types = {**types, view: types[value]}
    return graph, types


def pack_outputs(
    graph: Graph, types: dict[Value, TensorType]
) -> tuple[Graph, dict[Value, TensorType]]:
    """Return `graph` with a `Pack` of four numbers to a word behind each pointwise node that
    computes a large output of 8 bits a number.

    types: of every value, sizes known; those of the new ones are added.
    """
    for value in dict.fromkeys(graph.outputs):
        node = graph.producers.get(value)
        if node is None or not isinstance(node.operator, Pointwise) or value in graph.fixed:
            continue
        are_on_gpu = (types[one].dtype.on_gpu for one in node.inputs if one is not None)
        small = (
            types[value].dtype in PACKED and LEAST_PACKED <= prod(types[value].shape) <= MOST_PACKED
        )
        if not small or not all(are_on_gpu):  # the host computes it otherwise
            continue
        words = Value(f"{value.name}: words", value.type)
        nodes = [_with_input(_with_output(one, value, words), value, words) for one in graph.nodes]
        nodes.insert(graph.nodes.index(node) + 1, Node(node.name, Pack(), (words,), (value,)))
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
        types = {**types, words: types[value]}
    return graph, types


def _with_output(node: Node, value: Value, substitute: Value) -> Node:
    """Return `node`, and its origins, with `substitute` as the output in place of `value`."""
    if value not in node.outputs:
        return node
    outputs = tuple(substitute if v is value else v for v in node.outputs)
    origins = tuple(_with_output(one, value, substitute) for one in node.origins)
    return replace(node, outputs=outputs, origins=origins)


def _with_input(node: Node, value: Value, substitute: Value) -> Node:
    """Return `node`, and its origins, with `substitute` as the input in place of `value`."""
    if value not in node.reads:
        return node
    return replace(
        node,
        inputs=tuple(substitute if v is value else v for v in node.inputs),
        extras=tuple(substitute if v is value else v for v in node.extras),
        origins=tuple(_with_input(one, value, substitute) for one in node.origins),
    )
