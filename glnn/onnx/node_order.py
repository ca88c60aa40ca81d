"""The order of an ONNX graph's nodes, which files need not keep."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from glnn.errors import ModelError

Named = tuple[str, Any]
"""A NodeProto and what it is called."""


def in_order(nodes: Sequence[Named], where: str) -> Sequence[Named]:
    """Return the nodes, each behind those that it reads from; as they are where they are so.

    Of those that could come next, the first in the file does. where: the model's name in errors.
    Raises ModelError where nodes need each other's results.
    """
    makers = {name: i for i, (_, node) in enumerate(nodes) for name in node.output if name}
    if not any(makers.get(name, -1) >= i for i, (_, n) in enumerate(nodes) for name in _reads(n)):
        return nodes
    waits: list[set[int]] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for i, (_, node) in enumerate(nodes):
        waits.append({makers[name] for name in _reads(node) if name in makers})
        for maker in waits[i]:
            readers[maker].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    found: list[int] = []
    while ready:
        done = heapq.heappop(ready)
        found.append(done)
        for reader in readers[done]:
            waits[reader].remove(done)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(nodes):
        names = _cycle([sorted(before) for before in waits], set(range(len(nodes))) - {*found})
        listed = ", ".join(repr(nodes[i][0]) for i in names[:4]) + (
            ", ..." if len(names) > 4 else ""
        )
        raise ModelError(f"{where}: nodes need each other's results: {listed}")
    return [nodes[i] for i in found]


def _cycle(waits: Sequence[Sequence[int]], remaining: set[int]) -> list[int]:
    """Return a cycle among the nodes of `remaining`, each of which waits for one of them."""
    path: list[int] = [min(remaining)]
    while (following := waits[path[-1]][0]) not in path:
        path.append(following)
    return path[path.index(following) :]


def _reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, also those that its bodies capture."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _free(attribute.g)


def _free(graph: Any) -> set[str]:
    """Return the names that a body reads and does not make."""
    own = {one.name for part in (graph.input, graph.initializer) for one in part}
    own |= {one.values.name for one in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in _reads(node)}
    read |= {one.name for one in graph.output}
    return read - own
