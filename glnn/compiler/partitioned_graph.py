"""Graphs with sizes that only a run tells: planned in parts, each once its shapes are known.

What can be planned for the inputs' shapes is a plan. Then come the branches and loops whose results
are of sizes not known before, or that have such in their bodies: the host runs them, each body by
plans for the shapes that it comes to be given. What reads their results is planned when these are
there, and may come in parts again. From part to part arrays go by way of the host.
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

    It serves the input shapes that its first part does, whose guards are those of the split, too.
    """

    def __init__(
        self,
        graph: Graph,
        late: Sequence[Node],
        head: Plan | PartitionedGraph,
        requested: Sequence[Value],
        shared: _SharedOptions,
        shape_inputs: Iterable[str],
        checked_inputs: Mapping[str, str],
        *,
        by_numbers: bool = True,
    ) -> None:
        """late: the nodes that `head`, the plan of the first part, leaves out. requested: the
        outputs of `head`. shape_inputs: the inputs whose numbers are known already. checked_inputs:
        see Plan. by_numbers: see `plan_graph`.
        """
        self.graph, self.backend, self._head = graph, shared.backend, head
        self._requested = tuple(requested)
        self.why = _why(graph, late)
        self._now = _ready(graph, late, shape_inputs, by_numbers=by_numbers)
        self._bodies = {
            body: PartPlans(body, shared, {})
            for node in self._now
            if isinstance(node.operator, Control)
            for body in node.operator.bodies
        }
        tail = _tail(graph, [node for node in late if node not in self._now], self._now)
        self._inputs, self._outputs = tail.inputs, tail.outputs
        self._tail = PartPlans(tail, shared, _passed_on(head.graph, requested, checked_inputs))

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, as far as the graph has been planned."""
        now = _hosted(self._now) if self.backend.device else ()
        parts = (self._tail, *self._bodies.values())
        return (*self._head.hosted, *now, *(op for part in parts for op in part.hosted))

    @property
    def is_open(self) -> bool:
        """Return True where the plan serves a range of sizes."""
        return self._head.is_open

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where its first part can run inputs such as `feeds`."""
        return self._head.admits(feeds)

    def was_chosen_for_others(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where that part's kernels were chosen for other sizes."""
        return self._head.was_chosen_for_others(feeds)

    def run_on_thread(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """See `Plan.run_on_thread`. Raises ShapeError where an output does not fit its `out`."""
        first_results = self._head.run_on_thread(feeds, None)
        arrays = {value: first_results[value.name] for value in self._requested}
        for node in self._now:
            arrays |= zip(node.outputs, self._results(node, arrays), strict=True)
        if self._outputs:
            results = self._tail.run([arrays[value] for value in self._inputs])
            arrays |= zip(self._outputs, results, strict=True)
        # A composite gives the same array again for the same numbers: it is not the caller's.
        kept = {value for node in self._now for value in node.outputs}
        named: dict[str, Any] = {
            value.name: arrays[value].copy() if value in kept else arrays[value]
            for value in self.graph.outputs
        }
        for name, array in (out or {}).items():
            check_out(name, array, named[name].shape, DType.from_array(named[name]))
        for name, array in (out or {}).items():
            if isinstance(array, np.ndarray):
                array[...] = named[name]
                named[name] = array
            else:  # from part to part arrays go by way of the host
                named[name] = DeviceArray.of_host(named[name])
        return {name: named[name] for name in (outputs or named)}

    def _results(self, node: Node, arrays: Mapping[Value, Array]) -> tuple[Array, ...]:
        """Compute `node` on the host from its operands in `arrays`, and return its results."""
        here = {**arrays}
        for value in node.reads:
            if value not in here and (array := self.graph.value_of(value)) is not None:
                here[value] = array
        operands = [None if value is None else here[value] for value in node.inputs]
        op = node.operator
        if isinstance(op, Composite):
            types = [
                None if value is None else _type_here(value.type, here[value])
                for value in node.inputs
            ]
            return op.evaluate(types, operands)
        if not isinstance(op, Control):
            return op.reference(*operands)
        return op.perform(lambda i, arrays: self._bodies[op.bodies[i]].run(arrays), *operands)


def _type_here(type: TensorType, array: Array) -> TensorType:
    """Return the type of an array in a run; `type` says what a single object holds."""
    return type if type.holds else TensorType.from_array(array)


class PartPlans:
    """The plans of a part, by the shapes of its inputs: the last few are kept.

    A plan is for the numbers, too, that sizes depend on. Where more of these come than plans are
    kept, the host computes what depends on them, and one plan does for all.
    """

    def __init__(
        self, graph: Graph, shared: _SharedOptions, checked_inputs: Mapping[str, str]
    ) -> None:
        """checked_inputs: see Plan."""
        self._graph, self._shared, self._checked_inputs = graph, shared, checked_inputs
        self._kept: OrderedDict[_Key, Plan | PartitionedGraph] = OrderedDict()
        self._range_plans = RangePlans[Plan | PartitionedGraph]()
        self._lock = process_lock()

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, of all plans made so far."""
        with self._lock:
            plans = (*self._kept.values(), *self._range_plans.plans)
        return tuple(op for plan in plans for op in plan.hosted)

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs for an array of each input, for callers inside `Backend.perform`."""
        feeds = {v.name: array for v, array in zip(self._graph.inputs, arrays, strict=True)}
        results = self._results(feeds)
        return tuple(results[value.name] for value in self._graph.outputs)

    def _results(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name. Where a plan for a range cannot be bound, these sizes get their own,
        as `Executor.with_room` has it for whole graphs.
        """
        plan = self._plan(feeds)
        try:
            return plan.run_on_thread(feeds, None)
        except (LimitError, MemoryError) as error:
            clear_frames(error.__traceback__)  # whoever keeps it keeps no plan and its memory
            if not plan.is_open:
                raise
            LOG.debug("%s: %s", self._graph.name, error)
            if isinstance(error, (NoRoomError, MemoryError)):
                with self._lock:
                    self._kept.clear()
                    self._range_plans.plans.clear()
        del plan
        return self._plan(feeds, exact=True).run_on_thread(feeds, None)

    def _plan(self, feeds: Mapping[str, Array], *, exact: bool = False) -> Plan | PartitionedGraph:
        """The plan for such inputs. exact: whether it must be for just their sizes."""
        types = {value.name: _type(value, feeds[value.name]) for value in self._graph.inputs}
        shape_inputs = self._graph.shape_input_arrays(feeds)
        sizes = tuple(types.values())
        numbers = tuple((n, content(array)) for n, array in shape_inputs.items())
        with self._lock:
            key: _Key = (sizes, numbers)
            unbound = exact or key in self._kept
            if not unbound and (plan := self._open(types, feeds, shape_inputs)) is not None:
                return plan
            others = sum(one[0] == sizes and one[1] is not None for one in self._kept)
            by_numbers = not numbers or key in self._kept or others < PLANS_KEPT - 1
            if not by_numbers:  # as of a loop that counts: one plan for all further numbers
                shape_inputs, key = {}, (sizes, None)
            if key not in self._kept:
                self._kept[key] = self._shared.plan(
                    self._graph, types, shape_inputs, self._checked_inputs, by_numbers=by_numbers
                )
                if len(self._kept) > PLANS_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def _open(
        self,
        types: Mapping[str, TensorType],
        feeds: Mapping[str, Array],
        shape_inputs: Mapping[str, Array],
    ) -> Plan | PartitionedGraph | None:
        """The plan for open sizes that such inputs are among, if there can be one."""
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


def _type(value: Value, array: Array) -> TensorType:
    """Return the type of `value` where it is no tensor, as a sequence, else that of `array`."""
    return value.type if value.type.holds else TensorType.from_array(array)


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
    """`graph` made ready for inputs of `types`; the arguments are those of Plan, which raises the
    same; UnsupportedOpError where kernels are named, or states given, for what comes in parts.
    shape_inputs: the numbers of inputs that sizes depend on. samples: None where `graph` says by
    symbols of its inputs. by_numbers: whether what depends on numbers that the first part computes,
    or is given, is planned for these; else the host computes it, and the same plan does for all
    numbers. domain: see Plan; the parts of what comes in parts serve the range, too.
    """
    weights = Weights(backend) if weights is None else weights
    shapes = {name: type.shape for name, type in types.items()}
    samples = batch_size_of(graph, shapes) if samples is None else samples
    shape_inputs = deepcopy(
        shape_inputs
    )  # they become constants of the plan, and are the caller's to change
    if any(node.operator.control or node.operator.composite for node in graph.nodes):
        whole = graph
        graph = _with_known_branches(graph, types, shape_inputs)
        if late := _late_nodes(graph, types, shape_inputs):
            why = _why(graph, late)
            if any(one.is_number for one in domain.symbols):
                at_hand = Substitution(hint)((types, shape_inputs))
                if not _late_nodes(_with_known_branches(whole, *at_hand), *at_hand):
                    raise UnsupportedOpError(f"{why} unless the numbers of inputs are known")
            if kernels:
                raise UnsupportedOpError(f"{why}, so no kernels can be asked for, got {kernels}")
            if states is not None:
                raise UnsupportedOpError(f"{why}, so there is no single plan, which states need")
            first = _head(graph, late)
            shared = _SharedOptions(backend, weights, precision, samples, without)
            if checked_inputs is None:
                checked_inputs = {value.name: f"input {value.name!r}" for value in graph.inputs}
            outputs: Sequence[Value] = first.outputs
            if domain.symbols:
                graph, late, outputs = _of_any_size(graph, late, outputs)
            head = shared.plan(first, types, shape_inputs, checked_inputs, domain=domain)
            return PartitionedGraph(
                graph,
                late,
                head,
                outputs,
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
    """Return `graph` with functions and branches that `types` and `shape_inputs` decide in their
    places.
    """
    return inline_constant_captures(
        inline_constant_branches(expand_subgraphs(graph, types, shape_inputs))
    )


def single_plan_graph(
    graph: Graph, types: Mapping[str, TensorType], shape_inputs: Mapping[str, Array] | None = None
) -> Graph:
    """`graph` as one plan has it for inputs of `types`, of the numbers `shape_inputs`, by name.

    Raises UnsupportedOpError where sizes that only a run tells make it several plans.
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
    first = expand_composites(_head(graph, late) if late else graph, types, shape_inputs)
    shapes = {name: type.shape for name, type in types.items()}
    hosted = backend.perform(lambda: Outline.create(first, backend, shapes).hosted)
    return (*hosted, *_hosted(_ready(graph, late, shape_inputs or ())))


def _hosted(nodes: Iterable[Node]) -> tuple[Hosted, ...]:
    """Return those of `nodes` that are no control flow as steps that the host computes."""
    there = (node for node in nodes if not node.operator.control)
    return tuple(Hosted(node.name, node.operator.label, LATE) for node in there)


def _why(graph: Graph, late: Sequence[Node]) -> str:
    node = late[0]
    return f"layer {node.name!r} of {graph.name} has sizes that only a run tells"


def _late_nodes(
    graph: Graph,
    input_types: Mapping[str, TensorType],
    shape_inputs: Mapping[str, Array] | None = None,
) -> list[Node]:
    """The nodes that no plan can have before others have run, for inputs of types `input_types`."""
    types, known = graph.propagate_constants(input_types, shape_inputs)
    late: list[Node] = []
    made: set[Value] = set()
    for node in graph.nodes:
        if made.intersection(node.reads) or _has_late_sizes(node, types, known):
            late.append(node)
            made.update(node.outputs)
    return late


def _has_late_sizes(node: Node, types: Types, constants: Mapping[Value, Array]) -> bool:
    """Return True where sizes of `node`, or in a body of it, are known only once it has run."""
    if any(types[value].symbols for value in node.outputs):
        return True
    if not isinstance(op := node.operator, Control):
        return False
    body_types = op.body_types([None if value is None else types[value] for value in node.inputs])
    numbers = op.body_constants(
        [None if value is None else constants.get(value) for value in node.inputs]
    )
    return any(
        _late_nodes(expand_subgraphs(body, kinds, arrays), kinds, arrays)
        for body, kinds, arrays in zip(op.bodies, body_types, numbers, strict=True)
    )


def _passed_on(
    head: Graph, requested: Sequence[Value], checked_inputs: Mapping[str, str]
) -> dict[str, str]:
    """Return which of `requested` have the numbers of the model's inputs, with what errors call
    them.

    head: the graph whose outputs `requested` are. checked_inputs: the same of its inputs.
    """
    result: dict[str, str] = {}
    for value, output in zip(requested, head.outputs, strict=True):
        source = trace_indices(head, output)
        if source.value.kind is Kind.INPUT and (called := checked_inputs.get(source.value.name)):
            result[value.name] = called if source.whole else f"{called}, reshaped,"
    return result


def _ready(
    graph: Graph, late: Sequence[Node], shape_inputs: Iterable[str], *, by_numbers: bool = True
) -> list[Node]:
    """Return those of `late` that the host can run now, as all of their operands are computed.

    A node whose sizes depend on numbers that have just been computed is planned behind it instead.
    shape_inputs: the inputs whose numbers were known before. by_numbers: see `plan_graph`.
    """
    known = frozenset(shape_inputs)
    made = {value for node in late for value in node.outputs}
    ready = [node for node in late if not made.intersection(node.reads)]
    return [node for node in ready if not (by_numbers and _planned_next(graph, node, known))]


def _planned_next(graph: Graph, node: Node, constant_names: frozenset[str]) -> bool:
    """Return True where the sizes of the node's results are known once its operands' values are."""
    operator = node.operator
    if isinstance(operator, Control) or not operator.shape_inputs:
        return False
    named = operator.named(node.inputs)
    values = [named[name] for name in operator.shape_inputs if name in named]
    return any(graph.changes(value) and value.name not in constant_names for value in values)


def _head(graph: Graph, late: Sequence[Node]) -> Graph:
    """The nodes that are not `late`, for the outputs and for what those that are will read."""
    made = {value for node in late for value in node.outputs}
    read = [value for node in late for value in node.reads if _changes(graph, value)]
    wanted = dict.fromkeys(value for value in (*graph.outputs, *read) if value not in made)
    nodes = tuple(node for node in graph.nodes if node not in late)
    return Graph(nodes, graph.inputs, tuple(wanted), graph.name)


def _tail(graph: Graph, nodes: Sequence[Node], before: Sequence[Node]) -> Graph:
    """`nodes` and what they need that no run changes; what else they read is its inputs.

    So is what `before` made, which may be the same in each run, as a part of a constant sequence.
    """
    made = {value for node in nodes for value in node.outputs}
    there = {value for node in before for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.reads if value not in made)
    inputs = tuple(value for value in read if value in there or _changes(graph, value))
    fixed = [value for value in read if value not in inputs]
    outputs = tuple(value for value in dict.fromkeys(graph.outputs) if value in made)
    return Graph((*ordered(fixed, graph.producers), *nodes), inputs, outputs, graph.name)


def _changes(graph: Graph, value: Value) -> bool:
    """Return True where a run may change `value`, also by sizes from which it follows."""
    if graph.changes(value):
        return True
    made_of = (read for node in ordered((value,), graph.producers) for read in node.reads)
    return any(map(_follows_from_sizes, (value, *made_of)))


def _follows_from_sizes(value: Value) -> bool:
    return value.kind is Kind.CONSTANT and is_symbolic(value.data)  # type: ignore[arg-type]


def _of_any_size(
    graph: Graph, late: Sequence[Node], inputs: Sequence[Value]
) -> tuple[Graph, list[Node], tuple[Value, ...]]:
    """Return the rest of `graph` without SymInts, with its late nodes, and the values in `inputs`.

    inputs: the outputs of the first part, its inputs. Raises UnsupportedOpError where something
    else than types holds SymInts, as a body that was built for these sizes.
    """
    rest = replace(_tail(graph, late, ()), inputs=tuple(inputs), outputs=graph.outputs)
    change = _WithoutSizes(graph, inputs)
    return change(rest), [change(node) for node in late], change(tuple(inputs))


class _WithoutSizes(Substitution):
    """Makes sizes that are SymInts unknown again, and inputs of the constants made of these."""

    def __init__(self, graph: Graph, inputs: Iterable[Value]) -> None:
        super().__init__(self._refused)
        self._name = graph.name
        self._inputs = frozenset(filter(_follows_from_sizes, inputs))

    def _refused(self, size: SymInt) -> int:
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
