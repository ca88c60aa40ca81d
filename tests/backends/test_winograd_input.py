from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators.winograd import WinogradInput
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

# (x, padding)
CASES = [
    ((1, 1, 3, 3), (0, 0, 0, 0)),
    ((1, 3, 1, 1), (1, 1, 1, 1)),
    ((2, 3, 7, 5), (1, 1, 1, 1)),
    ((1, 7, 5, 9), (0, 0, 0, 0)),
    ((1, 17, 4, 6), (2, 0, 0, 0)),
    ((2, 4, 9, 3), (0, 3, 0, 0)),
    ((1, 5, 6, 11), (0, 0, 2, 0)),
    ((3, 1, 1, 13), (1, 0, 1, 5)),
    ((1, 33, 13, 13), (1, 1, 1, 1)),
]

KERNELS = [(*found, tile) for found in kernels("winograd_input") for tile in (2, 4)]
KERNELS = [found for found in KERNELS if found[1].endswith(f"_{found[2]}")]  # each has its own


@pytest.mark.parametrize(("name", "kernel", "tile"), KERNELS)
@pytest.mark.parametrize(("shape", "padding"), CASES)
def test_any_shape(opened, rng, name, kernel, tile, shape, padding) -> None:
    x = rng(shape)
    got = run(opened(name), WinogradInput(tile, padding), {"x": x}, kernel)
    assert oracle.error(got, oracle.winograd_input(x, tile, padding)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel", "tile"), KERNELS)
@pytest.mark.parametrize("part", [(0, 1), (3, 4), (7, 1)])
def test_some_tiles(opened, rng, name, kernel, tile, part) -> None:
    x, (first, count) = rng((2, 5, 2 * tile - 1, 2 * tile)), part
    op = WinogradInput(tile, (1, 1, 1, 1), part)
    got = run(opened(name), op, {"x": x}, kernel)
    whole = oracle.winograd_input(x, tile, op.padding).reshape((tile + 2) ** 2, 8, 5)
    expected = whole[:, first : first + count].reshape(-1, 5)
    assert oracle.error(got, expected) <= TOLERANCE
    assert oracle.error(op.compute({"x": x}), expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel", "tile"), KERNELS)
def test_not_a_number_stays_in_its_tile(opened, rng, name, kernel, tile) -> None:
    x = rng((2, 3, 4 * tile + 2, 4 * tile + 2))
    x[1, 2, 0, 0], x[1, 0, -1, -1] = np.nan, np.nan  # met by the first and the last tile alone
    got = run(opened(name), WinogradInput(tile), {"x": x}, kernel)
    spoilt = np.isnan(got.reshape((tile + 2) ** 2, 2, 16, 3)).any(axis=0)
    assert np.argwhere(spoilt).tolist() == [[1, 0, 2], [1, 15, 0]]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="the tile must be one of"):
        WinogradInput(3)
    with pytest.raises(ShapeError, match="padding must be 4 integers of at least 0"):
        WinogradInput(4, (0, 0, 0, -1))
    with pytest.raises(ShapeError, match=r"part must be \(first tile, tiles\) or None"):
        WinogradInput(4, part=(0, 0))
    with pytest.raises(ShapeError, match=r"part \(3, 2\) is beyond the 4 tiles"):
        WinogradInput(4, part=(3, 2)).shape_of({"x": (1, 3, 9, 9)})
    with pytest.raises(ShapeError, match="x must have shape"):
        WinogradInput().shape_of({"x": (3, 4)})
