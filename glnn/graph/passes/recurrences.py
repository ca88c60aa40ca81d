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
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import TensorType

MOST_NUMBERS = 1 << 25
"""Most numbers of an operand or a result: OpenGL ES 3.1 guarantees no more in a storage block."""
MOST_SAMPLES = 4
"""Most samples of layers that are joined: more gain by one product over the whole sequence."""
Worth = Callable[[int, int], bool]
"""Predicate of launches saved and operations slowed: see `compile.fusion_cost_model.worth`."""
SUM = call("add", Arg(0), Arg(1))


def with_recurrences(
    graph: Graph, types: dict[Value, TensorType], worth: Worth, *, phased: bool = False
) -> Graph:
    """Return `graph` with successive steps as one `Recurrence`, stacked layers of few samples
    together.

    types: of every value, sizes known; those of new ones are added. worth: whether the launches
    that joined layers save are worth the operations that they make slower. phased: whether steps
    of two phases are joined, too.
    """
    rewriting = Rewriting(graph, types)
    for node in graph.nodes:
        if isinstance(node.operator, RecurrentStep) and node.operator.step == 0:
            chain = _chain(rewriting, node)
            phases = _phases(rewriting, node) if phased and len(chain) == 1 else []
            if phases:
                _join_phases(rewriting, phases)
            else:
                _join_steps(rewriting, chain)
    below = {}
    for node in rewriting.nodes:
        if (found := _below(rewriting, node, worth)) is not None:
            below[node] = found
    upper = {one.node: node for node, one in below.items()}
    for node in [one for one in upper if one not in below]:
        stack = [node]
        while stack[-1] in upper:
            stack.append(upper[stack[-1]])
        _join_layers(rewriting, stack, [below[one] for one in stack[1:]])
    return rewriting.graph()


def _chain(rewriting: Rewriting, first: Node) -> list[Node]:
    """The steps from the first on, each of which is given the states that the one before made."""
    operator, chain = first.operator, [first]
    assert isinstance(operator, RecurrentStep)
    x, weight, _ = first.inputs
    while True:
        (states,) = chain[-1].outputs
        wanted = replace(operator, step=len(chain))
        following = [
            node
            for node in rewriting.readers(states)
            if node.operator == wanted and node.inputs == (x, weight, states)
        ]
        if len(following) != 1:
            return chain
        chain += following


def _phases(rewriting: Rewriting, first: Node) -> list[tuple[Node, Node]]:
    """The steps from the first on, where each has two phases; none where they are no such."""
    one, found = first, list[tuple[Node, Node]]()
    while True:
        two = _only_reader(rewriting, one)
        if two is None or two.inputs[0] is not first.inputs[0]:
            return found
        before = found[0] if found else (one, two)
        for node, other in zip((one, two), before, strict=True):
            operator = other.operator
            assert isinstance(operator, RecurrentStep)
            alike = node.operator == replace(operator, step=len(found))
            if not alike or node.inputs[1] is not other.inputs[1]:
                return found
        found.append((one, two))
        (states,) = two.outputs
        following = [
            node
            for node in rewriting.readers(states)
            if isinstance(node.operator, RecurrentStep) and node.inputs[2] is states
        ]
        if len(following) != 1 or following[0].inputs[0] is not first.inputs[0]:
            return found
        one = following[0]


def _only_reader(rewriting: Rewriting, node: Node) -> Node | None:
    """The step that makes something of the states of `node`, which nobody else reads."""
    (states,) = node.outputs
    if not rewriting.alone(states):
        return None
    (reader,) = rewriting.readers(states)
    step = isinstance(reader.operator, RecurrentStep) and reader.inputs[2] is states
    return reader if step else None


def _join_phases(rewriting: Rewriting, phases: Sequence[tuple[Node, Node]]) -> None:
    """Replace all steps of two phases by one operator, as `_join_steps` does."""
    one, two = phases[0]
    assert isinstance(one.operator, RecurrentStep) and isinstance(two.operator, RecurrentStep)
    whole = PhasedRecurrence(one.operator, two.operator)
    operands = [_operand(one, 0), _operand(one, 1), _operand(two, 1), _operand(one, 2)]
    if len(phases) == rewriting.shape(operands[0])[1]:
        _join(rewriting, [last for _, last in phases], whole, operands)


