"""Fuse unrolled steps of recurrent layers, and stacked layers, into one operator.

Steps that are nodes of their own take a launch each, and their results are concatenated afterwards.
As one operator the steps write into that result directly, stacked layers are computed as a
wavefront (Appleyard et al. 2016), and one workgroup may compute all steps of a small layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from glnn.core.symint import hint
from glnn.core.types import TensorType
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Expand,
    Matmul,
    Pad,
    PhasedRecurrence,
    Pointwise,
    Recurrence,
    RecurrentStep,
    Reshape,
    Slice,
    Transpose,
    Unsqueeze,
)
from glnn.graph.operators.move import Move
from glnn.graph.operators.recurrence import MOST_STATES, one_holds
from glnn.graph.passes.graph_rewriter import GraphRewriter

MOST_NUMBERS = 1 << 25
"""Most numbers of an operand or a result: OpenGL ES 3.1 guarantees no more in a storage block."""
JoinCheck = Callable[[int, int, int, int, int], bool]
"""Predicate that is True where it saves time to add a layer to an operator; arguments: the number
of layers in the operator, and the steps, samples, gates and units of each
(`compiler.fusion_cost_model.join_check`).
"""
SUM = call("add", Arg(0), Arg(1))


def fuse_recurrences(
    graph: Graph, types: dict[Value, TensorType], saves_time: JoinCheck, *, phased: bool = False
) -> Graph:
    """Return `graph` with successive steps as one `Recurrence`, stacked layers together.

    types: of every value, sizes known; types of new values are added. saves_time: whether a layer
    takes less time as one operator with the layers below it. phased: whether steps of two phases
    are fused, too.
    """
    rewriter = GraphRewriter(graph, types)
    for node in graph.nodes:
        if isinstance(node.operator, RecurrentStep) and node.operator.step == 0:
            chain = _step_chain(rewriter, node)
            phases = _phase_chain(rewriter, node) if phased and len(chain) == 1 else []
            if phases:
                _fuse_phases(rewriter, phases)
            else:
                _fuse_steps(rewriter, chain)
    lower_layers = {}
    for node in rewriter.nodes:
        if (lower := _find_lower_layer(rewriter, node, saves_time)) is not None:
            lower_layers[node] = lower
    upper = {lower.node: node for node, lower in lower_layers.items()}
    for node in [lowest for lowest in upper if lowest not in lower_layers]:
        _, t, b, gates, h = rewriter.shape(_operand(node, 0))
        stacks = [[node]]
        while (above := upper.get(stacks[-1][-1])) is not None:
            if saves_time(len(stacks[-1]), hint(t), hint(b), gates, h):
                stacks[-1].append(above)
            else:
                stacks.append([above])
        for stack in stacks:
            if len(stack) > 1:
                _fuse_layers(rewriter, stack, [lower_layers[layer] for layer in stack[1:]])
    return rewriter.graph()


def _step_chain(rewriter: GraphRewriter, first: Node) -> list[Node]:
    """Return the steps from `first` on, each of which reads the states of the one before."""
    operator, chain = first.operator, [first]
    assert isinstance(operator, RecurrentStep)
    x, weight, _ = first.inputs
    while True:
        (states,) = chain[-1].outputs
        next_operator = replace(operator, step=len(chain))
        following = [
            node
            for node in rewriter.readers(states)
            if node.operator == next_operator and node.inputs == (x, weight, states)
        ]
        if len(following) != 1:
            return chain
        chain += following


def _phase_chain(rewriter: GraphRewriter, first: Node) -> list[tuple[Node, Node]]:
    """Return the two phases of each step from `first` on; none where steps have not two phases."""
    phase1, result = first, list[tuple[Node, Node]]()
    while True:
        phase2 = _only_reader(rewriter, phase1)
        if phase2 is None or phase2.inputs[0] is not first.inputs[0]:
            return result
        first_step = result[0] if result else (phase1, phase2)
        for node, first_node in zip((phase1, phase2), first_step, strict=True):
            operator = first_node.operator
            assert isinstance(operator, RecurrentStep)
            is_like = node.operator == replace(operator, step=len(result))
            if not is_like or node.inputs[1] is not first_node.inputs[1]:
                return result
        result.append((phase1, phase2))
        (states,) = phase2.outputs
        following = [
            node
            for node in rewriter.readers(states)
            if isinstance(node.operator, RecurrentStep) and node.inputs[2] is states
        ]
        if len(following) != 1 or following[0].inputs[0] is not first.inputs[0]:
            return result
        phase1 = following[0]


def _only_reader(rewriter: GraphRewriter, node: Node) -> Node | None:
    """Return the step that is the only reader of the states of `node`; None where there is none."""
    (states,) = node.outputs
    if not rewriter.is_read_once(states):
        return None
    (reader,) = rewriter.readers(states)
    is_step = isinstance(reader.operator, RecurrentStep) and reader.inputs[2] is states
    return reader if is_step else None


def _fuse_phases(rewriter: GraphRewriter, phases: Sequence[tuple[Node, Node]]) -> None:
    """Replace all steps of two phases by one operator, as `_fuse_steps` does."""
    first, second = phases[0]
    assert isinstance(first.operator, RecurrentStep) and isinstance(second.operator, RecurrentStep)
    recurrence = PhasedRecurrence(first.operator, second.operator)
    operands = [_operand(first, 0), _operand(first, 1), _operand(second, 1), _operand(first, 2)]
    if len(phases) == rewriter.shape(operands[0])[1]:
        _fuse_chain(rewriter, [last for _, last in phases], recurrence, operands)


def _fuse_steps(rewriter: GraphRewriter, chain: Sequence[Node]) -> None:
    """Replace all steps by one operator, where only concatenations of all states read them; the
    states of the last step may have other readers.
    """
    operator, operands = chain[0].operator, [_operand(chain[0], i) for i in range(3)]
    assert isinstance(operator, RecurrentStep)
    x, _, state = operands
    count = rewriter.shape(state)[3]
    fits = len(operator.exprs) == count and count <= MOST_STATES
    if len(chain) == rewriter.shape(x)[1] and fits:
        recurrence = Recurrence(operator.exprs, operator.summed, operator.units)
        _fuse_chain(rewriter, chain, recurrence, operands)


def _fuse_chain(
    rewriter: GraphRewriter, chain: Sequence[Node], recurrence: Operator, operands: Sequence[Value]
) -> None:
    """Replace `chain`, a node for each step, by the operator `recurrence`.

    operands: of `recurrence`; x comes first, the initial states last.
    """
    x, state, t = operands[0], operands[-1], len(chain)
    fits = max(t * prod(rewriter.shape(state)), prod(rewriter.shape(x))) <= MOST_NUMBERS
    if t < 2 or not fits:
        return
    concats = _find_concats(rewriter, [node.outputs[0] for node in chain])
    if concats is None:
        return
    name, last = chain[0].name, chain[-1]
    all_states = rewriter.add(name, recurrence, *operands)
    for node, first in concats:
        values = (*node.inputs[:first], all_states, *node.inputs[first + t :])
        if len(values) > 1:
            rewriter.replace(node, node.operator, *values)
        else:
            rewriter.replace(node, Reshape(rewriter.shape(all_states), True), all_states)
    last_states = rewriter.add(name, Slice((t - 1,), (t,), (0,), (1,)), all_states)
    rewriter.replace(last, Reshape(rewriter.shape(state), True), last_states)


def _find_concats(
    rewriter: GraphRewriter, states: Sequence[Value]
) -> list[tuple[Node, int]] | None:
    """Return the concatenations of the states of all steps along a new first dimension, each with
    the index of its operand for the first step.

    None where the states of a step, but the last, have a reader other than these and the next step.
    """
    views_of: list[list[Value]] = []  # of each step's states, with the new dimension
    for value in states:
        readers = rewriter.readers(value)
        views = [node.outputs[0] for node in readers if node.operator == Unsqueeze((0,))]
        if value is not states[-1]:
            only_next = len(readers) == len(views) + 1 and not any(map(rewriter.is_output, views))
            if not only_next or rewriter.is_output(value):
                return None
        views_of.append(views)
    concats = [n for views in views_of[:-1] for view in views for n in rewriter.readers(view)]
    count, result = len(views_of), []
    for node in dict.fromkeys(concats):
        operands = list(node.inputs)
        indices = [operands.index(view) for view in views_of[0] if view in operands]
        first = indices[0] if indices else 0
        run = operands[first : first + count]
        in_order = all(o in views for o, views in zip(run, views_of, strict=False))
        is_once = sum(o in views for o in operands for views in views_of[:-1]) == count - 1
        if node.operator != Concat(0) or not is_once or len(run) < count or not in_order:
            return None
        result.append((node, first))
    return result


@dataclass(frozen=True)
class _LowerLayer:
    """The lower of two stacked recurrent layers, and the parameters of the product between them."""

    node: Node
    """The lower layer."""
    weight: Value
    """The weight of the upper layer's inputs, (g h, u), for its h units and u units below."""
    bias: Value | None
    """Bias, (g h,)."""


