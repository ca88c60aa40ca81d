"""NumPy's normalisation and softmax in float32 against float64, where float32 might not do."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import Array
from glnn.graph.operators import Normalize, Softmax
from tests import oracle

SHAPE = (2, 6, 5, 7)
LONG = (2, 4, 150, 151)  # groups that are longer than a block


def normalised(x: Array, groups: int, eps: float) -> Array:
    rows = x.astype(np.float64).reshape(len(x), groups, -1)
    rows = rows - rows.mean(axis=2, keepdims=True)
    return (rows / np.sqrt((rows**2).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)


@pytest.mark.parametrize("shape", [SHAPE, LONG, (3, 4, 1, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_distances_from_a_mean_are_as_exact_as_x(shape, groups, shift) -> None:
    rng = np.random.default_rng(3)
    x = (shift + rng.normal(size=shape)).astype(np.float32)
    weight, bias = rng.normal(size=(2, shape[1])).astype(np.float32)
    op = Normalize(groups=groups, eps=1e-5)
    found = op.compute({"x": x, "weight": weight, "bias": bias})
    spread = (shape[1], 1, 1)
    expected = normalised(x, groups, 1e-5) * weight.reshape(spread) + bias.reshape(spread)
    assert found.dtype == np.float32
    assert oracle.error(found, expected) <= 1e-6


@pytest.mark.parametrize(("size", "eps"), [(1e25, 1e-5), (1e-22, 0.0), (1e-22, 1e-5)])
def test_squares_that_are_no_float32_are_computed_in_float64(size: float, eps: float) -> None:
    x = (size * np.random.default_rng(4).normal(size=SHAPE)).astype(np.float32)
    found = Normalize(groups=3, eps=eps).compute({"x": x})
    assert oracle.error(found, normalised(x, 3, eps)) <= 1e-6


def test_rows_of_one_number_and_rows_that_are_no_numbers() -> None:
    x = np.ones((3, 8), np.float32)
    x[1, 2], x[2, 0] = np.nan, np.inf
    found = Normalize(dims=1).compute({"x": x})
    np.testing.assert_array_equal(found[0], 0)
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_many(axis: int, log: bool) -> None:
    x = np.random.default_rng(5).normal(size=(40, 300, 7)).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(axis=axis, keepdims=True)
    found = Softmax(axis, log).compute({"x": x})
    assert found.dtype == np.float32
    assert oracle.error(found, np.log(exact) if log else exact) <= 1e-6
