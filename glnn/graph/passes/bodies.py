"""Specialise control flow before a run: known branches are taken, known inputs go into bodies."""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.constant import settled
from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operators import Identity, If
from glnn.graph.operators.control_flow import Control


def known_branches(graph: Graph) -> Graph:
    """Return `graph` with the nodes of a branch in place of each If whose condition never
    changes.
    """
    while (found := _known(graph)) is not None:
        node, branch = found
        names = {value.name for one in graph.nodes for value in one.outputs}
        names |= {value.name for value in graph.inputs}
        nodes: list[Node] = []
        for one in graph.nodes:
            nodes += _inlined(node, branch, names) if one is node else [one]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
    return graph


def _known(graph: Graph) -> tuple[Node, int] | None:
    """An If whose condition never changes, and the number of the branch that is taken."""
    for node in graph.nodes:
        if isinstance(node.operator, If) and node.inputs[0] is not None:
            condition = settled(graph, node.inputs[0])
            if condition is not None:
                return node, 0 if condition.item() else 1
    return None


def _inlined(node: Node, branch: int, names: set[str]) -> list[Node]:
    """The nodes of that branch of `node`, by names of their own; added to `names`."""
    assert isinstance(node.operator, If)
    body, (first, _) = node.operator.bodies[branch], node.operator.captures[branch]
    here: dict[Value, Value] = {}
    for value, given in zip(body.inputs, node.inputs[first:], strict=False):
        assert given is not None
        here[value] = given
    for value, result in zip(body.outputs, node.outputs, strict=True):
        if value in body.producers:
            here.setdefault(value, result)
    nodes: list[Node] = []
    for one in body.nodes:
        for value in one.outputs:
            if value not in here:
                name = f"{node.name}/{value.name}"
                while name in names:
                    name += "'"
                names.add(name)
                here[value] = Value(name, value.type)
        nodes.append(replace(one.with_values(here), name=f"{node.name}/{one.name}"))
    for value, result in zip(body.outputs, node.outputs, strict=True):
        source = here.get(value, value)
        if source is not result:
            nodes.append(Node(node.name, Identity(), (source,), (result,)))
    return nodes


def fixed_captures(graph: Graph) -> Graph:
    """Return `graph` with bodies that compute themselves what they capture and no run changes.

    So weights are weights in a body, too, and what shapes depend on is known there.
    """
    if not any(node.operator.control for node in graph.nodes):
        return graph
    nodes = tuple(
        _with_own(graph, node) if isinstance(node.operator, Control) else node
        for node in graph.nodes
    )
    return Graph(nodes, graph.inputs, graph.outputs, graph.name)


def _with_own(graph: Graph, node: Node) -> Node:
    assert isinstance(node.operator, Control)
    dropped: set[int] = set()
    bodies: list[Graph] = []
    for body, (operand, first) in zip(node.operator.bodies, node.operator.captures, strict=True):
        made: dict[Node, None] = {}
        inputs = list(body.inputs[:first])
        for i, value in enumerate(body.inputs[first:], operand):
            given = node.inputs[i]
            if given is None or given not in graph.fixed:
                inputs.append(value)
                continue
            dropped.add(i)
            made |= dict.fromkeys(ordered((given,), graph.producers))
            made[Node(value.name, Identity(), (given,), (value,))] = None
        bodies.append(Graph((*made, *body.nodes), tuple(inputs), body.outputs, body.name))
    if not dropped:
        return node
    kept = tuple(value for i, value in enumerate(node.inputs) if i not in dropped)
    return replace(node, operator=node.operator.with_bodies(bodies), inputs=kept)
