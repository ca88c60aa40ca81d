"""Fuse unrolled steps of recurrent layers, and stacked layers, into one operator.

Each step that is a node by itself is a launch and a result of its own, and somebody puts these
behind one another. As one operator they are written to where they belong, layers one on another
are a wave (Appleyard et al. 2016), and one workgroup may make all steps of a layer that is small.
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
"""Predicate of layers that are one operator, and steps, samples, gates and units of each: whether
one more saves time (`compiler.fusion_cost_model.join_check`).
"""
SUM = call("add", Arg(0), Arg(1))


def fuse_recurrences(
    graph: Graph, types: dict[Value, TensorType], saves_time: JoinCheck, *, phased: bool = False
) -> Graph:
    """Return `graph` with successive steps as one `Recurrence`, stacked layers together.

    types: of every value, sizes known; those of new ones are added. saves_time: whether a layer
    takes less time as one operator with those below it. phased: whether steps of two phases are
    joined, too.
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
    lower = {}
    for node in rewriter.nodes:
        if (layer := _find_lower_layer(rewriter, node, saves_time)) is not None:
            lower[node] = layer
    upper = {one.node: node for node, one in lower.items()}
    for node in [one for one in upper if one not in lower]:
        _, t, b, gates, h = rewriter.shape(_operand(node, 0))
        stacks = [[node]]
        while (above := upper.get(stacks[-1][-1])) is not None:
            if saves_time(len(stacks[-1]), hint(t), hint(b), gates, h):
                stacks[-1].append(above)
            else:
                stacks.append([above])
        for stack in stacks:
            if len(stack) > 1:
                _fuse_layers(rewriter, stack, [lower[one] for one in stack[1:]])
    return rewriter.graph()


def _step_chain(rewriter: GraphRewriter, first: Node) -> list[Node]:
    """The steps from the first on, each of which is given the states that the one before made."""
    operator, chain = first.operator, [first]
    assert isinstance(operator, RecurrentStep)
    x, weight, _ = first.inputs
    while True:
        (states,) = chain[-1].outputs
        wanted = replace(operator, step=len(chain))
        following = [
            node
            for node in rewriter.readers(states)
            if node.operator == wanted and node.inputs == (x, weight, states)
        ]
        if len(following) != 1:
            return chain
        chain += following


def _phase_chain(rewriter: GraphRewriter, first: Node) -> list[tuple[Node, Node]]:
    """The steps from the first on, where each has two phases; none where they are no such."""
    one, result = first, list[tuple[Node, Node]]()
    while True:
        two = _only_reader(rewriter, one)
        if two is None or two.inputs[0] is not first.inputs[0]:
            return result
        before = result[0] if result else (one, two)
        for node, other in zip((one, two), before, strict=True):
            operator = other.operator
            assert isinstance(operator, RecurrentStep)
            alike = node.operator == replace(operator, step=len(result))
            if not alike or node.inputs[1] is not other.inputs[1]:
                return result
        result.append((one, two))
        (states,) = two.outputs
        following = [
            node
            for node in rewriter.readers(states)
            if isinstance(node.operator, RecurrentStep) and node.inputs[2] is states
        ]
        if len(following) != 1 or following[0].inputs[0] is not first.inputs[0]:
            return result
        one = following[0]


def _only_reader(rewriter: GraphRewriter, node: Node) -> Node | None:
    """The step that makes something of the states of `node`, which nobody else reads."""
    (states,) = node.outputs
    if not rewriter.is_read_once(states):
        return None
    (reader,) = rewriter.readers(states)
    step = isinstance(reader.operator, RecurrentStep) and reader.inputs[2] is states
    return reader if step else None


def _fuse_phases(rewriter: GraphRewriter, phases: Sequence[tuple[Node, Node]]) -> None:
    """Replace all steps of two phases by one operator, as `_fuse_steps` does."""
    one, two = phases[0]
    assert isinstance(one.operator, RecurrentStep) and isinstance(two.operator, RecurrentStep)
    whole = PhasedRecurrence(one.operator, two.operator)
    operands = [_operand(one, 0), _operand(one, 1), _operand(two, 1), _operand(one, 2)]
    if len(phases) == rewriter.shape(operands[0])[1]:
        _fuse_chain(rewriter, [last for _, last in phases], whole, operands)


