"""Gradients of normalised rows by these: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import NormalizeGradient
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

EPS = 1e-3
SHAPES = [(1, 4), (3, 7), (7, 1), (2, 128), (127, 12), (129, 36), (5, 129), (3, 1028)]
KERNELS = kernels("normalize_gradient")


def gradient(dy, x, weight=1.0, *, centred=True) -> np.ndarray:
    """The gradient by each number of x, by the matrix of derivatives of each row in float64."""
    result = []
    for g, row in zip((dy.astype(np.float64) * weight), x.astype(np.float64), strict=True):
        n = len(row)
        taken = np.eye(n) - 1 / n if centred else np.eye(n)
        row = taken @ row
        deviation = np.sqrt(row @ row / n + EPS)
        slopes = taken / deviation - np.outer(row, taken @ row) / (n * deviation**3)
        result.append(g @ slopes)
    return np.array(result)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
@pytest.mark.parametrize("centred", [True, False], ids=["layer", "rms"])
@pytest.mark.parametrize("weighted", [True, False])
def test_any_shape(opened, rng, name, kernel, centred, weighted) -> None:
    ran = 0
    for shape in SHAPES:
        if kernel == "rows" and shape[1] % 4:
            continue  # whole vec4s alone
        dy, x, weight = rng(shape), 3 + rng(shape), rng(shape[1:])
        operands = {"dy": dy, "x": x} | ({"weight": weight} if weighted else {})
        op = NormalizeGradient(centred, EPS)
        got = run(opened(name), op, operands, kernel)
        expected = gradient(dy, x, weight if weighted else 1.0, centred=centred)
        if shape[1] == 1:  # what depends on a row of one number is nothing, or next to it
            assert np.abs(got - expected).max() <= TOLERANCE * np.abs(dy).max()
            continue
        assert oracle.error(got, expected) <= TOLERANCE, shape
        ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), kernels("normalize_gradient"))
def test_rows_far_from_zero(opened, rng, name, kernel) -> None:
    """Of numbers around 1000: sums of their squares, or of products, would lose all that varies."""
    dy, x = 100 + rng((5, 260)), 1000 + rng((5, 260))
    got = run(opened(name), NormalizeGradient(eps=EPS), {"dy": dy, "x": x}, kernel)
    bound = 1e-5 if kernel == "rows" else 1e-3  # stages store means, which float32 has to 6e-5
    assert oracle.error(got, gradient(dy, x)) <= bound


@pytest.mark.parametrize("kernel", ["rows"])
def test_an_epilogue_adds_another_gradient(opened, rng, kernel) -> None:
    shape = (37, 132)
    dy, x, weight, other = rng(shape), rng(shape), rng(shape[1:]), rng(shape)
    epilogue = Epilogue(call("add", Arg(0), Arg(1)), ("full",))
    operands = {"dy": dy, "x": x, "weight": weight, "e1": other}
    got = run(opened("compute"), NormalizeGradient(eps=EPS), operands, kernel, epilogue)
    assert oracle.error(got, gradient(dy, x, weight) + other) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_what_is_not_finite_spoils_its_row_only(opened, rng, name, kernel) -> None:
    dy, x = rng((5, 20)), rng((5, 20))
    x[1, 3], x[2, 19], dy[3, 7] = np.nan, np.inf, np.nan
    got = run(opened(name), NormalizeGradient(eps=EPS), {"dy": dy, "x": x}, kernel)
    assert np.isnan(got[1:4]).all()
    expected = gradient(dy[[0, 4]], x[[0, 4]])
    assert oracle.error(got[[0, 4]], expected) <= TOLERANCE


def test_equal_numbers_whatever_their_size(opened, rng) -> None:
    """Also where the square of a mean is infinite in float32."""
    dy, x = rng((3, 64)), np.full((3, 64), 1e20, np.float32)
    got = run(opened("compute"), NormalizeGradient(eps=EPS), {"dy": dy, "x": x}, "rows")
    assert oracle.error(got, gradient(dy, x)) <= TOLERANCE


def test_numpy_has_the_same(rng) -> None:
    for shape in SHAPES:
        dy, x, weight = rng(shape), rng(shape), rng(shape[1:])
        for centred in (True, False):
            op = NormalizeGradient(centred, EPS)
            got = op.compute({"dy": dy, "x": x, "weight": weight})
            expected = gradient(dy, x, weight, centred=centred)
            assert got.dtype == np.float32 and np.abs(got - expected).max() <= 1e-5
    assert NormalizeGradient().compute(dict.fromkeys(("dy", "x"), np.zeros((0, 3)))).shape == (0, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"dy": (3,), "x": (3,)}, r"x must have shape \(rows, n\), got \(3,\)"),
        ({"dy": (2, 3), "x": (2, 4)}, r"dy must have shape \(2, 4\), got \(2, 3\)"),
        (
            {"dy": (2, 4), "x": (2, 4), "weight": (2,)},
            r"weight must have shape \(4,\), got \(2,\)",
        ),
    ],
)
def test_wrong_shapes(shapes, message) -> None:
    with pytest.raises(ShapeError, match=message):
        NormalizeGradient().shape_of(shapes)
