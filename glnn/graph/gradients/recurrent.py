"""Gradients of recurrent layers, through one step: backpropagation through time.

Reference: Werbos 1990, Backpropagation through time: what it does and how to do it.
"""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.compose.matmul import matmul
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.gradient import gradient, times
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Concat, Pad, RecurrentStep, Slice, Transpose


def recurrent_step(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of a step by the inputs, the weight and the states, from those of the
    new states.

    The sums over the units are products of matrices, one for each direction; what is made of them
    at each unit is pointwise.
    """
    operator, given = back.node.operator, back.operands
    assert isinstance(operator, RecurrentStep)
    x, weight, state = given["x"], given["weight"], given["state"]
    d, _, b, i, h = x.type.shape
    g, s = weight.type.shape[1], state.type.shape[3]
    before = [_apart(back, state, index, (d, b, h)) for index in range(s)]
    gates = back.reshape(weight, (d, g * h, h))
    sums = matmul(back, before[operator.summed], gates, transposed=True)
    now = _cut(back, x, 1, operator.step, (d, b, i, h))
    arguments = [_cut(back, sums, 2, gate, (d, b, h), h) for gate in range(g)]
    arguments += [_cut(back, now, 2, one, (d, b, h)) for one in range(i)]
    arguments += before
    new = [
        _real(back, _apart(back, back.gradient, index, (d, b, h)), operator.units)
        for index in range(len(operator.exprs))
    ]
    by = [_by(back, operator.exprs, place, arguments, new) for place in range(len(arguments))]
    by_sums = back(Concat(2), *by[:g]) if g > 1 else by[0]
    found: dict[str, Value | None] = {}
    if back.wants(x):
        stacked = back(Concat(2), *(back.reshape(one, (d, b, 1, h)) for one in by[g : g + i]))
        steps = x.type.shape[1]
        around = (0, operator.step, 0, 0, 0), (0, steps - operator.step - 1, 0, 0, 0)
        found["x"] = back(Pad(*around), back.reshape(stacked, (d, 1, b, i, h)))
    if back.wants(weight):
        turned = back(Transpose((0, 2, 1)), by_sums)
        product = matmul(back, turned, before[operator.summed])
        found["weight"] = back.reshape(product, weight.type.shape)
    if back.wants(state):
        states = by[g + i :]
        through = matmul(back, by_sums, gates)
        states[operator.summed] = back.pointwise("a + b", states[operator.summed], through)
        packed = [back.reshape(one, (d, b, h // 4, 1, 4)) for one in states]
        found["state"] = back(Concat(3), *packed) if s > 1 else packed[0]
    return back.by_name(**found)


def _apart(back: Backward, packed: Value, index: int, shape: tuple[int, ...]) -> Value:
    """Return state number `index` of packed states."""
    return _cut(back, packed, 3, index, shape)


def _cut(
    back: Backward, value: Value, axis: int, index: int, shape: tuple[int, ...], size: int = 1
) -> Value:
    """The piece number `index` of `size` places along `axis`, as `shape`."""
    if value.type.shape[axis] != size:
        bounds = (index * size,), ((index + 1) * size,)
        value = back(Slice(*bounds, (axis,), (1,)), value)
    return back.reshape(value, shape)


def _real(back: Backward, value: Value, units: int) -> Value:
    """Return `value` with zeros at padding units, whose states are always 0."""
    h = value.type.shape[2]
    if not units or units == h:
        return value
    kept = back(Slice((0,), (units,), (2,), (1,)), value)
    return back(Pad((0, 0, 0), (0, 0, h - units)), kept)


def _by(
    back: Backward,
    exprs: Sequence[Expr],
    place: int,
    arguments: Sequence[Value],
    new: Sequence[Value],
) -> Value:
    """The gradient by an argument of all expressions."""
    total: Expr | None = None
    for i, expr in enumerate(exprs):
        slope = gradient(expr, place)
        if slope is not None:
            one = times(slope, Arg(len(arguments) + i))
            total = one if total is None else call("add", total, one)
    if total is None:
        return back.zeros(arguments[place].type.shape)
    return back.expression(total, *arguments, *new)


RULES: dict[type[Operator], Rule] = {RecurrentStep: recurrent_step}
