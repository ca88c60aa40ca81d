"""Graphs with sizes that only a run tells: planned in parts, each once its shapes are known.

What can be planned for the inputs' shapes is a plan. Then come the branches and loops whose results
are of sizes not known before, or that have such in their bodies: the host runs them, each body by
plans for the shapes that it comes to be given. What reads their results is planned when these are
there, and may come in parts again. From part to part arrays go by way of the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from glnn.backends import Backend
from glnn.compile.plan import Plan
from glnn.compile.run import check_out
from glnn.compile.weights import Weights
from glnn.errors import UnsupportedOpError
from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operators.control import Control
from glnn.graph.passes import fixed_captures, known_branches
from glnn.process import ProcessLock
from glnn.types import Array, DType, Shape, TensorType

PLANS_KEPT = 4  # of each part

Types = Mapping[Value, TensorType]


class Cut:
    """A graph on one backend for one set of input shapes, in parts."""

    def __init__(
        self,
        graph: Graph,
        late: Sequence[Node],
        backend: Backend,
        head: Plan,
        weights: Weights,
        precision: DType,
    ) -> None:
        """late: what `head`, the plan of the first part, leaves out."""
        self.graph, self.backend, self._head = graph, backend, head
        self.why = _why(graph, late)
        made = {value for node in late for value in node.outputs}
        self._now = [node for node in late if not made.intersection(node.reads)]
        self._bodies = {
            body: Plans(body, backend, weights, precision)
            for node in self._now
            if isinstance(node.operator, Control)
            for body in node.operator.bodies
        }
        tail = _tail(graph, [node for node in late if node not in self._now])
        self._inputs, self._outputs = tail.inputs, tail.outputs
        self._tail = Plans(tail, backend, weights, precision)

    def inside(
        self,
        feeds: Mapping[str, Array],
        outputs: Iterable[str] | None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """See `Plan.inside`; outputs whose sizes do not fit those of `out` are a ShapeError."""
        found = self._head.inside(feeds, None)
        arrays = {value: found[value.name] for value in self._head.graph.outputs}
        for node in self._now:
            arrays |= zip(node.outputs, self._results(node, arrays), strict=True)
        if self._outputs:
            results = self._tail.run([arrays[value] for value in self._inputs])
            arrays |= zip(self._outputs, results, strict=True)
        named = {value.name: arrays[value] for value in self.graph.outputs}
        for name, array in (out or {}).items():
            check_out(name, array, named[name].shape, DType.of(named[name]))
        for name, array in (out or {}).items():
            array[...] = named[name]
            named[name] = array
        return {name: named[name] for name in (outputs or named)}

    def _results(self, node: Node, arrays: Mapping[Value, Array]) -> tuple[Array, ...]:
        """Those of a node whose operands are there."""
        here = {**arrays}
        for value in node.reads:
            if value not in here and (array := self.graph.value_of(value)) is not None:
                here[value] = array
        given = [None if value is None else here[value] for value in node.inputs]
        op = node.operator
        assert isinstance(op, Control)
        return op.perform(lambda i, arrays: self._bodies[op.bodies[i]].run(arrays), *given)


class Plans:
    """The plans of a part, by the shapes of its inputs: the last few are kept."""

    def __init__(self, graph: Graph, backend: Backend, weights: Weights, precision: DType) -> None:
        self._graph, self._backend, self._weights = graph, backend, weights
        self._precision = precision
        self._kept: OrderedDict[tuple[Shape, ...], Plan | Cut] = OrderedDict()
        self._lock = ProcessLock()

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs for an array of each input, for callers inside `Backend.perform`."""
        feeds = {v.name: array for v, array in zip(self._graph.inputs, arrays, strict=True)}
        results = self._plan({name: array.shape for name, array in feeds.items()}).inside(
            feeds, None
        )
        return tuple(results[value.name] for value in self._graph.outputs)

    def _plan(self, shapes: Mapping[str, Shape]) -> Plan | Cut:
        key = tuple(shapes.values())
        with self._lock:
            if key not in self._kept:
                self._kept[key] = planned(
                    self._graph,
                    self._backend,
                    shapes,
                    weights=self._weights,
                    precision=self._precision,
                )
                if len(self._kept) > PLANS_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def planned(
    graph: Graph,
    backend: Backend,
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str] | None = None,
    *,
    keep: bool = False,
    weights: Weights | None = None,
    precision: DType = DType.float32,
) -> Plan | Cut:
    """`graph` made ready for inputs of `shapes`; the arguments are those of Plan, which raises the
    same; UnsupportedOpError where kernels are named for what comes in parts.
    """
    weights = Weights(backend) if weights is None else weights
    if any(node.operator.control for node in graph.nodes):
        graph = fixed_captures(known_branches(graph))
        types = {v.name: TensorType(tuple(shapes[v.name]), v.type.dtype) for v in graph.inputs}
        if late := _late(graph, graph.bind(types)):
            if kernels:
                why = _why(graph, late)
                raise UnsupportedOpError(f"{why}, so no kernels can be asked for, got {kernels}")
            head = Plan(_head(graph, late), backend, shapes, weights=weights, precision=precision)
            return Cut(graph, late, backend, head, weights, precision)
    return Plan(graph, backend, shapes, kernels, keep=keep, weights=weights, precision=precision)


def _why(graph: Graph, late: Sequence[Node]) -> str:
    node = late[0]
    return f"layer {node.name!r} of {graph.name} has sizes that only a run tells"


def _late(graph: Graph, types: Types) -> list[Node]:
    """The nodes that no plan can have before others have run."""
    late: list[Node] = []
    made: set[Value] = set()
    for node in graph.nodes:
        if made.intersection(node.reads) or _tells(node, types):
            late.append(node)
            made.update(node.outputs)
    return late


def _tells(node: Node, types: Types) -> bool:
    """Whether sizes of `node`, or in a body of it, are known only once it has run."""
    if any(types[value].symbols for value in node.outputs):
        return True
    if not isinstance(op := node.operator, Control):
        return False
    given = op.given([None if value is None else types[value] for value in node.inputs])
    return any(_late(b, b.bind(kinds)) for b, kinds in zip(op.bodies, given, strict=True))


def _head(graph: Graph, late: Sequence[Node]) -> Graph:
    """The nodes that are not `late`, for the outputs and for what those that are will read."""
    made = {value for node in late for value in node.outputs}
    read = [value for node in late for value in node.reads if graph.changes(value)]
    wanted = dict.fromkeys(value for value in (*graph.outputs, *read) if value not in made)
    nodes = tuple(node for node in graph.nodes if node not in late)
    return Graph(nodes, graph.inputs, tuple(wanted), graph.name)


def _tail(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """`nodes` and what they need that no run changes; what else they read is its inputs."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.reads if value not in made)
    fixed = [value for value in read if not graph.changes(value)]
    inputs = tuple(value for value in read if graph.changes(value))
    outputs = tuple(value for value in dict.fromkeys(graph.outputs) if value in made)
    return Graph((*ordered(fixed, graph.producers), *nodes), inputs, outputs, graph.name)
