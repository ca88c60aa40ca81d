"""A graph that passes change: the node that produces each value by now, and the types of all
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from glnn.core.types import Array, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.constant import constant, constant_value, depends_on_sizes
from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operator import Operator
from glnn.graph.operators import Identity, Reshape
from glnn.graph.operators.views import View

FusionCheck = Callable[[Operator, Mapping[str, TensorType]], bool]
"""Predicate that is True where fusing several operators into this one, with operands of these types
by name, pays.
"""


class GraphRewriter:
    """A graph that passes change in place.

    types: of every value, sizes known; those of new ones are added. A value stays the same value
    when another node makes it, so that names and outputs stay.
    """

    def __init__(self, graph: Graph, types: dict[Value, TensorType]) -> None:
        self._graph, self.types = graph, types
        self._producers = dict(graph.producers)
        self._readers: dict[Value, dict[Node, None]] = {}  # of those that were asked for
        self._outputs = frozenset(graph.outputs)
        self._changed = False
        self._count = 1
        self._names = set[str]()  # all of them, once one is to be new
        self._fixed = set(graph.fixed)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes that the outputs need, in topological order."""
        graph = self._graph
        return ordered(graph.outputs, self._producers) if self._changed else graph.ordered

    def graph(self) -> Graph:
        """The graph as it is now: the same one where nothing was changed."""
        original = self._graph
        if not self._changed:
            return original
        return Graph(self.nodes, original.inputs, original.outputs, original.name)

    def producer(self, value: Value | None) -> Node | None:
        """The node that makes `value`; None of one that is given."""
        return None if value is None else self._producers.get(value)

    def runtime_producer(self, value: Value | None) -> Node | None:
        """The node that makes `value` in each run; None of one that no run changes."""
        return None if value in self._fixed else self.producer(value)

    def is_fixed(self, value: Value | None) -> bool:
        """Return True where no run changes `value`."""
        return value in self._fixed

    def shape(self, value: Value) -> Shape:
        """The shape of `value`."""
        return self.types[value].shape

    def is_output(self, value: Value) -> bool:
        """Return True where `value` is an output of the graph."""
        return value in self._outputs

    def readers(self, value: Value) -> tuple[Node, ...]:
        """The nodes that read `value`."""
        return tuple(self._reading(value))

    def _reading(self, value: Value) -> dict[Node, None]:
        """The nodes that read `value`, to be changed."""
        result = self._readers.get(value)
        if result is None:
            nodes = self._graph.readers.get(value, ())
            result = self._readers[value] = dict.fromkeys(nodes)
        return result

    def is_read_once(self, value: Value | None) -> bool:
        """Return True where exactly one node reads `value`, and it is no output."""
        return value is not None and value not in self._outputs and len(self._reading(value)) == 1

    def behind_views(self, value: Value) -> tuple[Value, Node | None]:
        """Return what `value` is a view of, by views that nothing else reads, and what makes that
        in each run.
        """
        maker = self.runtime_producer(value)
        while maker is not None and isinstance(maker.operator, View) and self.is_read_once(value):
            (value,) = maker.reads
            maker = self.runtime_producer(value)
        return value, maker

    def ancestors(self, *values: Value | None) -> Iterator[Node]:
        """Yield the nodes of each run that `values` are computed from, each once."""
        left, seen = list(values), set[Node]()
        while left:
            maker = self.runtime_producer(left.pop())
            if maker is not None and maker not in seen:
                yield maker
                seen.add(maker)
                left += maker.reads

    def fusible_pairs(self) -> Iterator[tuple[Node, Node]]:
        """Return each node whose first operand is computed in each run and read by it alone, after
        the node that makes that operand.
        """
        for node in self.nodes:
            first = self.runtime_producer(node.inputs[0]) if node.inputs else None
            if first is not None and self.is_read_once(node.inputs[0]):
                yield first, node

    def constant_array(self, value: Value) -> Array | None:
        """The numbers of a value that neither a run nor an assignment changes."""
        return constant_value(self._graph_of(value), value)

    def depends_on_sizes(self, value: Value) -> bool:
        """Return True where a value that no run changes is another one for other sizes."""
        return depends_on_sizes(constant(self._graph_of(value), value, {}))

    def _graph_of(self, value: Value) -> Graph:
        """Return a graph that has what makes `value`, where no run changes it."""
        if value in self._producers and value in self._fixed:
            return Graph(ordered((value,), self._producers), (), (value,))
        return self._graph

    def add(self, name: str, operator: Operator, *inputs: Value | None) -> Value:
        """The result of `operator`, for the node called `name`. Raises ShapeError."""
        (type,) = operator.infer([None if v is None else self.types[v] for v in inputs])
        value = Value(self._fresh(f"{name}: {operator.name}"), type)
        self.types[value] = type
        self._put(Node(name, operator, inputs, (value,)))
        return value

    def reshape(self, name: str, value: Value, shape: Shape) -> Value:
        """Return `value` reshaped, with as many numbers."""
        if self.shape(value) == shape:
            return value
        return self.add(name, Reshape(shape, True), value)

    def replace(self, node: Node, operator: Operator, *inputs: Value | None) -> Node:
        """Let `operator` make the one result of `node`, of the same type. Returns the node."""
        (value,) = node.outputs
        (type,) = operator.infer([None if v is None else self.types[v] for v in inputs])
        if type != self.types[value]:
            raise ShapeError(f"{node.name!r}: {type} in the place of {self.types[value]}")
        made = Node(node.name, operator, inputs, (value,))
        self.remove(node)
        self._put(made)
        return made

    def replace_by(self, node: Node, value: Value) -> None:
        """Let the maker of `value`, which was just made and which nothing reads yet, make the one
        result of `node`.
        """
        maker, before = self._producers.get(value), node.inputs
        self.remove(node)
        if maker is None or self._reading(value) or value in self._outputs:
            self._put(Node(node.name, Identity(), (value,), node.outputs))
        else:
            self.remove(maker)
            self._put(replace(maker, outputs=node.outputs))
        for one in before:
            self.prune(one)

    def add_node(self, node: Node) -> None:
        """Add `node`, whose results no node makes now."""
        self._put(node)

    def fuse(self, first: Node, last: Node, joined: Node) -> None:
        """Put `joined`, which is made of both, in the place of `last`, and remove `first`."""
        self.remove(last)
        self.remove(first)
        self.add_node(with_origins(joined, first, last))

    def remove(self, node: Node) -> None:
        """Remove `node`; nodes that only it has read go with it."""
        self._changed = True
        for value in node.outputs:
            if self._producers.get(value) is node:
                del self._producers[value]
        for value in node.reads:
            self._reading(value).pop(node, None)

    def prune(self, value: Value | None) -> None:
        """Remove the maker of `value`, and all nodes before it, where nothing reads them any
        more.
        """
        stack = [value]
        while stack:
            node = self.producer(stack.pop())
            if node is None or any(self._reading(v) or self.is_output(v) for v in node.outputs):
                continue
            self.remove(node)
            stack += node.reads

    def _put(self, node: Node) -> None:
        self._changed = True
        self._producers |= dict.fromkeys(node.outputs, node)
        self._read(node)
        fixed = all(value in self._fixed or _is_parameter(value) for value in node.reads)
        if (node.reads or node.operator.table) and fixed and not node.operator.random:
            self._fixed.update(node.outputs)

    def _read(self, node: Node) -> None:
        for value in node.reads:
            self._reading(value)[node] = None

    def _fresh(self, name: str) -> str:
        if not self._names:
            self._names = {value.name for value in self.types}
        while (result := f"{name} {self._count}") in self._names:
            self._count += 1
        self._names.add(result)
        return result


def _is_parameter(value: Value) -> bool:
    return value.kind.value in ("constant", "variable")


def with_origins(joined: Node, first: Node, last: Node) -> Node:
    """Return `joined`, which is made of both, with the names of both."""
    names = dict.fromkeys((*first.name.split(" + "), *last.name.split(" + ")))
    return replace(joined, name=" + ".join(names), origins=(first, last))
