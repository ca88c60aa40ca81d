from __future__ import annotations

import pytest

from glnn.ops import Bias
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("bias"))
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 7), (129, 10), (2, 5, 3), (1, 3, 7, 5), (2, 127, 1, 3)]
)
def test_any_shape(opened, rng, name, kernel, shape) -> None:
    x, bias = rng(shape), rng((shape[1],))
    got = run(opened(name), Bias(), {"x": x, "bias": bias}, kernel)
    assert oracle.error(got, oracle.bias(x, bias)) <= TOLERANCE
