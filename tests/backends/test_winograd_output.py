from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import Matmul
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput, winograd
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, run

# (n, oh, ow), o
CASES = [
    ((1, 1, 1), 1),
    ((2, 1, 7), 3),
    ((1, 7, 5), 7),
    ((3, 4, 4), 17),
    ((1, 9, 3), 4),
    ((2, 13, 13), 33),
]


def products(rng, tile: int, images: tuple[int, int, int], o: int) -> np.ndarray:
    n, oh, ow = images
    return rng(((tile + 2) ** 2 * n * -(-oh // tile) * -(-ow // tile), o))


@pytest.mark.parametrize(("name", "kernel"), kernels("winograd_output"))
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("images", "o"), CASES)
@pytest.mark.parametrize("optional", [(), ("bias",), ("residual",), ("bias", "residual")])
def test_any_shape(opened, rng, name, kernel, tile, images, o, optional) -> None:
    shapes = {"bias": (o,), "residual": (images[0], o, *images[1:])}
    x, added = products(rng, tile, images, o), {k: rng(shapes[k]) for k in optional}
    epilogue = finish(bias="bias" in added, full="residual" in added)
    operands = {"x": x, **{f"e{i}": array for i, array in enumerate(added.values(), 1)}}
    got = run(opened(name), WinogradOutput(images, tile), operands, kernel, epilogue)
    expected = oracle.winograd_output(x, images, tile)
    if "bias" in added:
        expected = oracle.bias(expected, added["bias"])
    expected = expected + added.get("residual", 0)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("winograd_output"))
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("part", [(0, 1), (3, 4), (7, 1)])
def test_some_tiles_into_what_is_there(opened, rng, name, kernel, tile, part) -> None:
    images, (first, count) = (2, 2 * tile - 1, 2 * tile), part
    op, x = WinogradOutput(images, tile, part), rng(((tile + 2) ** 2 * 8, 5))
    some = x.reshape(-1, 8, 5)[:, first : first + count].reshape(-1, 5)
    into, bias = rng((2, 5, *images[1:])), rng((5,))
    got = run(opened(name), op, {"x": some, "into": into, "e1": bias}, kernel, finish(bias=True))
    plain, expected = oracle.winograd_output(x, images, tile), into.astype(np.float64)
    for place in range(first, first + count):
        image, down, across = place // 4, place // 2 % 2 * tile, place % 2 * tile
        at = (image, slice(None), slice(down, down + tile), slice(across, across + tile))
        expected[at] = plain[at] + bias.reshape(-1, 1, 1)
    assert oracle.error(got, expected) <= TOLERANCE
    for start in (into, np.zeros_like(into)):
        alone = op.compute({"x": some} | ({"into": start} if start.any() else {}))
        there = expected != into
        np.testing.assert_array_equal(alone[~there], start[~there])
        assert oracle.error(alone[there], plain[there]) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("winograd_output"))
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue(opened, rng, name, kernel, tile, function) -> None:
    images, residual = (2, 5, 7), rng((2, 3, 5, 7))
    x, bias = products(rng, tile, images, 3), rng((3,))
    operands = {"x": x, "e1": bias, "e2": residual}
    epilogue = finish(bias=True, full=True, activation=function)
    got = run(opened(name), WinogradOutput(images, tile), operands, kernel, epilogue)
    whole = oracle.bias(oracle.winograd_output(x, images, tile), bias) + residual
    assert oracle.error(got, oracle.activation(whole, function)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("winograd_output"))
@pytest.mark.parametrize("tile", [2, 4])
def test_not_a_number_stays_in_its_tile(opened, rng, name, kernel, tile) -> None:
    images = (2, 2 * tile, 2 * tile)
    x = products(rng, tile, images, 3)
    x.reshape(-1, 8, 3)[:, 6, 1] = np.nan  # the second image's third tile
    epilogue = finish(activation="relu")
    got = run(opened(name), WinogradOutput(images, tile), {"x": x}, kernel, epilogue)
    spoilt = np.zeros(got.shape, bool)
    spoilt[1, 1, tile:, :tile] = True
    np.testing.assert_array_equal(np.isnan(got), spoilt)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    ("x_shape", "o", "padding"),
    [
        ((1, 1, 3, 3), 1, (0, 0, 0, 0)),
        ((1, 3, 1, 1), 7, (1, 1, 1, 1)),
        ((2, 7, 9, 5), 17, (1, 1, 1, 1)),
        ((1, 17, 6, 7), 3, (0, 2, 0, 0)),
        ((1, 4, 5, 11), 5, (1, 0, 0, 0)),
    ],
)
def test_the_stages_make_a_convolution(opened, rng, tile, x_shape, o, padding) -> None:
    backend = opened("compute")
    x, weight, bias = rng(x_shape), rng((o, x_shape[1], 3, 3)), rng((o,))
    expected = oracle.conv2d(x, weight, bias, padding=padding)
    tiles = run(backend, WinogradInput(tile, padding), {"x": x}, None)
    transformed = {"x": tiles, "weight": winograd(tile).weights(weight)}
    product = run(backend, Matmul(), transformed, None)
    back = WinogradOutput((x_shape[0], *expected.shape[2:]), tile)
    got = run(backend, back, {"x": product, "e1": bias}, None, finish(bias=True))
    assert oracle.error(got, expected) <= TOLERANCE


def test_what_does_not_fit_is_refused() -> None:
    op = WinogradOutput((1, 5, 4), 4)
    with pytest.raises(ShapeError, match=r"x must have 72 rows, got shape \(36, 3\)"):
        op.shape_of({"x": (36, 3)})
    with pytest.raises(ShapeError, match=r"e1 must have shape \(3,\), got \(4,\)"):
        OpSpec.create(op, {"x": (72, 3), "e1": (4,)}, {}, finish(bias=True))
    with pytest.raises(ShapeError, match=r"e1 must have shape \(1, 3, 5, 4\), got nothing"):
        OpSpec.create(op, {"x": (72, 3)}, {}, finish(full=True))
    with pytest.raises(ShapeError, match=r"into must have shape \(1, 3, 5, 4\), got"):
        op.shape_of({"x": (72, 3), "into": (1, 3, 5, 5)})
    with pytest.raises(ShapeError, match=r"part \(1, 2\) is beyond the 2 tiles"):
        WinogradOutput((1, 5, 4), 4, (1, 2)).shape_of({"x": (72, 3)})
    with pytest.raises(ShapeError, match="the tile must be one of"):
        WinogradOutput((1, 5, 4), 3)
    with pytest.raises(ShapeError, match="images must be"):
        WinogradOutput((1, -1, 4))
