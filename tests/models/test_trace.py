"""Traces: Chrome's format, every step in its run, clocks believed only where they agree."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.backends import NAMES, open_backend
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError, GlnnError
from glnn.gl import Device
from glnn.graph.passes import Pass
from glnn.model import Model
from glnn.profiling import Trace
from glnn.profiling.clocks import TimerClock, WorkTimes
from glnn.session import InferenceSession
from tests.fake_query import FakeQuery
from tests.oracle import error
from tests.trace_files import check, inside

WAITS = [0.002, 0.0005, 0.004]  # seconds
STAMPS, TIMER, HOST = "the device's timestamps", "the device's timer", "the host's clock"


def traced(session: InferenceSession, x: np.ndarray, runs: int = 2) -> Trace:
    trace = Trace()
    for _ in range(runs):
        trace.run(session.plan({"input": x.shape}), {"input": x})
    return trace


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_every_run(blocks: Model, rng, name: str) -> None:
    try:  # the device is new, so that programs are compiled
        device = None if name == "cpu" else Device()
        session = InferenceSession(blocks, name, device=device)
    except DeviceError as closed:
        pytest.skip(str(closed))
    info = blocks.inputs[0]
    x = rng(info.with_batch(2))
    plan, trace = session.plan({info.name: x.shape}), Trace()
    for _ in range(2):
        (found,) = trace.run(plan, {info.name: x}).values()
        np.testing.assert_array_equal(found, session.run(None, {info.name: x})[0])
    spans = check(trace.to_json())
    steps = [step.name for step in plan.steps]
    for run in ("run 1", "run 2"):
        (whole,) = (e for e in spans if e["name"] == run)
        names = [e["name"] for e in inside(spans, whole) if e["cat"] != "step"]
        assert names == [
            *(run, "weights assigned anew", "upload", "issue all steps", "wait", "readback")
        ]
        moved = {e["name"]: e["args"] for e in inside(spans, whole)}
        assert moved["upload"] == {"bytes": x.nbytes, "tensors": {info.name: x.nbytes}}
        assert moved["readback"]["bytes"] == found.nbytes
        (one_by_one,) = (e for e in spans if e["name"] == f"{run}, step by step")
        done = [e for e in inside(spans, one_by_one) if e["cat"] == "step"]
        assert [e["name"] for e in done] == steps
        assert 0 < sum(e["dur"] for e in done) <= one_by_one["dur"]
        issued = [e["name"] for e in inside(spans, one_by_one) if e["name"].startswith("issue ")]
        assert issued == [f"issue {step}" for step in steps]
        for event, step in zip(done, plan.steps, strict=True):
            args = event["args"]
            assert (args["op"], args["kernel"], args["layer"]) == (
                *(step.op.name, step.kernel, step.layer),
            )
            assert args["shapes"] == {k: list(v) for k, v in step.shapes.items()}
            assert args["GFLOP"] == step.cost.flops / 1e9 and args["bytes"] == step.cost.bytes
            assert args["clock"].startswith((STAMPS, TIMER, HOST))
    (planned,) = (e for e in spans if e["name"] == "plan")
    parts = inside(spans, planned)
    assert [e["name"] for e in parts if e["cat"] == "plan"] == [
        *("plan", "outline", "examine", "prepare")
    ]
    compiled = [e for e in parts if e["cat"] == "compile"]
    assert len(compiled) == (0 if device is None else len(device.programs))
    assert sum(e["args"]["bytes"] for e in parts if e["cat"] == "transfer") > 0


def test_several_plans_are_several_processes(small: Model) -> None:
    trace, session = Trace(), InferenceSession(small, "cpu")
    for count in (1, 2, 1):
        x = np.ones((count, 3), np.float32)
        trace.run(session.plan({"input": x.shape}), {"input": x})
    spans = check(trace.to_json())
    assert {e["pid"] for e in spans if e["name"] == "run 1"} == {1, 2}
    assert [e["pid"] for e in spans if e["name"] == "run 2"] == [1]
    assert trace.events == len(trace.to_json()["traceEvents"])


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_are_assigned_between_runs(small: Model, name: str) -> None:
    try:
        session = InferenceSession(small, name)
    except DeviceError as closed:
        pytest.skip(str(closed))
    x, trace = np.ones((1, 3), np.float32), Trace()
    plan = session.plan({"input": x.shape})
    trace.run(plan, {"input": x})
    small.nodes[0].layer.bias = np.array([1, 2], np.float32)
    (found,) = trace.run(plan, {"input": x}).values()
    assert error(found, np.array([[1.0, 5.0]])) < 1e-6  # x (1, 0, -1) + 1, x (2, 1, 0) + 2


def test_a_graph_without_steps() -> None:
    model = Model.sequential([glnn.layers.Identity()], (3,))
    x = np.ones((1, 3), np.float32)
    check(traced(InferenceSession(model, "cpu"), x).to_json())


class Stamps:
    """Timestamps by the clock of `query`, that say `told` of the seconds since the first."""

    def __init__(self, query: FakeQuery, told: Callable[[float], float]) -> None:
        self.query, self.told = query, told
        self.at: dict[int, float] = {}

    def mark(self, point: int) -> None:
        self.at[point] = self.query.now

    def read(self, count: int) -> list[float]:
        return [self.told(self.at[i] - self.at[0]) for i in range(count)]

    def since_first(self) -> float:
        return self.query.now - self.at[0]

    def release(self) -> None:
        self.at.clear()


@pytest.fixture
def waits(monkeypatch):
    """A plan of steps that wait, on a device whose timestamps say what they are told to."""
    with Device() as device:
        query = FakeQuery(device, lambda seconds, first: seconds, monkeypatch)
        device.capabilities = dataclasses.replace(device.capabilities, timer_query=True)
        backend = open_backend("feedback", device=device)
        model = Model.sequential([glnn.layers.ReLU() for _ in WAITS], (3,))
        plan = Plan(model.graph, backend, {"input": (1, 3)}, without=frozenset(Pass))
        launches = tuple(lambda seconds=seconds: query.wait(seconds) for seconds in WAITS)
        monkeypatch.setattr(Plan, "launches", launches)
        monkeypatch.setattr(Plan, "launch", lambda self: [launch() for launch in launches])
        monkeypatch.setattr(Plan, "run", lambda self, feeds: (self.launch(), self.download())[1])

        def trace(stamps: Callable[..., object]) -> tuple[list[dict], dict]:
            monkeypatch.setattr("glnn.profiling.clocks.Timestamps", stamps)
            made = Trace()
            made.run(plan, {"input": np.ones((1, 3), np.float32)})
            document = made.to_json()
            (about,) = document["otherData"]["plans"].values()
            spans = check(document)
            names = {step.name for step in plan.steps}
            return [e for e in spans if e["cat"] == "step" and e["name"] in names], about

        trace.query = query
        yield trace


def test_timestamps_that_agree_are_shown(waits) -> None:
    steps, about = waits(lambda *_: Stamps(waits.query, lambda seconds: seconds))
    assert about == {"clock of the steps": STAMPS, "why no better one": None}
    assert [e["dur"] for e in steps] == pytest.approx([1e6 * s for s in WAITS], rel=0.01)
    assert {e["tid"] for e in steps} == {2}


@pytest.mark.parametrize(
    "told",
    [
        lambda s: 0.0,
        lambda s: 0.5 * s,
        lambda s: 1.3 * s,
        lambda s: -s,
        lambda s: s + 1 if s else 0,
    ],
    ids=["nothing", "half", "more", "backwards", "far too much"],
)
def test_timestamps_that_lie_are_not(waits, told) -> None:
    steps, about = waits(lambda *_: Stamps(waits.query, told))
    assert about["clock of the steps"].startswith(HOST)
    assert about["why no better one"].startswith("step ")
    assert [e["dur"] for e in steps] == pytest.approx([1e6 * s for s in WAITS], rel=0.01)
    assert {e["tid"] for e in steps} == {3} and all(
        e["args"]["clock"].startswith(HOST) for e in steps
    )


def test_timestamps_that_lie_later(waits) -> None:
    """They were right of every step by itself, and then are not."""
    count = 3 * len(WAITS)

    def told(seconds: float) -> float:
        nonlocal count
        count -= 1
        return seconds if count > 0 else 2 * seconds + 1

    steps, about = waits(lambda *_: Stamps(waits.query, told))
    assert about["clock of the steps"].startswith(HOST)
    assert "above the clock on the wall" in about["why no better one"]
    assert [e["dur"] for e in steps] == pytest.approx([1e6 * s for s in WAITS], rel=0.01)


def test_a_driver_without_timestamps_has_its_timer(waits) -> None:
    def none(*arguments: object) -> None:
        raise DeviceError("it has no timestamps")

    steps, about = waits(none)
    assert about["clock of the steps"].startswith(TIMER)
    assert about["why no better one"] == "it has no timestamps"
    assert [e["dur"] for e in steps] == pytest.approx([1e6 * s for s in WAITS], rel=0.01)
    waits.query.lie = lambda seconds, first: 0.5 * seconds
    _, about = waits(none)
    assert about["clock of the steps"].startswith(HOST)
    assert about["why no better one"].startswith("it has no timestamps; all steps together: ")


def test_steps_placed_by_the_timer() -> None:
    """One after the other from the first one's issue, and never beyond the end."""
    for seconds in ([1e-6, 2e-6], [5.0, 5.0]):
        clock = TimerClock(lambda: None, sum(seconds), seconds)
        found = clock.perform([("a", lambda: None), ("b", lambda: sum(range(1000)))])
        assert isinstance(found, WorkTimes)
        a, b = found.device_spans
        assert (a.name, b.name) == ("a", "b") and a.start == found.submit_spans[0].start
        assert a.end == b.start and b.end <= found.wait_spans[-1].end
        assert b.seconds / a.seconds == pytest.approx(seconds[1] / seconds[0], rel=0.01)
        whole = clock.perform([("all steps", lambda: None)])
        assert len(whole.device_spans) == 1


@pytest.fixture
def trace(small: Model) -> Trace:
    return traced(InferenceSession(small, "cpu"), np.ones((1, 3), np.float32), runs=1)


def test_a_file(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    trace.save(path)
    assert json.loads(path.read_bytes()) == trace.to_json() and list(tmp_path.iterdir()) == [path]
    check(json.loads(path.read_bytes()))


@pytest.mark.parametrize("path", ["gone/t.json", "", "file/t.json", "pipe", "a\0b"])
def test_where_nothing_can_be_saved(trace: Trace, tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(GlnnError, match="cannot be written: "):
        trace.save(f"{tmp_path}/{path}")
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_save_leaves_the_old_file(trace: Trace, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("glnn.profiling.trace.json.dumps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trace.save(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
