"""Graphs with sizes known only in a run: planned in parts, each once its inputs' shapes are known.

The first part, the head, is all that can be planned for the inputs' shapes. Then the host runs the
nodes that are ready: branches and loops whose results, or values in whose bodies, have sizes not
known before, with plans of the bodies for the shapes that these get. The rest, the tail, is planned
for the shapes of their results, and may be partitioned again. Arrays pass between parts by way of
the host.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from traceback import clear_frames
from typing import Any

import numpy as np

from glnn.backends import Backend
from glnn.compiler.cpu_fallback import LATE, Hosted
from glnn.compiler.emit import SizeRange
from glnn.compiler.memory_budget import Outline
from glnn.compiler.plan import EXACT, Plan
from glnn.compiler.range_plans import RangePlans
from glnn.compiler.states import States
from glnn.compiler.weights import Weights
from glnn.core.process import COLLECTOR, process_lock
from glnn.core.symint import Substitution, SymInt, hint, is_symbolic
from glnn.core.types import UNKNOWN, Array, DType, TensorType, content
from glnn.errors import LimitError, NoRoomError, UnsupportedOpError
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Node, Value, ordered
from glnn.graph.operators.control_flow import Control
from glnn.graph.passes import (
    Pass,
    batch_size_of,
    expand_composites,
    expand_subgraphs,
    inline_constant_branches,
    inline_constant_captures,
)
from glnn.graph.passes.index_bounds import trace_indices
from glnn.runtime.device_array import DeviceArray, Feed
from glnn.runtime.runner import Out, check_out

LOG = logging.getLogger(__name__)
PLANS_KEPT = 4  # of each part

Types = Mapping[Value, TensorType]
_Key = tuple[tuple[TensorType, ...], tuple[tuple[str, object], ...] | None]
"""The types of a part's inputs, and the numbers that sizes depend on; None for any numbers."""


@dataclass(frozen=True, eq=False)
class _SharedOptions:
    """Planning options that all parts of a graph share; see Plan."""

    backend: Backend
    weights: Weights
    precision: DType
    samples: int
    without: frozenset[Pass]

    def plan(
        self,
        graph: Graph,
        types: Mapping[str, TensorType],
        shape_inputs: Mapping[str, Array] | None,
        checked_inputs: Mapping[str, str],
        *,
        by_numbers: bool = True,
        domain: SizeRange = EXACT,
    ) -> Plan | PartitionedGraph:
        """Plan a part of the graph; see `plan_graph`."""
        return plan_graph(
            graph,
            self.backend,
            types,
            weights=self.weights,
            precision=self.precision,
            samples=self.samples,
            without=self.without,
            shape_inputs=shape_inputs,
            checked_inputs=checked_inputs,
            by_numbers=by_numbers,
            domain=domain,
        )


