"""From a graph to a schedule: passes, then a lowered operator for each node.

Nodes go in levels, each behind those that it waits for: those of a level wait for nothing that
another of them does, so that a GPU may be at all of them at once. A gradient is used as soon as it
is there, and what reads a state comes before what updates it, so that this can be in place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from glnn.backends import Backend, Choice
from glnn.compiler.cpu_fallback import hosts_own, left_to_host
from glnn.compiler.fusion_cost_model import is_profitable, join_check
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.compiler.weights import Weight
from glnn.core.layout import Layout
from glnn.core.layout.bytes import PACKED_ROWS
from glnn.core.layout.layout import DENSE, PACKED, PADDED, ROW_ALIGNMENT, RowMajor
from glnn.core.symint import Substitution, hint
from glnn.core.types import DType, Shape, TensorType, widened
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.constant import (
    ConstantExpression,
    Leaf,
    constant,
    depends_on_sizes,
    evaluated,
    leaves,
)
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Kind, Node, Value, check_result_memory
from glnn.graph.operators import Matmul, Pointwise, Reduce, Transpose
from glnn.graph.operators.move import Move
from glnn.graph.operators.quantize import RoundedWeight
from glnn.graph.passes import (
    BackendTraits,
    Pass,
    copy_input_views,
    expand_composites,
    inline_constant_branches,
    inline_constant_captures,
    keep_integers,
    narrow_integers,
    optimize,
    pack_outputs,
    quantize_weights,
    split_concats,
    split_operands,
    split_results,
)
from glnn.kernels.op_spec import OpSpec

HALF_ULP = 2.0**-11
"""The most that rounding to float16 changes a number, as a share of it, unless it is subnormal."""


def padded_for_products(graph: Graph, types: Mapping[Value, TensorType]) -> dict[str, RowMajor]:
    """The values of `graph` that pointwise work makes for products, and how they are to lie.

    Those that nobody reads who would want them without the padding: products, transposed ones,
    sums and further pointwise work take rows of either kind. A copy in padded rows is not made
    then.
    """
    result = dict[str, RowMajor]()
    for node in graph.nodes:
        value, *_ = node.outputs
        type = types[value]
        if not isinstance(node.operator, Pointwise) or value in graph.outputs:
            continue
        if type.dtype is not DType.float32 or len(type.shape) != 2:
            continue
        readers = graph.readers.get(value, ())
        if type.shape[1] % ROW_ALIGNMENT == 0 or not all(_takes(graph, one) for one in readers):
            continue
        if any(isinstance(one.operator, Matmul) and one.inputs[0] is value for one in readers):
            result[value.name] = PADDED
    return result


def _takes(graph: Graph, node: Node) -> bool:
    """Return True where `node` reads rows with or without padding alike."""
    if isinstance(node.operator, Transpose):
        readers = graph.readers.get(node.outputs[0], ())
        return all(isinstance(one.operator, Matmul) for one in readers)
    return isinstance(node.operator, Matmul | Reduce | Pointwise)


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
    result: set[Node] = set()
    values = [value]
    while values:
        for node in graph.readers.get(values.pop(), ()):
            if node not in result:
                result.add(node)
                values += node.outputs if _may_share_memory(node) else ()
    return result


def _waits(nodes: Iterable[Node], first: Node, after: After) -> bool:
    """Return True where one of `nodes` depends on `first`."""
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
    """Return the levels that `node` adds to the nodes that wait for it: 0 for views, else 1."""
    return int(not _may_share_memory(node))


def _may_share_memory(node: Node) -> bool:
    """Return True where the result of `node` may share the memory of its operand."""
    return node.operator.view or isinstance(node.operator, Move)


Types = Mapping[Value, TensorType]


def lowered(
    graph: Graph,
    backend: Backend,
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str],
    *,
    without: frozenset[Pass] = frozenset(),
    precision: DType = DType.float32,
    samples: int = 1,
    body: bool = False,
    instead: Mapping[str, Choice] | None = None,
    states: Container[str] = (),
    updates: Mapping[str, str] | None = None,
) -> tuple[Graph, Schedule]:
    """The graph that is computed for inputs of `shapes`, by name, and the schedule that does it.

    without: the passes that are left out. instead: what to take in the place of kernels that would
    be chosen (see Schedule). states: the inputs that are on the device already. updates: by
    what the outputs are called that are some of them from the next run on. precision: of the
    weights that operators take as float16, too (`Operator.fp16_operands`); int8 has those as int8
    that layers bound by memory read, others as float16. samples: of the batch, which tells these
    layers. body: whether it is that of a branch or a loop. Raises UnsupportedOpError or LimitError
    where the backend cannot compute a node.
    """
    graph = inline_constant_captures(inline_constant_branches(graph))
    input_types = graph.input_types(shapes)
    graph = expand_composites(graph, input_types)
    types = _bound(graph, shapes)
    _check_known(graph, types)
    _check_sizes(graph, types)
    if not all(map(backend.holds, (one.dtype for one in types.values()))):
        graph = narrow_integers(graph, types, body=body)
        types = _bound(graph, shapes)
    graph = split_operands(split_results(graph), types, backend.binds)
    if precision is DType.int8:  # which products alone read
        without |= {Pass.NORMED}
    graph = optimize(graph, types, _backend_traits(backend, kernels), without)
    if backend.device is not None and not body:
        graph, types = pack_outputs(*copy_input_views(graph, types))
    graph = split_concats(graph, types, backend.joins)
    if backend.takes_bytes and Pass.PACKED not in without:
        graph = keep_integers(graph, types, samples)
    if precision is DType.int8:
        graph, precision = _of_bytes(graph, types, backend, samples), DType.float16
    graph = updates_last(_all_rounding(graph, types), updates or {})
    packs = backend.device is not None and not body
    rows: dict[str, RowMajor] = {}
    if updates:
        rows = padded_for_products(graph, types) | dict.fromkeys(updates.values(), DENSE)
    lowering = _Lowering(graph, types, precision, packs, states, rows)
    schedule_options = ScheduleOptions(backend, kernels, instead or {}, body)
    try:
        made = _shortest(lowering, schedule_options)
    except LimitError:
        if not lowering.packs:
            raise
        lowering = replace(lowering, packs=False)  # of larger numbers more samples may begin a part
        made = _shortest(lowering, schedule_options)
    if updates or states:
        return graph, made
    leaves = Pass.LEAVE not in without and not kernels
    if leaves and (moved_to_host := left_to_host(made, _names(graph))):
        made = _shortest(lowering, replace(schedule_options, moved_to_host=moved_to_host))
    made.hosts = hosts_own(made, _shared(graph) if body else ())
    return graph, made


def _backend_traits(backend: Backend, kernels: Mapping[str, str]) -> BackendTraits:
    """Return what passes may use of `backend`, with the kernels requested by operator name."""
    gains = partial(is_profitable, backend, kernels)
    return BackendTraits(
        backend.operands,
        backend.subviews,
        join_check(backend),
        gains,
        operand_bytes=backend.operand_bytes,
        phased=backend.device is None,
    )


def _of_bytes(
    graph: Graph, types: dict[Value, TensorType], backend: Backend, samples: int
) -> Graph:
    """`graph` with weights as int8 where `backend` has kernels for them.

    NumPy computes with floats that are rounded so.
    """
    host = backend.device is None
    return (
        quantize_weights(graph, types, samples, whole=host)
        if host or backend.takes_bytes
        else graph
    )


def _shared(graph: Graph) -> tuple[str, ...]:
    """Return the names of a body's inputs and outputs, which the device copies in and out."""
    return tuple(value.name for value in (*graph.inputs, *graph.outputs))


