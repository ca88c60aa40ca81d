from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import LocalResponseNorm
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

PLANAR = [("compute", "planar"), ("feedback", "feedback")]


@pytest.mark.parametrize(("name", "kernel"), kernels("local_response_norm"))
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((1, 1, 1, 1), (5,)),
        ((2, 3, 7, 5), (5, 0.5)),
        ((3, 7, 1, 4), (2, 2.0, 0.5, 2.0)),  # even: one channel more before than behind
        ((2, 17, 5, 5), (5, 1e-4, 0.75, 1.0)),
        ((2, 17, 3, 2), (9, 1.0, 1.0)),
        ((1, 6, 2, 3), (32, 0.9, 0.75, 0.0)),  # more than there are channels, on both sides
        ((1, 127, 2, 3), (3, 1.5)),
        ((1, 129, 1, 2), (1, 1.0, 2.0)),
    ],
)
def test_any_shape(opened, rng, name, kernel, shape, attributes) -> None:
    x, op = 3 * rng(shape), LocalResponseNorm(*attributes)
    got = run(opened(name), op, {"x": x}, kernel)
    expected = oracle.local_response_norm(x, op.size, op.alpha, op.beta, op.k)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), PLANAR)
@pytest.mark.parametrize("shape", [(3, 9), (2, 5, 7)])
def test_other_ranks(opened, rng, name, kernel, shape) -> None:
    x = rng(shape)
    got = run(opened(name), LocalResponseNorm(3, 1.0), {"x": x}, kernel)
    assert oracle.error(got, oracle.local_response_norm(x, 3, 1.0, 0.75, 1.0)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("local_response_norm"))
def test_a_nan_spoils_its_neighbours_only(opened, rng, name, kernel) -> None:
    x = rng((2, 11, 3, 3))
    x[1, 6, 1, 2] = np.nan
    got = run(opened(name), LocalResponseNorm(4, 1.0), {"x": x}, kernel)
    assert np.isnan(got[1, 5:9, 1, 2]).all() and np.isnan(got).sum() == 4
    assert oracle.error(got, oracle.local_response_norm(x, 4, 1.0, 0.75, 1.0)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("local_response_norm"))
def test_nothing_to_divide_by(opened, name, kernel) -> None:
    x = np.zeros((1, 5, 1, 1), np.float32)
    x[0, 0] = 2
    got = run(opened(name), LocalResponseNorm(1, 1.0, 0.0, 0.0), {"x": x}, kernel)
    np.testing.assert_allclose(got, x, rtol=1e-6)  # to the power 0
