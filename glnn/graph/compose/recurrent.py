"""Recurrent layers, a step after the other: Hochreiter and Schmidhuber 1997, Cho et al. 2014."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glnn.graph.compose.add import Add
from glnn.graph.expression import Expr
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Pad, RecurrentStep, Reshape, Slice, Unsqueeze


@dataclass(frozen=True)
class Phase:
    """The expressions that one launch of a step computes: see `RecurrentStep`."""

    exprs: tuple[Expr, ...]
    """The new states, each of a unit's sums, inputs and states."""
    gates: tuple[int, int]
    """The first of the layer's gates that are summed, and the one behind the last."""
    summed: int = 0
    """Index of the state that is summed."""


def steps(
    add: Add, phases: Sequence[Phase], x: Value, weight: Value, states: Sequence[Value], units: int
) -> list[Value]:
    """Return all states of a layer, packed: before the first step, and after each.

    phases: of each step; the last one gives the states that the first one takes. x: the inputs of
    the units, (d, t, b, i, h), for d directions, t steps and b samples. weight: (d, g, h, h).
    states: (d, b, h) each, before the first step. units: how many of the h, a multiple of four,
    there are.
    """
    d, b, h = states[0].type.shape
    apart = [add(Reshape((d, b, h // 4, 1, 4), True), state) for state in states]
    packed = add(Concat(3), *apart) if len(apart) > 1 else apart[0]
    parts = [_of_gates(add, weight, *phase.gates) for phase in phases]
    found = [packed]
    for step in range(x.type.shape[1]):
        for phase, part in zip(phases, parts, strict=True):
            op = RecurrentStep(phase.exprs, step, phase.summed, units)
            packed = add(op, x, part, packed)
        found.append(packed)
    return found


def stacked(add: Add, states: Sequence[Value], units: int, count: int) -> list[Value]:
    """Return the first `count` states, each (t, d, b, units), unpacked from the packed states of
    all t steps.
    """
    apart = [add(Unsqueeze((0,)), state) for state in states]
    together = add(Concat(0), *apart) if len(apart) > 1 else apart[0]
    t, d, b, quads, _, four = together.type.shape
    found = []
    for i in range(count):
        one = add(Slice((i,), (i + 1,), (4,), (1,)), together)
        one = add(Reshape((t, d, b, quads * four), True), one)
        found.append(one if units == quads * four else add(Slice((0,), (units,), (3,), (1,)), one))
    return found


def filled(add: Add, x: Value, *axes: int) -> Value:
    """Pad x with zeros at the end, where `axes` are no multiples of four."""
    after = [0] * len(x.type.dims)
    for axis in axes:
        after[axis] = -x.type.shape[axis] % 4
    return add(Pad((0,) * len(after), tuple(after)), x) if any(after) else x


def _of_gates(add: Add, weight: Value, first: int, last: int) -> Value:
    whole = (first, last) == (0, weight.type.shape[1])
    return weight if whole else add(Slice((first,), (last,), (1,), (1,)), weight)
