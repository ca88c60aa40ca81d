"""Rewrite outputs that are only an input seen in another shape, and outputs of bytes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from glnn.core.types import TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Expand, Pack, Pointwise
from glnn.graph.operators.reorder import PACKED

LEAST_PACKED, MOST_PACKED = 1 << 14, 1 << 25
"""Numbers of 8 bits from which on, and up to which, a launch that packs them is worth its while:
so many words are the storage block that every device has."""


def copy_input_views(
    graph: Graph, types: dict[Value, TensorType]
) -> tuple[Graph, dict[Value, TensorType]]:
    """Return `graph` with a copy of each input of which an output is a view.

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
        nodes[at + 2 :] = [_with_input(one, value, seen) for one in nodes[at + 2 :]]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
        types = {**types, seen: types[value]}
    return graph, types


def pack_outputs(
    graph: Graph, types: dict[Value, TensorType]
) -> tuple[Graph, dict[Value, TensorType]]:
    """Return `graph` with large outputs of 8 bits a number packed last, four to a word, where
    pointwise work makes them. types: of every value, sizes known; those of the new ones are added.
    """
    for value in dict.fromkeys(graph.outputs):
        node = graph.producers.get(value)
        if node is None or not isinstance(node.operator, Pointwise) or value in graph.fixed:
            continue
        are_on_gpu = (types[one].dtype.on_gpu for one in node.inputs if one is not None)
        small = (
            types[value].dtype in PACKED and LEAST_PACKED <= prod(types[value].shape) <= MOST_PACKED
        )
        if not small or not all(are_on_gpu):  # else the host makes it
            continue
        words = Value(f"{value.name}: words", value.type)
        nodes = [_with_input(_with_output(one, value, words), value, words) for one in graph.nodes]
        at = graph.nodes.index(node)
        nodes.insert(at + 1, Node(node.name, Pack(), (words,), (value,)))
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
        types = {**types, words: types[value]}
    return graph, types


def _with_output(node: Node, value: Value, instead: Value) -> Node:
    """Return `node`, and the nodes it was made of, with `instead` as the output in place of
    `value`.
    """
    if value not in node.outputs:
        return node
    outputs = tuple(instead if v is value else v for v in node.outputs)
    origins = tuple(_with_output(one, value, instead) for one in node.origins)
    return replace(node, outputs=outputs, origins=origins)


def _with_input(node: Node, value: Value, instead: Value) -> Node:
    """Return `node`, and the nodes it was made of, with `instead` as the input in place of
    `value`.
    """
    if value not in node.reads:
        return node
    return replace(
        node,
        inputs=tuple(instead if v is value else v for v in node.inputs),
        extras=tuple(instead if v is value else v for v in node.extras),
        origins=tuple(_with_input(one, value, instead) for one in node.origins),
    )
