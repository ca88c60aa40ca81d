"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glnn.graph.compose import cells
from glnn.graph.compose.cells import Activation
from glnn.graph.compose.directions import Operands, Results
from glnn.graph.compose.recurrent import Phase
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Expand, Pad, Slice, Transpose
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.directions import layers
from glnn.onnx.operators.entry import Entry
from glnn.types import DType


def _operands(
    call: Call,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None,
    lengths: Value | None,
    states: Sequence[Value | None],
) -> Operands:
    """Return the operands of a recurrent node: x with the steps first, zeros for states that are
    left out.
    """
    late = bool(call.get("layout", 0))
    if late:
        x = call(Transpose((1, 0, 2)), x)
    t, b, _ = x.type.shape
    d, _, units = recurrent.type.shape
    found = []
    for state in states:
        if state is None:
            state = call(Expand((d, b, units)), call.constant(0, np.float32))
        elif late:
            state = call(Transpose((1, 0, 2)), state)
        found.append(state)
    if lengths is not None:
        lengths = call.cast(lengths, DType.int32)
        if lengths.kind is Kind.CONSTANT and all(n == t for n in call.integers(lengths)):
            lengths = None
    return Operands(x, weight, recurrent, bias, tuple(found), lengths)


def _finished(call: Call, results: Results) -> Results:
    """The results as the node's layout has them."""
    if not call.get("layout", 0):
        return results
    y, *ends = results
    ends = [call(Transpose((1, 0, 2)), end) for end in ends]
    return (call(Transpose((2, 0, 1, 3)), y) if call.used_outputs[0] else ends[0], *ends)


def _part(call: Call, value: Value, start: int, stop: int) -> Value:
    """`value` (d, n) from one place to another along the last dimension."""
    return call(Slice((start,), (stop,), (1,), (1,)), value)


def _both(call: Call, bias: Value | None, rows: int) -> Value | None:
    """The biases of the inputs and of the units, (d, 2 rows), in one, (d, rows)."""
    if bias is None:
        return None
    return call.pointwise("a + b", _part(call, bias, 0, rows), _part(call, bias, rows, 2 * rows))


def _everywhere(call: Call, value: Value, b: int) -> Value:
    """`value` (d, units) for each of b samples, (d, b, units)."""
    d, units = value.type.shape
    return call(Expand((d, b, units)), call.reshape(value, (d, 1, units)))


def _limit(call: Call) -> float:
    """Return the bound that sums are clipped to, 0 for none."""
    return float(call.get("clip", 0.0))


def _lstm(
    call: Call,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
    cell: Value | None = None,
    peepholes: Value | None = None,
) -> Results:
    units, b = recurrent.type.shape[2], x.type.shape[0 if call.get("layout", 0) else 1]
    together = _both(call, bias, 4 * units)
    given = _operands(call, x, weight, recurrent, together, lengths, (hidden, cell))
    if peepholes is not None:
        ends = [_part(call, peepholes, i * units, (i + 1) * units) for i in range(3)]
        more = (_everywhere(call, one, b) for one in ends)
        given = replace(given, states=(*given.states, *more))

    def phases(f: Activation, g: Activation, h: Activation) -> tuple[Phase, ...]:
        peeps, coupled = peepholes is not None, bool(call.get("input_forget", 0))
        return cells.lstm(f, g, h, peeps=peeps, coupled=coupled, limit=_limit(call))

    found = layers(call, given, 2, ("Sigmoid", "Tanh", "Tanh"), phases)
    return _finished(call, found)


def _gru(
    call: Call,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
) -> Results:
    units, b = recurrent.type.shape[2], x.type.shape[0 if call.get("layout", 0) else 1]
    after = bool(call.get("linear_before_reset", 0))
    last: Value | None = None
    if after and bias is not None:
        # The last bias of the units stays with their product: see cells.gru.
        last = _everywhere(call, _part(call, bias, 5 * units, 6 * units), b)
        own = call(Pad((0, 0), (0, units)), _part(call, bias, 3 * units, 5 * units))
        together: Value | None = call.pointwise("a + b", _part(call, bias, 0, 3 * units), own)
    else:
        together = _both(call, bias, 3 * units)
    given = _operands(call, x, weight, recurrent, together, lengths, (hidden,))
    if last is not None:
        given = replace(given, states=(*given.states, last))

    def phases(f: Activation, g: Activation) -> tuple[Phase, ...]:
        return cells.gru(f, g, after=after, biased=last is not None, limit=_limit(call))

    return _finished(call, layers(call, given, 1, ("Sigmoid", "Tanh"), phases))


def _rnn(
    call: Call,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
) -> Results:
    together = _both(call, bias, recurrent.type.shape[2])
    given = _operands(call, x, weight, recurrent, together, lengths, (hidden,))

    def phases(f: Activation) -> tuple[Phase, ...]:
        return cells.rnn(f, limit=_limit(call))

    return _finished(call, layers(call, given, 1, ("Tanh",), phases))


ENTRIES = (
    Entry("LSTM", 1, _lstm),
    Entry("GRU", 1, _gru),
    Entry("RNN", 1, _rnn),
)
