from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glnn.errors import ShaderError
from glnn.graph.operators import Activation
from glnn.kernels import kernels_for
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run, run_kernel

FUNCTIONS = ["sigmoid", "relu", "tanh"]


@pytest.mark.parametrize(("name", "kernel"), kernels("activation"))
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (129, 127), (1, 3, 7, 5)])
def test_any_shape(opened, rng, name, kernel, function, shape) -> None:
    x = 3 * rng(shape)
    if len(shape) > 2 and kernel in ("rm", "morton_4_2"):
        reason = opened(name).why_not(Activation(function), {"x": shape}, kernel)
        assert reason is not None
        assert "does not take x" in reason
        return
    got = run(opened(name), Activation(function), {"x": x}, kernel)
    assert oracle.error(got, oracle.activation(x, function)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("activation"))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_magnitude_is_right_by_itself(opened, name, kernel, function) -> None:
    sizes = np.float32(10.0) ** np.arange(-8, 3, dtype=np.float32)
    x = np.concatenate([sizes, -sizes, 3 * sizes, [0, 0.199, 0.2, 0.201, 88, -88]])
    x = x.astype(np.float32).reshape(1, -1)
    got = run(opened(name), Activation(function), {"x": x}, kernel)
    expected = oracle.activation(x, function)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-37)


@pytest.mark.parametrize(("name", "kernel"), kernels("activation"))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_special_values(opened, name, kernel, function) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30]], np.float32)
    got = run(opened(name), Activation(function), {"x": x}, kernel)
    limits = {"sigmoid": (1, 0, 1, 0), "relu": (np.inf, 0, 1e30, 0), "tanh": (1, -1, 1, -1)}
    np.testing.assert_allclose(got[0], [np.nan, *limits[function]], rtol=1e-6)


@pytest.mark.parametrize("captures", [4, 32])
def test_a_declaration_that_is_wrong_about_what_a_vertex_captures(opened, rng, captures) -> None:
    backend, op = opened("feedback"), Activation("relu")
    (choice,) = kernels_for("activation", "feedback")
    with pytest.raises(ShaderError, match=f"feedback.toml: captures: .* 16 floats, not {captures}"):
        run_kernel(backend, op, {"x": rng((9, 12))}, replace(choice, captures=captures))