class PartitionedGraph:
    """A graph on one backend, in parts.

    It serves the input shapes that its head does: the guards of the split are among the head's.
    """

    def __init__(
        self,
        graph: Graph,
        late: Sequence[Node],
        head: Plan | PartitionedGraph,
        head_outputs: Sequence[Value],
        shared: _SharedOptions,
        shape_inputs: Iterable[str],
        checked_inputs: Mapping[str, str],
        *,
        by_numbers: bool = True,
    ) -> None:
        """late: the nodes that are not in `head`, the plan of the first part. head_outputs: the
        outputs of `head`. shape_inputs: the inputs whose numbers are known already. checked_inputs:
        see Plan. by_numbers: see `plan_graph`.
        """
        self.graph, self.backend, self._head = graph, shared.backend, head
        self._head_outputs = tuple(head_outputs)
        self.why = _why(graph, late)
        self._ready = _ready_nodes(graph, late, shape_inputs, by_numbers=by_numbers)
        self._bodies = {
            body: PartPlans(body, shared, {})
            for node in self._ready
            if isinstance(node.operator, Control)
            for body in node.operator.bodies
        }
        tail = _tail(graph, [node for node in late if node not in self._ready], self._ready)
        self._tail_inputs, self._tail_outputs = tail.inputs, tail.outputs
        checked = _checked_values(head.graph, head_outputs, checked_inputs)
        self._tail = PartPlans(tail, shared, checked)

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, as far as the graph has been planned."""
        ready = _hosted(self._ready) if self.backend.device else ()
        parts = (self._tail, *self._bodies.values())
        return (*self._head.hosted, *ready, *(op for part in parts for op in part.hosted))

    @property
    def is_open(self) -> bool:
        """Return True where the plan serves a range of sizes."""
        return self._head.is_open

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where the head can run inputs such as `feeds`."""
        return self._head.admits(feeds)

    def was_chosen_for_others(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where the head's kernels were chosen for other sizes."""
        return self._head.was_chosen_for_others(feeds)

    def run_on_thread(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """See `Plan.run_on_thread`. Raises ShapeError where an output does not fit its `out`."""
        head_results = self._head.run_on_thread(feeds, None)
        arrays = {value: head_results[value.name] for value in self._head_outputs}
        for node in self._ready:
            arrays |= zip(node.outputs, self._compute(node, arrays), strict=True)
        if self._tail_outputs:
            tail_results = self._tail.run([arrays[value] for value in self._tail_inputs])
            arrays |= zip(self._tail_outputs, tail_results, strict=True)
        # A composite returns the same array again for the same numbers: the caller gets a copy.
        reused = {value for node in self._ready for value in node.outputs}
        named: dict[str, Any] = {
            value.name: arrays[value].copy() if value in reused else arrays[value]
            for value in self.graph.outputs
        }
        for name, array in (out or {}).items():
            check_out(name, array, named[name].shape, DType.from_array(named[name]))
        for name, array in (out or {}).items():
            if isinstance(array, np.ndarray):
                array[...] = named[name]
                named[name] = array
            else:  # arrays pass between parts by way of the host
                named[name] = DeviceArray.of_host(named[name])
        return {name: named[name] for name in (outputs or named)}

    def _compute(self, node: Node, arrays: Mapping[Value, Array]) -> tuple[Array, ...]:
        """Compute `node` on the host from its operands in `arrays`, and return its results."""
        known = {**arrays}
        for value in node.reads:
            if value not in known and (array := self.graph.value_of(value)) is not None:
                known[value] = array
        operands = [None if value is None else known[value] for value in node.inputs]
        op = node.operator
        if isinstance(op, Composite):
            types = [
                None if value is None else _run_type(value, known[value]) for value in node.inputs
            ]
            return op.evaluate(types, operands)
        if not isinstance(op, Control):
            return op.reference(*operands)
        return op.perform(lambda i, arrays: self._bodies[op.bodies[i]].run(arrays), *operands)


def _run_type(value: Value, array: Array) -> TensorType:
    """Return the type that `value` has in a run: that of `array`, unless it is no tensor, as a
    sequence.
    """
    return value.type if value.type.holds else TensorType.from_array(array)


class PartPlans:
    """The plans of a part, by the shapes of its inputs: the last few are kept.

    A plan is also for the numbers of inputs that sizes depend on. Where there are more such numbers
    than plans are kept, as in a loop that counts, the host computes what depends on them, and one
    plan serves all numbers.
    """

    def __init__(
        self, graph: Graph, shared: _SharedOptions, checked_inputs: Mapping[str, str]
    ) -> None:
        """checked_inputs: see Plan."""
        self._graph, self._shared, self._checked_inputs = graph, shared, checked_inputs
        self._plans: OrderedDict[_Key, Plan | PartitionedGraph] = OrderedDict()
        self._range_plans = RangePlans[Plan | PartitionedGraph]()
        self._lock = process_lock()

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, of all plans made so far."""
        with self._lock:
            plans = (*self._plans.values(), *self._range_plans.plans)
        return tuple(op for plan in plans for op in plan.hosted)

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs for an array of each input. Only inside `Backend.perform`."""
        feeds = {v.name: array for v, array in zip(self._graph.inputs, arrays, strict=True)}
        results = self._results(feeds)
        return tuple(results[value.name] for value in self._graph.outputs)

    def _results(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name.

        Where a plan for a range cannot be bound to the sizes, these get a plan of their own, as in
        `Executor.with_room` for whole graphs.
        """
        plan = self._plan(feeds)
        try:
            return plan.run_on_thread(feeds, None)
        except (LimitError, MemoryError) as error:
            clear_frames(error.__traceback__)  # its frames would keep the plan and its memory
            if not plan.is_open:
                raise
            LOG.debug("%s: %s", self._graph.name, error)
            if isinstance(error, (NoRoomError, MemoryError)):
                with self._lock:
                    self._plans.clear()
                    self._range_plans.plans.clear()
        del plan
        return self._plan(feeds, exact=True).run_on_thread(feeds, None)

    def _plan(self, feeds: Mapping[str, Array], *, exact: bool = False) -> Plan | PartitionedGraph:
        """Return the plan for `feeds`. exact: True for a plan of their sizes alone."""
        types = {value.name: _run_type(value, feeds[value.name]) for value in self._graph.inputs}
        shape_inputs = self._graph.shape_input_arrays(feeds)
        sizes = tuple(types.values())
        numbers = tuple((n, content(array)) for n, array in shape_inputs.items())
        with self._lock:
            key: _Key = (sizes, numbers)
            needs_exact = exact or key in self._plans
            if not needs_exact and (plan := self._range_plan(types, feeds, shape_inputs)):
                return plan
            others = sum(one[0] == sizes and one[1] is not None for one in self._plans)
            by_numbers = not numbers or key in self._plans or others < PLANS_KEPT - 1
            if not by_numbers:  # one plan for all further numbers
                shape_inputs, key = {}, (sizes, None)
            if key not in self._plans:
                self._plans[key] = self._shared.plan(
                    self._graph, types, shape_inputs, self._checked_inputs, by_numbers=by_numbers
                )
                if len(self._plans) > PLANS_KEPT:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(key)
            return self._plans[key]

    def _range_plan(
        self,
        types: Mapping[str, TensorType],
        feeds: Mapping[str, Array],
        shape_inputs: Mapping[str, Array],
    ) -> Plan | PartitionedGraph | None:
        """Return the plan for a range with the sizes of `feeds`; None where there can be none."""
        if any(type.holds for type in types.values()):
            return None
        return self._range_plans.find(feeds) or self._range_plans.add(
            self._graph,
            {name: array.shape for name, array in feeds.items()},
            shape_inputs,
            lambda types, shape_inputs, domain: self._shared.plan(
                self._graph, types, shape_inputs, self._checked_inputs, domain=domain
            ),
        )


@COLLECTOR.relaxed()
def plan_graph(
    graph: Graph,
    backend: Backend,
    types: Mapping[str, TensorType],
    kernels: Mapping[str, str] | None = None,
    *,
    keep: bool = False,
    weights: Weights | None = None,
    precision: DType = DType.float32,
    samples: int | None = None,
    without: frozenset[Pass] = frozenset(),
    shape_inputs: Mapping[str, Array] | None = None,
    checked_inputs: Mapping[str, str] | None = None,
    by_numbers: bool = True,
    states: States | None = None,
    updates: Mapping[str, str] | None = None,
    domain: SizeRange = EXACT,
) -> Plan | PartitionedGraph:
    """Plan `graph` for inputs of `types`: a Plan, or a PartitionedGraph where sizes are known only
    in a run.

    Takes the arguments of Plan, and raises the same; UnsupportedOpError also where kernels are
    named, or states given, for a graph that must be partitioned. shape_inputs: the numbers of
    inputs that sizes depend on. samples: None where symbols of the inputs of `graph` tell.
    by_numbers: True to plan nodes whose sizes depend on numbers, which the head computes or are
    inputs, for these numbers; False to have the host compute these nodes, so that one plan serves
    all numbers. domain: see Plan; the parts serve the range, too.
    """
    weights = Weights(backend) if weights is None else weights
    shapes = {name: type.shape for name, type in types.items()}
    samples = batch_size_of(graph, shapes) if samples is None else samples
    # They become constants of the plan, and the caller may change its arrays later.
    shape_inputs = deepcopy(shape_inputs)
    if any(node.operator.control or node.operator.composite for node in graph.nodes):
        original = graph
        graph = _with_known_branches(graph, types, shape_inputs)
        if late := _late_nodes(graph, types, shape_inputs):
            why = _why(graph, late)
            if any(one.is_number for one in domain.symbols):
                at_hand = Substitution(hint)((types, shape_inputs))
                if not _late_nodes(_with_known_branches(original, *at_hand), *at_hand):
                    raise UnsupportedOpError(f"{why} unless the numbers of inputs are known")
            if kernels:
                raise UnsupportedOpError(f"{why}, so no kernels can be asked for, got {kernels}")
            if states is not None:
                raise UnsupportedOpError(f"{why}, so there is no single plan, which states need")
            head_graph = _head(graph, late)
            shared = _SharedOptions(backend, weights, precision, samples, without)
            if checked_inputs is None:
                checked_inputs = {value.name: f"input {value.name!r}" for value in graph.inputs}
            head_outputs: Sequence[Value] = head_graph.outputs
            if domain.symbols:
                graph, late, head_outputs = _without_symints(graph, late, head_outputs)
            head = shared.plan(head_graph, types, shape_inputs, checked_inputs, domain=domain)
            return PartitionedGraph(
                graph,
                late,
                head,
                head_outputs,
                shared,
                shape_inputs or (),
                checked_inputs,
                by_numbers=by_numbers,
            )
        graph = expand_composites(graph, types, shape_inputs)
    return Plan(
        graph,
        backend,
        shapes,
        kernels,
        keep=keep,
        weights=weights,
        precision=precision,
        samples=samples,
        without=without,
        checked_inputs=checked_inputs,
        states=states,
        updates=updates,
        domain=domain,
    )


def _with_known_branches(
    graph: Graph, types: Mapping[str, TensorType], shape_inputs: Mapping[str, Array] | None
) -> Graph:
    """Return `graph` with functions inlined, and branches whose condition is known from `types` and
    `shape_inputs`.
    """
    return inline_constant_captures(
        inline_constant_branches(expand_subgraphs(graph, types, shape_inputs))
    )


def single_plan_graph(
    graph: Graph, types: Mapping[str, TensorType], shape_inputs: Mapping[str, Array] | None = None
) -> Graph:
    """Return `graph` as a single Plan takes it, for inputs of `types` and numbers `shape_inputs`.

    Raises UnsupportedOpError where sizes known only in a run make it several plans.
    """
    graph = _with_known_branches(graph, types, shape_inputs)
    if late := _late_nodes(graph, types, shape_inputs):
        raise UnsupportedOpError(f"{_why(graph, late)}, so there is no single plan")
    return expand_composites(graph, types, shape_inputs)


def find_hosted(
    graph: Graph,
    backend: Backend,
    types: Mapping[str, TensorType],
    shape_inputs: Mapping[str, Array] | None = None,
) -> tuple[Hosted, ...]:
    """Return the steps of `graph` that the host computes on `backend`, as far as is known before a
    run.

    Nothing is allocated. The arguments are those of `plan_graph`, which raises the same.
    """
    graph = _with_known_branches(graph, types, shape_inputs)
    late = _late_nodes(graph, types, shape_inputs)
    head = expand_composites(_head(graph, late) if late else graph, types, shape_inputs)
    shapes = {name: type.shape for name, type in types.items()}
    hosted = backend.perform(lambda: Outline.create(head, backend, shapes).hosted)
    return (*hosted, *_hosted(_ready_nodes(graph, late, shape_inputs or ())))


def _hosted(nodes: Iterable[Node]) -> tuple[Hosted, ...]:
    """Return `nodes`, without control flow, as steps that the host computes."""
    computed = (node for node in nodes if not node.operator.control)
    return tuple(Hosted(node.name, node.operator.label, LATE) for node in computed)


def _why(graph: Graph, late: Sequence[Node]) -> str:
    node = late[0]
    return f"layer {node.name!r} of {graph.name} has sizes that only a run tells"


def _late_nodes(
    graph: Graph,
    input_types: Mapping[str, TensorType],
    shape_inputs: Mapping[str, Array] | None = None,
) -> list[Node]:
    """Return the nodes that can be planned only after others have run, for `input_types`."""
    types, constants = graph.propagate_constants(input_types, shape_inputs)
    late: list[Node] = []
    late_values: set[Value] = set()
    for node in graph.nodes:
        if late_values.intersection(node.reads) or _has_late_sizes(node, types, constants):
            late.append(node)
            late_values.update(node.outputs)
    return late


def _has_late_sizes(node: Node, types: Types, constants: Mapping[Value, Array]) -> bool:
    """Return True where sizes of the results or bodies of `node` are known only in a run."""
    if any(types[value].symbols for value in node.outputs):
        return True
    if not isinstance(op := node.operator, Control):
        return False
    body_types = op.body_types([None if value is None else types[value] for value in node.inputs])
    numbers = op.body_constants(
        [None if value is None else constants.get(value) for value in node.inputs]
    )
    return any(
        _late_nodes(expand_subgraphs(body, types_in_body, arrays), types_in_body, arrays)
        for body, types_in_body, arrays in zip(op.bodies, body_types, numbers, strict=True)
    )


def _checked_values(
    head: Graph, values: Sequence[Value], checked_inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return the values among `values` that hold numbers of the model's inputs, each with its name
    in errors.

    values: the outputs of `head` as the tail has them. checked_inputs: the same of the inputs.
    """
    result: dict[str, str] = {}
    for value, output in zip(values, head.outputs, strict=True):
        source = trace_indices(head, output)
        if source.value.kind is Kind.INPUT and (name := checked_inputs.get(source.value.name)):
            result[value.name] = name if source.is_same_shape else f"{name}, reshaped,"
    return result


def _ready_nodes(
    graph: Graph, late: Sequence[Node], shape_inputs: Iterable[str], *, by_numbers: bool = True
) -> list[Node]:
    """Return the nodes of `late` that the host runs after the head, which computes their operands.

    With `by_numbers`, nodes whose sizes follow from the operands' numbers are left to the tail,
    which is planned once these are known. shape_inputs: the inputs whose numbers were known before.
    """
    known = frozenset(shape_inputs)
    late_values = {value for node in late for value in node.outputs}
    ready = [node for node in late if not late_values.intersection(node.reads)]
    return [node for node in ready if not (by_numbers and _is_sized_by_numbers(graph, node, known))]


def _is_sized_by_numbers(graph: Graph, node: Node, constant_names: frozenset[str]) -> bool:
    """Return True where the sizes of the node's results follow from numbers of its operands that
    runs change. constant_names: inputs whose numbers were known before.
    """
    operator = node.operator
    if isinstance(operator, Control) or not operator.shape_inputs:
        return False
    named = operator.named(node.inputs)
    values = [named[name] for name in operator.shape_inputs if name in named]
    return any(graph.changes(value) and value.name not in constant_names for value in values)


def _head(graph: Graph, late: Sequence[Node]) -> Graph:
    """Return the nodes that are not `late`; the outputs are those of `graph`, and what late nodes
    read.
    """
    late_values = {value for node in late for value in node.outputs}
    read = [value for node in late for value in node.reads if _changes(graph, value)]
    outputs = dict.fromkeys(value for value in (*graph.outputs, *read) if value not in late_values)
    nodes = tuple(node for node in graph.nodes if node not in late)
    return Graph(nodes, graph.inputs, tuple(outputs), graph.name)


def _tail(graph: Graph, nodes: Sequence[Node], ready: Sequence[Node]) -> Graph:
    """Return `nodes`, with the constants that they read; all else that they read is an input.

    Results of the nodes `ready` are inputs even where no run changes them, as a part of a constant
    sequence.
    """
    made = {value for node in nodes for value in node.outputs}
    computed = {value for node in ready for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.reads if value not in made)
    inputs = tuple(value for value in read if value in computed or _changes(graph, value))
    fixed = [value for value in read if value not in inputs]
    outputs = tuple(value for value in dict.fromkeys(graph.outputs) if value in made)
    return Graph((*ordered(fixed, graph.producers), *nodes), inputs, outputs, graph.name)


def _changes(graph: Graph, value: Value) -> bool:
    """Return True where a run may change `value`, or it depends on symbolic sizes."""
    if graph.changes(value):
        return True
    operands = (read for node in ordered((value,), graph.producers) for read in node.reads)
    return any(map(_is_symbolic_constant, (value, *operands)))


def _is_symbolic_constant(value: Value) -> bool:
    return value.kind is Kind.CONSTANT and is_symbolic(value.data)  # type: ignore[arg-type]


def _without_symints(
    graph: Graph, late: Sequence[Node], head_outputs: Sequence[Value]
) -> tuple[Graph, list[Node], tuple[Value, ...]]:
    """Return the graph of the `late` nodes, these nodes and `head_outputs`, all without SymInts.

    head_outputs: the outputs of the head, the inputs of that graph. Raises UnsupportedOpError where
    anything but a type has SymInts, as a body that was built for these sizes.
    """
    tail = replace(_tail(graph, late, ()), inputs=tuple(head_outputs), outputs=graph.outputs)
    change = _SymIntRemoval(graph, head_outputs)
    return change(tail), [change(node) for node in late], change(tuple(head_outputs))


class _SymIntRemoval(Substitution):
    """Substitutes unknown sizes for SymInts in types, and inputs for constants made of SymInts."""

    def __init__(self, graph: Graph, inputs: Iterable[Value]) -> None:
        super().__init__(self._refuse)
        self._name = graph.name
        self._inputs = frozenset(filter(_is_symbolic_constant, inputs))

    def _refuse(self, size: SymInt) -> int:
        raise UnsupportedOpError(f"{self._name} was taken apart for the size {size.hint}")

    def _made(self, value: Any) -> Any:
        if isinstance(value, TensorType):
            dims = tuple(UNKNOWN if isinstance(dim, SymInt) else dim for dim in value.dims)
            return replace(value, dims=dims)
        if isinstance(value, Value) and value.kind is Kind.VARIABLE:
            return value
        if isinstance(value, Value) and value in self._inputs:
            return Value(value.name, self(value.type))
        return super()._made(value)
