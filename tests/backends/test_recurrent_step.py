"""A step of a recurrent layer, by every kernel, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import RecurrentStep
from tests import oracle
from tests.backends.cells import PLAIN, lstm, packed, sigmoid
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [  # directions, steps, step, batch, h, units
    (1, 1, 0, 1, 4, 1),
    (2, 3, 2, 3, 8, 7),
    (1, 5, 1, 7, 132, 129),
    (2, 2, 0, 1, 12, 12),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("recurrent_step"))
@pytest.mark.parametrize(("d", "t", "step", "b", "h", "units"), CASES)
def test_an_lstm_cell_and_a_plain_one(opened, rng, name, kernel, d, t, step, b, h, units) -> None:
    x, weight = rng((d, t, b, 4, h)), rng((d, 4, h, h)) / h
    before = [rng((d, b, h)) for _ in range(2)]
    found = run(
        opened(name),
        RecurrentStep(lstm(), step, units=units),
        {"x": x, "weight": weight, "state": packed(before)},
        kernel,
    )
    wide = weight.astype(np.float64)
    gates = [
        np.stack([before[0][i] @ wide[i, g].T for i in range(d)]) + x[:, step, :, g]
        for g in range(4)
    ]
    cell = sigmoid(gates[2]) * before[1] + sigmoid(gates[0]) * np.tanh(gates[3])
    hidden = sigmoid(gates[1]) * np.tanh(cell)
    for new in (cell, hidden):
        new[..., units:] = 0
    assert oracle.error(found, packed([hidden, cell])) <= TOLERANCE
    plain = RecurrentStep(PLAIN, step, summed=1)
    operands = {"x": x[:, :, :, :1], "weight": weight[:, :1], "state": packed(before)}
    found = run(
        opened(name), plain, {k: np.ascontiguousarray(v) for k, v in operands.items()}, kernel
    )
    sums = np.stack([before[1][i] @ wide[i, 0].T for i in range(d)])
    assert oracle.error(found, packed([np.tanh(sums + x[:, step, :, 0])])) <= TOLERANCE


def test_what_does_not_fit_is_refused() -> None:
    shapes = {"x": (1, 2, 3, 1, 8), "weight": (1, 1, 8, 8), "state": (1, 3, 2, 1, 4)}
    assert RecurrentStep(PLAIN).shape_of(shapes) == (1, 3, 2, 1, 4)
    for wrong in (
        {"x": (1, 2, 3, 1, 7)},
        {"weight": (1, 5, 8, 8)},
        {"state": (1, 3, 8, 1)},
        {"state": (1, 4, 2, 1, 4)},
    ):
        with pytest.raises(ShapeError, match="recurrent_step"):
            RecurrentStep(PLAIN).shape_of({**shapes, **wrong})
    for op in (RecurrentStep(PLAIN, 2), RecurrentStep(PLAIN, 0, 1), RecurrentStep(PLAIN, units=9)):
        with pytest.raises(ShapeError, match="too little"):
            op.shape_of(shapes)
    with pytest.raises(ShapeError, match="no such"):
        RecurrentStep(())