def _fuse_steps(rewriter: GraphRewriter, chain: Sequence[Node]) -> None:
    """Replace all steps by one operator, where only concatenations of all states read them.

    Whatever reads the last ones may read anything else, too.
    """
    operator, operands = chain[0].operator, [_operand(chain[0], i) for i in range(3)]
    assert isinstance(operator, RecurrentStep)
    x, _, state = operands
    count = rewriter.shape(state)[3]
    fits = len(operator.exprs) == count and count <= MOST_STATES
    if len(chain) == rewriter.shape(x)[1] and fits:
        whole = Recurrence(operator.exprs, operator.summed, operator.units)
        _fuse_chain(rewriter, chain, whole, operands)


def _fuse_chain(
    rewriter: GraphRewriter, chain: Sequence[Node], whole: Operator, operands: Sequence[Value]
) -> None:
    """Let the operator `whole` make the states of each node of `chain`, one for each step.

    operands: the inputs of the units first, the states before the first step last.
    """
    x, state, t = operands[0], operands[-1], len(chain)
    small = max(t * prod(rewriter.shape(state)), prod(rewriter.shape(x))) <= MOST_NUMBERS
    if t < 2 or not small:
        return
    places = _find_concats(rewriter, [node.outputs[0] for node in chain])
    if places is None:
        return
    name, last = chain[0].name, chain[-1]
    together = rewriter.add(name, whole, *operands)
    for node, first in places:
        values = (*node.inputs[:first], together, *node.inputs[first + t :])
        if len(values) > 1:
            rewriter.replace(node, node.operator, *values)
        else:
            rewriter.replace(node, Reshape(rewriter.shape(together), True), together)
    end = rewriter.add(name, Slice((t - 1,), (t,), (0,), (1,)), together)
    rewriter.replace(last, Reshape(rewriter.shape(state), True), end)


def _find_concats(
    rewriter: GraphRewriter, states: Sequence[Value]
) -> list[tuple[Node, int]] | None:
    """The concatenations of all states along a new first dimension, and where each begins.

    None where anything else reads those of a step but the last, except the next step.
    """
    apart: list[list[Value]] = []
    for value in states:
        readers = rewriter.readers(value)
        views = [node.outputs[0] for node in readers if node.operator == Unsqueeze((0,))]
        if value is not states[-1]:
            known = len(readers) == len(views) + 1 and not any(map(rewriter.is_output, views))
            if not known or rewriter.is_output(value):
                return None
        apart.append(views)
    inner = [node for views in apart[:-1] for one in views for node in rewriter.readers(one)]
    result = []
    for node in dict.fromkeys(inner):
        operands = list(node.inputs)
        places = [operands.index(one) for one in apart[0] if one in operands]
        first = places[0] if places else 0
        run = operands[first : first + len(apart)]
        alike = [one in views for one, views in zip(run, apart, strict=False)]
        once = sum(one in views for one in operands for views in apart[:-1]) == len(apart) - 1
        if node.operator != Concat(0) or not once or len(run) < len(apart) or not all(alike):
            return None
        result.append((node, first))
    return result


@dataclass(frozen=True)
class _LowerLayer:
    """The lower of two stacked recurrent layers, and the parameters between it and the upper
    one.
    """

    node: Node
    """The layer below."""
    weight: Value
    """Weight of the inputs of the h units by the u units of the layer below, (g h, u)."""
    bias: Value | None
    """Bias, (g h,)."""


