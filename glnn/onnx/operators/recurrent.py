"""LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.graph.compose.recurrent import (
    Activation,
    LayerOperands,
    Phase,
    Results,
    gru_cell,
    lstm_cell,
    rnn_cell,
    run_directions,
)
from glnn.graph.expression import Scalar, formula
from glnn.graph.functions import FUNCTIONS
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Concat, Expand, Pad, Slice, Transpose
from glnn.onnx.operators.call import Converter, OperatorCall

_FUNCTIONS = (
    *("elu", "hardsigmoid", "leaky_relu", "relu", "sigmoid", "softplus", "softsign", "tanh"),
    "thresholded_relu",
)
FORMULAS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "affine": ("b * a + c", (1.0, 0.0)),
    "scaledtanh": ("b * tanh(c * a)", (1.0, 1.0)),
    **{
        row.onnx.name.lower(): (
            row.call if row.attributes else row.onnx_import,
            tuple(row.attributes.values()),
        )
        for row in map(FUNCTIONS.__getitem__, _FUNCTIONS)
        if row.onnx
    },
}
"""Activation functions by ONNX's names in lower case: a formula of a number, alpha and beta, and
the defaults of these.
"""


def activations(
    call: OperatorCall, defaults: tuple[str, ...], directions: int
) -> list[list[Activation]]:
    """Return the activation functions of each direction.

    A function with an alpha or a beta takes the next value of the node's `activation_alpha` or
    `activation_beta`. Raises ShapeError for a function that ONNX does not define.
    """
    names = call.get("activations", defaults * directions)
    if len(names) != len(defaults) * directions:
        wanted = len(defaults) * directions
        raise ShapeError(f"{call.name}: activations must be {wanted}, got {names}")
    none: tuple[float, ...] = ()
    alphas, betas = (
        iter(call.get("activation_alpha", none)),
        iter(call.get("activation_beta", none)),
    )
    result = [_activation(call, name, alphas, betas) for name in names]
    return [result[i : i + len(defaults)] for i in range(0, len(result), len(defaults))]


def _activation(
    call: OperatorCall, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    if name.lower() not in FORMULAS:
        raise ShapeError(f"{call.name}: the activation {name!r} is not known")
    text, defaults = FORMULAS[name.lower()]
    numbers = [
        Scalar(float(next(values, default)))
        for default, values in zip(defaults, (alphas, betas), strict=False)
    ]
    return lambda x: formula(text)(x, *numbers)


def _operands(
    call: OperatorCall,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None,
    lengths: Value | None,
    states: Sequence[Value | None],
) -> LayerOperands:
    """Return the operands of a recurrent node: time first, with zeros for omitted states."""
    batch_first = bool(call.get("layout", 0))
    if batch_first:
        x = call(Transpose((1, 0, 2)), x)
    t, b, _ = x.type.shape
    d, _, units = recurrent.type.shape
    result = []
    for state in states:
        if state is None:
            state = call(Expand((d, b, units)), call.constant(0, np.float32))
        elif batch_first:
            state = call(Transpose((1, 0, 2)), state)
        result.append(state)
    if lengths is not None:
        lengths = call.cast(lengths, DType.int32)
        if lengths.kind is Kind.CONSTANT and all(n == t for n in call.integers(lengths)):
            lengths = None
    return LayerOperands(x, weight, recurrent, bias, tuple(result), lengths)


def _restore_layout(call: OperatorCall, results: Results) -> Results:
    """Return the results in the node's layout."""
    if not call.get("layout", 0):
        return results
    y, *ends = results
    ends = [call(Transpose((1, 0, 2)), end) for end in ends]
    return (call(Transpose((2, 0, 1, 3)), y) if call.used_outputs[0] else ends[0], *ends)


def _columns(call: OperatorCall, value: Value, start: int, stop: int) -> Value:
    """Return columns `start` to `stop` of `value` (d, n)."""
    return call(Slice((start,), (stop,), (1,), (1,)), value)


def _sum_biases(call: OperatorCall, bias: Value | None, rows: int) -> Value | None:
    """Return the sum of input and recurrent biases, (d, rows), of `bias` (d, 2 rows)."""
    if bias is None:
        return None
    return call.pointwise(
        "a + b", _columns(call, bias, 0, rows), _columns(call, bias, rows, 2 * rows)
    )


def _expand_batch(call: OperatorCall, value: Value, b: int) -> Value:
    """Broadcast `value` (d, units) to each of b samples, (d, b, units)."""
    d, units = value.type.shape
    return call(Expand((d, b, units)), call.reshape(value, (d, 1, units)))