@dataclass(frozen=True)
class ScheduleOptions:
    """Options that all schedules of a graph share.

    kernels, instead, moved_to_host: see Schedule. body: whether the graph is that of a branch or a
    loop.
    """

    backend: Backend
    kernels: Mapping[str, str]
    instead: Mapping[str, Choice]
    body: bool
    moved_to_host: frozenset[str] = frozenset()

    def schedule(self, graph: Graph, rows: Mapping[str, RowMajor]) -> Schedule:
        """Return an empty schedule for `graph`."""
        named = _names(graph)
        return Schedule(self.backend, self.kernels, named, self.instead, rows, self.moved_to_host)


def _shortest(lowering: _Lowering, schedule_options: ScheduleOptions) -> Schedule:
    """The schedule of fewest launches.

    The host may pad inputs when it uploads them, also such as are too large for a launch to do so;
    those of bodies are copied as they lie.
    """
    body, result = schedule_options.body, None
    padded: dict[str, Layout] = {}
    while True:
        schedule = schedule_options.schedule(lowering.graph, lowering.rows)
        try:
            lowering.schedule(schedule, padded)
        except LimitError:
            if result is not None:
                return result
            if body or schedule.padded.items() <= padded.items():
                raise
        else:
            if result is not None and len(result.entries) <= len(schedule.entries):
                return result
            result = schedule
            if body or schedule.padded.items() <= padded.items():
                return schedule
        padded |= schedule.padded


