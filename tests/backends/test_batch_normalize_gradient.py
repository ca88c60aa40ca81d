"""Gradients of batch normalisations: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import formula
from glnn.graph.operators import BatchNormalizeGradient
from tests import oracle
from tests.backends.harness import kernels, run
from tests.backends.test_batch_normalize import AXES, EPS, SHAPES, TOLERANCE

KERNELS = kernels("batch_normalize_gradient")


def gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dy times the Jacobian of each channel's normalisation."""
    result = np.empty(x.shape)
    for channel in range(x.shape[1]):
        row = x[:, channel].astype(np.float64).reshape(-1)
        count, apart = row.size, row - row.mean()
        over = 1 / np.sqrt(row.var() + EPS)
        jacobian = over * (np.eye(count) - 1 / count) - over**3 * np.outer(apart, apart) / count
        given = dy[:, channel].astype(np.float64).reshape(-1)
        result[:, channel] = (given @ jacobian).reshape(x[:, channel].shape)
    return result


def operands(dy: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    """The operator's operands, in the precision of `x`."""
    wide = x.astype(np.float64)
    mean, variance = (one.astype(x.dtype) for one in (wide.mean(AXES), wide.var(AXES)))
    return {"dy": dy, "x": x, "mean": mean, "variance": variance}


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(opened, rng, name, kernel, shape) -> None:
    dy, x = rng(shape), 3 + rng(shape)
    got = run(opened(name), BatchNormalizeGradient(EPS), operands(dy, x), kernel)
    assert oracle.error(got, gradient(dy, x)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_epilogues(opened, rng, name, kernel) -> None:
    """The weight, and the gradient of a residual branch, are done before the results are stored."""
    dy, x = rng((3, 70, 5, 7)), rng((3, 70, 5, 7))
    beside = {"e1": rng((70,)), "e2": rng(x.shape)}
    epilogue = Epilogue(formula("a * b + c"), ("channel", "full"))
    given = {**operands(dy, x), **beside}
    got = run(opened(name), BatchNormalizeGradient(EPS), given, kernel, epilogue)
    expected = gradient(dy, x) * beside["e1"][:, None, None] + beside["e2"]
    assert oracle.error(got, expected) <= TOLERANCE


def test_the_reference_is_that_of_float64(rng) -> None:
    for shape in SHAPES:
        dy, x = rng(shape).astype(np.float64), rng(shape).astype(np.float64)
        got = BatchNormalizeGradient(EPS).compute(operands(dy, x))
        np.testing.assert_allclose(got, gradient(dy, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"dy": (2, 3, 5)}, r"dy must have shape \(2, 3, 4\), got \(2, 3, 5\)"),
        ({"mean": (4,)}, r"mean must have shape \(3,\), got \(4,\)"),
        ({"variance": (4,)}, r"variance must have shape \(3,\), got \(4,\)"),
        ({"x": (3,)}, r"x must have shape \(n, c, ...\), got \(3,\)"),
    ],
)
def test_wrong_shapes(shapes, message) -> None:
    right = {"dy": (2, 3, 4), "x": (2, 3, 4), "mean": (3,), "variance": (3,)}
    with pytest.raises(ShapeError, match=message):
        BatchNormalizeGradient().shape_of({**right, **shapes})
