"""Random networks of all layers, in memory that starts as NaN, against float64 node by node."""

from __future__ import annotations

import numpy as np
import pytest

import glnn
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError
from tests.oracle import error
from tests.random_models import random_model
from tests.references import results


@pytest.mark.parametrize("name", ["compute", "feedback"])
@pytest.mark.parametrize("limits", [None, "es31-minimum"])
@pytest.mark.parametrize("seed", range(24))
def test_a_random_network(seed, limits, name, poisoned) -> None:
    try:
        backend = glnn.backends.open_backend(name, limits=limits)
    except DeviceError as closed:
        pytest.skip(str(closed))
    model = random_model(seed)
    (info,) = model.inputs
    x = np.random.default_rng(seed).standard_normal(info.with_batch(2), np.float32)
    plan = Plan(model.graph, backend, {"input": x.shape})
    for _ in range(2):
        got = plan.run({"input": x})
    for output, value in results(model.graph, {"input": x}).items():
        assert error(got[output], value) <= 1e-5, output