def _limit(call: OperatorCall) -> float:
    """Return the bound of activations' inputs, `clip`; 0 for none."""
    return float(call.get("clip", 0.0))


def lstm(
    call: OperatorCall,
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
    summed_bias = _sum_biases(call, bias, 4 * units)
    operands = _operands(call, x, weight, recurrent, summed_bias, lengths, (hidden, cell))
    if peepholes is not None:
        parts = [_columns(call, peepholes, i * units, (i + 1) * units) for i in range(3)]
        peephole_states = (_expand_batch(call, one, b) for one in parts)
        operands = replace(operands, states=(*operands.states, *peephole_states))

    def phases(f: Activation, g: Activation, h: Activation) -> tuple[Phase, ...]:
        peeps, coupled = peepholes is not None, bool(call.get("input_forget", 0))
        return lstm_cell(f, g, h, peeps=peeps, coupled=coupled, limit=_limit(call))

    result = layers(call, operands, 2, ("Sigmoid", "Tanh", "Tanh"), phases)
    return _restore_layout(call, result)


def _gru(
    call: OperatorCall,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
) -> Results:
    units, b = recurrent.type.shape[2], x.type.shape[0 if call.get("layout", 0) else 1]
    linear_before_reset = bool(call.get("linear_before_reset", 0))
    hidden_bias: Value | None = None
    if linear_before_reset and bias is not None:
        # The recurrent bias of the hidden gate is added before the reset: see gru_cell.
        hidden_bias = _expand_batch(call, _columns(call, bias, 5 * units, 6 * units), b)
        recurrent_bias = call(Pad((0, 0), (0, units)), _columns(call, bias, 3 * units, 5 * units))
        input_bias: Value | None = call.pointwise(
            "a + b", _columns(call, bias, 0, 3 * units), recurrent_bias
        )
    else:
        input_bias = _sum_biases(call, bias, 3 * units)
    operands = _operands(call, x, weight, recurrent, input_bias, lengths, (hidden,))
    if hidden_bias is not None:
        operands = replace(operands, states=(*operands.states, hidden_bias))

    def phases(f: Activation, g: Activation) -> tuple[Phase, ...]:
        return gru_cell(
            f,
            g,
            after=linear_before_reset,
            biased=hidden_bias is not None,
            limit=_limit(call),
        )

    return _restore_layout(call, layers(call, operands, 1, ("Sigmoid", "Tanh"), phases))


def _rnn(
    call: OperatorCall,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    hidden: Value | None = None,
) -> Results:
    summed_bias = _sum_biases(call, bias, recurrent.type.shape[2])
    operands = _operands(call, x, weight, recurrent, summed_bias, lengths, (hidden,))

    def phases(f: Activation) -> tuple[Phase, ...]:
        return rnn_cell(f, limit=_limit(call))

    return _restore_layout(call, layers(call, operands, 1, ("Tanh",), phases))


ENTRIES = (
    Converter("LSTM", 1, lstm),
    Converter("GRU", 1, _gru),
    Converter("RNN", 1, _rnn),
)


DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def layers(
    call: OperatorCall,
    operands: LayerOperands,
    results: int,
    names: tuple[str, ...],
    phases: Callable[..., tuple[Phase, ...]],
) -> Results:
    """Return the results of a recurrent node.

    results: the number of final states. names: the default activations of a direction. phases:
    function of the activations that returns the phases of a time step.
    """
    direction = call.get("direction", "forward")
    backwards = DIRECTIONS.get(direction)
    if backwards is None or operands.weight.type.shape[0] != len(backwards):
        raise ShapeError(
            f"{call.name}: W {operands.weight.type} does not fit direction {direction!r}"
        )
    t, b, _ = operands.x.type.shape
    if t == 0:  # as for sequence_lens of 0, states are 0, whatever the initial ones are
        state_shape = (len(backwards), b, operands.recurrent.type.shape[2])
        shapes = ((0, *state_shape), *(state_shape,) * results)
        zero = call.constant(0, np.float32)
        return tuple(call(Expand(shape), zero) for shape in shapes)
    cells = [phases(*functions) for functions in activations(call, names, len(backwards))]
    whole = call.used_outputs[0]
    if all(cell == cells[0] for cell in cells):
        return run_directions(call, operands, cells[0], backwards, results, whole=whole)
    runs = [
        run_directions(
            call,
            operands.direction(call, d),
            cell,
            (backwards[d],),
            results,
            whole=whole,
        )
        for d, cell in enumerate(cells)
    ]
    axes = (1, *(0,) * results)
    return tuple(
        call(Concat(axis), *both) for axis, both in zip(axes, zip(*runs, strict=True), strict=True)
    )
