"""Profiles of models: kernel times that contradict nothing, or none and the reason."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

import glnn
from glnn.backends import Backend, open_backend
from glnn.backends.gl import GlBackend
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError, GlnnError
from glnn.gl import Device
from glnn.graph.passes import Pass
from glnn.profiling import Profile, profile, time_work
from tests.fake_query import LIES, FakeQuery
from tests.random_models import random_model

# `make check-timers` takes more.
MODELS = range(int(os.environ.get("GLNN_TIMED_MODELS", "4")))
ENOUGH = 0.3  # seconds of a run: smaller batches where devices are slow
STEPS = [0.002, 0.0005, 0.004]  # seconds
HONEST = "nothing but the truth"
TIME = r"[\d.]+ (us|ms|s)"
# What was measured, and the rule that it broke.
WHY = re.compile(
    rf"(all steps together|step .+): (of twice the work, )?the timer says {TIME} where the "
    rf"clock on the wall says {TIME}(; it cannot be more|; at most {TIME} may be missing"
    rf"| more; they may differ by {TIME})$"
)


def check(found: Profile) -> None:
    """No part above its whole."""
    kernels = [step.kernel_ms for step in found.layers]
    if found.timer is not None:
        assert found.kernel_ms is None and set(kernels) <= {None}
        return
    assert found.kernel_ms is not None
    assert found.kernel_ms <= min(found.perform_ms, found.total_ms)
    for step in found.layers:
        assert step.kernel_ms is not None and 0 < step.kernel_ms <= step.wall_ms
    assert sum(k for k in kernels if k is not None) <= found.kernel_ms


def test_a_session_is_profiled_and_all_print_shortly() -> None:
    session, x = glnn.InferenceSession("lenet", "cpu"), np.zeros((2, 1, 28, 28), np.float32)
    found = profile(session, {"input": x}, repeat=1)  # type: ignore[arg-type]
    plan = session.plan({"input": x.shape})
    assert [step.name for step in found.layers] == [step.name for step in plan.steps]
    count = len(plan.steps)
    assert repr(plan) == str(plan) == f"Plan(lenet on cpu: {count} steps)"
    assert repr(found).startswith("Profile(cpu: ") and repr(found).endswith(f"; {count} steps)")
    lines = str(found).splitlines()
    assert lines[0].startswith("cpu: ") and len(lines) == 1 + count
    assert lines[-1].startswith("  softmax: softmax by numpy, ")
    with pytest.raises(GlnnError, match="profile takes a plan or a session, got 3"):
        profile(3, {"input": x})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["compute", "feedback"])
@pytest.mark.parametrize("seed", MODELS)
def test_a_random_network_s_times_agree(seed: int, name: str) -> None:
    try:
        backend = open_backend(name)
    except DeviceError as closed:
        pytest.skip(str(closed))
    model = random_model(seed)
    (info,) = model.inputs
    batch = random.Random(seed).choice([1, 2, 10, 30, 100])
    one, x = planned(model, backend, 1), np.ones(info.with_batch(1), np.float32)
    one.run({"input": x})
    start = time.perf_counter()
    one.run({"input": x})
    batch = max(1, min(batch, int(ENOUGH / (time.perf_counter() - start))))
    x = np.random.default_rng(seed).standard_normal(info.with_batch(batch), np.float32)
    check(profile(planned(model, backend, batch), {"input": x}, repeat=3))


def planned(model: glnn.Model, backend: Backend, batch: int) -> Plan:
    return Plan(model.graph, backend, {"input": model.inputs[0].with_batch(batch)})


class Timed:
    """A plan of steps that wait, on a device with a timer that says `lie`."""

    def __init__(self, device: Device, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
        told = LIES.get(lie, lambda seconds, first: seconds)
        self.query = FakeQuery(device, told, monkeypatch)
        device.capabilities = dataclasses.replace(device.capabilities, timer_query=True)
        self.backend = open_backend("feedback", device=device)
        model = glnn.Model.sequential([glnn.layers.ReLU() for _ in STEPS], (3,))
        self.plan = Plan(model.graph, self.backend, {"input": (1, 3)}, without=frozenset(Pass))
        assert len(self.plan.steps) == len(STEPS)
        launches = tuple(self._waits(seconds) for seconds in STEPS)
        vars(self.plan)["launches"] = launches
        arrangement = self.plan.buffers._arrangement
        assert arrangement is not None
        self.arrangement = arrangement
        self.arrangement.commands = lambda: [launch() for launch in launches].clear()

    def _waits(self, seconds: float) -> Callable[[], None]:
        return lambda: self.query.wait(seconds)

    def profile(self, repeat: int = 5) -> Profile:
        return profile(self.plan, {"input": np.ones((1, 3), np.float32)}, repeat)


@pytest.fixture
def timed(monkeypatch):
    with Device() as device:
        yield lambda lie: Timed(device, lie, monkeypatch)


def test_steps_that_add_up_are_shown(timed) -> None:
    found = timed(HONEST).profile()
    check(found)
    assert found.timer is None
    kernels = [step.kernel_ms for step in found.layers]
    assert kernels == pytest.approx([1e3 * seconds for seconds in STEPS], rel=0.01)


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_timer_shows_nothing_and_why(timed, lie: str) -> None:
    found = timed(lie).profile()
    check(found)
    assert found.timer is not None and WHY.match(found.timer), found.timer
    assert all(step.wall_ms > 0 for step in found.layers)


def test_the_step_that_was_not_believed_is_named(timed) -> None:
    made = timed(HONEST)
    made.query.lie = lambda seconds, first: (0.5 if first < 1e-3 else 1) * seconds
    found = made.profile()
    check(found)
    (second,) = {step.name for step in made.plan.steps[1:2]}
    assert found.timer is not None and found.timer.startswith(f"step {second}: the timer says ")


def test_steps_that_do_not_add_up_are_not_shown(timed) -> None:
    """Each is proved by itself, and the whole is: yet they contradict each other."""
    made = timed(HONEST)
    whole = made.arrangement.commands  # what `run` and `launch` share
    made.arrangement.commands = lambda: (whole(), made.query.wait(0.05))[0]
    found = made.profile()
    check(found)
    assert found.timer is not None and "are not the whole's" in found.timer


@pytest.mark.parametrize("lie", LIES)
def test_work_is_timed_by_the_clock_where_the_timer_lies(timed, lie: str, monkeypatch) -> None:
    monkeypatch.setattr("glnn.profiling.timing.WARM_SECONDS", 0.0)
    made = timed(lie)
    assert isinstance(made.backend, GlBackend)
    found = time_work(made.backend, lambda: made.query.wait(0.004), 5)
    if lie == "nothing of what is short":  # work is repeated for longer than that
        assert found.by_timer
    else:
        assert not found.by_timer and found.seconds >= 0.004
        assert len(found.runs) == 5 and median(found.runs) == found.seconds


def test_work_is_timed_by_a_timer_that_tells_the_truth(timed, monkeypatch) -> None:
    monkeypatch.setattr("glnn.profiling.timing.WARM_SECONDS", 0.0)
    made = timed(HONEST)
    found = time_work(made.backend, lambda: made.query.wait(0.004), 5)
    assert found.by_timer and found.seconds == pytest.approx(0.004, rel=0.01)
    assert 3 <= len(found.runs) <= 5 and median(found.runs) == pytest.approx(found.seconds)
