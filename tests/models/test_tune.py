"""The search: every candidate is checked, the fastest right one is taken, the default compared."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from glnn import ops
from glnn.backends.compute import Compute
from glnn.compiler.plan import Plan
from glnn.errors import GlnnError
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Matmul, Pointwise
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput
from glnn.kernels import kernels_for
from glnn.kernels.library import read
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.tuned import Tuned, TunedChoice
from glnn.layers import Conv2d as Layer
from glnn.model import Model
from glnn.profiling import time_work
from glnn.tuning import Tuning, far_slower, tune
from glnn.validation.reference_case import ReferenceCase, Tolerance

RELU = Pointwise(call("relu", Arg(0)))
SEARCH = __import__("sys").modules["glnn.tuning"]
WRONG = """#version 310 es
layout(local_size_x = 64) in;
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int m;
void main() { if (int(gl_GlobalInvocationID.x) < m) result[gl_GlobalInvocationID.x] = 0.5; }
"""
DECLARED = """summary = "quick and wrong"
priority = 99
launch = { workgroup = [64], grid = ["m"] }
[operands]
x = { layout = "R4", binding = 0 }
weight = { layout = "R4", binding = 1 }
out = { layout = "R4", binding = 2 }
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


def spec(m: int, n: int, k: int) -> OpSpec:
    return OpSpec.create(Matmul(), {"x": (m, k), "weight": (n, k)}, {})


def test_the_fastest_right_candidate_is_taken(backend) -> None:
    seen: list[str] = []
    found = tune(backend, spec(33, 31, 17), advance=seen.append)
    assert set(seen) >= set(found.tried)
    assert len(found.tried) > 15
    assert found.best.seconds == min(found.tried.values())
    assert found.best.default_seconds in found.tried.values()
    assert found.gain is not None and found.gain >= 1


def test_a_wrong_result_is_never_ranked(backend, tmp_path, monkeypatch) -> None:
    (tmp_path / "matmul").mkdir()
    (tmp_path / "matmul" / "wrong.comp").write_text(WRONG)
    (tmp_path / "matmul" / "wrong.toml").write_text(DECLARED)
    ours = tuple(k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked")
    offered = (*read(tmp_path), *ours)
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: offered)
    monkeypatch.setattr(SEARCH, "choose", lambda *_: ours[0])
    found = tune(backend, spec(33, 31, 17))
    assert found.best.kernel == "gemm_blocked"
    assert "its result is off by" in found.refused["wrong"]
    assert "wrong" not in found.tried
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: read(tmp_path))
    monkeypatch.setattr(SEARCH, "choose", lambda *_: read(tmp_path)[0])
    with pytest.raises(GlnnError, match="no kernel gives a right result: wrong: its result"):
        tune(backend, spec(33, 31, 17))


@pytest.mark.parametrize("k", [1619, 3271])
def test_no_right_kernel_is_refused_where_terms_cancel(backend, k) -> None:
    """Sums of so many terms that come out near 0: errors are to be judged by the terms."""
    default = backend.choose(spec(1, 1, k)).name
    found = tune(backend, spec(1, 1, k))
    assert default in {name.split()[0] for name in found.tried}
    assert not [why for why in found.refused.values() if "off by" in why]


def test_all_combinations(backend, monkeypatch) -> None:
    offered = tuple(k for k in kernels_for("pointwise", "compute") if k.generate)
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: offered)
    wanted = OpSpec.create(RELU, {"x0": (5, 7)}, {})
    values = [len(v) for v in offered[0].tune.values()]
    found = tune(backend, wanted, exhaustive=True)
    assert len(found.tried) + len(found.refused) == np.prod(values)


def test_what_is_skipped_is_not_tried_unless_it_is_the_default(backend) -> None:
    names = {k.name for k in kernels_for("matmul", "compute")}
    default = backend.choose(spec(33, 31, 17)).name
    found = tune(backend, spec(33, 31, 17), skip=names)
    assert {name.split()[0] for name in found.tried} == {default}
    assert found.skipped == found.much_slower and default not in found.skipped


