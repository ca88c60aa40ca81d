"""Gradients of cross-entropies by scores: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.operators import CrossEntropyGradient
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

SHAPES = [(1, 1), (1, 4), (3, 7), (129, 3), (2, 128), (127, 12), (5, 129), (3, 1028), (7, 1031)]
SHAPES += [(2, 4099), (1, 8192)]
KERNELS = kernels("cross_entropy_gradient")


def loss(x: np.ndarray, target: np.ndarray) -> float:
    """The sum of the cross-entropies of the rows whose target is a class, in float64."""
    counted = (target >= 0) & (target < x.shape[1])
    rows = x.astype(np.float64)[counted]
    scores = rows[np.arange(len(rows)), target[counted]]
    return float(np.sum(np.log(np.exp(rows).sum(1)) - scores))


def gradient(x: np.ndarray, target: np.ndarray, scale: float) -> np.ndarray:
    """What `loss` grows by with each score, by its own definition."""
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(1, keepdims=True))
    result = powers / powers.sum(1, keepdims=True)
    for row, label in enumerate(target):
        if 0 <= label < x.shape[1]:
            result[row, label] -= 1
        else:
            result[row] = 0
    return scale * result


def test_the_gradient_is_that_of_the_loss(rng) -> None:
    x, target = rng((4, 5)).astype(np.float64), np.array([0, 4, -100, 2], np.int32)
    right, step = gradient(x, target, 1.0), 1e-6
    for place in np.ndindex(x.shape):
        more, less = x.copy(), x.copy()
        more[place] += step
        less[place] -= step
        slope = (loss(more, target) - loss(less, target)) / (2 * step)
        assert slope == pytest.approx(right[place], abs=1e-8)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_any_shape(opened, rng, name, kernel) -> None:
    for rows, classes in SHAPES:
        if kernel == "feedback" and classes > 2000:
            continue  # llvmpipe ends loops of a vertex after 65,535 turns; rows are in stages there
        x = 3 * rng((rows, classes))
        target = np.arange(rows, dtype=np.int32) * 5 % classes
        target[rows // 2 :] = classes - 1
        if rows > 2:
            target[1], target[2] = -100, classes  # which are ignored
        got = run(opened(name), CrossEntropyGradient(0.25), {"x": x, "target": target}, kernel)
        assert oracle.error(got, gradient(x, target, 0.25)) <= TOLERANCE, (rows, classes)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_rows_that_are_not_finite(opened, rng, name, kernel) -> None:
    x, target = rng((6, 21)), np.array([0, 1, 2, 3, -1, -1], np.int32)
    x[0, 3], x[1, 2], x[2], x[4], x[5, 0] = np.nan, np.inf, -np.inf, np.nan, np.inf
    x[3, 5] = -np.inf  # a class that cannot be
    got = run(opened(name), CrossEntropyGradient(), {"x": x, "target": target}, kernel)
    assert np.isnan(got[:3]).all() and not got[4:].any()
    assert oracle.error(got[3:4], gradient(x[3:4], target[3:4], 1.0)) <= TOLERANCE


def test_numpy_has_the_same(rng) -> None:
    for rows, classes in SHAPES:
        x, target = rng((rows, classes)), np.arange(-1, rows - 1, dtype=np.int32) % (classes + 1)
        operands = {"x": x, "target": target}
        for operator in (CrossEntropyGradient(0.5), CrossEntropyGradient(0.5, normalized=True)):
            if operator.normalized:
                operands = {**operands, "x": oracle.softmax(x, 1).astype(np.float32)}
            got = operator.compute(operands)
            assert got.dtype == np.float32
            assert oracle.error(got, gradient(x, target, 0.5)) <= TOLERANCE
    nothing = {"x": np.zeros((0, 3), np.float32), "target": np.zeros(0, np.int32)}
    assert CrossEntropyGradient().compute(nothing).shape == (0, 3)


def test_wrong_operands() -> None:
    operator = CrossEntropyGradient()
    with pytest.raises(ShapeError, match=r"x must have shape \(rows, n\), got \(3,\)"):
        operator.shape_of({"x": (3,), "target": (3,)})
    with pytest.raises(ShapeError, match=r"target must have shape \(2,\), got \(3,\)"):
        operator.shape_of({"x": (2, 4), "target": (3,)})
    with pytest.raises(ShapeError, match=r"target must be int32, got int64 \(2,\)"):
        operator.infer((TensorType((2, 4)), TensorType((2,), DType.int64)))
