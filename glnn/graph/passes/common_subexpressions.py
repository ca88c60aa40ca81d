"""Common subexpression elimination: equal work is done once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from glnn.graph.expression import Arg
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Concat, Pointwise


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Return `graph` with equal operators on equal operands merged into one; outputs are kept."""
    replacements: dict[Value, Value] = {}
    first_nodes: dict[Hashable, Node] = {}
    constants: dict[Hashable, Value] = {}
    kept: list[Node] = []

    def one(value: Value | None) -> Value | None:
        return (
            value
            if value is None
            else replacements.get(value, _first_equal_constant(value, constants))
        )

    for node in graph.nodes:
        operands = tuple([one(value) for value in node.inputs])
        extras = tuple([replacements.get(v, v) for v in node.extras])
        if operands != node.inputs or extras != node.extras:
            node = replace(node, inputs=operands, extras=extras)
        node = _read_each_value_once(node)
        inputs = node.inputs
        key = (node.operator, inputs, node.epilogue, node.extras)
        first = first_nodes.get(key)
        asked = any(value in graph.outputs for value in node.outputs)
        if first is None or asked or node.operator.control:
            first_nodes.setdefault(key, node)
            kept.append(node)
        else:
            replacements |= zip(node.outputs, first.outputs, strict=True)
    return Graph(tuple(kept), graph.inputs, graph.outputs, graph.name)


def _read_each_value_once(node: Node) -> Node:
    """Return `node` with each value read once."""
    if not isinstance(node.operator, Pointwise) or len(set(node.inputs)) == len(node.inputs):
        return node
    inputs = tuple(dict.fromkeys(node.inputs))
    expr = node.operator.expr(*(Arg(inputs.index(value)) for value in node.inputs))
    return replace(node, operator=Pointwise(expr), inputs=inputs)


def _first_equal_constant(value: Value, constants: dict[Hashable, Value]) -> Value:
    """The first constant of the same few numbers."""
    array = value.data
    if value.kind is not Kind.CONSTANT or array is None or array.nbytes > 64:  # type: ignore[union-attr]
        return value
    key = value.type, array.tobytes()  # type: ignore[union-attr]
    return constants.setdefault(key, value)


def share_concat_prefixes(graph: Graph) -> Graph:
    """Return `graph` with concatenations that begin with all of an earlier one reading that one's
    result.

    So each layer of a DenseNet (Huang et al. 2017) joins two tensors and not all before it.
    """
    joined: dict[tuple[Concat, tuple[Value | None, ...]], Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        operator, inputs = node.operator, node.inputs
        if isinstance(operator, Concat) and node.outputs[0] not in graph.fixed:
            for count in range(len(inputs) - 1, 1, -1):
                if (prefix := joined.get((operator, inputs[:count]))) is not None:
                    node = replace(node, inputs=(prefix, *inputs[count:]))
                    break
            joined.setdefault((operator, inputs), node.outputs[0])
        nodes.append(node)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
