"""The order in which the nodes of a graph that updates states run.

Nodes go in levels, each behind those that it waits for: those of a level wait for nothing that
another of them does, so that a GPU may be at all of them at once. A gradient is used as soon as it
is there, and what reads a state comes before what updates it, so that this can be in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators.move import Move

After = dict[Node, set[Node]]
"""The nodes that each must wait for."""


def updates_last(graph: Graph, updates: Mapping[str, str]) -> Graph:
    """`graph` with its nodes in levels, each update of a state behind all that read its content.

    updates: by the name of an input that is a state, the output that is its content from the next
    run on. Where two updates each read what the other changes, one of them comes first.
    """
    if not updates:
        return graph
    after: After = {node: set() for node in graph.nodes}
    for node in graph.nodes:
        after[node] = {graph.producers[v] for v in node.reads if v in graph.producers}
    outputs = {value.name: value for value in graph.outputs}
    for value in graph.inputs:
        end = outputs.get(updates.get(value.name, ""))
        if end is None or (update := graph.producers.get(end)) is None:
            continue
        readers = _readers(graph, value) - {update}
        if not _waits(readers, update, after):
            after[update] |= readers
    levels = _levels(graph, after)
    nodes = sorted(graph.nodes, key=lambda node: levels[node])
    return replace(graph, nodes=tuple(nodes))


def _readers(graph: Graph, value: Value) -> set[Node]:
    """The nodes that read `value`, also as moves and views of it leave it."""
    found: set[Node] = set()
    values = [value]
    while values:
        for node in graph.readers.get(values.pop(), ()):
            if node not in found:
                found.add(node)
                values += node.outputs if _lies(node) else ()
    return found


def _waits(nodes: Iterable[Node], first: Node, after: After) -> bool:
    """Whether one of `nodes` must wait for `first`."""
    seen, stack = set[Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node is first:
            return True
        if node not in seen:
            seen.add(node)
            stack += after[node]
    return False


def _levels(graph: Graph, after: After) -> dict[Node, int]:
    """The level of each node: the first that it can have.

    The last, instead, of what is made of inputs alone and nobody needs before: it would but take
    memory. Views and moves take no level of their own, as most are never made.
    """
    levels: dict[Node, int] = {}
    waiting = list(reversed(graph.nodes))
    while waiting:
        node = waiting[-1]
        if missing := [one for one in after[node] if one not in levels]:
            waiting += missing
            continue
        waiting.pop()
        levels[node] = max((levels[one] + _height(one) for one in after[node]), default=0)
    before: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node, needed in after.items():
        for one in needed:
            before[one].append(node)
    floating: set[Node] = set()
    order = sorted(graph.nodes, key=lambda node: levels[node])
    for node in order:
        made = [value for value in node.reads if value in graph.producers]
        alone = (graph.readers[v] == (node,) and graph.producers[v] in floating for v in made)
        if all(alone) and before[node]:
            floating.add(node)
    for node in reversed(order):
        if node in floating:
            levels[node] = min(levels[one] for one in before[node]) - _height(node)
    return levels


def _height(node: Node) -> int:
    """How many levels those are higher that wait for `node`."""
    return int(not _lies(node))


def _lies(node: Node) -> bool:
    """Whether the result of `node` may be the memory of what it reads."""
    return node.operator.view or isinstance(node.operator, Move)
