from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import BatchNorm
from glnn.layers import BatchNorm2d
from tests import oracle
from tests.backends.epilogues import function as activated
from tests.backends.harness import TOLERANCE, kernels, run

PLANAR = [("compute", "planar"), ("feedback", "feedback")]
SHAPES = [(1, 1, 1, 1), (2, 3, 7, 5), (3, 7, 1, 4), (2, 17, 5, 5), (1, 127, 2, 3), (2, 129, 1, 1)]


def batch_norm(rng, channels: int) -> tuple[BatchNorm2d, np.ndarray, dict[str, np.ndarray]]:
    """A layer with parameters, what they are, and what a kernel gets of them."""
    layer = BatchNorm2d(channels, eps=1e-3)
    given = {name: rng((channels,)) for name in layer.shapes}
    given["running_var"] **= 2
    for name, array in given.items():
        setattr(layer, name, array)
    return layer, given, layer.operands


def expected(x: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    return oracle.batch_norm(x, *given.values(), 1e-3)


@pytest.mark.parametrize(("name", "kernel"), kernels("batch_norm"))
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape(opened, rng, name, kernel, shape) -> None:
    x, (_, given, operands) = rng(shape), batch_norm(rng, shape[1])
    got = run(opened(name), BatchNorm(), {"x": x, **operands}, kernel)
    assert oracle.error(got, expected(x, given)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), PLANAR)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7)])
def test_other_ranks(opened, rng, name, kernel, shape) -> None:
    x, (_, given, operands) = rng(shape), batch_norm(rng, shape[1])
    got = run(opened(name), BatchNorm(), {"x": x, **operands}, kernel)
    assert oracle.error(got, expected(x, given)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("batch_norm"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue_and_not_a_number(opened, rng, name, kernel, function) -> None:
    x, (_, given, operands) = rng((2, 3, 6, 5)), batch_norm(rng, 3)
    x[0, 1, 2, 2] = np.nan
    got = run(opened(name), BatchNorm(), {"x": x, **operands}, kernel, activated(function))
    assert np.isnan(got).sum() == 1
    known = oracle.activation(expected(x, given), function)
    assert oracle.error(got, known) <= TOLERANCE