def _find_lower_layer(
    rewriter: GraphRewriter, node: Node, saves_time: JoinCheck
) -> _LowerLayer | None:
    """Return the layer below that of `node`, where both may be one operator; else None.

    The inputs of `node` must be the product of the outputs of a layer like it by a fixed weight,
    perhaps plus a bias.
    """
    operator = node.operator
    if not isinstance(operator, Recurrence) or not rewriter.is_fixed(node.inputs[1]):
        return None
    d, t, b, gates, h = rewriter.shape(_operand(node, 0))
    sums = rewriter.shape(_operand(node, 1))[1]
    if d != 1 or gates != sums or one_holds(gates, h):
        return None
    if not saves_time(1, hint(t), hint(b), gates, h):
        return None
    producer, bias = _producer_behind_views(rewriter, _operand(node, 0)), None
    if producer is not None and producer.operator == Pointwise(SUM):
        product, bias = producer.inputs
        is_bias = bias is not None and rewriter.shape(bias) == (gates * h,)
        if not is_bias or not rewriter.is_fixed(bias) or product is None:
            return None
        producer = _producer_behind_views(rewriter, product)
    if producer is None or producer.operator != Matmul():
        return None
    if not rewriter.is_fixed(producer.inputs[1]):
        return None
    rows, weight = _operand(producer, 0), _operand(producer, 1)
    lower = _find_state_source(rewriter, rows, operator, operator.units or h)
    if lower is None or rewriter.shape(weight) != (gates * h, operator.units or h):
        return None
    shapes = [[rewriter.shape(_operand(layer, i)) for i in range(3)] for layer in (node, lower)]
    if shapes[0] != shapes[1] or not rewriter.is_fixed(lower.inputs[1]):
        return None
    if _depends_on_recurrence(rewriter, _operand(node, 2)):
        return None
    return _LowerLayer(lower, weight, bias)


