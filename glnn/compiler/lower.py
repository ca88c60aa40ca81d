"""From a graph to a schedule: passes, then a lowered operator for each node.

In a plan that updates states, nodes are sorted by levels. The nodes of one level do not depend on
each other, so that a GPU may compute them concurrently. A gradient is used as soon as it is
computed, and the readers of a state come before its update, so that this can be in place.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from glnn.backends import Backend, Choice
from glnn.compiler.cpu_fallback import find_host_memories, left_to_host
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
    """Return the results of pointwise nodes that products read, with the layout of padded rows.

    With that layout no copy in padded rows is made for the product. A value is included where all
    of its consumers take padded rows: products, transposes for products, reductions and pointwise
    nodes do.
    """
    result = dict[str, RowMajor]()
    for node in graph.nodes:
        value, *_ = node.outputs
        type = types[value]
        if not isinstance(node.operator, Pointwise) or value in graph.outputs:
            continue
        if type.dtype is not DType.float32 or len(type.shape) != 2:
            continue
        consumers = graph.readers.get(value, ())
        takes_padding = all(_takes_padded_rows(graph, one) for one in consumers)
        if type.shape[1] % ROW_ALIGNMENT == 0 or not takes_padding:
            continue
        if any(isinstance(one.operator, Matmul) and one.inputs[0] is value for one in consumers):
            result[value.name] = PADDED
    return result


def _takes_padded_rows(graph: Graph, node: Node) -> bool:
    """Return True where `node` reads rows with or without padding alike."""
    if isinstance(node.operator, Transpose):
        consumers = graph.readers.get(node.outputs[0], ())
        return all(isinstance(one.operator, Matmul) for one in consumers)
    return isinstance(node.operator, Matmul | Reduce | Pointwise)


Dependencies = dict[Node, set[Node]]
"""The nodes that each node must wait for."""


def updates_last(graph: Graph, updates: Mapping[str, str]) -> Graph:
    """Return `graph` with its nodes in levels, each update of a state after the state's readers.

    updates: by the name of an input that is a state, the output that is its content from the next
    run on. Where two updates each read what the other changes, one of them comes first.
    """
    if not updates:
        return graph
    dependencies: Dependencies = {
        node: {graph.producers[v] for v in node.reads if v in graph.producers}
        for node in graph.nodes
    }
    outputs = {value.name: value for value in graph.outputs}
    for value in graph.inputs:
        new_content = outputs.get(updates.get(value.name, ""))
        if new_content is None or (update := graph.producers.get(new_content)) is None:
            continue
        readers = _readers(graph, value) - {update}
        if not _depend_on(readers, update, dependencies):
            dependencies[update] |= readers
    levels = _levels(graph, dependencies)
    nodes = sorted(graph.nodes, key=lambda node: levels[node])
    return replace(graph, nodes=tuple(nodes))


def _readers(graph: Graph, value: Value) -> set[Node]:
    """Return the nodes that read `value`, or a view or move of it."""
    result: set[Node] = set()
    values = [value]
    while values:
        for node in graph.readers.get(values.pop(), ()):
            if node not in result:
                result.add(node)
                values += node.outputs if _may_share_memory(node) else ()
    return result


def _depend_on(nodes: Iterable[Node], producer: Node, dependencies: Dependencies) -> bool:
    """Return True where one of `nodes` is `producer`, or depends on it."""
    visited, stack = set[Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node is producer:
            return True
        if node not in visited:
            visited.add(node)
            stack += dependencies[node]
    return False


def _levels(graph: Graph, dependencies: Dependencies) -> dict[Node, int]:
    """Return the level of each node: as early as its dependencies allow.

    A node that depends on inputs alone is as late as its dependents allow instead, as are nodes
    that read only the results of such: computed earlier, it would only take memory. Views and moves
    take no level of their own, as most need no launch.
    """
    levels: dict[Node, int] = {}
    stack = list(reversed(graph.nodes))
    while stack:
        node = stack[-1]
        if missing := [one for one in dependencies[node] if one not in levels]:
            stack += missing
            continue
        stack.pop()
        levels[node] = max((levels[one] + _height(one) for one in dependencies[node]), default=0)
    dependents: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node, needed in dependencies.items():
        for one in needed:
            dependents[one].append(node)
    late: set[Node] = set()
    order = sorted(graph.nodes, key=lambda node: levels[node])
    for node in order:
        computed = [value for value in node.reads if value in graph.producers]
        reads_late = (graph.readers[v] == (node,) and graph.producers[v] in late for v in computed)
        if all(reads_late) and dependents[node]:
            late.add(node)
    for node in reversed(order):
        if node in late:
            levels[node] = min(levels[one] for one in dependents[node]) - _height(node)
    return levels


def _height(node: Node) -> int:
    """Return the levels that `node` adds to its dependents: 0 for views and moves, else 1."""
    return int(not _may_share_memory(node))


def _may_share_memory(node: Node) -> bool:
    """Return True where the result of `node` may share the memory of its operand."""
    return node.operator.view or isinstance(node.operator, Move)


Types = Mapping[Value, TensorType]


def lower_graph(
    graph: Graph,
    backend: Backend,
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str],
    *,
    without: frozenset[Pass] = frozenset(),
    precision: DType = DType.float32,
    samples: int = 1,
    body: bool = False,
    overrides: Mapping[str, Choice] | None = None,
    states: Container[str] = (),
    updates: Mapping[str, str] | None = None,
) -> tuple[Graph, Schedule]:
    """Return `graph` after all passes, and its schedule, for inputs of `shapes` by name.

    kernels, overrides: see Schedule. without: the passes that are left out. states: the inputs that
    are on the device already. updates: by a state's name, the output that is its content from the
    next run on. precision: float16 stores the weights of `Operator.fp16_operands` as float16; int8
    stores those as int8 that layers bound by memory read, others as float16. samples: of the batch,
    which decides which layers are bound by memory. body: True for the body of a branch or a loop.
    Raises UnsupportedOpError or LimitError where the backend cannot compute a node.
    """
    graph = inline_constant_captures(inline_constant_branches(graph))
    input_types = graph.input_types(shapes)
    graph = expand_composites(graph, input_types)
    types = _infer_types(graph, shapes)
    _check_known(graph, types)
    _check_sizes(graph, types)
    if not all(map(backend.holds, (one.dtype for one in types.values()))):
        graph = narrow_integers(graph, types, body=body)
        types = _infer_types(graph, shapes)
    graph = split_operands(split_results(graph), types, backend.binds)
    if precision is DType.int8:  # only plain products read int8 weights
        without |= {Pass.NORMED}
    graph = optimize(graph, types, _backend_traits(backend, kernels), without)
    if backend.device is not None and not body:
        graph, types = pack_outputs(*copy_input_views(graph, types))
    graph = split_concats(graph, types, backend.joins)
    if backend.takes_bytes and Pass.PACKED not in without:
        graph = keep_integers(graph, types, samples)
    if precision is DType.int8:
        graph, precision = _with_int8_weights(graph, types, backend, samples), DType.float16
    graph = updates_last(_with_rounding(graph, types), updates or {})
    packs = backend.device is not None and not body
    rows: dict[str, RowMajor] = {}
    if updates:
        rows = padded_for_products(graph, types) | dict.fromkeys(updates.values(), DENSE)
    lowering = _Lowering(graph, types, precision, packs, states, rows)
    schedule_options = ScheduleOptions(backend, kernels, overrides or {}, body)
    try:
        schedule = _shortest(lowering, schedule_options)
    except LimitError:
        if not lowering.packs:
            raise
        # With wider numbers the offsets of more samples are aligned, at which a split may begin.
        lowering = replace(lowering, packs=False)
        schedule = _shortest(lowering, schedule_options)
    if updates or states:
        return graph, schedule
    may_move = Pass.LEAVE not in without and not kernels
    if may_move and (moved_to_host := left_to_host(schedule, _names(graph))):
        schedule = _shortest(lowering, replace(schedule_options, moved_to_host=moved_to_host))
    schedule.host_memories = find_host_memories(schedule, _io_names(graph) if body else ())
    return graph, schedule


def _backend_traits(backend: Backend, kernels: Mapping[str, str]) -> BackendTraits:
    """Return what passes may use of `backend`, with the kernels requested by operator name."""
    profitable = partial(is_profitable, backend, kernels)
    return BackendTraits(
        backend.operands,
        backend.subviews,
        join_check(backend),
        profitable,
        operand_bytes=backend.operand_bytes,
        phased=backend.device is None,
    )


def _with_int8_weights(
    graph: Graph, types: dict[Value, TensorType], backend: Backend, samples: int
) -> Graph:
    """Return `graph` with weights as int8 where `backend` has kernels for them.

    On the host, NumPy computes with floats that are rounded to the same numbers.
    """
    host = backend.device is None
    return (
        quantize_weights(graph, types, samples, whole=host)
        if host or backend.takes_bytes
        else graph
    )


def _io_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of the inputs and outputs of `graph`."""
    return tuple(value.name for value in (*graph.inputs, *graph.outputs))


