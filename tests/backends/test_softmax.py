from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Softmax
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 1), -1),
        ((3, 7), 1),
        ((129, 10), -1),
        ((2, 1000), 1),
        ((2, 5, 3, 7), 1),
        ((2, 5, 3, 7), 2),
        ((2, 5, 3, 7), -1),
    ],
)
def test_any_axis(opened, rng, name, kernel, shape, axis) -> None:
    x = 4 * rng(shape)
    got = run(opened(name), Softmax(axis), {"x": x}, kernel)
    assert oracle.error(got, oracle.softmax(x, axis)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
def test_large_values_do_not_overflow(opened, name, kernel) -> None:
    x = np.array([[1000, 1001, 999], [-1000, -1001, -2000]], np.float32)
    got = run(opened(name), Softmax(), {"x": x}, kernel)
    assert oracle.error(got, oracle.softmax(x, -1)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
def test_a_nan_spoils_its_row_only(opened, rng, name, kernel) -> None:
    x = rng((3, 5))
    x[1, 2] = np.nan
    got = run(opened(name), Softmax(), {"x": x}, kernel)
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()