def _join_steps(rewriting: Rewriting, chain: Sequence[Node]) -> None:
    """Replace all steps by one operator, where only concatenations of all states read them.

    Whatever reads the last ones may read anything else, too.
    """
    operator, operands = chain[0].operator, [_operand(chain[0], i) for i in range(3)]
    assert isinstance(operator, RecurrentStep)
    x, _, state = operands
    count = rewriting.shape(state)[3]
    fits = len(operator.exprs) == count and count <= MOST_STATES
    if len(chain) == rewriting.shape(x)[1] and fits:
        whole = Recurrence(operator.exprs, operator.summed, operator.units)
        _join(rewriting, chain, whole, operands)


def _join(
    rewriting: Rewriting, chain: Sequence[Node], whole: Operator, operands: Sequence[Value]
) -> None:
    """Let the operator `whole` make the states of each node of `chain`, one for each step.

    operands: the inputs of the units first, the states before the first step last.
    """
    x, state, t = operands[0], operands[-1], len(chain)
    small = max(t * prod(rewriting.shape(state)), prod(rewriting.shape(x))) <= MOST_NUMBERS
    if t < 2 or not small:
        return
    places = _concatenated(rewriting, [node.outputs[0] for node in chain])
    if places is None:
        return
    name, last = chain[0].name, chain[-1]
    together = rewriting.add(name, whole, *operands)
    for node, first in places:
        values = (*node.inputs[:first], together, *node.inputs[first + t :])
        if len(values) > 1:
            rewriting.replace(node, node.operator, *values)
        else:
            rewriting.replace(node, Reshape(rewriting.shape(together), True), together)
    end = rewriting.add(name, Slice((t - 1,), (t,), (0,), (1,)), together)
    rewriting.replace(last, Reshape(rewriting.shape(state), True), end)


def _concatenated(rewriting: Rewriting, states: Sequence[Value]) -> list[tuple[Node, int]] | None:
    """The concatenations of all states along a new first dimension, and where each begins.

    None where anything else reads those of a step but the last, except the next step.
    """
    apart: list[list[Value]] = []
    for value in states:
        readers = rewriting.readers(value)
        views = [node.outputs[0] for node in readers if node.operator == Unsqueeze((0,))]
        if value is not states[-1]:
            known = len(readers) == len(views) + 1 and not any(map(rewriting.output, views))
            if not known or rewriting.output(value):
                return None
        apart.append(views)
    inner = [node for views in apart[:-1] for one in views for node in rewriting.readers(one)]
    found = []
    for node in dict.fromkeys(inner):
        given = list(node.inputs)
        places = [given.index(one) for one in apart[0] if one in given]
        first = places[0] if places else 0
        run = given[first : first + len(apart)]
        alike = [one in views for one, views in zip(run, apart, strict=False)]
        once = sum(one in views for one in given for views in apart[:-1]) == len(apart) - 1
        if node.operator != Concat(0) or not once or len(run) < len(apart) or not all(alike):
            return None
        found.append((node, first))
    return found


@dataclass(frozen=True)
class _Below:
    """The lower of two stacked recurrent layers, and the parameters between it and the upper
    one.
    """

    node: Node
    """The layer below."""
    weight: Value
    """Weight of the inputs of the h units by the u units of the layer below, (g h, u)."""
    bias: Value | None
    """Bias, (g h,)."""


def _below(rewriting: Rewriting, node: Node, worth: Worth) -> _Below | None:
    """The layer below that of `node`, where both may be one operator.

    That is where its inputs are a product of the outputs of another one like it, of a weight that
    no run changes, and maybe a bias.
    """
    operator = node.operator
    if not isinstance(operator, Recurrence) or not rewriting.fixed(node.inputs[1]):
        return None
    d, t, b, gates, h = rewriting.shape(_operand(node, 0))
    sums = rewriting.shape(_operand(node, 1))[1]
    if d != 1 or gates != sums or b > MOST_SAMPLES or one_holds(gates, h):
        return None
    if not worth(t - 1, 2 * t * b * gates * h * h):
        return None
    maker, bias = _behind_views(rewriting, _operand(node, 0)), None
    if maker is not None and maker.operator == Pointwise(SUM):
        product, bias = maker.inputs
        wide = bias is not None and rewriting.shape(bias) == (gates * h,)
        if not wide or not rewriting.fixed(bias) or product is None:
            return None
        maker = _behind_views(rewriting, product)
    if maker is None or maker.operator != Matmul() or not rewriting.fixed(maker.inputs[1]):
        return None
    rows, weight = _operand(maker, 0), _operand(maker, 1)
    below = _source(rewriting, rows, operator, operator.units or h)
    if below is None or rewriting.shape(weight) != (gates * h, operator.units or h):
        return None
    shapes = [[rewriting.shape(_operand(one, i)) for i in range(3)] for one in (node, below)]
    if shapes[0] != shapes[1] or not rewriting.fixed(below.inputs[1]):
        return None
    return None if _recurs(rewriting, _operand(node, 2)) else _Below(below, weight, bias)


