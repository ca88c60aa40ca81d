"""Winograd's matrices: exact where the arithmetic is, and near enough in float32."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import Matmul
from glnn.graph.operators.winograd import TILES, WinogradInput, WinogradOutput, winograd
from tests import oracle


def convolved(x: np.ndarray, weight: np.ndarray, tile: int) -> np.ndarray:
    """The convolution, padded by 1, by the stages' references in the dtype of x."""
    tiles = WinogradInput(tile, (1, 1, 1, 1)).compute({"x": x})
    transformed = winograd(tile).weights(weight)
    products = Matmul().compute({"x": tiles, "weight": transformed})
    n, _, h, w = x.shape
    return WinogradOutput((n, h, w), tile).compute({"x": products})


@pytest.mark.parametrize("tile", TILES)
def test_the_matrices_are_those_worked_out_by_hand(tile) -> None:
    form = winograd(tile)
    for got, expected in zip(
        (form.data, form.kernel, form.result), oracle.WINOGRAD[tile], strict=True
    ):
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("tile", TILES)
def test_one_dimension_is_a_correlation(tile) -> None:
    form, generator = winograd(tile), np.random.default_rng(1)
    for _ in range(20):
        d, g = generator.standard_normal(tile + 2), generator.standard_normal(3)
        got = form.result @ ((form.kernel @ g) * (form.data @ d))
        expected = [sum(d[i + j] * g[j] for j in range(3)) for i in range(tile)]
        assert np.abs(got - expected).max() < 1e-12


@pytest.mark.parametrize("tile", TILES)
def test_float64_is_exact(tile) -> None:
    generator = np.random.default_rng(2)
    x, weight = generator.standard_normal((2, 5, 9, 7)), generator.standard_normal((4, 5, 3, 3))
    expected = oracle.conv2d(x, weight, padding=(1, 1, 1, 1))
    assert np.abs(convolved(x, weight, tile) - expected).max() < 1e-12


@pytest.mark.parametrize(("tile", "most"), [(2, 1e-6), (4, 5e-6)])
def test_errors_of_float32_over_many_channels(rng, tile, most) -> None:
    x, weight = rng((1, 256, 14, 14)), rng((16, 256, 3, 3))
    expected = oracle.conv2d(x, weight, padding=(1, 1, 1, 1))
    got = convolved(x, weight, tile)
    assert got.dtype == np.float32
    assert oracle.error(got, expected) < most


def test_weights_are_transformed_in_float64() -> None:
    weight = np.full((1, 1, 3, 3), 0.1, np.float32)
    got = winograd(4).weights(weight)
    g = oracle.WINOGRAD[4][1]
    expected = (g @ weight[0, 0].astype(np.float64) @ g.T).astype(np.float32)
    assert got.dtype == np.float32 and got.shape == (36, 1, 1)
    np.testing.assert_allclose(got.reshape(6, 6), expected, rtol=2.0**-23)


@pytest.mark.parametrize("tile", [0, 1, 3, 6, "4"])
def test_another_tile_is_refused(tile) -> None:
    with pytest.raises(ShapeError, match=rf"the tile must be one of \(2, 4\), got {tile!r}"):
        winograd(tile)
