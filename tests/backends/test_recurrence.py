"""All steps of recurrent layers, by every kernel, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operators import Recurrence
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

PLAIN = (call("tanh", call("add", Arg(0), Arg(1))),)


def lstm() -> tuple[Expr, ...]:
    """The new output and cell: sums, inputs of i, o, f, g, output and cell before, and biases."""
    gates = [call("add", call("add", Arg(i), Arg(4 + i)), Arg(10 + i)) for i in range(4)]
    i, o, f = (call("sigmoid", gate) for gate in gates[:3])
    cell = call("add", call("mul", f, Arg(9)), call("mul", i, call("tanh", gates[3])))
    return call("mul", o, call("tanh", cell)), cell


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def packed(states: list[np.ndarray]) -> np.ndarray:
    """(..., h) each, as (..., h / 4, s, 4)."""
    return np.stack([one.reshape(*one.shape[:-1], -1, 4) for one in states], -2)


def one_layer(inputs: np.ndarray, weight: np.ndarray, states: list[np.ndarray], units: int):
    """Hidden and cell after each step (t, b, h), of inputs (t, b, 4, h), by a loop."""
    hidden, cell, bias = states[0], states[1], np.stack(states[2:], 1)
    found = []
    for now in inputs:
        gates = np.stack([hidden @ own.T for own in weight], 1) + now + bias
        i, o, f = (sigmoid(gates[:, k]) for k in range(3))
        cell = f * cell + i * np.tanh(gates[:, 3])
        hidden = o * np.tanh(cell)
        hidden[:, units:] = cell[:, units:] = 0
        found.append((hidden, cell))
    return (np.stack(one) for one in zip(*found, strict=True))


CASES = [  # directions, layers, steps, batch, h, units
    (1, 1, 1, 1, 4, 1),
    (2, 1, 7, 3, 8, 7),
    (1, 1, 3, 7, 132, 129),
    (2, 1, 66, 1, 20, 20),
    (1, 2, 3, 1, 20, 20),
    (1, 3, 7, 3, 8, 5),
    (1, 4, 2, 7, 4, 3),
    (1, 3, 1, 1, 132, 129),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrence"))
@pytest.mark.parametrize(("d", "layers", "t", "b", "h", "units"), CASES)
def test_lstms(opened, rng, name, kernel, d, layers, t, b, h, units) -> None:
    if kernel == "whole" and layers > 1:
        pytest.skip("one workgroup has one layer")
    if kernel == "waves_of_one" and layers > 1:
        pytest.skip("it is for single layers")
    if kernel == "whole" and 4 * h > 512:
        pytest.skip("more than shared memory holds")
    count = d * layers
    x, weight = rng((d, t, b, 4, h)), rng((count + layers - 1, 4, h, h)) / 4
    weight[..., units:], x[..., units:] = 0, 9
    states = [rng((count, b, h)) for _ in range(6)]
    states[0][..., units:] = states[1][..., units:] = 0
    found = run(
        opened(name),
        Recurrence(lstm(), 0, units, layers),
        {"x": x, "weight": weight, "state": packed(states)},
        kernel,
    )
    wide, given = weight.astype(np.float64), x.astype(np.float64)
    hidden = np.zeros(0)
    for chain in range(count):
        inputs = given[chain] if layers == 1 else given[0]
        if layers > 1 and chain:
            inputs = np.stack([hidden @ own.T for own in wide[layers + chain - 1]], 2)
        own = [one[chain].astype(np.float64) for one in states]
        hidden, cell = one_layer(inputs, wide[chain], own, units)
        assert oracle.error(found[:, chain], packed([hidden, cell])) <= TOLERANCE