def _operand(node: Node, index: int) -> Value:
    result = node.inputs[index]
    assert result is not None
    return result


def _producer_behind_views(rewriter: GraphRewriter, value: Value) -> Node | None:
    """Return the producer of `value`, or of the value that `value` is a view of."""
    producer = rewriter.producer(value)
    while producer is not None and producer.operator.view:
        producer = rewriter.producer(producer.inputs[0])
    return producer


def _find_state_source(
    rewriter: GraphRewriter, rows: Value, operator: Recurrence, units: int
) -> Node | None:
    """Return the node of `operator` whose summed states are `rows`, (t b, units); None where there
    is none.

    Views and moves between the two are compared by applying them to an array of indices.
    """
    moves, producer = [], rewriter.producer(rows)
    while producer is not None and (producer.operator.view or isinstance(producer.operator, Move)):
        moves.append(producer.operator)
        producer = rewriter.producer(producer.inputs[0])
    if producer is None or producer.operator != operator:
        return None
    shape = rewriter.shape(producer.outputs[0])
    t, _, b, quads, _, _ = shape
    indices = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    expected = indices[:, 0, :, :, operator.summed].reshape(t * b, 4 * quads)[:, :units]
    for move in reversed(moves):
        (indices,) = move.reference(indices)
    return producer if np.array_equal(indices, expected) else None


