"""Layers one behind another as one operator, by every kernel."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import evaluate
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Perceptron
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.codegen.perceptron import MOST_LAYERS
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, Array, kernels, run, run_kernel

GATE = (call("relu", Arg(0)), call("sigmoid", call("sub", Arg(0), 0.25)))
RAISED = (call("exp", Arg(0)),) * 3
"""What is not 0 at 0: what pads the hidden numbers must not be added up."""
MADE = {
    call("relu", Arg(0)): lambda x: np.maximum(x, 0),
    GATE[1]: lambda x: 1 / (1 + np.exp(-(x - 0.25))),
    call("exp", Arg(0)): np.exp,
}


def layers(rng, c: int, widths: tuple[int, ...]) -> list[tuple[Array, Array]]:
    """Matrices and biases."""
    found = []
    for deep, wide in zip((c, *widths), widths, strict=False):
        found.append((rng((wide, deep)) / np.float32(2 * deep**0.5), rng((wide,)) / np.float32(4)))
    return found


def sides_of(own: list[tuple[Array, Array]]) -> dict[str, Array]:
    """As the operator takes them; what pads rows is NaN, as nobody looks at it."""
    found: dict[str, list[Array]] = {"weights": [], "biases": []}
    for matrix, bias in own:
        for rows, name in ((matrix.T, "weights"), (bias[None], "biases")):
            wide = np.full((len(rows), -(-len(bias) // 4) * 4), np.nan, np.float32)
            wide[:, : len(bias)] = rows
            found[name].append(wide.ravel())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def expected(op: Perceptron, x: Array, own: list[tuple[Array, Array]]) -> Array:
    found = x.astype(np.float64).reshape(x.shape[:2])
    for function, (matrix, bias) in zip(op.functions, own, strict=True):
        sums = oracle.matmul(found, matrix.astype(np.float64), bias.astype(np.float64))
        found = MADE[function](sums)
    return found.reshape(*found.shape, *x.shape[2:])


def operands(rng, op: Perceptron, *shape: int) -> tuple[dict[str, Array], Array]:
    """What `op` is given for an x of that shape, and what is to come of it."""
    x, own = rng(shape), layers(rng, shape[1], op.widths)
    return {"x": x, **sides_of(own)}, expected(op, x, own)


@pytest.mark.parametrize("functions", [GATE, RAISED[:2], RAISED, RAISED[:1]], ids=len)
@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ((1, 1), (1, 1, 1)),
        ((3, 7, 1, 1), (3, 129, 5)),
        ((2, 129), (7, 1, 7)),
        ((1, 37), (127, 37, 129)),
        ((5, 576, 1, 1), (144, 576, 3)),
        ((7, 400), (120, 84, 10)),
    ],
)
@pytest.mark.parametrize(("name", "kernel"), kernels("perceptron"))
def test_any_sizes(opened, rng, name, kernel, shape, widths, functions) -> None:
    op = Perceptron(widths[: len(functions)], functions)
    given, correct = operands(rng, op, *shape)
    got = run(opened(name), op, given, kernel)
    assert oracle.error(got, correct) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("perceptron"))
def test_weights_of_float16(opened, rng, name, kernel) -> None:
    op = Perceptron((129, 7, 10), (*GATE, GATE[0]))
    x, own = rng((3, 37)), layers(rng, 37, op.widths)
    rounded = [(matrix.astype(np.float16).astype(np.float32), bias) for matrix, bias in own]
    given = {"x": x, **sides_of(own)}
    given["weights"] = given["weights"].astype(np.float16)
    got = run(opened(name), op, given, kernel)
    assert oracle.error(got, expected(op, x, rounded)) <= TOLERANCE


def test_no_more_layers_than_a_program_holds(opened, rng) -> None:
    backend = opened("compute")
    for count in (MOST_LAYERS, MOST_LAYERS + 1):
        op = Perceptron((5,) * count, (call("relu", Arg(0)),) * count)
        given, correct = operands(rng, op, 2, 7)
        if count > MOST_LAYERS:
            with pytest.raises(UnsupportedOpError, match="8 layers at the most, no 9"):
                evaluate(op, given, backend)
        else:
            assert oracle.error(evaluate(op, given, backend), correct) <= TOLERANCE


@pytest.mark.parametrize("lanes", [32, 64, 512, 1024])
def test_any_number_of_lanes(opened, rng, lanes) -> None:
    """More quads than lanes, as many, and fewer: then some lanes have nothing to add up."""
    backend = opened("compute")
    choice = kernels_for("perceptron", "compute")[0].with_parameters(WG=lanes)
    if why_not_device(choice, backend.device.capabilities):
        return
    for shape, widths in (((2, 5), (9, 4099)), ((2, 67), (2047, 3)), ((2, 9), (1023, 1021, 5))):
        op = Perceptron(widths, (*GATE, GATE[0])[: len(widths)])
        given, correct = operands(rng, op, *shape)
        types = {name: array.shape for name, array in given.items()}
        got = run_kernel(backend, op, given, OpSpec.create(op, types, {}).adapted(choice))
        assert oracle.error(got, correct) <= TOLERANCE


@pytest.mark.parametrize(("widths", "room"), [((2049, 2), 2048), ((3, 1025, 2), 1024)])
def test_more_hidden_numbers_than_there_is_room_for(opened, rng, widths, room) -> None:
    op = Perceptron(widths, RAISED[: len(widths)])
    given, _ = operands(rng, op, 1, 2)
    with pytest.raises(UnsupportedOpError, match=f"room for {room} hidden numbers of a layer, no"):
        evaluate(op, given, opened("compute"))


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": (2, 3), "weights": (3 * 8 + 5 * 8 + 1,), "biases": (16,)},
        {"x": (2, 3), "weights": (3 * 8 + 5 * 8,), "biases": (12,)},
        {"x": (2, 4), "weights": (3 * 8 + 5 * 8,), "biases": (16,)},
        {"x": (2, 3, 1, 2), "weights": (3 * 8 + 5 * 8,), "biases": (16,)},
        {"x": (2, 3, 1), "weights": (3 * 8 + 5 * 8,), "biases": (16,)},
        {"x": (2, 3), "weights": (3 * 8 + 5 * 8, 1), "biases": (16,)},
    ],
)
def test_operands_must_fit(shapes) -> None:
    with pytest.raises(ShapeError, match="perceptron: "):
        OpSpec.create(Perceptron((5, 7), GATE), shapes, {})


def test_its_functions_are_of_one_sum() -> None:
    with pytest.raises(ShapeError, match="must be of one sum"):
        Perceptron((3,), (call("add", Arg(0), Arg(1)),))


@pytest.mark.parametrize(("widths", "functions"), [((), ()), ((3,), GATE), ((0, 3), GATE)])
def test_each_layer_has_a_width_and_a_function(widths, functions) -> None:
    with pytest.raises(ShapeError, match="a width of at least 1 and a function for each layer"):
        Perceptron(widths, functions)