def test_only_hopeful_kernels_are_varied(backend, monkeypatch) -> None:
    offered = tuple(
        k
        for k in kernels_for("matmul", "compute")
        if k.name in ("gemm_blocked", "gemm_blocked_texture")
    )
    monkeypatch.setattr(SEARCH, "kernels_for", lambda op, backend: offered)
    monkeypatch.setattr(SEARCH, "choose", lambda *_: offered[0])
    seconds = {"gemm_blocked": 1.0, "gemm_blocked_texture": 3.0}
    monkeypatch.setattr(SEARCH._Search, "_measure", lambda self, kernel: seconds[kernel.name])
    found = tune(backend, spec(33, 31, 17))
    assert [name.split()[0] for name in found.tried].count("gemm_blocked_texture") == 1
    assert [name.split()[0] for name in found.tried].count("gemm_blocked") > 1


def test_far_slower_kernels_are_known_by_smaller_products_with_many_results() -> None:
    (blocked,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked")
    best = TunedChoice.from_kernel(blocked, 1.0, None)
    tried = {"slow A=1": 9.0, "slow A=2": 8.5, "mixed A=1": 9.0, "mixed A=2": 2.0, "best": 1.0}

    def tuned(m: int, n: int, k: int) -> Tuning:
        return Tuning(spec(m, n, k), best, tried, {}, frozenset({"gone"}))

    assert far_slower(spec(512, 512, 512), [tuned(256, 256, 256)]) == {"slow", "gone"}
    for known in (tuned(1024, 256, 256), tuned(64, 64, 64), tuned(256, 256, 300)):
        assert far_slower(spec(512, 512, 512), [known]) == set()
    relu = OpSpec.create(RELU, {"x0": (512, 512)}, {})
    assert far_slower(relu, [tuned(256, 256, 256)]) == set()


def test_hopeless_work_runs_once(backend, monkeypatch) -> None:
    calls: list[int] = []
    assert time_work(backend, lambda: calls.append(1), hopeless=0.0).seconds > 0
    assert len(calls) == 1


def test_a_tuned_choice_gives_the_same_result(backend, tmp_path, rng) -> None:
    backend.tuned = Tuned.load(tmp_path, backend.device.capabilities, "1")
    a, b = rng((33, 17)), rng((17, 31))
    before = ops.matmul(a, b, backend=backend)
    found = tune(backend, spec(33, 31, 17))
    backend.tuned.keep(backend.name, spec(33, 31, 17), found.best)
    assert backend.choose(spec(33, 31, 17)).name == (found.best.kernel)
    np.testing.assert_allclose(ops.matmul(a, b, backend=backend), before, rtol=1e-5, atol=1e-5)
    assert found.best.seconds < inf


CONVOLUTION = OpSpec.create(
    Conv2d(padding=(1, 1, 1, 1)),
    {"x": (1, 5, 9, 9), "weight": (6, 5, 3, 3), "e1": (6,)},
    {},
    BIASED,
)
STAGED = {k.name for k in kernels_for("conv2d", "compute") if k.stages and not k.document}


@pytest.fixture
def winograd_wins(monkeypatch) -> None:
    """Every candidate is checked; then Winograd's are said to be the fastest, by far."""
    measure = SEARCH._Search._measure

    def measured(self, kernel) -> float:
        assert measure(self, kernel) > 0
        return {"winograd_2": 0.1, "winograd_4": 0.2}.get(kernel.name, 1.0)

    monkeypatch.setattr(SEARCH._Search, "_measure", measured)


def channels_last(spec: OpSpec) -> OpSpec:
    return spec.with_layouts({"x": "nhwC4c"})


@pytest.mark.parametrize("place", [lambda p: p, channels_last], ids=["planar", "channels last"])
def test_convolutions_are_tuned_those_of_stages_too(backend, monkeypatch, place) -> None:
    monkeypatch.setattr(SEARCH, "VARIED", 0)
    found = tune(backend, place(CONVOLUTION))
    tried = {name.split()[0] for name in found.tried}
    lies = "R" if place(CONVOLUTION).first_layout == "R" else "nhwC4c"
    default = backend.choose(CONVOLUTION.with_layouts({"x": lies}))
    assert default.name in tried and found.best.default_seconds is not None
    if lies == "nhwC4c":
        of_one_pixel = {name for name in STAGED if name.startswith("pointwise")}
        assert tried >= {"implicit_gemm"} | STAGED - of_one_pixel
    assert not tried & {k.name for k in kernels_for("conv2d", "compute") if k.document}
    assert not any("its result is off" in reason for reason in found.refused.values())


def test_a_kernel_of_stages_may_win_and_a_plan_takes_it(
    backend, monkeypatch, winograd_wins, tmp_path, rng
) -> None:
    monkeypatch.setattr(SEARCH, "VARIED", 1)
    backend.tuned = Tuned.load(tmp_path, backend.device.capabilities, "1")
    model = Model.sequential([Layer(4, 4, 3, padding=1), Layer(4, 4, 3, padding=1)], (4, 9, 9))
    x = rng((2, 4, 9, 9))  # the same problem twice
    before = Plan(model.graph, backend, {"input": x.shape})
    assert {step.via for step in before.steps} == {None}
    monkeypatch.setattr(SEARCH, "choose", lambda *_: direct)  # so that both layouts are tuned
    (direct,) = (k for k in kernels_for("conv2d", "compute") if k.name == "direct_nhwc")
    (layer,) = {
        p.with_layouts({"x": "R"}) for p in before.outline.schedule.specs if p.op.name == "conv2d"
    }
    for layout in ("R", "nhwC4c"):
        wanted = layer.with_layouts({"x": layout})
        found = tune(backend, wanted)
        assert (found.best.kernel, found.best.seconds) == ("winograd_2", 0.1)
        backend.tuned.keep(backend.name, wanted, found.best)
    backend.tuned = Tuned.load(tmp_path, backend.device.capabilities, "1")  # as the file has it
    plan = Plan(model.graph, backend, {"input": x.shape})
    assert {step.layer: step.via for step in plan.steps} == dict.fromkeys(
        ("conv2d1", "conv2d2"), "winograd_2"
    )
    (got,), (expected,) = plan.run({"input": x}).values(), before.run({"input": x}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_declaration_says_what_may_be_off(backend, monkeypatch) -> None:
    monkeypatch.setattr(SEARCH, "relative_error", lambda got, expected: 5e-5)
    monkeypatch.setattr(ReferenceCase, "tolerance", lambda case: Tolerance())  # no terms cancel
    found = tune(backend, channels_last(CONVOLUTION))
    assert {name.split()[0] for name in found.tried} == {"winograd_4"}
    assert found.refused["winograd_2 TILE=2 PARTS=1"] == "its result is off by 5.0e-05"


def test_problems_of_stages_come_before_the_whole(backend) -> None:
    model = Model.sequential([Layer(8, 32, 1)], (8, 5, 5))
    plan = Plan(model.graph, backend, {"input": (2, 8, 5, 5)})
    assert {step.via for step in plan.steps} == {"pointwise"}
    problems = plan.outline.schedule.specs
    assert [found.op.name for found in problems] == ["reorder", "matmul", "conv2d"]
    assert problems[-1].shapes == {"x": (2, 8, 5, 5), "weight": (32, 8, 1, 1), "e1": (32,)}
    forced = Plan(model.graph, backend, {"input": (2, 8, 5, 5)}, {"conv2d": "pointwise"})
    assert [found.op.name for found in forced.outline.schedule.specs] == ["reorder", "matmul"]


@pytest.mark.parametrize(
    "wanted",
    [
        OpSpec.create(WinogradOutput((1, 5, 7), 4), {"x": (36 * 4, 6)}, {"x": "R"}),
        OpSpec.create(WinogradInput(4, (1, 1, 1, 1)), {"x": (1, 6, 5, 7)}, {"x": "nhwC4c"}),
    ],
    ids=lambda wanted: wanted.op.name,
)
def test_stages_are_tuned_as_problems_of_their_own(backend, wanted) -> None:
    found = tune(backend, wanted)
    assert len(found.tried) > 2
    assert found.best.default_seconds in found.tried.values()
