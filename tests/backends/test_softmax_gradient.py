"""Gradients of softmaxes of rows: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import SoftmaxGradient
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

SHAPES = [(1, 4), (3, 7), (129, 3), (2, 128), (127, 12), (5, 129), (3, 1028)]
KERNELS = kernels("softmax_gradient")


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def gradient(dy, y) -> np.ndarray:
    """The gradient by each number of x, by the matrix of derivatives of each row in float64."""
    rows = zip(dy.astype(np.float64), y.astype(np.float64), strict=True)
    return np.array([g @ (np.diag(row) - np.outer(row, row)) for g, row in rows])


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_any_shape(opened, rng, name, kernel) -> None:
    ran = 0
    for shape in SHAPES:
        if kernel.startswith("rows") and shape[1] % 4:
            continue  # whole vec4s alone
        dy, y = rng(shape), softmax(3 * rng(shape)).astype(np.float32)
        got = run(opened(name), SoftmaxGradient(), {"dy": dy, "x": y}, kernel)
        assert oracle.error(got, gradient(dy, y)) <= TOLERANCE, shape
        ran += 1
    assert ran


@pytest.mark.parametrize("kernel", ["rows", "rows_short"])
def test_an_epilogue_scales_it(opened, rng, kernel) -> None:
    dy, y = rng((37, 132)), softmax(rng((37, 132))).astype(np.float32)
    epilogue = Epilogue(call("mul", Arg(0), 0.125))
    got = run(opened("compute"), SoftmaxGradient(), {"dy": dy, "x": y}, kernel, epilogue)
    assert oracle.error(got, gradient(dy, y) / 8) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_rows_of_nan_that_nothing_depends_on_give_zeros(opened, rng, name, kernel) -> None:
    dy, y = rng((4, 20)), softmax(rng((4, 20))).astype(np.float32)
    y[1], dy[1], y[2] = np.nan, 0, np.nan
    got = run(opened(name), SoftmaxGradient(), {"dy": dy, "x": y}, kernel)
    assert not got[1].any() and np.isnan(got[2]).all()
    assert oracle.error(got[[0, 3]], gradient(dy[[0, 3]], y[[0, 3]])) <= TOLERANCE


def test_numpy_has_the_same(rng) -> None:
    for shape in SHAPES:
        dy, y = rng(shape), softmax(rng(shape)).astype(np.float32)
        got = SoftmaxGradient().compute({"dy": dy, "x": y})
        assert got.dtype == np.float32
        assert oracle.error(got, gradient(dy, y)) <= TOLERANCE
    nothing = dict.fromkeys(("dy", "x"), np.zeros((0, 3), np.float32))
    assert SoftmaxGradient().compute(nothing).shape == (0, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"dy": (3,), "x": (3,)}, r"x must have shape \(rows, n\), got \(3,\)"),
        ({"dy": (2, 3), "x": (2, 4)}, r"dy must have shape \(2, 4\), got \(2, 3\)"),
    ],
)
def test_wrong_shapes(shapes, message) -> None:
    with pytest.raises(ShapeError, match=message):
        SoftmaxGradient().shape_of(shapes)
