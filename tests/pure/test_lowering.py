"""Ops that others are made of: their references, and the stages put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.decompose import LOWERINGS
from glnn.graph.decompose.matmul import by_cronin
from glnn.graph.operator import Contraction
from glnn.graph.operators import Conv2d, Matmul
from glnn.graph.operators.im2row import Im2row
from glnn.graph.operators.matmul_parts import MatmulParts
from glnn.graph.operators.pad2d import Pad2d
from glnn.graph.operators.rows import Images, Rows
from glnn.graph.operators.winograd_input import WinogradInput
from glnn.graph.operators.winograd_output import WinogradOutput
from glnn.graph.operators.zero import Zero
from glnn.kernels.library import declared
from glnn.kernels.problem import Problem
from tests import oracle
from tests.backends.test_im2row import CASES as WINDOWS
from tests.backends.test_pad2d import PADDINGS
from tests.backends.test_winograd_input import CASES as TILED
from tests.backends.test_winograd_output import CASES as UNTILED
from tests.pure.test_ops import both

WAYS = [k for k in declared() if k.stages]
STAGED = [k for k in WAYS if k.op == "conv2d"]


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_im2row(rng, shape, attributes) -> None:
    x = rng(shape)
    both(Im2row(**attributes), oracle.im2row(x, **attributes), x=x)


@pytest.mark.parametrize("padding", PADDINGS)
def test_pad2d(rng, padding) -> None:
    x = rng((2, 3, 4, 5))
    both(Pad2d(padding), oracle.pad2d(x, padding), x=x)


def test_zero() -> None:
    op = Zero((3, 5), "C 4 2 C")
    got = op.compute({})
    assert (got.shape, got.dtype, got.any()) == (op.shape_of({}), np.float32, False)
    assert op.fixed_layouts() == {"out": "C 4 2 C"}


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("shape", "padding"), TILED)
def test_winograd_input(rng, tile, shape, padding) -> None:
    x = rng(shape)
    both(WinogradInput(tile, padding), oracle.winograd_input(x, tile, padding), x=x)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("function", ["identity", "sigmoid", "relu", "tanh"])
@pytest.mark.parametrize(("images", "o"), UNTILED)
def test_winograd_output(rng, tile, function, images, o) -> None:
    n, oh, ow = images
    op = WinogradOutput(images, tile, function)
    x = rng(((tile + 2) ** 2 * n * -(-oh // tile) * -(-ow // tile), o))
    bias, residual = rng((o,)), rng((n, o, oh, ow))
    plain = oracle.winograd_output(x, images, tile)
    both(op, oracle.activation(plain, function), x=x)
    whole = oracle.activation(oracle.bias(plain, bias) + residual, function)
    both(op, whole, x=x, bias=bias, residual=residual)


def test_rows_and_images(rng) -> None:
    x = rng((2, 3, 4, 5))
    rows = np.array([x[i, :, y, z] for i in range(2) for y in range(4) for z in range(5)])
    both(Rows(), rows, x=x)
    both(Images((2, 4, 5)), x, x=rows)
    both(Images((2, 4, 5), transposed=True), x, x=np.ascontiguousarray(rows.T))
    with pytest.raises(ShapeError, match="is no matrix of 2 images of 4 x 5"):
        Images((2, 4, 5)).shape_of({"x": (41, 3)})
    with pytest.raises(ShapeError, match="x must have shape"):
        Rows().shape_of({"x": (41, 3)})


def computed(op: Contraction, operands: dict[str, np.ndarray], kernel: Any) -> np.ndarray:
    """`op` by the references of the stages of `kernel`."""
    shapes = {name: array.shape for name, array in operands.items()}
    lowered = Problem.of(op, shapes, {}).lowered(kernel)
    known = dict(operands)
    for name, made in lowered.derived.items():
        known[name] = made.make(operands[made.source])
        assert known[name].shape == made.shape
    for stage in lowered.stages:
        given = {operand: known[name] for operand, name in stage.operands.items()}
        inferred = {operand: array.shape for operand, array in given.items()}
        stage.op.check_operands(inferred)
        known[stage.name] = stage.op.compute(given)
        assert known[stage.name].shape == stage.op.shape_of(inferred)
    return known[lowered.stages[-1].name]


@pytest.mark.parametrize("kernel", STAGED, ids=lambda k: k.name)
@pytest.mark.parametrize(
    ("shape", "o", "attributes"),
    [
        ((2, 3, 7, 5), 4, {"padding": (1, 1, 1, 1)}),
        ((1, 7, 1, 1), 3, {"padding": (1, 2, 1, 0), "activation": "relu"}),
        ((1, 17, 9, 4), 5, {"activation": "tanh"}),
        ((2, 5, 8, 9), 3, {"stride": (2, 3), "dilation": (1, 2), "padding": (0, 0, 0, 1)}),
    ],
)
def test_the_stages_are_the_convolution(kernel, shape, o, attributes) -> None:
    generator, op = np.random.default_rng(3), Conv2d(**attributes)
    size = (1, 1) if kernel.stages == "product" else (3, 3)
    if size == (1, 1):
        op = Conv2d(activation=op.activation)
    elif kernel.stages == "winograd" and (op.stride, op.dilation) != ((1, 1), (1, 1)):
        pytest.skip("its declaration refuses that")
    operands = {
        "x": generator.standard_normal(shape),
        "weight": generator.standard_normal((o, shape[1], *size)),
        "bias": generator.standard_normal(o),
    }
    out = op.shape_of({name: array.shape for name, array in operands.items()})
    operands["residual"] = generator.standard_normal(out)
    operands = {name: array for name, array in operands.items() if name in kernel.layouts}
    got, expected = computed(op, operands, kernel), op.compute(operands)
    assert oracle.error(got, expected) < 1e-13


@pytest.mark.parametrize("kernel", [k for k in WAYS if k.op == "matmul"], ids=lambda k: k.name)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (3, 5, 7), (4, 3, 6), (2, 7, 9), (5, 2, 16), (1, 3, 131)]
)
@pytest.mark.parametrize("function", ["identity", "tanh"])
def test_the_stages_are_the_product(kernel, m, n, k, function) -> None:
    generator, op = np.random.default_rng(3), Matmul(-1.5, 0.25, function)
    shapes = {"x": (m, k), "weight": (n, k), "bias": (n,), "c": (m, n)}
    operands = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    expected = oracle.matmul(*operands.values(), alpha=-1.5, beta=0.25, function=function)
    assert oracle.error(computed(op, operands, kernel), expected) < 1e-13


@pytest.mark.parametrize(("k", "parts"), [(12, 3), (9, 3), (10, 5), (7, 7), (1, 1)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_part_is_the_widest_attribute_that_divides(k, parts, transposed) -> None:
    parameters = {"A_TRANSPOSED": transposed, "B_TRANSPOSED": 1}
    lowered = by_cronin(Matmul(), {"x": (2, k), "weight": (3, k)}, parameters)
    first = lowered.stages[0].op
    assert isinstance(first, MatmulParts)
    assert first.parts == (k if transposed else parts)


def test_every_way_has_a_kernel() -> None:
    assert {kernel.stages for kernel in WAYS} == set(LOWERINGS)
