"""Batch normalisation by the batch's own statistics: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import formula
from glnn.graph.operators import BatchNormalize
from tests import oracle
from tests.backends.harness import kernels, run

SHAPES = [
    (2, 3, 1, 1),
    (3, 7, 5, 9),
    (2, 64, 8, 8),
    (1, 66, 127, 3),
    (5, 129, 7, 1),
    (4, 24, 33, 16),
    (129, 8, 2, 2),
]
EPS, TOLERANCE = 1e-3, 1e-5
AXES = (0, 2, 3)
KERNELS = kernels("batch_normalize")


def normalised(x: np.ndarray) -> np.ndarray:
    """What is normalised, in float64."""
    wide = x.astype(np.float64)
    mean, variance = wide.mean(AXES, keepdims=True), wide.var(AXES, keepdims=True)
    return (wide - mean) / np.sqrt(variance + EPS)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(opened, rng, name, kernel, shape) -> None:
    x = 3 + rng(shape)
    got = run(opened(name), BatchNormalize(EPS), {"x": x}, kernel)
    assert oracle.error(got, normalised(x)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_numbers_far_from_zero(opened, rng, name, kernel) -> None:
    """Of numbers around 1000: sums of their squares would lose all that varies."""
    x = 1000 + rng((3, 70, 17, 9))
    got = run(opened(name), BatchNormalize(EPS), {"x": x}, kernel)
    assert oracle.error(got, normalised(x)) <= 1e-4


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_epilogues(opened, rng, name, kernel) -> None:
    """A weight, a bias and a residual are done before the results are stored."""
    x = rng((3, 70, 5, 7))
    beside = {"e1": rng((70,)), "e2": rng((70,)), "e3": rng(x.shape)}
    epilogue = Epilogue(formula("a * b + c + d"), ("channel", "channel", "full"))
    got = run(opened(name), BatchNormalize(EPS), {"x": x, **beside}, kernel, epilogue)
    weight, bias = beside["e1"][:, None, None], beside["e2"][:, None, None]
    assert oracle.error(got, normalised(x) * weight + bias + beside["e3"]) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_what_is_not_finite_makes_nan_of_its_channel_alone(opened, rng, name, kernel) -> None:
    x = rng((2, 6, 5, 3))
    x[1, 4, 2, 2], x[0, 1, 4, 2] = np.nan, np.inf
    got = run(opened(name), BatchNormalize(EPS), {"x": x}, kernel)
    assert np.isnan(got[:, [1, 4]]).all() and np.isfinite(got[:, [0, 2, 3, 5]]).all()


def test_the_reference_is_that_of_float64(rng) -> None:
    for shape in SHAPES:
        x = rng(shape).astype(np.float64)
        got = BatchNormalize(EPS).compute({"x": x})
        np.testing.assert_allclose(got, normalised(x), rtol=1e-9, atol=1e-9)
    assert BatchNormalize().compute({"x": np.zeros((0, 3, 2, 2))}).shape == (0, 3, 2, 2)
    assert BatchNormalize().compute({"x": np.array([[1.0], [3.0]])}).shape == (2, 1)


def test_wrong_shapes() -> None:
    with pytest.raises(ShapeError, match=r"x must have shape \(n, c, ...\), got \(3,\)"):
        BatchNormalize().shape_of({"x": (3,)})