def _operand(node: Node, index: int) -> Value:
    found = node.inputs[index]
    assert found is not None
    return found


def _behind_views(rewriting: Rewriting, value: Value) -> Node | None:
    """The node whose result `value` is, in whatever shape."""
    maker = rewriting.maker(value)
    while maker is not None and maker.operator.view:
        maker = rewriting.maker(maker.inputs[0])
    return maker


def _source(rewriting: Rewriting, rows: Value, operator: Recurrence, units: int) -> Node | None:
    """The node of the same `operator` of which `rows` (t b, units) are the states that it sums.

    Which numbers they are is found by moving their places.
    """
    moves, maker = [], rewriting.maker(rows)
    while maker is not None and (maker.operator.view or isinstance(maker.operator, Move)):
        moves.append(maker.operator)
        maker = rewriting.maker(maker.inputs[0])
    if maker is None or maker.operator != operator:
        return None
    shape = rewriting.shape(maker.outputs[0])
    t, _, b, quads, _, _ = shape
    places = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    wanted = places[:, 0, :, :, operator.summed].reshape(t * b, 4 * quads)[:, :units]
    for move in reversed(moves):
        (places,) = move.reference(places)
    return maker if np.array_equal(places, wanted) else None


def _recurs(rewriting: Rewriting, value: Value) -> bool:
    """Return True where a recurrent layer has to run before `value` is known."""
    stack, seen = [value], {value}
    while stack:
        maker = rewriting.computed(stack.pop())
        if maker is None:
            continue
        if isinstance(maker.operator, Recurrence | RecurrentStep):
            return True
        more = set(maker.reads) - seen
        seen |= more
        stack += more
    return False


def _join_layers(rewriting: Rewriting, nodes: Sequence[Node], below: Sequence[_Below]) -> None:
    """Replace all of `nodes` by one operator; each of them but the first has a layer `below`."""
    operator, name = nodes[0].operator, nodes[0].name
    assert isinstance(operator, Recurrence)
    _, gates, h, _ = rewriting.shape(_operand(nodes[0], 1))
    own = [_operand(node, 1) for node in nodes]
    units = operator.units or h
    for one in below:
        apart = rewriting.reshaped(name, one.weight, (1, gates, h, units))
        filling = (0, 0, 0, 0), (0, 0, 0, h - units)
        own.append(rewriting.add(name, Pad(*filling), apart) if units < h else apart)
    outputs = sum(prod(rewriting.shape(node.outputs[0])) for node in nodes)
    if max(len(own) * gates * h * h, outputs) > MOST_NUMBERS:
        return
    count = rewriting.shape(_operand(nodes[0], 2))[3]
    states = [_operand(node, 2) for node in nodes]
    exprs = operator.exprs
    if any(one.bias is not None for one in below):
        exprs = tuple(_biased(expr, gates, 2 * gates + count) for expr in exprs)
        biases = [None, *(one.bias for one in below)]
        states = [_with_bias(rewriting, name, *both, gates) for both in zip(states, biases)]
    together = rewriting.add(
        name,
        replace(operator, exprs=exprs, layers=len(nodes)),
        _operand(nodes[0], 0),
        rewriting.add(name, Concat(0), *own),
        rewriting.add(name, Concat(0), *states),
    )
    for i, node in enumerate(nodes):
        rewriting.replace(node, Slice((i,), (i + 1,), (1,), (1,)), together)


def _biased(expr: Expr, gates: int, first: int) -> Expr:
    """Return `expr` with a state, from the argument `first` on, added to each of as many inputs."""

    def added(part: Expr) -> Expr | None:
        if isinstance(part, Arg) and gates <= part.index < 2 * gates:
            return call("add", part, Arg(first + part.index - gates))
        return None

    return expr.replace(added)


def _with_bias(
    rewriting: Rewriting, name: str, state: Value, bias: Value | None, gates: int
) -> Value:
    """Return `state` (1, b, q, s, 4) with a unit's `gates` biases behind, zeros where there are
    none.
    """
    _, b, quads, _, four = rewriting.shape(state)
    if bias is None:
        return rewriting.add(name, Pad((0,) * 5, (0, 0, 0, gates, 0)), state)
    apart = rewriting.reshaped(name, bias, (1, 1, gates, quads, four))
    turned = rewriting.add(name, Transpose((0, 1, 3, 2, 4)), apart)
    wide = rewriting.add(name, Expand((1, b, quads, gates, four)), turned)
    return rewriting.add(name, Concat(3), state, wide)
