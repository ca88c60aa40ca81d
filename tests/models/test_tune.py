"""The search: every candidate is checked, the fastest right one is taken, the default compared."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from glnn import ops
from glnn.backends.compute import Compute
from glnn.errors import GlnnError
from glnn.kernels import kernels_for
from glnn.kernels.library import read
from glnn.kernels.select import Problem
from glnn.kernels.tuned import Tuned
from glnn.ops import Activation, Matmul
from glnn.tuning import tune

SEARCH = __import__("sys").modules["glnn.tuning.tune"]
WRONG = """#version 310 es
layout(local_size_x = 64) in;
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int m;
void main() { if (int(gl_GlobalInvocationID.x) < m) result[gl_GlobalInvocationID.x] = 0.5; }
"""
DECLARED = """summary = "quick and wrong"
layouts = { x = "R", weight = "R", out = "R" }
bindings = { x = 0, weight = 1, out = 2 }
workgroup = [64, 1, 1]
grid = ["m"]
priority = 99
"""


@pytest.fixture
def backend(device) -> Compute:
    if reason := Compute.why_not_device(device):
        pytest.skip(reason)
    return Compute(device)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Nothing here depends on how well it is timed."""
    monkeypatch.setattr("glnn.profiling.timing.WARM_SECONDS", 0.0)
    monkeypatch.setattr("glnn.profiling.timing.LEAST_SECONDS", 0.0)


def problem(m: int, n: int, k: int) -> Problem:
    return Problem.of(Matmul(), {"x": (m, k), "weight": (n, k)}, {})


def test_the_fastest_right_candidate_is_taken(backend) -> None:
    seen: list[str] = []
    found = tune(backend, problem(33, 31, 17), advance=seen.append)
    assert set(seen) >= set(found.tried)
    assert len(found.tried) > 20
    assert found.best.seconds == min(found.tried.values())
    assert found.best.default_seconds in found.tried.values()
    assert not any("half" in name for name in found.tried)
    assert found.gain is not None and found.gain >= 1


def test_a_wrong_result_is_never_ranked(backend, tmp_path, monkeypatch) -> None:
    (tmp_path / "matmul").mkdir()
    (tmp_path / "matmul" / "wrong.comp").write_text(WRONG)
    (tmp_path / "matmul" / "wrong.toml").write_text(DECLARED)
    ours = tuple(k for k in kernels_for("matmul", "compute") if k.name == "blocked")
    offered = (*read(tmp_path), *ours)
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: offered)
    found = tune(backend, problem(33, 31, 17))
    assert found.best.kernel == "blocked"
    assert "its result is off by" in found.refused["wrong"]
    assert "wrong" not in found.tried
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: read(tmp_path))
    monkeypatch.setattr(SEARCH, "choose", lambda *_: read(tmp_path)[0])
    with pytest.raises(GlnnError, match="no kernel gives a right result: wrong: its result"):
        tune(backend, problem(33, 31, 17))


def test_all_combinations(backend, monkeypatch) -> None:
    offered = tuple(k for k in kernels_for("activation", "compute") if k.name == "pointwise")
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: offered)
    wanted = Problem.of(Activation("relu"), {"x": (5, 7)}, {})
    values = [len(v) for v in offered[0].tune.values()]
    found = tune(backend, wanted, exhaustive=True)
    assert len(found.tried) + len(found.refused) == np.prod(values)


def test_a_tuned_choice_gives_the_same_result(backend, tmp_path, rng) -> None:
    backend.tuned = Tuned.load(tmp_path, backend.device.capabilities, "1")
    a, b = rng((33, 17)), rng((17, 31))
    before = ops.matmul(a, b, backend=backend)
    found = tune(backend, problem(33, 31, 17))
    backend.tuned.keep(backend.name, problem(33, 31, 17), found.best)
    assert backend.choose(Matmul(), {"x": (33, 17), "weight": (31, 17)}, {}).name == (
        found.best.kernel
    )
    np.testing.assert_allclose(ops.matmul(a, b, backend=backend), before, rtol=1e-5, atol=1e-5)
    assert found.best.seconds < inf
