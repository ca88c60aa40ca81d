"""Cumulative sums and products along any axis, by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.operators import CumSum
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CASES: list[tuple] = [  # shape, axis, exclusive, reverse, multiply
    ((1,), 0, False, False),
    ((129,), 0, True, True),
    ((7, 127), 1, False, False),
    ((127, 7), 0, True, False),
    ((3, 1), 1, True, False),
    ((5, 33, 3), 1, False, True),
    ((2, 3, 4, 67), -1, True, True),
    ((3, 5, 8), 0, False, True),
    ((2, 1031), 1, False, True),
    ((3, 5, 8), 1, True, True, True),
    ((7, 127), 1, False, False, True),
    ((130, 3), 0, False, True, True),
    ((2, 1031), 1, True, False, True),
]


def each(x: np.ndarray, op: CumSum) -> np.ndarray:
    """Every result by itself, in Python's numbers or float64."""
    x = np.moveaxis(x, op.axis, -1)
    found = np.empty(x.shape, object if x.dtype.kind == "i" else np.float64)
    for i in range(x.shape[-1]):
        some = slice(i + op.exclusive, None) if op.reverse else slice(0, i + (not op.exclusive))
        taken = x[..., some].astype(found.dtype)
        found[..., i] = taken.prod(-1) if op.multiply else taken.sum(-1)
    return np.moveaxis(found, -1, op.axis)


@pytest.mark.parametrize(("name", "kernel"), kernels("cum_sum"))
def test_any_axis(opened, rng, name, kernel) -> None:
    ran = 0
    for i, (shape, *attributes) in enumerate(CASES):
        op, x = CumSum(*attributes), rng(shape)
        if op.multiply:
            x = np.copysign(1 + x / 16, x)
        if i % 2:
            x = np.random.default_rng(i).integers(-(2**31), 2**31, shape).astype(np.int32)
        try:
            got = run(opened(name), op, {"x": x}, kernel)
        except UnsupportedOpError:
            continue
        expected = each(x, op)
        if i % 2:
            wrapped = ((expected + 2**31) % 2**32 - 2**31).astype(np.int32)
            np.testing.assert_array_equal(got, wrapped, err_msg=f"{op} {shape}")
        else:
            assert oracle.error(got, expected) <= TOLERANCE, (op, shape)
        ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), kernels("cum_sum"))
def test_nan_and_infinities_go_on_from_their_place(opened, rng, name, kernel) -> None:
    for axis in (0, 1):
        x = np.moveaxis(rng((6, 70)), 1, axis)
        rows = np.moveaxis(x, axis, 1)
        rows[0, 3], rows[1, 69], rows[2, 40], rows[3, [2, 50]] = np.nan, np.inf, -np.inf, [1, -1]
        rows[3, [5, 20]] = np.inf, -np.inf
        x = np.ascontiguousarray(x)
        try:
            got = run(opened(name), CumSum(axis), {"x": x}, kernel)
        except UnsupportedOpError:
            continue
        with np.errstate(invalid="ignore"):
            expected = np.cumsum(x.astype(np.float64), axis)
        assert oracle.error(got, expected) <= TOLERANCE


def test_more_lines_than_workgroups_may_be(backend, rng) -> None:
    x = rng((70_001, 9))
    expected = np.cumsum(x.astype(np.float64), 1)
    assert oracle.error(run(backend, CumSum(1), {"x": x}, None), expected) <= TOLERANCE


def test_shapes_and_faults() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(CumSum(1).compute({"x": x}), [[0, 1, 3], [3, 7, 12]])
    back = CumSum(-1, exclusive=True, reverse=True).compute({"x": x})
    np.testing.assert_array_equal(back, [[3, 2, 0], [9, 5, 0]])
    assert CumSum(0).compute({"x": np.zeros((0, 2), np.int32)}).shape == (0, 2)
    for op, given, text in (
        (CumSum(2), x, "axes must name dimensions of 2"),
        (CumSum(0), np.float32(1), "axes must name dimensions of 0"),
        (CumSum(0), x > 1, "x must be of float32, .* got bool"),
    ):
        with pytest.raises(ShapeError, match=text):
            op.compute({"x": np.asarray(given)})
