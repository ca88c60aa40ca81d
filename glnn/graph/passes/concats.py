"""Concatenations that extend an earlier concatenation read its result."""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat


def with_shared_concats(graph: Graph) -> Graph:
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
                if (before := joined.get((operator, inputs[:count]))) is not None:
                    node = replace(node, inputs=(before, *inputs[count:]))
                    break
            joined.setdefault((operator, inputs), node.outputs[0])
        nodes.append(node)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
