from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Subsample
from tests import oracle
from tests.backends.epilogues import function as activated
from tests.backends.harness import TOLERANCE, kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("subsample"))
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1, 1, 1, 1), (1, 1)),
        ((2, 6, 28, 28), (2, 2)),
        ((3, 3, 7, 5), (3, 2)),
        ((2, 7, 9, 4), (1, 4)),
        ((1, 17, 5, 6), (2, 3)),
        ((1, 127, 2, 3), (2, 2)),
        ((1, 129, 3, 2), (3, 1)),
    ],
)
def test_any_shape(opened, rng, name, kernel, shape, window) -> None:
    x, weight, bias = rng(shape), rng(shape[1:2]), rng(shape[1:2])
    operands = {"x": x, "weight": weight, "bias": bias}
    got = run(opened(name), Subsample(window), operands, kernel)
    assert oracle.error(got, oracle.subsample(x, weight, bias, window)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("subsample"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue_and_not_a_number(opened, rng, name, kernel, function) -> None:
    x, weight, bias = rng((2, 3, 6, 5)), rng((3,)), rng((3,))
    x[0, 1, 2, 2] = np.nan
    operands = {"x": x, "weight": weight, "bias": bias}
    got = run(opened(name), Subsample((2, 2)), operands, kernel, activated(function))
    assert np.isnan(got).sum() == 1
    assert oracle.error(got, oracle.subsample(x, weight, bias, (2, 2), function)) <= TOLERANCE
