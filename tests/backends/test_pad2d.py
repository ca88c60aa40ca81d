from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators.pad2d import Pad2d
from tests import oracle
from tests.backends.harness import kernels, run

PADDINGS = [(0, 0, 0, 0), (1, 1, 1, 1), (3, 0, 0, 0), (0, 2, 0, 0), (0, 0, 1, 0), (0, 1, 2, 3)]


@pytest.mark.parametrize(("name", "kernel"), kernels("pad2d"))
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 7, 5), (1, 7, 1, 9), (3, 17, 3, 3), (2, 8, 5, 1)]
)
@pytest.mark.parametrize("padding", PADDINGS)
def test_any_shape(opened, rng, name, kernel, shape, padding) -> None:
    x = rng(shape)
    got = run(opened(name), Pad2d(padding), {"x": x}, kernel)
    np.testing.assert_array_equal(got, oracle.pad2d(x, padding))


@pytest.mark.parametrize(("name", "kernel"), kernels("pad2d"))
def test_not_a_number_stays_where_it_is(opened, rng, name, kernel) -> None:
    x = rng((2, 5, 3, 3))
    x[0, 0, 0, 0], x[1, 4, 2, 2] = np.nan, np.inf  # zeros beside them must be zeros
    got = run(opened(name), Pad2d((1, 2, 0, 1)), {"x": x}, kernel)
    np.testing.assert_array_equal(got, oracle.pad2d(x, (1, 2, 0, 1)))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="padding must be 4 integers of at least 0"):
        Pad2d((0, 0, -1, 0))
    with pytest.raises(ShapeError, match="x must have shape"):
        Pad2d().shape_of({"x": (3, 4)})
