"""Leaving out what changes nothing."""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Identity


def without_identities(graph: Graph) -> Graph:
    """`graph` without the identities, whose readers read what these read; outputs are kept."""
    same: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(None if v is None else same.get(v, v) for v in node.inputs)
        source, (result, *_) = inputs[0] if inputs else None, node.outputs
        if isinstance(node.operator, Identity) and source and result not in graph.outputs:
            same[result] = source
        else:
            extras = tuple(same.get(v, v) for v in node.extras)
            kept.append(replace(node, inputs=inputs, extras=extras))
    return Graph(tuple(kept), graph.inputs, graph.outputs, graph.name)


def without_dead(graph: Graph) -> Graph:
    """`graph` without the nodes that no output needs."""
    needed = {value for value in graph.outputs if value.kind is Kind.COMPUTED}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
            kept.append(node)
    return Graph(tuple(reversed(kept)), graph.inputs, graph.outputs, graph.name)
