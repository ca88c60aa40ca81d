"""The directions of a recurrent layer: what each is given, and its results in order.

A step is one launch for all directions, two of a GRU that resets before its product. All steps are
written out, up to `MOST_STEPS`, since a loop would have the host in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.recurrent import Phase, filled, stacked, steps
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Flip, Gather, Matmul, Slice
from glnn.onnx.operators.activation import activations
from glnn.onnx.operators.call import Call

MOST_STEPS = 4096  # a plan has a launch for each: to make one of more takes minutes
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True)
class Operands:
    """What a node's layers are given, some of its directions or all."""

    x: Value
    """(t, b, inputs)."""
    weight: Value
    """(d, gates units, inputs)."""
    recurrent: Value
    """(d, gates units, units)."""
    bias: Value | None
    """(d, gates units)."""
    states: tuple[Value, ...]
    """(d, b, units) each, before the first step; what never changes comes last."""
    lengths: Value | None
    """(b,), the steps of each sample."""

    def direction(self, call: Call, d: int) -> Operands:
        """Those of one direction."""
        return Operands(
            self.x,
            _one(call, self.weight, d),
            _one(call, self.recurrent, d),
            None if self.bias is None else _one(call, self.bias, d),
            tuple(_one(call, state, d) for state in self.states),
            self.lengths,
        )


Results = tuple[Value, ...]
"""(t, d, b, units), and then (d, b, units) of each state that is a result."""


def _one(call: Call, value: Value, index: int) -> Value:
    """`value` at one place of its first dimension, which stays."""
    if value.type.shape[0] == 1:
        return value
    return call(Slice((index,), (index + 1,), (0,), (1,)), value)


def layers(
    call: Call,
    given: Operands,
    results: int,
    names: tuple[str, ...],
    phases: Callable[..., tuple[Phase, ...]],
) -> Results:
    """The results of a node. names: the activations of a direction unless the node has others.

    phases: what these make of a step.
    """
    direction = call.get("direction", "forward")
    backwards = DIRECTIONS.get(direction)
    if backwards is None or given.weight.type.shape[0] != len(backwards):
        raise ShapeError(f"{call.name}: W {given.weight.type} does not fit direction {direction!r}")
    if not 1 <= given.x.type.shape[0] <= MOST_STEPS:
        raise UnsupportedOpError(f"{call.name}: {given.x.type.shape[0]} steps")
    each = [phases(*own) for own in activations(call, names, len(backwards))]
    if all(own == each[0] for own in each):
        return _run(call, given, each[0], backwards, results)
    apart = [
        _run(call, given.direction(call, d), own, (backwards[d],), results)
        for d, own in enumerate(each)
    ]
    axes = (1, *(0,) * results)
    return tuple(
        call(Concat(axis), *both) for axis, both in zip(axes, zip(*apart, strict=True), strict=True)
    )


def _run(
    call: Call, given: Operands, phases: tuple[Phase, ...], backwards: Sequence[bool], count: int
) -> Results:
    """The results of directions that compute the same."""
    t, b, _ = given.x.type.shape
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
        if not call.wanted[0]:
            return (ends[0], *ends)
        (y,) = stacked(call, found[1:], units, 1)
    else:
        whole = stacked(call, found, units, count)
        ends = [_at_end(call, one, given.lengths) for one in whole]
        y = call(Slice((1,), (t + 1,), (0,), (1,)), whole[0])
    each = [
        _in_order(call, _direction(call, y, i), back, places) for i, back in enumerate(backwards)
    ]
    y = call(Concat(1), *each) if d > 1 else each[0]
    if given.lengths is not None:
        step = call.constant(np.arange(t).reshape(t, 1, 1, 1), np.int32)
        lengths = call.reshape(given.lengths, (b, 1))
        y = call.pointwise("where(a < b, c, 0.0)", step, lengths, y)
    return (y, *ends)


def _inputs(call: Call, given: Operands, d: int, back: bool, places: Value | None) -> Value:
    """What the units of a direction get from outside, (1, t, b, gates, units), as it runs."""
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
    return call.reshape(y, (1, t, b, gates, wide))


def _direction(call: Call, y: Value, d: int) -> Value:
    """`y` (t, d, b, units) of one direction."""
    if y.type.shape[1] == 1:
        return y
    return call(Slice((d,), (d + 1,), (1,), (1,)), y)


def _turned(call: Call, lengths: Value, t: int) -> Value:
    """Which row of (t b) each place has when each sample's steps are turned round, int32."""
    (b,) = lengths.type.shape
    step = call.constant(np.arange(t)[:, None], np.int32)
    sample = call.constant(np.arange(b)[None], np.int32)
    index = call.pointwise("where(a < b, b - 1 - a, a) * c + d", step, lengths, b, sample)
    return call.reshape(index, (t * b,))


def _in_order(call: Call, x: Value, back: bool, places: Value | None) -> Value:
    """x (t, ...) with its steps turned round where a direction runs `back`."""
    if not back:
        return x
    if places is None:
        return call(Flip((0,)), x)
    rows = call.reshape(x, (places.type.shape[0], x.type.shape[-1]))
    return call.reshape(call(Gather(0), rows, places), x.type.shape)


def _at_end(call: Call, states: Value, lengths: Value) -> Value:
    """Of states (t + 1, d, b, units) those behind each sample's last step, (d, b, units)."""
    steps_, d, b, units = states.type.shape
    rows = call.reshape(states, (steps_ * d * b, units))
    place = call.constant(np.arange(d * b).reshape(d, b), np.int32)
    ends = call(Gather(0), rows, call.pointwise("a * c + b", lengths, place, d * b))
    # As ONNX Runtime has it, nothing comes of no steps.
    return call.pointwise("where(a > 0, b, 0.0)", call.reshape(lengths, (b, 1)), ends)