def _depends_on_recurrence(rewriter: GraphRewriter, value: Value) -> bool:
    """Return True where `value` depends on the result of a recurrent layer."""
    recurrent = Recurrence | RecurrentStep
    return any(isinstance(node.operator, recurrent) for node in rewriter.ancestors(value))


def _fuse_layers(
    rewriter: GraphRewriter, nodes: Sequence[Node], lower_layers: Sequence[_LowerLayer]
) -> None:
    """Replace the layers `nodes` by one operator; `lower_layers` has the layer below each of them
    but the first.
    """
    operator, name = nodes[0].operator, nodes[0].name
    assert isinstance(operator, Recurrence)
    _, gates, h, _ = rewriter.shape(_operand(nodes[0], 1))
    operands = [_operand(node, 1) for node in nodes]
    units = operator.units or h
    for lower in lower_layers:
        weight = rewriter.reshape(name, lower.weight, (1, gates, h, units))
        padding = (0, 0, 0, 0), (0, 0, 0, h - units)
        operands.append(rewriter.add(name, Pad(*padding), weight) if units < h else weight)
    outputs = sum(prod(rewriter.shape(node.outputs[0])) for node in nodes)
    if max(len(operands) * gates * h * h, outputs) > MOST_NUMBERS:
        return
    count = rewriter.shape(_operand(nodes[0], 2))[3]
    states = [_operand(node, 2) for node in nodes]
    exprs = operator.exprs
    if any(lower.bias is not None for lower in lower_layers):
        exprs = tuple(_add_bias_states(expr, gates, 2 * gates + count) for expr in exprs)
        biases = [None, *(lower.bias for lower in lower_layers)]
        states = [
            _append_bias(rewriter, name, state, bias, gates)
            for state, bias in zip(states, biases, strict=True)
        ]
    all_states = rewriter.add(
        name,
        replace(operator, exprs=exprs, layers=len(nodes)),
        _operand(nodes[0], 0),
        rewriter.add(name, Concat(0), *operands),
        rewriter.add(name, Concat(0), *states),
    )
    for i, node in enumerate(nodes):
        rewriter.replace(node, Slice((i,), (i + 1,), (1,), (1,)), all_states)


def _add_bias_states(expr: Expr, gates: int, first: int) -> Expr:
    """Return `expr` with a bias added to each of the `gates` inputs; biases are states, whose
    arguments begin at `first`.
    """

    def add_bias(part: Expr) -> Expr | None:
        if isinstance(part, Arg) and gates <= part.index < 2 * gates:
            return call("add", part, Arg(first + part.index - gates))
        return None

    return expr.replace(add_bias)


def _append_bias(
    rewriter: GraphRewriter, name: str, state: Value, bias: Value | None, gates: int
) -> Value:
    """Return `state`, (1, b, q, s, 4), and then a unit's `gates` biases, zeros without `bias`."""
    _, b, quads, _, four = rewriter.shape(state)
    if bias is None:
        return rewriter.add(name, Pad((0,) * 5, (0, 0, 0, gates, 0)), state)
    biases = rewriter.reshape(name, bias, (1, 1, gates, quads, four))
    transposed = rewriter.add(name, Transpose((0, 1, 3, 2, 4)), biases)
    expanded = rewriter.add(name, Expand((1, b, quads, gates, four)), transposed)
    return rewriter.add(name, Concat(3), state, expanded)
