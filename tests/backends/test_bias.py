from __future__ import annotations

import pytest

from glnn.graph.operators import Bias
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

RANKS = {"rows": (2, 3, 4), "feedback": (2, 3, 4), "feedback_grouped": (4,)}  # others: matrices


@pytest.mark.parametrize(("name", "kernel"), kernels("bias"))
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 7), (129, 10), (2, 5, 3), (1, 3, 7, 5), (2, 127, 1, 3)]
)
def test_any_shape(opened, rng, name, kernel, shape) -> None:
    x, bias = rng(shape), rng((shape[1],))
    reason = opened(name).why_not(Bias(), {"x": shape, "bias": bias.shape}, kernel)
    if len(shape) not in RANKS.get(kernel, (2,)):
        assert reason is not None
        assert "MATRIX is 0" in reason or "does not take" in reason
        return
    got = run(opened(name), Bias(), {"x": x, "bias": bias}, kernel)
    assert oracle.error(got, oracle.bias(x, bias)) <= TOLERANCE
