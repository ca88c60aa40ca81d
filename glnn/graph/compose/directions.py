"""The directions of a recurrent layer: what each is given, and its results in order.

A step is one launch for all directions, two of a GRU that resets before its product. All steps are
written out, up to `MOST_STEPS`, since a loop would have the host in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glnn.errors import UnsupportedOpError
from glnn.graph.compose.maker import Maker
from glnn.graph.compose.recurrent import Phase, filled, stacked, steps
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Flip, Gather, Matmul, Pad, Slice

MOST_STEPS = 4096  # a plan has a launch for each: to make one of more takes minutes


@dataclass(frozen=True)
class Operands:
    """The operands of a recurrent layer, for one of its directions or for all."""

    x: Value
    """Inputs, (t, b, inputs)."""
    weight: Value
    """Weight of the inputs, (d, gates units, inputs)."""
    recurrent: Value
    """Weight of the states, (d, gates units, units)."""
    bias: Value | None
    """Bias, (d, gates units)."""
    states: tuple[Value, ...]
    """States before the first step, (d, b, units) each; those that never change come last."""
    lengths: Value | None = None
    """Number of steps of each sample, (b,)."""
    first: Value | None = None
    """Numbers added to the inputs of a direction's units in its first step, (d, b, gates units)."""

    def direction(self, call: Maker, d: int) -> Operands:
        """Return the operands of direction `d` alone."""
        return Operands(
            self.x,
            _one(call, self.weight, d),
            _one(call, self.recurrent, d),
            None if self.bias is None else _one(call, self.bias, d),
            tuple(_one(call, state, d) for state in self.states),
            self.lengths,
            None if self.first is None else _one(call, self.first, d),
        )


Results = tuple[Value, ...]
"""All states (t, d, b, units), and then the last (d, b, units) of each state that is a result."""


def _one(call: Maker, value: Value, index: int) -> Value:
    """Return `value` sliced to one place of its first dimension, which stays."""
    if value.type.shape[0] == 1:
        return value
    return call(Slice((index,), (index + 1,), (0,), (1,)), value)


def run(
    call: Maker,
    given: Operands,
    phases: tuple[Phase, ...],
    backwards: Sequence[bool],
    count: int,
    *,
    whole: bool = True,
) -> Results:
    """The results of directions that compute the same.

    phases: what they make of a step. backwards: for each direction, whether it runs from the last
    step to the first. count: how many of the states are results. whole: whether anybody wants what
    there is after each step; else the first result is the second once more. Raises
    UnsupportedOpError for fewer steps than one or more than `MOST_STEPS`.
    """
    t, b, _ = given.x.type.shape
    if not 1 <= t <= MOST_STEPS:
        raise UnsupportedOpError(f"{call.name}: {t} steps, there may be 1 to {MOST_STEPS}")
    units = given.recurrent.type.shape[2]
    places = None if given.lengths is None else _turned(call, given.lengths, t)
    d, rows, _ = given.recurrent.type.shape
    inputs = [_inputs(call, given, i, back, places) for i, back in enumerate(backwards)]
    x = call(Concat(0), *inputs) if d > 1 else inputs[0]
    weight = call.reshape(given.recurrent, (d, rows // units, units, units))
    before = [filled(call, state, 2) for state in given.states]
    found = steps(call, phases, x, filled(call, weight, 2, 3), before, units)
    if given.lengths is None:
        last = stacked(call, found[-1:], units, count)
        ends = [call.reshape(one, (d, b, units)) for one in last]
        if not whole:
            return (ends[0], *ends)
        (y,) = stacked(call, found[1:], units, 1)
    else:
        together = stacked(call, found, units, count)
        ends = [_at_end(call, one, given.lengths) for one in together]
        y = call(Slice((1,), (t + 1,), (0,), (1,)), together[0])
    each = [
        _in_order(call, _direction(call, y, i), back, places) for i, back in enumerate(backwards)
    ]
    y = call(Concat(1), *each) if d > 1 else each[0]
    if given.lengths is not None:
        step = call.constant(np.arange(t).reshape(t, 1, 1, 1), np.int32)
        lengths = call.reshape(given.lengths, (b, 1))
        y = call.pointwise("where(a < b, c, 0.0)", step, lengths, y)
    return (y, *ends)


def _inputs(call: Maker, given: Operands, d: int, back: bool, places: Value | None) -> Value:
    """Return a direction's inputs times its weight plus its bias, (1, t, b, gates, units), in the
    order of its steps.
    """
    t, b, features = given.x.type.shape
    rows, units = given.weight.type.shape[1], given.recurrent.type.shape[2]
    gates = rows // units
    x = _in_order(call, given.x, back, places)
    weight = call.reshape(_one(call, given.weight, d), (gates, units, features))
    weight = filled(call, weight, 1)
    wide = weight.type.shape[1]
    y = call(
        Matmul(),
        call.reshape(x, (t * b, features)),
        call.reshape(weight, (gates * wide, features)),
    )
    if given.bias is not None:
        bias = filled(call, call.reshape(_one(call, given.bias, d), (gates, units)), 1)
        y = call.pointwise("a + b", y, call.reshape(bias, (gates * wide,)))
    y = call.reshape(y, (1, t, b, gates, wide))
    if given.first is None:
        return y
    first = call.reshape(_one(call, given.first, d), (1, 1, b, gates, units))
    after = (0, t - 1, 0, 0, wide - units)
    return call.pointwise("a + b", y, call(Pad((0,) * 5, after), first) if any(after) else first)


def _direction(call: Maker, y: Value, d: int) -> Value:
    """Return one direction of `y`: (t, d, b, units)."""
    if y.type.shape[1] == 1:
        return y
    return call(Slice((d,), (d + 1,), (1,), (1,)), y)


def _turned(call: Maker, lengths: Value, t: int) -> Value:
    """Return the row of (t b) for each place when each sample's steps are reversed, int32."""
    (b,) = lengths.type.shape
    step = call.constant(np.arange(t)[:, None], np.int32)
    sample = call.constant(np.arange(b)[None], np.int32)
    index = call.pointwise("where(a < b, b - 1 - a, a) * c + d", step, lengths, b, sample)
    return call.reshape(index, (t * b,))


def _in_order(call: Maker, x: Value, back: bool, places: Value | None) -> Value:
    """Return x (t, ...) with its steps reversed where a direction runs `back`."""
    if not back:
        return x
    if places is None:
        return call(Flip((0,)), x)
    rows = call.reshape(x, (places.type.shape[0], x.type.shape[-1]))
    return call.reshape(call(Gather(0), rows, places), x.type.shape)


def _at_end(call: Maker, states: Value, lengths: Value) -> Value:
    """Return the states after each sample's last step, (d, b, units), of `states` (t + 1, d, b,
    units).
    """
    steps_, d, b, units = states.type.shape
    rows = call.reshape(states, (steps_ * d * b, units))
    place = call.constant(np.arange(d * b).reshape(d, b), np.int32)
    ends = call(Gather(0), rows, call.pointwise("a * c + b", lengths, place, d * b))
    # As ONNX Runtime has it, nothing comes of no steps.
    return call.pointwise("where(a > 0, b, 0.0)", call.reshape(lengths, (b, 1)), ends)