def _check_sizes(graph: Graph, types: Types) -> None:
    """Raise LimitError where the host has too little memory for a node's results by themselves."""
    sizes = {node: sum(types[value].nbytes for value in node.outputs) for node in graph.nodes}
    if sizes:
        node = max(sizes, key=lambda one: hint(sizes[one]))
        made = [Substitution(hint)(types[value]) for value in node.outputs]
        check_result_memory(node.name, node.operator, made)


def _check_known(graph: Graph, types: Types) -> None:
    """Raise UnsupportedOpError where only a run tells a size."""
    for node in graph.nodes:
        if unknown := [value for value in node.outputs if types[value].symbols]:
            raise UnsupportedOpError(
                f"layer {node.name!r}: the sizes of {unknown[0].name!r}, {types[unknown[0]]}, are "
                "known only once it has run, so there is no single plan"
            )


def _bound(graph: Graph, shapes: Mapping[str, Shape]) -> dict[Value, TensorType]:
    """The type of every value, for inputs of `shapes`."""
    return graph.infer_types(graph.input_types(shapes))


def _names(graph: Graph) -> set[str]:
    """Return the names of all tensors of `graph`."""
    names = {value.name for value in graph.inputs}
    return names | {value.name for node in graph.nodes for value in node.outputs}


@dataclass(frozen=True)
class _Lowering:
    """A graph, the type of each value and the weights' precision, which operators are lowered by.

    packs: whether inputs of narrow types come from the host as they are. states: the inputs that
    do not come from there. rows: how results of pointwise work are to lie.
    """

    graph: Graph
    types: Types
    precision: DType
    packs: bool
    states: Container[str]
    rows: Mapping[str, RowMajor]
    known: dict[Value, ConstantExpression] = field(default_factory=dict)
    """What was found of values that no run changes."""
    in_float16: dict[Value, bool] = field(default_factory=dict)
    """Flags of computed weights: True where float16 holds their numbers."""

    def schedule(self, schedule: Schedule, padded: Mapping[str, Layout]) -> Schedule:
        """`schedule` with all operators of the graph. padded: how inputs lie that are not dense."""
        for value in self.graph.inputs:
            type, layout = self.types[value], padded.get(value.name, DENSE)
            if self.packs and layout == DENSE and type.dtype.narrow and 0 not in type.shape:
                layout = PACKED
            type = type if layout in (PACKED, PACKED_ROWS) else widened(type)
            fed = value.name not in self.states
            schedule.add_input(value.name, type, layout.name, fed=fed)
        for node in self.graph.nodes:
            if node.outputs[0] not in self.graph.fixed:
                schedule.add(self.lowered(node, node.name))
        schedule.finish(value.name for value in self.graph.outputs)
        return schedule

    def lowered(self, node: Node, layer: str) -> LoweredOp:
        """Return the lowered operator for `node`, a part of `layer`."""
        operands = node.operator.named(node.inputs)
        kinds = {name: self.types[value] for name, value in operands.items()}
        if node.epilogue is not None:
            result = self.types[node.outputs[0]].shape
            for name, extent, value in zip(
                node.epilogue.names, node.epilogue.extents, node.extras, strict=True
            ):
                operands[name] = value
                dims = node.epilogue.shape(extent, result)
                kinds[name] = TensorType(dims, self.types[value].dtype)
        fixed, control = self.graph.fixed, node.operator.control
        results = tuple(widened(self.types[value]) for value in node.outputs)
        return LoweredOp(
            node.name,
            node.operator,
            {name: value.name for name, value in operands.items() if value not in fixed},
            {
                name: self._weight(value, kinds[name], name in node.operator.fp16_operands)
                for name, value in operands.items()
                if value in fixed
            },
            node.outputs[0].name,
            layer,
            epilogue=node.epilogue,
            more=tuple(value.name for value in node.outputs[1:]),
            spec=OpSpec(node.operator, tuple(kinds.items()), results) if control else None,
            unfused=partial(self._unfused, node, layer) if node.origins else None,
        )

    def _weight(self, value: Value, type: TensorType, fp16: bool) -> Weight:
        """Return the weight `value`, of `type`. fp16: True where the operator takes float16."""
        if not fp16:
            type = widened(type)
        elif type.dtype is DType.float32 and not self._is_rounded(value):
            precise = self.precision is DType.float16 and not self._holds_float16(value)
            type = TensorType(type.dims, DType.float32 if precise else self.precision)
        return Weight(constant(self.graph, value, self.known), type)

    def _holds_float16(self, value: Value) -> bool:
        """Return False for a weight that passes computed, as by a scale that they folded in, and
        whose numbers are beyond those of float16 or subnormal there: rounding would lose more of
        them than of the model's own.
        """
        made = constant(self.graph, value, self.known)
        if isinstance(made, Leaf) or depends_on_sizes(made):
            return True
        if any(leaf.value.kind is not Kind.CONSTANT for leaf in leaves(made)):
            return True  # a program may assign other numbers
        if value not in self.in_float16:
            array = evaluated(made)
            with np.errstate(over="ignore", invalid="ignore"):
                lost = array.astype(np.float16) - array
            within = np.linalg.norm(lost) <= HALF_ULP * np.linalg.norm(array)
            self.in_float16[value] = bool(within)
        return self.in_float16[value]

    def _is_rounded(self, value: Value) -> bool:
        """Return True where the weight is rounded to int8 already, so must not be rounded again."""
        maker = self.graph.producers.get(value)
        return maker is not None and isinstance(maker.operator, RoundedWeight)

    def _unfused(self, node: Node, layer: str) -> list[LoweredOp]:
        """The nodes that were joined into `node`, each lowered by itself."""
        return [self.lowered(_rounding(origin, self.types), layer) for origin in node.origins]


def _all_rounding(graph: Graph, types: Types) -> Graph:
    """`graph` of nodes that round: see `_rounding`."""
    nodes = tuple(_rounding(node, types) for node in graph.nodes)
    return Graph(nodes, graph.inputs, graph.outputs, graph.name)


def _rounding(node: Node, types: Types) -> Node:
    """`node`, which rounds those of its operands that are float16: they come as float32."""
    is_fp16 = [value is not None and types[value].dtype is DType.float16 for value in node.inputs]
    if not isinstance(node.operator, Pointwise) or not any(is_fp16):
        return node
    widened_operands = (
        call("cast_float16", Arg(i)) if half else Arg(i) for i, half in enumerate(is_fp16)
    )
    return replace(node, operator=Pointwise(node.operator.expr(*widened_operands)))
