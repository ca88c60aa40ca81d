"""Recurrent layers."""

from __future__ import annotations

import numpy as np

from glnn.errors import UnsupportedOpError
from glnn.graph.compose.recurrent_layer import RecurrentLayer
from glnn.layers.recurrent import Cell, Recurrent
from glnn.onnx.export.writer import LayerWriter
from glnn.types import Array

OP_TYPES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""PyTorch's gates in ONNX's order: i, o, f, c of an LSTM, z, r, h of a GRU."""


def recurrent(out: LayerWriter, x: str, *states: str) -> tuple[str, ...]:
    layer = out.layer
    assert isinstance(layer, Recurrent)
    op = layer.op
    assert isinstance(op, RecurrentLayer)
    alone = len(out.types[0].dims) == 2
    if alone:
        axes = out.integers(1)
        x, *states = (out("Unsqueeze", one, axes) for one in (x, *states))  # type: ignore
    elif layer.batch_first:
        x = out("Transpose", x, perm=(1, 0, 2))
    ends: list[list[str]] = []
    for number in range(layer.num_layers):
        own = [_of_layer(out, one, number, layer) for one in states]
        x, *last = _layer(out, x, own, op, f"_l{number}")
        ends.append(last)
    found = [
        out("Concat", *one, axis=0) if len(one) > 1 else one[0] for one in zip(*ends, strict=True)
    ]
    if alone:
        x, *found = (out("Squeeze", one, axes) for one in (x, *found))
    elif layer.batch_first:
        x = out("Transpose", x, perm=(1, 0, 2))
    return x, *found


def cell(out: LayerWriter, x: str, *states: str) -> tuple[str, ...]:
    op = out.layer.op
    assert isinstance(out.layer, Cell) and isinstance(op, RecurrentLayer)
    axes = out.integers(*((0, 1) if len(out.types[0].dims) == 1 else (0,)))
    given = [out("Unsqueeze", one, axes) for one in (x, *states)]
    _, *ends = _layer(out, given[0], given[1:], op, "")
    return tuple(out("Squeeze", one, axes) for one in ends)


def _layer(
    out: LayerWriter, x: str, states: list[str], op: RecurrentLayer, suffix: str
) -> list[str]:
    """Write one ONNX node for a layer; return its output x (t, b, d p) and its last states.

    suffix: the end of the parameters' names.
    """
    kind, arrays = OP_TYPES[op.kind], out.layer.parameters
    ends = ("", "_reverse")[: op.directions]

    def stack(part: str) -> Array:
        return np.stack([arrays[f"{part}{suffix}{end}"] for end in ends])

    weight, summed = stack("weight_ih"), stack("weight_hh")
    if op.projected:
        if states:
            raise UnsupportedOpError("ONNX has no projection, so that h_0 must be left out")
        down = stack("weight_hr")
        summed = (summed.astype(np.float64) @ down).astype(np.float32)
    biases = [stack("bias_ih"), stack("bias_hh")] if op.biased else []
    operands = {"W": _reorder_gates(kind, weight), "R": _reorder_gates(kind, summed)}
    if biases:
        operands["B"] = np.concatenate([_reorder_gates(kind, one) for one in biases], 1)
    called = [
        out.writer.weight(f"{out.name}.{name}{suffix}", one) for name, one in operands.items()
    ]
    called += [""] * (3 - len(called)) + ["", *states] if states else []
    how = {
        "hidden_size": summed.shape[2],
        "direction": "bidirectional" if op.directions == 2 else "forward",
    }
    if kind == "GRU":
        how["linear_before_reset"] = 1
    if op.kind == "rnn_relu":
        how["activations"] = ["Relu"] * op.directions
    y, *last = out.all(1 + op.states, kind, x, *called, **how)
    if op.projected:
        name = f"{out.name}.weight_hr{suffix}.T"
        turned = out.writer.weight(name, np.ascontiguousarray(down.swapaxes(1, 2)))
        y, last[0] = (out("MatMul", one, turned) for one in (y, last[0]))
    y = out("Transpose", y, perm=(0, 2, 1, 3))
    return [out("Reshape", y, out.integers(0, 0, -1)), *last]


def _reorder_gates(kind: str, array: Array) -> Array:
    """Return `array` (d, g u, ...) with the gates in ONNX's order."""
    gates = GATES[kind]
    apart = array.reshape(len(array), len(gates), -1, *array.shape[2:])
    return np.ascontiguousarray(apart[:, gates].reshape(array.shape))


def _of_layer(out: LayerWriter, states: str, number: int, layer: Recurrent) -> str:
    """Slice the states of layer `number` from the states of all layers."""
    if layer.num_layers == 1:
        return states
    count = 2 if layer.bidirectional else 1
    bounds = out.integers(number * count), out.integers((number + 1) * count)
    return out("Slice", states, *bounds, out.integers(0))
