"""Nodes of more operands or results than a kernel has, in parts."""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat
from glnn.types import TensorType


def of_one_result(graph: Graph) -> Graph:
    """`graph` with a node for each result of those whose results can be computed one by one."""
    nodes: list[Node] = []
    for node in graph.nodes:
        each = node.operator.each
        if not each or node.epilogue is not None:
            nodes.append(node)
            continue
        for operator, value in zip(each, node.outputs, strict=True):
            nodes.append(Node(value.name, operator, node.inputs, (value,)))
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def within_operands(graph: Graph, types: dict[Value, TensorType], most: int) -> Graph:
    """`graph` in which a concatenation joins at most `most` values.

    types: of every value; those of new ones are added.
    """
    nodes: list[Node] = []
    names = {value.name for value in types}
    for node in graph.nodes:
        nodes += _concatenations(node, types, most, names)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def _concatenations(
    node: Node, types: dict[Value, TensorType], most: int, names: set[str]
) -> list[Node]:
    if not isinstance(node.operator, Concat) or len(node.inputs) <= most:
        return [node]
    parts: list[Node] = []
    inputs = tuple(value for value in node.inputs if value is not None)
    while len(inputs) > most:
        left = len(inputs)
        fewer: list[Value] = []
        for start in range(0, len(inputs), most):
            some = inputs[start : start + most]
            if left > most and len(some) == most:
                operator = node.operator
                (type,) = operator.infer([types[value] for value in some])
                name = f"{node.name}: part {len(parts) + 1}"
                while name in names:
                    name += "'"
                names.add(name)
                value = Value(name, type)
                types[value] = type
                parts.append(Node(name, operator, some, (value,)))
                some = (value,)
                left -= most - 1
            fewer += some
        inputs = tuple(fewer)
    return [*parts, replace(node, inputs=inputs)]
