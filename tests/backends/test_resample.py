"""Weighted sums of few places along any axis, by every kernel, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import Resample
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [  # shape, axis, taps, count
    ((1,), 0, 1, 1),
    ((7,), 0, 2, 129),
    ((3, 127), -1, 4, 7),
    ((127, 3), 0, 3, 5),
    ((2, 3, 11, 13), 2, 2, 23),
    ((2, 3, 11, 13), 3, 5, 3),
    ((1, 67, 4), 1, 2, 134),
    ((5, 3, 12), 0, 3, 7),
    ((3, 5, 7), 2, 2, 132),  # four along the axis
    ((9,), 0, 3, 4),
]


def operands(
    rng, shape: tuple[int, ...], axis: int, taps: int, count: int
) -> dict[str, np.ndarray]:
    index = np.random.default_rng(count).integers(0, shape[axis], (taps, count)).astype(np.int32)
    return {"x": rng(shape), "index": index, "weight": rng((taps, count))}


def each(x: np.ndarray, index: np.ndarray, weight: np.ndarray, axis: int) -> np.ndarray:
    """Every place by itself, in float64."""
    x = np.moveaxis(x.astype(np.float64), axis, -1)
    found = np.zeros((*x.shape[:-1], index.shape[1]))
    for place in range(index.shape[1]):
        for tap in range(index.shape[0]):
            found[..., place] += float(weight[tap, place]) * x[..., index[tap, place]]
    return np.moveaxis(found, -1, axis)


@pytest.mark.parametrize(("name", "kernel"), kernels("resample"))
def test_any_axis(opened, rng, name, kernel) -> None:
    for shape, axis, taps, count in CASES:
        given = operands(rng, shape, axis, taps, count)
        got = run(opened(name), Resample(axis), given, kernel)
        assert oracle.error(got, each(*given.values(), axis)) <= TOLERANCE, (shape, axis)


@pytest.mark.parametrize(("name", "kernel"), kernels("resample"))
def test_what_is_not_finite_stays_where_it_is(opened, rng, name, kernel) -> None:
    given = operands(rng, (5, 9), 1, 2, 18)
    given["x"][1, 4], given["x"][2, 0], given["x"][3, 8] = np.nan, np.inf, -np.inf
    got = run(opened(name), Resample(1), given, kernel)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(each(*given.values(), 1)))


def test_faults() -> None:
    x = np.zeros((2, 3), np.float32)
    index, weight = np.zeros((2, 4), np.int32), np.zeros((2, 4), np.float32)
    assert Resample(1).compute({"x": x, "index": index, "weight": weight}).shape == (2, 4)
    for given, text in (
        ({"x": x, "index": index.astype(np.int64), "weight": weight}, "index must be int32"),
        ({"x": x, "index": index, "weight": weight[:1]}, r"expected floats \(2, 4\)"),
        ({"x": x.astype(np.int32), "index": index, "weight": weight}, "expected floats"),
    ):
        with pytest.raises(ShapeError, match=text):
            Resample(1).compute(given)
