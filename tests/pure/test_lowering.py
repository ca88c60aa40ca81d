"""Ops that others are made of: their references, and the stages put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn.documents.decompositions import decompose_cronin
from glnn.errors import ShapeError
from glnn.graph.compose.decompositions import decomposition_named, decomposition_names
from glnn.graph.operators import Conv2d, Matmul
from glnn.graph.operators.conv2d_lowering import Im2row, Images, Rows, Zero
from glnn.graph.operators.matmul import MatmulParts
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.test_im2row import CASES as WINDOWS
from tests.backends.test_winograd_input import CASES as TILED
from tests.backends.test_winograd_output import CASES as UNTILED
from tests.pure.test_ops import both

WAYS = [k for k in declared() if k.stages]
STAGED = [k for k in WAYS if k.op == "conv2d"]


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
def test_im2row(rng, shape, attributes) -> None:
    x = rng(shape)
    both(Im2row(**attributes), oracle.im2row(x, **attributes), x=x)


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
@pytest.mark.parametrize(("images", "o"), UNTILED)
def test_winograd_output(rng, tile, images, o) -> None:
    n, oh, ow = images
    x = rng(((tile + 2) ** 2 * n * -(-oh // tile) * -(-ow // tile), o))
    both(WinogradOutput(images, tile), oracle.winograd_output(x, images, tile), x=x)


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


def computed(spec: OpSpec, operands: dict[str, np.ndarray], kernel: Any) -> np.ndarray:
    """`spec` by the references of the stages of `kernel`."""
    lowered = spec.lowered(kernel)
    known = dict(operands)
    for name, made in lowered.derived.items():
        (known[name],) = made.operator.reference(operands[made.source])
        assert known[name].shape == made.shape
    for stage in lowered.stages:
        given = {operand: known[name] for operand, name in stage.operands.items()}
        epilogue = spec.epilogue if stage.finishes else None
        for name, extent in epilogue.named_extents.items() if epilogue else ():
            view = lowered.epilogue_view if extent == "full" else None
            given[name] = known[name] if view is None else view.reference(known[name])[0]
        shapes = {operand: array.shape for operand, array in given.items()}
        made = OpSpec.create(stage.op, shapes, {}, epilogue)
        known[stage.name] = made.compute(given)
        assert known[stage.name].shape == made.result_shape
    assert sum(stage.finishes for stage in lowered.stages) == 1
    return known[lowered.stages[-1].name]


@pytest.mark.parametrize("kernel", STAGED, ids=lambda k: k.name)
@pytest.mark.parametrize(
    ("shape", "o", "attributes"),
    [
        ((2, 3, 7, 5), 4, {"padding": (1, 1, 1, 1)}),
        ((1, 7, 1, 1), 3, {"padding": (1, 2, 1, 0)}),
        ((1, 17, 9, 4), 5, {}),
        ((2, 5, 8, 9), 3, {"stride": (2, 3), "dilation": (1, 2), "padding": (0, 0, 0, 1)}),
        ((2, 3, 6, 8), 5, {"dilation": (2, 3), "padding": (0, 2, 1, 0)}),
    ],
)
def test_the_stages_are_the_convolution(kernel, shape, o, attributes) -> None:
    generator, op = np.random.default_rng(3), Conv2d(**attributes)
    size = (1, 1) if kernel.stages == "product" else (3, 3)
    if size == (1, 1):
        op = Conv2d()
    steps = {"winograd": (*op.stride, *op.dilation), "kn2row": op.stride}
    if any(step > 1 for step in steps.get(kernel.stages, ())):
        pytest.skip("its declaration refuses that")
    operands = {
        "x": generator.standard_normal(shape),
        "weight": generator.standard_normal((o, shape[1], *size)),
    }
    extents = kernel.epilogue.extents if kernel.epilogue else ()
    epilogue = finish(bias="channel" in extents, full="full" in extents, activation="tanh")
    assert epilogue is not None
    out = op.shape_of({name: array.shape for name, array in operands.items()})
    for name, shape in epilogue.shapes(out).items():
        operands[name] = generator.standard_normal(shape)
    shapes = {name: array.shape for name, array in operands.items()}
    spec = OpSpec.create(op, shapes, {}, epilogue)
    got, expected = computed(spec, operands, kernel), spec.compute(operands)
    assert oracle.error(got, expected) < 1e-13


@pytest.mark.parametrize("kernel", [k for k in WAYS if k.op == "matmul"], ids=lambda k: k.name)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (3, 5, 7), (4, 3, 6), (2, 7, 9), (5, 2, 16), (1, 3, 131)]
)
@pytest.mark.parametrize("function", ["identity", "tanh"])
def test_the_stages_are_the_product(kernel, m, n, k, function) -> None:
    generator = np.random.default_rng(3)
    epilogue = finish(alpha=-1.5, bias=True, beta=0.25, full=True, activation=function)
    shapes = {"x": (m, k), "weight": (n, k), "e1": (n,), "e2": (m, n)}
    operands = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    expected = oracle.matmul(*operands.values(), alpha=-1.5, beta=0.25, function=function)
    spec = OpSpec.create(Matmul(), shapes, {}, epilogue)
    assert oracle.error(computed(spec, operands, kernel), expected) < 1e-13


@pytest.mark.parametrize(("k", "parts"), [(12, 3), (9, 3), (10, 5), (7, 7), (1, 1)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_part_is_the_widest_attribute_that_divides(k, parts, transposed) -> None:
    parameters = {"A_TRANSPOSED": transposed, "B_TRANSPOSED": 1}
    lowered = decompose_cronin(Matmul(), {"x": (2, k), "weight": (3, k)}, parameters)
    first = lowered.stages[0].op
    assert isinstance(first, MatmulParts)
    assert first.parts == (k if transposed else parts)


def test_every_way_has_a_kernel() -> None:
    assert {kernel.stages for kernel in WAYS} == set(decomposition_names())
    assert all(map(decomposition_named, decomposition_names()))
