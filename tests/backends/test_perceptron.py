"""Two products as one, by every kernel, and what graphs make of squeeze-and-excitations."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compile import evaluate
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Perceptron
from glnn.kernels import kernels_for
from glnn.kernels.admit import why_not_device
from glnn.kernels.problem import Problem
from tests import oracle
from tests.backends.harness import TOLERANCE, Array, kernels, run, run_kernel

GATED = Perceptron(call("relu", Arg(0)), call("sigmoid", call("sub", Arg(0), 0.25)))
RAISED = Perceptron(call("exp", Arg(0)))
"""What is not 0 at 0: what pads the hidden numbers must not be added up."""


def expected(op: Perceptron, x: Array, first: Array, second: Array) -> Array:
    x, first, second = (array.astype(np.float64) for array in (x, first, second))
    hidden = oracle.matmul(x[:, :, 0, 0], first[:, :-1], first[:, -1])
    hidden = np.maximum(hidden, 0) if op == GATED else np.exp(hidden)
    out = oracle.matmul(hidden, second[:, :-1], second[:, -1])
    return (1 / (1 + np.exp(-(out - 0.25))) if op == GATED else out)[:, :, None, None]


def operands(rng, n: int, c: int, hidden: int, o: int) -> dict[str, Array]:
    first = rng((hidden, c + 1)) / np.float32(c**0.5)
    second = rng((o, hidden + 1)) / np.float32(hidden**0.5)
    return {"x": rng((n, c, 1, 1)), "first": first, "second": second}


@pytest.mark.parametrize("op", [GATED, RAISED])
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1, 1), (3, 7, 3, 129), (2, 129, 7, 1), (1, 37, 127, 37), (5, 576, 144, 576)],
)
@pytest.mark.parametrize(("name", "kernel"), kernels("perceptron"))
def test_any_sizes(opened, rng, name, kernel, sizes, op) -> None:
    given = operands(rng, *sizes)
    got = run(opened(name), op, given, kernel)
    assert oracle.error(got, expected(op, **given)) <= TOLERANCE


@pytest.mark.parametrize("lanes", [32, 64, 512, 1024])
def test_any_number_of_lanes(opened, rng, lanes) -> None:
    """More quads than lanes, as many, and fewer: then some lanes have nothing to add up."""
    backend = opened("compute")
    choice = kernels_for("perceptron", "compute")[0].with_parameters(WG=lanes)
    if why_not_device(choice, backend.device.capabilities):
        return
    for sizes in ((2, 5, 9, 4099), (2, 67, 2047, 3)):
        given = operands(rng, *sizes)
        types = {name: array.shape for name, array in given.items()}
        got = run_kernel(backend, GATED, given, Problem.of(GATED, types, {}).adapted(choice))
        assert oracle.error(got, expected(GATED, **given)) <= TOLERANCE


def test_more_hidden_numbers_than_there_is_room_for(opened, rng) -> None:
    with pytest.raises(UnsupportedOpError, match="room for 2048 hidden numbers, no 2049"):
        evaluate(GATED, operands(rng, 1, 2, 2049, 2), opened("compute"))


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (2, 3, 1, 1), "first": (5, 3), "second": (7, 6)},
        {"x": (2, 3, 1, 1), "first": (5, 4), "second": (7, 5)},
        {"x": (2, 3, 1, 2), "first": (5, 4), "second": (7, 6)},
        {"x": (2, 3), "first": (5, 4), "second": (7, 6)},
    ],
)
def test_operands_must_fit(shapes) -> None:
    with pytest.raises(ShapeError, match="perceptron: "):
        Problem.of(GATED, shapes, {})


def test_its_functions_are_of_one_sum() -> None:
    with pytest.raises(ShapeError, match="must be of one sum"):
        Perceptron(call("add", Arg(0), Arg(1)))