@dataclass(frozen=True)
class ScheduleOptions:
    """Options that all schedules of a graph share.

    kernels, overrides, moved_to_host: see Schedule. body: True for the body of a branch or a loop.
    """

    backend: Backend
    kernels: Mapping[str, str]
    overrides: Mapping[str, Choice]
    body: bool
    moved_to_host: frozenset[str] = frozenset()

    def schedule(self, graph: Graph, rows: Mapping[str, RowMajor]) -> Schedule:
        """Return an empty schedule for `graph`."""
        return Schedule(
            self.backend, self.kernels, _names(graph), self.overrides, rows, self.moved_to_host
        )


def _shortest(lowering: _Lowering, schedule_options: ScheduleOptions) -> Schedule:
    """Return the schedule of the fewest launches.

    Where kernels want an input in padded rows, the host may pad it as it uploads it, which spares a
    launch, and is the only way for inputs too large for a launch. Each round tries the layouts that
    the one before it asked for. Inputs of bodies are never padded: they are copied on the device.
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
    """Raise LimitError where the host has too little memory for the results of one node alone."""
    sizes = {node: sum(types[value].nbytes for value in node.outputs) for node in graph.nodes}
    if sizes:
        node = max(sizes, key=lambda one: hint(sizes[one]))
        results = [Substitution(hint)(types[value]) for value in node.outputs]
        check_result_memory(node.name, node.operator, results)


def _check_known(graph: Graph, types: Types) -> None:
    """Raise UnsupportedOpError where a size is known only in a run."""
    for node in graph.nodes:
        if unknown := [value for value in node.outputs if types[value].symbols]:
            raise UnsupportedOpError(
                f"layer {node.name!r}: the sizes of {unknown[0].name!r}, {types[unknown[0]]}, are "
                "known only once it has run, so there is no single plan"
            )


def _infer_types(graph: Graph, shapes: Mapping[str, Shape]) -> dict[Value, TensorType]:
    """Return the type of every value, for inputs of `shapes`."""
    return graph.infer_types(graph.input_types(shapes))


def _names(graph: Graph) -> set[str]:
    """Return the names of all tensors of `graph`."""
    names = {value.name for value in graph.inputs}
    return names | {value.name for node in graph.nodes for value in node.outputs}


@dataclass(frozen=True)
class _Lowering:
    """Lowers the nodes of a graph.

    types: of each value. precision: of the weights. packs: whether inputs of narrow types are
    uploaded as they are, several numbers in a word. states: the inputs that are not uploaded. rows:
    required layouts of results of pointwise nodes.
    """

    graph: Graph
    types: Types
    precision: DType
    packs: bool
    states: Container[str]
    rows: Mapping[str, RowMajor]
    constants: dict[Value, ConstantExpression] = field(default_factory=dict)
    """Expressions of values that no run changes, as far as they were needed."""
    in_float16: dict[Value, bool] = field(default_factory=dict)
    """Flags of computed weights: True where float16 holds their numbers."""

    def schedule(self, schedule: Schedule, padded: Mapping[str, Layout]) -> None:
        """Add all operators of the graph to `schedule`. padded: layouts of inputs with padding."""
        for value in self.graph.inputs:
            type, layout = self.types[value], padded.get(value.name, DENSE)
            if self.packs and layout == DENSE and type.dtype.narrow and 0 not in type.shape:
                layout = PACKED
            type = type if layout in (PACKED, PACKED_ROWS) else widened(type)
            fed = value.name not in self.states
            schedule.add_input(value.name, type, layout.name, fed=fed)
        for node in self.graph.nodes:
            if node.outputs[0] not in self.graph.fixed:
                schedule.add(self.lower(node, node.name))
        schedule.finish(value.name for value in self.graph.outputs)

    def lower(self, node: Node, layer: str) -> LoweredOp:
        """Return the lowered operator for `node`, a part of `layer`."""
        operands = node.operator.named(node.inputs)
        types = {name: self.types[value] for name, value in operands.items()}
        if node.epilogue is not None:
            result = self.types[node.outputs[0]].shape
            for name, extent, value in zip(
                node.epilogue.names, node.epilogue.extents, node.extras, strict=True
            ):
                operands[name] = value
                dims = node.epilogue.shape(extent, result)
                types[name] = TensorType(dims, self.types[value].dtype)
        fixed, control = self.graph.fixed, node.operator.control
        results = tuple(widened(self.types[value]) for value in node.outputs)
        return LoweredOp(
            node.name,
            node.operator,
            {name: value.name for name, value in operands.items() if value not in fixed},
            {
                name: self._weight(value, types[name], name in node.operator.fp16_operands)
                for name, value in operands.items()
                if value in fixed
            },
            node.outputs[0].name,
            layer,
            epilogue=node.epilogue,
            other_outputs=tuple(value.name for value in node.outputs[1:]),
            spec=OpSpec(node.operator, tuple(types.items()), results) if control else None,
            unfused=partial(self._unfused, node, layer) if node.origins else None,
        )

    def _weight(self, value: Value, type: TensorType, fp16: bool) -> Weight:
        """Return the weight `value`, of `type`. fp16: True where the operator takes float16."""
        if not fp16:
            type = widened(type)
        elif type.dtype is DType.float32 and not self._is_rounded(value):
            keeps_float32 = self.precision is DType.float16 and not self._fits_float16(value)
            type = TensorType(type.dims, DType.float32 if keeps_float32 else self.precision)
        return Weight(constant(self.graph, value, self.constants), type)

    def _fits_float16(self, value: Value) -> bool:
        """Return False for a weight that passes computed, as by folding in a scale, whose numbers
        overflow or are subnormal in float16: rounding would lose more of them than of the model's
        own weights.
        """
        expression = constant(self.graph, value, self.constants)
        if isinstance(expression, Leaf) or depends_on_sizes(expression):
            return True
        if any(leaf.value.kind is not Kind.CONSTANT for leaf in leaves(expression)):
            return True  # a program may assign other numbers
        if value not in self.in_float16:
            array = evaluated(expression)
            with np.errstate(over="ignore", invalid="ignore"):
                lost = array.astype(np.float16) - array
            within = np.linalg.norm(lost) <= HALF_ULP * np.linalg.norm(array)
            self.in_float16[value] = bool(within)
        return self.in_float16[value]

    def _is_rounded(self, value: Value) -> bool:
        """Return True where the weight is rounded to int8 already, so must not be rounded again."""
        producer = self.graph.producers.get(value)
        return producer is not None and isinstance(producer.operator, RoundedWeight)

    def _unfused(self, node: Node, layer: str) -> list[LoweredOp]:
        """Return the nodes that were fused into `node`, each lowered by itself."""
        return [self.lower(_round_fp16_operands(one, self.types), layer) for one in node.origins]


def _with_rounding(graph: Graph, types: Types) -> Graph:
    """Return `graph` with `_round_fp16_operands` applied to all nodes."""
    nodes = tuple(_round_fp16_operands(node, types) for node in graph.nodes)
    return Graph(nodes, graph.inputs, graph.outputs, graph.name)


def _round_fp16_operands(node: Node, types: Types) -> Node:
    """Return `node`; if pointwise, it rounds its float16 operands, which are stored as float32."""
    is_fp16 = [value is not None and types[value].dtype is DType.float16 for value in node.inputs]
    if not isinstance(node.operator, Pointwise) or not any(is_fp16):
        return node
    widened_operands = (
        call("cast_float16", Arg(i)) if half else Arg(i) for i, half in enumerate(is_fp16)
    )
    return replace(node, operator=Pointwise(node.operator.expr(*widened_operands)))
