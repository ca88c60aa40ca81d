"""A graph that passes change in place: the current producer and readers of each value, and its
type.
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
"""Predicate that is True where it pays to fuse several operators into the given one; the mapping
has the types of its operands by name.
"""


class GraphRewriter:
    """A graph that passes change in place.

    types: of every value, sizes known; types of new values are added. A value keeps its identity
    when its producer is replaced, so that names and outputs stay.
    """

    def __init__(self, graph: Graph, types: dict[Value, TensorType]) -> None:
        self._graph, self.types = graph, types
        self._producers = dict(graph.producers)
        self._readers: dict[Value, dict[Node, None]] = {}  # filled on first use of each value
        self._outputs = frozenset(graph.outputs)
        self._changed = False
        self._count = 1
        self._names = set[str]()  # names of all values; filled when the first new one is needed
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
        """Return the node that computes `value`; None for an input, a constant or a variable."""
        return None if value is None else self._producers.get(value)

    def runtime_producer(self, value: Value | None) -> Node | None:
        """Return the node that computes `value` in each run; None where no run changes it."""
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
        """Return the nodes that read `value`, a dict that the caller may change."""
        result = self._readers.get(value)
        if result is None:
            nodes = self._graph.readers.get(value, ())
            result = self._readers[value] = dict.fromkeys(nodes)
        return result

    def is_read_once(self, value: Value | None) -> bool:
        """Return True where exactly one node reads `value`, and it is no output."""
        return value is not None and value not in self._outputs and len(self._reading(value)) == 1

    def behind_views(self, value: Value) -> tuple[Value, Node | None]:
        """Follow `value` back through views that are read only once; return the value behind them
        and its producer in each run.
        """
        producer = self.runtime_producer(value)
        while (
            producer is not None
            and isinstance(producer.operator, View)
            and self.is_read_once(value)
        ):
            (value,) = producer.reads
            producer = self.runtime_producer(value)
        return value, producer

    def ancestors(self, *values: Value | None) -> Iterator[Node]:
        """Yield each node that `values` are computed from in each run, once."""
        stack, visited = list(values), set[Node]()
        while stack:
            producer = self.runtime_producer(stack.pop())
            if producer is not None and producer not in visited:
                yield producer
                visited.add(producer)
                stack += producer.reads

    def fusible_pairs(self) -> Iterator[tuple[Node, Node]]:
        """Yield pairs of a producer and its consumer: the first operand of the consumer is
        computed in each run, and nothing else reads it.
        """
        for node in self.nodes:
            first = self.runtime_producer(node.inputs[0]) if node.inputs else None
            if first is not None and self.is_read_once(node.inputs[0]):
                yield first, node

    def constant_array(self, value: Value) -> Array | None:
        """Return the numbers of `value`; None where a run or an assignment changes them."""
        return constant_value(self._graph_of(value), value)

    def depends_on_sizes(self, value: Value) -> bool:
        """Return True where `value`, which no run changes, differs with the inputs' sizes."""
        return depends_on_sizes(constant(self._graph_of(value), value, {}))

    def _graph_of(self, value: Value) -> Graph:
        """Return a graph that has the producers of `value`, where no run changes it."""
        if value in self._producers and value in self._fixed:
            return Graph(ordered((value,), self._producers), (), (value,))
        return self._graph

    def add(self, name: str, operator: Operator, *inputs: Value | None) -> Value:
        """Add a node called `name` that applies `operator`, and return its result.

        Raises ShapeError.
        """
        (type,) = operator.infer([None if v is None else self.types[v] for v in inputs])
        value = Value(self._fresh(f"{name}: {operator.name}"), type)
        self.types[value] = type
        self._put(Node(name, operator, inputs, (value,)))
        return value

    def reshape(self, name: str, value: Value, shape: Shape) -> Value:
        """Return `value` reshaped to `shape`, which has as many numbers."""
        if self.shape(value) == shape:
            return value
        return self.add(name, Reshape(shape, True), value)

    def replace(self, node: Node, operator: Operator, *inputs: Value | None) -> Node:
        """Replace `node` by one that computes its only result with `operator`, and return that.

        Raises ShapeError where the result would have another type.
        """
        (value,) = node.outputs
        (type,) = operator.infer([None if v is None else self.types[v] for v in inputs])
        if type != self.types[value]:
            raise ShapeError(f"{node.name!r}: {type} in the place of {self.types[value]}")
        replacement = Node(node.name, operator, inputs, (value,))
        self.remove(node)
        self._put(replacement)
        return replacement

    def replace_by(self, node: Node, value: Value) -> None:
        """Replace `node`, whose only result is then computed by the producer of `value`; by an
        Identity where something else reads `value`, or it has no producer.
        """
        producer, inputs = self._producers.get(value), node.inputs
        self.remove(node)
        if producer is None or self._reading(value) or value in self._outputs:
            self._put(Node(node.name, Identity(), (value,), node.outputs))
        else:
            self.remove(producer)
            self._put(replace(producer, outputs=node.outputs))
        for operand in inputs:
            self.prune(operand)

    def add_node(self, node: Node) -> None:
        """Add `node`, whose results have no producer now."""
        self._put(node)

    def fuse(self, first: Node, last: Node, joined: Node) -> None:
        """Replace `last` by `joined`, which fuses `first` and `last`, and remove `first`."""
        self.remove(last)
        self.remove(first)
        self.add_node(with_origins(joined, first, last))

    def remove(self, node: Node) -> None:
        """Remove `node`. The producers of its operands stay until `prune`."""
        self._changed = True
        for value in node.outputs:
            if self._producers.get(value) is node:
                del self._producers[value]
        for value in node.reads:
            self._reading(value).pop(node, None)

    def prune(self, value: Value | None) -> None:
        """Remove the producer of `value`, and the nodes before it, as far as nothing reads them."""
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
    """Return `joined`, which fuses `first` and `last`, with the names and origins of both."""
    names = dict.fromkeys((*first.name.split(" + "), *last.name.split(" + ")))
    return replace(joined, name=" + ".join(names), origins=(first, last))
