"""Recurrent layers: LSTM, GRU and RNN, unrolled into steps; their cells and directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import UNRANKED, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.node_adder import AddNode, NodeAdder
from glnn.graph.composite import Composite
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.graph.operators import (
    Concat,
    Expand,
    Flip,
    Gather,
    Matmul,
    Pad,
    RecurrentStep,
    Reshape,
    Slice,
    Transpose,
    Unsqueeze,
)


@dataclass(frozen=True)
class Phase:
    """The work of one launch of a step; a step has one or several phases. See `RecurrentStep`."""

    exprs: tuple[Expr, ...]
    """The expressions of the new states, of a unit's sums, inputs and states."""
    gates: tuple[int, int]
    """The range of the layer's gates whose sums it computes: first, and one past the last."""
    summed: int = 0
    """Index of the state that is summed."""


def unroll_steps(
    add: AddNode,
    phases: Sequence[Phase],
    x: Value,
    weight: Value,
    states: Sequence[Value],
    units: int,
) -> list[Value]:
    """Return all states of a layer, packed: before the first step, and after each.

    phases: of each step; the states of the last phase are those of the first phase in the next
    step. x: the inputs of the units, (d, t, b, i, h), for d directions, t steps and b samples.
    weight: (d, g, h, h). states: (d, b, h) each, before the first step. units: number of units
    without padding; h is padded to a multiple of four.
    """
    d, b, h = states[0].type.shape
    quads = [add(Reshape((d, b, h // 4, 1, 4), True), state) for state in states]
    packed = add(Concat(3), *quads) if len(quads) > 1 else quads[0]
    weights = [_take_gates(add, weight, *phase.gates) for phase in phases]
    result = [packed]
    for step in range(x.type.shape[1]):
        for phase, gate_weights in zip(phases, weights, strict=True):
            op = RecurrentStep(phase.exprs, step, phase.summed, units)
            packed = add(op, x, gate_weights, packed)
        result.append(packed)
    return result


def stack_states(add: AddNode, states: Sequence[Value], units: int, count: int) -> list[Value]:
    """Return the first `count` states, each (t, d, b, units), unpacked.

    states: the packed states of each of t steps.
    """
    steps = [add(Unsqueeze((0,)), state) for state in states]
    packed = add(Concat(0), *steps) if len(steps) > 1 else steps[0]
    t, d, b, quads, _, four = packed.type.shape
    result = []
    for i in range(count):
        state = add(Slice((i,), (i + 1,), (4,), (1,)), packed)
        state = add(Reshape((t, d, b, quads * four), True), state)
        if units != quads * four:
            state = add(Slice((0,), (units,), (3,), (1,)), state)
        result.append(state)
    return result


def pad_units(add: AddNode, x: Value, *axes: int) -> Value:
    """Pad x with zeros at the end of `axes`, to multiples of four."""
    after = [0] * len(x.type.dims)
    for axis in axes:
        after[axis] = -x.type.shape[axis] % 4
    return add(Pad((0,) * len(after), tuple(after)), x) if any(after) else x


def _take_gates(add: AddNode, weight: Value, first: int, last: int) -> Value:
    all_gates = (first, last) == (0, weight.type.shape[1])
    return weight if all_gates else add(Slice((first,), (last,), (1,), (1,)), weight)


Activation = Callable[[Expr], Expr]
IOFC = (0, 1, 2, 3)
"""Indices of an LSTM's gates in ONNX: input, output, forget, cell."""
ZRH = (0, 1, 2)
"""Indices of a GRU's gates in ONNX: update, reset, hidden."""


def _clip(limit: float) -> Activation:
    return (lambda x: call("clip", x, -limit, limit)) if limit > 0 else (lambda x: x)


def lstm_cell(
    f: Activation,
    g: Activation,
    h: Activation,
    *,
    peeps: bool = False,
    coupled: bool = False,
    limit: float = 0.0,
    order: Sequence[int] = IOFC,
) -> tuple[Phase, ...]:
    """Return the phase of an LSTM: of the sums of four gates, four inputs, the states h and c, and
    the peepholes of the first three gates.

    coupled: the forget gate is 1 less the input gate. limit: sums are clipped to it, where it is
    above 0. order: the indices of the gates i, o, f, c.
    """
    clip, old_cell = _clip(limit), Arg(9)

    def gate(i: int, cell: Expr) -> Expr:
        total = call("add", Arg(order[i]), Arg(4 + order[i]))
        if peeps and i < 3:
            total = call("add", total, call("mul", Arg(10 + i), cell))
        return clip(total)

    input_gate = f(gate(0, old_cell))
    forget_gate = call("sub", 1.0, input_gate) if coupled else f(gate(2, old_cell))
    new = call("mul", input_gate, g(gate(3, old_cell)))
    cell = call("add", call("mul", forget_gate, old_cell), new)
    hidden = call("mul", f(gate(1, cell)), h(cell))
    constant = tuple(Arg(10 + i) for i in range(3 if peeps else 0))
    return (Phase((hidden, cell, *constant), (0, 4)),)


def gru_cell(
    f: Activation, g: Activation, *, after: bool, biased: bool = False, limit: float = 0.0
) -> tuple[Phase, ...]:
    """Return the phases of a GRU, whose gates are z, r, h.

    after: the reset gate is applied after the product. biased: the product has a bias then, which
    is the second state. limit: sums are clipped to it, where it is above 0.
    """
    if after:
        return gru_after_cell(f, g, biased=biased, limit=limit)
    clip = _clip(limit)
    z, r = (f(clip(call("add", Arg(i), Arg(2 + i)))) for i in (0, 1))
    new = g(clip(call("add", Arg(0), Arg(3))))
    return (
        Phase((Arg(5), z, call("mul", r, Arg(5))), (0, 2)),
        Phase((_blend(Arg(5), new, Arg(4)),), (2, 3), 2),
    )


def gru_after_cell(
    f: Activation,
    g: Activation,
    *,
    biased: bool,
    limit: float = 0.0,
    order: Sequence[int] = ZRH,
) -> tuple[Phase, ...]:
    """Return the phase of a GRU whose reset gate is applied after the product. order: the indices
    of the gates z, r, h.
    """
    clip, (update, reset, hidden) = _clip(limit), order
    z, r = (f(clip(call("add", Arg(i), Arg(3 + i)))) for i in (update, reset))
    hidden_sum = call("add", Arg(hidden), Arg(7)) if biased else Arg(hidden)
    new = g(clip(call("add", Arg(3 + hidden), call("mul", r, hidden_sum))))
    constant = (Arg(7),) if biased else ()
    return (Phase((_blend(z, new, Arg(6)), *constant), (0, 3)),)


def rnn_cell(f: Activation, *, limit: float = 0.0) -> tuple[Phase, ...]:
    """Return the phase of a plain RNN, which has one gate."""
    return (Phase((f(_clip(limit)(call("add", Arg(0), Arg(1)))),), (0, 1)),)


def _blend(z: Expr, new: Expr, h: Expr) -> Expr:
    return call("add", call("mul", call("sub", 1.0, z), new), call("mul", z, h))


MOST_STEPS = 4096  # a plan has a launch for each: to make a plan of more takes minutes


@dataclass(frozen=True)
class LayerOperands:
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

    def direction(self, call: NodeAdder, d: int) -> LayerOperands:
        """Return the operands of direction `d` alone."""
        return LayerOperands(
            self.x,
            _take_direction(call, self.weight, d),
            _take_direction(call, self.recurrent, d),
            None if self.bias is None else _take_direction(call, self.bias, d),
            tuple(_take_direction(call, state, d) for state in self.states),
            self.lengths,
            None if self.first is None else _take_direction(call, self.first, d),
        )


Results = tuple[Value, ...]
"""All states (t, d, b, units), and then the last (d, b, units) of each state that is a result."""


def _take_direction(call: NodeAdder, value: Value, index: int) -> Value:
    """Return `value` sliced to one index of its first dimension, which stays."""
    if value.type.shape[0] == 1:
        return value
    return call(Slice((index,), (index + 1,), (0,), (1,)), value)


def run_directions(
    call: NodeAdder,
    operands: LayerOperands,
    phases: tuple[Phase, ...],
    backwards: Sequence[bool],
    count: int,
    *,
    whole: bool = True,
) -> Results:
    """Return the results of directions of the same phases.

    backwards: for each direction, whether it runs from the last step to the first. count: the
    number of states that are results. whole: whether the states after each step are needed; else
    the first result is the last state too. Raises UnsupportedOpError for less than one step or more
    than `MOST_STEPS`.
    """
    t, b, _ = operands.x.type.shape
    if not 1 <= t <= MOST_STEPS:
        raise UnsupportedOpError(f"{call.name}: {t} steps, there may be 1 to {MOST_STEPS}")
    units = operands.recurrent.type.shape[2]
    lengths = operands.lengths
    indices = None if lengths is None else _reversed_indices(call, lengths, t)
    d, rows, _ = operands.recurrent.type.shape
    inputs = [_input_products(call, operands, i, back, indices) for i, back in enumerate(backwards)]
    x = call(Concat(0), *inputs) if d > 1 else inputs[0]
    weight = call.reshape(operands.recurrent, (d, rows // units, units, units))
    initial = [pad_units(call, state, 2) for state in operands.states]
    states = unroll_steps(call, phases, x, pad_units(call, weight, 2, 3), initial, units)
    if lengths is None:
        last = stack_states(call, states[-1:], units, count)
        last = [call.reshape(state, (d, b, units)) for state in last]
        if not whole:
            return (last[0], *last)
        (y,) = stack_states(call, states[1:], units, 1)
    else:
        stacked = stack_states(call, states, units, count)
        last = [_last_states(call, state, lengths) for state in stacked]
        y = call(Slice((1,), (t + 1,), (0,), (1,)), stacked[0])
    directions = [
        _order_steps(call, _result_of_direction(call, y, i), back, indices)
        for i, back in enumerate(backwards)
    ]
    y = call(Concat(1), *directions) if d > 1 else directions[0]
    if lengths is not None:
        step = call.constant(np.arange(t).reshape(t, 1, 1, 1), np.int32)
        y = call.pointwise("where(a < b, c, 0.0)", step, call.reshape(lengths, (b, 1)), y)
    return (y, *last)


def _input_products(
    call: NodeAdder, operands: LayerOperands, d: int, back: bool, indices: Value | None
) -> Value:
    """Return a direction's inputs times its weight plus its bias, (1, t, b, gates, units), in the
    order of its steps.
    """
    t, b, features = operands.x.type.shape
    rows, units = operands.weight.type.shape[1], operands.recurrent.type.shape[2]
    gates = rows // units
    x = _order_steps(call, operands.x, back, indices)
    weight = call.reshape(_take_direction(call, operands.weight, d), (gates, units, features))
    weight = pad_units(call, weight, 1)
    wide = weight.type.shape[1]
    y = call(
        Matmul(),
        call.reshape(x, (t * b, features)),
        call.reshape(weight, (gates * wide, features)),
    )
    if operands.bias is not None:
        bias = pad_units(
            call, call.reshape(_take_direction(call, operands.bias, d), (gates, units)), 1
        )
        y = call.pointwise("a + b", y, call.reshape(bias, (gates * wide,)))
    y = call.reshape(y, (1, t, b, gates, wide))
    if operands.first is None:
        return y
    first = call.reshape(_take_direction(call, operands.first, d), (1, 1, b, gates, units))
    after = (0, t - 1, 0, 0, wide - units)
    return call.pointwise("a + b", y, call(Pad((0,) * 5, after), first) if any(after) else first)


def _result_of_direction(call: NodeAdder, y: Value, d: int) -> Value:
    """Return one direction of `y`: (t, d, b, units)."""
    if y.type.shape[1] == 1:
        return y
    return call(Slice((d,), (d + 1,), (1,), (1,)), y)


def _reversed_indices(call: NodeAdder, lengths: Value, t: int) -> Value:
    """Return the source of each row of (t b) where each sample's steps are reversed, int32."""
    (b,) = lengths.type.shape
    step = call.constant(np.arange(t)[:, None], np.int32)
    sample = call.constant(np.arange(b)[None], np.int32)
    index = call.pointwise("where(a < b, b - 1 - a, a) * c + d", step, lengths, b, sample)
    return call.reshape(index, (t * b,))


def _order_steps(call: NodeAdder, x: Value, back: bool, indices: Value | None) -> Value:
    """Return x (t, ...) with its steps reversed where a direction runs `back`.

    indices: see `_reversed_indices`; None where all samples have all steps.
    """
    if not back:
        return x
    if indices is None:
        return call(Flip((0,)), x)
    rows = call.reshape(x, (indices.type.shape[0], x.type.shape[-1]))
    return call.reshape(call(Gather(0), rows, indices), x.type.shape)


def _last_states(call: NodeAdder, states: Value, lengths: Value) -> Value:
    """Return the states after each sample's last step, (d, b, units), of `states` (t + 1, d, b,
    units).
    """
    count, d, b, units = states.type.shape
    rows = call.reshape(states, (count * d * b, units))
    column = call.constant(np.arange(d * b).reshape(d, b), np.int32)
    last = call(Gather(0), rows, call.pointwise("a * c + b", lengths, column, d * b))
    # ONNX Runtime gives zeros for a sample without steps.
    return call.pointwise("where(a > 0, b, 0.0)", call.reshape(lengths, (b, 1)), last)


GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Number of gates of a unit, by kind."""
IFGO = (0, 3, 1, 2)
"""Indices of an LSTM's gates i, o, f, c in PyTorch's parameters."""
RZN = (1, 0, 2)
"""Indices of a GRU's gates z, r, h in PyTorch's parameters."""


@dataclass(frozen=True, eq=False)
class RecurrentLayer(Composite):
    """x (t, b, i) to y (t, b, d p), the last h (d, b, p) and, of an LSTM, the last c (d, b, u).

    For d directions, of which the second runs from the last step to the first; i inputs, u units,
    and p = u numbers of a result, or fewer of an LSTM that projects them. Operands behind x are,
    for each direction, weight_ih (g u, i), weight_hh (g u, p), bias_ih and bias_hh (g u,) and
    weight_hr (p, u), as far as it has them; then, unless they are zeros, the first h and c. All are
    float32. Gates lie as in PyTorch: of an LSTM i, f, g, o, of a GRU r, z, n, whose reset gate
    follows the product. Hochreiter and Schmidhuber 1997, Cho et al. 2014, Sak et al. 2014, Long
    Short-Term Memory Based Recurrent Neural Network Architectures.
    """

    name: ClassVar[str] = "recurrent_layer"
    kind: str
    """The kind of layer: a key of `GATES`."""
    directions: int = 1
    """Number of directions, 1 or 2."""
    biased: bool = True
    """True where there are biases."""
    projected: bool = False
    """True where the units are projected."""

    def __post_init__(self) -> None:
        cannot_project = self.projected and self.kind != "lstm"
        if self.kind not in GATES or self.directions not in (1, 2) or cannot_project:
            raise ShapeError(f"recurrent_layer: no such attributes: {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RecurrentLayer, self._attributes  # without the graphs that it keeps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecurrentLayer) and self._attributes == other._attributes

    def __hash__(self) -> int:
        return hash(self._attributes)

    @property
    def _attributes(self) -> tuple[Any, ...]:
        return self.kind, self.directions, self.biased, self.projected

    def __str__(self) -> str:
        return self.kind

    @property
    def parts(self) -> tuple[str, ...]:
        """The operands of a direction."""
        biases = ("bias_ih", "bias_hh") if self.biased else ()
        return ("weight_ih", "weight_hh", *biases, *(("weight_hr",) if self.projected else ()))

    @property
    def states(self) -> int:
        """Number of states after the last step: 2 of an LSTM, else 1."""
        return 2 if self.kind == "lstm" else 1

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        missing = TensorType((UNRANKED,))
        return (missing,) * (1 + self.states)

    def expand(self, operand_values: Sequence[Value | None]) -> Graph:
        operands = [value for value in operand_values if value is not None]
        fixed, count = 1 + len(self.parts) * self.directions, len(operands)
        if count not in (fixed, fixed + self.states):
            raise ShapeError(f"{self.kind}: there must be {fixed} operands and states, got {count}")
        make = NodeAdder(Builder(self.name), self.kind)
        for value in operands:
            if value.kind is not Kind.CONSTANT:
                make.builder.take(value)
        x, weights, states = operands[0], operands[1:fixed], operands[fixed:]
        parts = {
            name: _stack(make, weights[i :: len(self.parts)]) for i, name in enumerate(self.parts)
        }
        layer = self._operands(make, x, parts, states)
        biased = len(layer.states) > self.states
        backwards = (False, True)[: self.directions]
        y, *last = run_directions(make, layer, self._phases(biased), backwards, self.states)
        if self.projected:
            last[0] = matmul(make, last[0], parts["weight_hr"], transposed=True)
        return make.builder.graph([self._join_directions(make, y, parts.get("weight_hr")), *last])

    def _join_directions(self, make: NodeAdder, y: Value, down: Value | None) -> Value:
        """Project y (t, d, b, u) by `down` and concatenate the directions: (t, b, d p)."""
        t, d, b, u = y.type.shape
        if down is None:
            y = make(Transpose((0, 2, 1, 3)), y) if d > 1 else y
            return make.reshape(y, (t, b, d * u))
        (_, p, _), parts = down.type.shape, []
        for i in range(d):
            states = make(Slice((i,), (i + 1,), (1,), (1,)), y) if d > 1 else y
            weight = make(Slice((i,), (i + 1,), (0,), (1,)), down) if d > 1 else down
            rows = make(Matmul(), make.reshape(states, (t * b, u)), make.reshape(weight, (p, u)))
            parts.append(make.reshape(rows, (t, b, p)))
        return make(Concat(2), *parts) if d > 1 else parts[0]

    def _phases(self, biased: bool) -> tuple[Phase, ...]:
        if self.kind == "lstm":
            return lstm_cell(_sigmoid, _tanh, _tanh, order=IFGO)
        if self.kind == "gru":
            return gru_after_cell(_sigmoid, _tanh, biased=biased, order=RZN)
        return rnn_cell(_tanh if self.kind == "rnn_tanh" else _relu)

    def _operands(
        self, make: NodeAdder, x: Value, parts: Mapping[str, Value], states: Sequence[Value]
    ) -> LayerOperands:
        """Return the operands of all directions. A GRU's last bias is added before the reset gate:
        it is passed as a state that never changes.
        """
        weight, recurrent = parts["weight_ih"], parts["weight_hh"]
        (_, b, _), (d, rows, _) = x.type.shape, weight.type.shape
        units = rows // GATES[self.kind]
        bias, last = self._biases(make, parts, units)
        initial = list(states)
        if not initial:
            zero = make.constant(0, np.float32)
            initial = [make(Expand((d, b, units)), zero) for _ in range(self.states)]
        operands = LayerOperands(x, weight, recurrent, bias, tuple(initial))
        if self.projected:
            operands = _project(make, operands, parts["weight_hr"], has_states=bool(states))
        if last is not None:
            bias_state = make(Expand((d, b, units)), make.reshape(last, (d, 1, units)))
            operands = replace(operands, states=(*operands.states, bias_state))
        return operands

    def _biases(
        self, make: NodeAdder, parts: Mapping[str, Value], units: int
    ) -> tuple[Value | None, Value | None]:
        """Return the bias of the inputs, (d, g u), and that of a GRU's last product, (d, u)."""
        if not self.biased:
            return None, None
        input_bias, hidden_bias = parts["bias_ih"], parts["bias_hh"]
        last = None
        if self.kind == "gru":
            last = make(Slice((2 * units,), (3 * units,), (1,), (1,)), hidden_bias)
            hidden_bias = make(Slice((0,), (2 * units,), (1,), (1,)), hidden_bias)
            hidden_bias = make(Pad((0, 0), (0, units)), hidden_bias)
        return make.pointwise("a + b", input_bias, hidden_bias), last


def _project(
    make: NodeAdder, operands: LayerOperands, down: Value, *, has_states: bool
) -> LayerOperands:
    """Return `operands` for units that are projected by `down` (d, p, u) in each step.

    The recurrent weight is multiplied by `down`, so that a step sums over the unprojected units in
    one launch. The products of the first h (d, b, p) are added to the first step's inputs.

    has_states: True where there are states before the first step.
    """
    d, _, units = down.type.shape
    h, cell = operands.states
    zero = make(Expand((d, h.type.shape[1], units)), make.constant(0, np.float32))
    first = matmul(make, h, operands.recurrent, transposed=True) if has_states else None
    recurrent = matmul(make, operands.recurrent, down)
    return replace(operands, recurrent=recurrent, states=(zero, cell), first=first)


def _stack(make: NodeAdder, values: Sequence[Value]) -> Value:
    """Stack `values` of one shape, one for each direction, along a new first dimension."""
    rows = [make.reshape(value, (1, *value.type.shape)) for value in values]
    return make(Concat(0), *rows) if len(rows) > 1 else rows[0]


def _sigmoid(x: Expr) -> Expr:
    return call("sigmoid", x)


def _tanh(x: Expr) -> Expr:
    return call("tanh", x)


def _relu(x: Expr) -> Expr:
    return call("relu", x)
