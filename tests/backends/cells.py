"""Cells of recurrent layers, and how their states lie: for the tests of a step and of all steps."""

from __future__ import annotations

import numpy as np

from glnn.graph.expression import Arg, Expr, call

PLAIN = (call("tanh", call("add", Arg(0), Arg(1))),)


def lstm(*biases: Expr) -> tuple[Expr, ...]:
    """The new output and cell: sums, inputs of i, o, f, g, then output and cell before."""
    gates = [call("add", Arg(i), Arg(4 + i)) for i in range(4)]
    if biases:
        gates = [call("add", *both) for both in zip(gates, biases, strict=True)]
    i, o, f = (call("sigmoid", gate) for gate in gates[:3])
    cell = call("add", call("mul", f, Arg(9)), call("mul", i, call("tanh", gates[3])))
    return call("mul", o, call("tanh", cell)), cell


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def packed(states: list[np.ndarray]) -> np.ndarray:
    """(..., h) each, as (..., h / 4, s, 4)."""
    return np.stack([one.reshape(*one.shape[:-1], -1, 4) for one in states], -2)
