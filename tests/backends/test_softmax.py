from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import UnsupportedOpError
from glnn.graph.operators import Softmax
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run


def logarithms(x, axis):
    """By the definition, in float64."""
    exact = x.astype(np.float64)
    below = exact - exact.max(axis=axis, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=axis, keepdims=True))


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
@pytest.mark.parametrize("log", [False, True], ids=["", "log"])
def test_any_axis(opened, rng, name, kernel, log) -> None:
    for shape, axis in (
        ((1, 1), -1),
        ((3, 7), 1),
        ((129, 10), -1),
        ((2, 1000), 1),
        ((1037,), 0),
        ((2, 5, 3, 7), 0),
        ((2, 5, 3, 7), 1),
        ((2, 5, 3, 8), -1),
        ((3, 33, 7), 1),
        ((21, 129), 0),
    ):
        x = 4 * rng(shape)
        try:
            got = run(opened(name), Softmax(axis, log), {"x": x}, kernel)
        except UnsupportedOpError:  # some take rows only, others none
            rows = axis in (-1, len(shape) - 1)
            assert kernel == "columns" if rows else kernel.startswith("rows")
            continue
        expected = logarithms(x, axis) if log else oracle.softmax(x, axis)
        assert oracle.error(got, expected) <= TOLERANCE, (shape, axis)


def by_rows(backend, x, kernel, *, log=False):
    """The softmax of the rows of a matrix, for kernels of columns that of its transposed one."""
    if kernel == "columns":
        return run(backend, Softmax(0, log), {"x": np.ascontiguousarray(x.T)}, kernel).T
    return run(backend, Softmax(log=log), {"x": x}, kernel)


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
def test_large_values_do_not_overflow(opened, name, kernel) -> None:
    x = np.array([[1000, 1001, 999], [-1000, -1001, -2000]], np.float32)
    got = by_rows(opened(name), x, kernel)
    assert oracle.error(got, oracle.softmax(x, -1)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
@pytest.mark.parametrize("extent", [5, 260])
def test_what_is_not_finite_spoils_its_row_only(opened, rng, name, kernel, extent) -> None:
    x = rng((7, extent))
    x[1, 2], x[2, 4], x[3] = np.nan, np.inf, -np.inf
    x[4, 1:] = -np.inf  # what is left has it all
    x[5] = -3.4028235e38  # the least there is
    for log in (False, True):
        got = by_rows(opened(name), x, kernel, log=log)
        assert np.isnan(got[1:4]).all()
        assert got[4, 0] == (0 if log else 1) and (got[4, 1:] == (-np.inf if log else 0)).all()
        expected = logarithms(x[[0, 5, 6]], 1)
        expected = expected if log else np.exp(expected)
        assert oracle.error(got[[0, 5, 6]], expected) <= TOLERANCE


def test_long_rows_and_many(backend, rng) -> None:
    for shape in ((2, 65_537), (2, 65_536), (66_001, 3)):
        x, op = 4 * rng(shape), Softmax()
        got = run(backend, op, {"x": x}, None)
        assert oracle.error(got, np.exp(logarithms(x, 1))) <= TOLERANCE