def _find_lower_layer(
    rewriter: GraphRewriter, node: Node, saves_time: JoinCheck
) -> _LowerLayer | None:
    """The layer below that of `node`, where both may be one operator.

    That is where its inputs are a product of the outputs of another one like it, of a weight that
    no run changes, and maybe a bias.
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
    maker, bias = _producer_behind_views(rewriter, _operand(node, 0)), None
    if maker is not None and maker.operator == Pointwise(SUM):
        product, bias = maker.inputs
        wide = bias is not None and rewriter.shape(bias) == (gates * h,)
        if not wide or not rewriter.is_fixed(bias) or product is None:
            return None
        maker = _producer_behind_views(rewriter, product)
    if maker is None or maker.operator != Matmul() or not rewriter.is_fixed(maker.inputs[1]):
        return None
    rows, weight = _operand(maker, 0), _operand(maker, 1)
    lower = _find_state_source(rewriter, rows, operator, operator.units or h)
    if lower is None or rewriter.shape(weight) != (gates * h, operator.units or h):
        return None
    shapes = [[rewriter.shape(_operand(one, i)) for i in range(3)] for one in (node, lower)]
    if shapes[0] != shapes[1] or not rewriter.is_fixed(lower.inputs[1]):
        return None
    return (
        None
        if _depends_on_recurrence(rewriter, _operand(node, 2))
        else _LowerLayer(lower, weight, bias)
    )


def _operand(node: Node, index: int) -> Value:
    result = node.inputs[index]
    assert result is not None
    return result


def _producer_behind_views(rewriter: GraphRewriter, value: Value) -> Node | None:
    """The node whose result `value` is, in whatever shape."""
    maker = rewriter.producer(value)
    while maker is not None and maker.operator.view:
        maker = rewriter.producer(maker.inputs[0])
    return maker


def _find_state_source(
    rewriter: GraphRewriter, rows: Value, operator: Recurrence, units: int
) -> Node | None:
    """The node of the same `operator` of which `rows` (t b, units) are the states that it sums.

    Which numbers they are is found by moving their places.
    """
    moves, maker = [], rewriter.producer(rows)
    while maker is not None and (maker.operator.view or isinstance(maker.operator, Move)):
        moves.append(maker.operator)
        maker = rewriter.producer(maker.inputs[0])
    if maker is None or maker.operator != operator:
        return None
    shape = rewriter.shape(maker.outputs[0])
    t, _, b, quads, _, _ = shape
    places = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    wanted = places[:, 0, :, :, operator.summed].reshape(t * b, 4 * quads)[:, :units]
    for move in reversed(moves):
        (places,) = move.reference(places)
    return maker if np.array_equal(places, wanted) else None


def _depends_on_recurrence(rewriter: GraphRewriter, value: Value) -> bool:
    """Return True where a recurrent layer has to run before `value` is known."""
    recurrent = Recurrence | RecurrentStep
    return any(isinstance(one.operator, recurrent) for one in rewriter.ancestors(value))


def _fuse_layers(
    rewriter: GraphRewriter, nodes: Sequence[Node], lower: Sequence[_LowerLayer]
) -> None:
    """Replace all of `nodes` by one operator; each of them but the first has a layer `lower`."""
    operator, name = nodes[0].operator, nodes[0].name
    assert isinstance(operator, Recurrence)
    _, gates, h, _ = rewriter.shape(_operand(nodes[0], 1))
    operands = [_operand(node, 1) for node in nodes]
    units = operator.units or h
    for one in lower:
        apart = rewriter.reshape(name, one.weight, (1, gates, h, units))
        filling = (0, 0, 0, 0), (0, 0, 0, h - units)
        operands.append(rewriter.add(name, Pad(*filling), apart) if units < h else apart)
    outputs = sum(prod(rewriter.shape(node.outputs[0])) for node in nodes)
    if max(len(operands) * gates * h * h, outputs) > MOST_NUMBERS:
        return
    count = rewriter.shape(_operand(nodes[0], 2))[3]
    states = [_operand(node, 2) for node in nodes]
    exprs = operator.exprs
    if any(one.bias is not None for one in lower):
        exprs = tuple(_add_bias_states(expr, gates, 2 * gates + count) for expr in exprs)
        biases = [None, *(one.bias for one in lower)]
        states = [_append_bias(rewriter, name, *both, gates) for both in zip(states, biases)]
    together = rewriter.add(
        name,
        replace(operator, exprs=exprs, layers=len(nodes)),
        _operand(nodes[0], 0),
        rewriter.add(name, Concat(0), *operands),
        rewriter.add(name, Concat(0), *states),
    )
    for i, node in enumerate(nodes):
        rewriter.replace(node, Slice((i,), (i + 1,), (1,), (1,)), together)


def _add_bias_states(expr: Expr, gates: int, first: int) -> Expr:
    """Return `expr` with a state, from the argument `first` on, added to each of as many inputs."""

    def added(part: Expr) -> Expr | None:
        if isinstance(part, Arg) and gates <= part.index < 2 * gates:
            return call("add", part, Arg(first + part.index - gates))
        return None

    return expr.replace(added)


def _append_bias(
    rewriter: GraphRewriter, name: str, state: Value, bias: Value | None, gates: int
) -> Value:
    """Return `state` (1, b, q, s, 4) with a unit's `gates` biases behind, zeros where there are
    none.
    """
    _, b, quads, _, four = rewriter.shape(state)
    if bias is None:
        return rewriter.add(name, Pad((0,) * 5, (0, 0, 0, gates, 0)), state)
    apart = rewriter.reshape(name, bias, (1, 1, gates, quads, four))
    transposed = rewriter.add(name, Transpose((0, 1, 3, 2, 4)), apart)
    wide = rewriter.add(name, Expand((1, b, quads, gates, four)), transposed)
    return rewriter.add(name, Concat(3), state, wide)
