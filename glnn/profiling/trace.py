"""Traces of plans and runs in Chrome's trace event format.

Reference: "Trace Event Format", Google, 2016. ui.perfetto.dev and chrome://tracing show such files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from glnn.compiler.plan import Plan
from glnn.compiler.step import Step
from glnn.core.fileio import atomic_write
from glnn.core.trace_spans import Span
from glnn.errors import GlnnError, fault
from glnn.gl.timer import TRIES
from glnn.profiling.clocks import DISTURBED, Clock, HostClock, Works, clock_for, works_of
from glnn.version import VERSION

Array = NDArray[Any]
HOST, GPU, WAITED = 1, 2, 3
THREADS = {HOST: "host", GPU: "GPU", WAITED: "steps, by the host's clock"}
"""The threads of each process."""


@dataclass
class TracedPlan:
    """A plan in a trace."""

    plan: Plan
    pid: int
    """The process that stands for it."""
    clock: Clock
    """The clock of its steps."""
    doubt: str | None
    """The reason why there is no better clock."""
    runs: int = 0
    """The number of runs."""
    threads: set[int] = field(default_factory=set)
    """The threads that have events."""


@dataclass
class Trace:
    """Events of plans and their runs, collected by `run` and written by `save`.

    Each plan is a process of the trace, with the host's work as one thread and the steps as
    another. Only one thread at a time may use it, and no other may run the same plans meanwhile. It
    keeps the plans alive.
    """

    _events: list[dict[str, Any]] = field(default_factory=list)
    _traced: dict[int, TracedPlan] = field(default_factory=dict)

    def run(self, plan: Plan, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run `plan` twice for `feeds`, arrays as `Plan.run` takes them, and return the outputs.

        The first run is as usual, to time the host; the second is step by step, each step with
        barriers and a flush of its own, to time the device. The first call for a plan adds its
        planning, and runs it a few times more to choose a reliable clock. Raises what `Plan.run`
        raises.
        """
        return plan.backend.perform(lambda: self._run(plan, feeds))

    def _run(self, plan: Plan, feeds: Mapping[str, Array]) -> dict[str, Array]:
        traced = self._traced.get(id(plan)) or self._begin(plan, feeds)
        traced.runs += 1
        start = perf_counter()
        self._upload(traced, feeds, weights=True)
        self._perform(traced, feeds, [("all steps", plan.launch)])
        begun = perf_counter()
        results = plan.download()
        self._add(
            traced,
            "transfer",
            Span("readback", begun, perf_counter()),
            _transfer_arguments(results),
        )
        self._add(traced, "host", Span(f"run {traced.runs}", start, perf_counter()))
        if plan.steps:
            start = perf_counter()
            self._upload(traced, feeds, weights=False)  # the first run may have overwritten inputs
            self._perform(traced, feeds, works_of(plan))
            steps = Span(f"run {traced.runs}, step by step", start, perf_counter())
            self._add(traced, "host", steps)
        return results

    def _begin(self, plan: Plan, feeds: Mapping[str, Array]) -> TracedPlan:
        """Add `plan` with its planning and a first run, and choose its clock."""
        start = perf_counter()
        plan.run(feeds)
        ran = perf_counter()
        clock, doubt = clock_for(plan, feeds)
        traced = TracedPlan(plan, len(self._traced) + 1, clock, doubt)
        self._traced[id(plan)] = traced
        device = plan.backend.device
        self._name(traced, "process_name", f"{plan.graph.name} on {plan.backend.name}")
        if device is not None:
            self._name(traced, "process_labels", device.capabilities.renderer)
        planned = plan.planning_spans[-1]
        for span in plan.planning_spans:
            self._add(traced, "plan", span, _plan_arguments(plan) if span is planned else {})
        within = [] if device is None else list(device.compiled)
        for span in _inside(within, planned):
            self._add(traced, "compile", span)
        for span in _inside(plan.uploaded, planned):
            self._add(traced, "transfer", span, {"bytes": span.nbytes})
        self._add(traced, "host", Span("first run", start, ran))
        about = {"clock": clock.about} | ({} if doubt is None else {"why no better one": doubt})
        self._add(traced, "host", Span("choose a clock", ran, perf_counter()), about)
        return traced

    def _upload(self, traced: TracedPlan, feeds: Mapping[str, Array], *, weights: bool) -> None:
        start = perf_counter()
        if weights:
            traced.plan.refresh()
            renewed = perf_counter()
            self._add(traced, "transfer", Span("weights assigned anew", start, renewed))
            start = renewed
        traced.plan.upload(feeds)
        self._add(
            traced, "transfer", Span("upload", start, perf_counter()), _transfer_arguments(feeds)
        )

    def _perform(self, traced: TracedPlan, feeds: Mapping[str, Array], works: Works) -> None:
        """Run `works` of a plan; where its clock fails repeatedly, by the host's clock."""
        for _ in range(TRIES):
            if (sample := traced.clock.perform(works)) is not None:
                break
            traced.plan.upload(feeds)
        else:
            traced.doubt = DISTURBED
            traced.clock = HostClock(traced.plan.backend.finish)
            sample = traced.clock.perform(works)
            assert sample is not None
        steps = traced.plan.steps
        arguments = [_step_arguments(step) for step in steps] if len(works) == len(steps) else [{}]
        for span in sample.submit_spans:
            self._add(traced, "host", Span(f"issue {span.name}", span.start, span.end))
        for span in sample.wait_spans:
            self._add(traced, "wait", span)
        clock = {"clock": traced.clock.about}
        thread = GPU if traced.clock.on_device else WAITED
        for span, args in zip(sample.device_spans, arguments, strict=True):
            self._add(traced, "step", span, {**args, **clock}, thread)

    def _name(self, traced: TracedPlan, what: str, name: str, thread: int = 0) -> None:
        key = "labels" if what == "process_labels" else "name"
        self._events.append(
            {"name": what, "ph": "M", "pid": traced.pid, "tid": thread, "args": {key: name}}
        )

    def _add(
        self,
        traced: TracedPlan,
        kind: str,
        span: Span,
        args: Mapping[str, Any] | None = None,
        thread: int = HOST,
    ) -> None:
        if thread not in traced.threads:
            traced.threads.add(thread)
            self._name(traced, "thread_name", THREADS[thread], thread)
        event = {"name": span.name, "cat": kind, "ph": "X", "ts": span.start, "dur": span.seconds}
        self._events.append({**event, "pid": traced.pid, "tid": thread, "args": dict(args or {})})

    @property
    def events(self) -> int:
        """The number of events."""
        return len(self._events)

    def to_json(self) -> dict[str, Any]:
        """Return the trace as plain dicts, lists and numbers; times in microseconds from the first
        on.
        """
        first = min((e["ts"] for e in self._events if "ts" in e), default=0.0)
        events = [_micro(event, first) for event in self._events]
        about = {
            f"{traced.plan.graph.name} on {traced.plan.backend.name}": {
                "clock of the steps": traced.clock.about,
                "why no better one": traced.doubt,
            }
            for traced in self._traced.values()
        }
        return {
            "traceEvents": sorted(events, key=_order),
            "displayTimeUnit": "ms",
            "otherData": {"glnn": VERSION, "plans": about},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to `path`, whole or not at all. Raises GlnnError where that fails."""
        try:
            with atomic_write(path) as stream:
                stream.write(json.dumps(self.to_json(), allow_nan=False).encode())
        except (OSError, ValueError) as error:  # a path that holds a zero byte
            raise GlnnError(f"{os.fspath(path)}: cannot be written: {fault(error)}") from None


def _order(event: Mapping[str, Any]) -> tuple[float, float]:
    """Return the key that sorts events by time, names first, outer events before inner ones."""
    return event.get("ts", -1.0), -event.get("dur", 0.0)


def _micro(event: dict[str, Any], first: float) -> dict[str, Any]:
    """Return `event` with its times in microseconds since `first`, rounded to nanoseconds."""
    if "ts" not in event:
        return event
    times = event["ts"], event["ts"] + event["dur"]
    start, end = (round(1e6 * (time - first), 3) for time in times)
    return {**event, "ts": start, "dur": round(end - start, 3)}


def _inside(spans: Iterable[Span], outer: Span) -> list[Span]:
    return [span for span in spans if outer.start <= span.start and span.end <= outer.end]


def _transfer_arguments(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Describe arrays that are moved, for a trace event."""
    each = {name: array.nbytes for name, array in arrays.items()}
    return {"bytes": sum(each.values()), "tensors": each}


def _plan_arguments(plan: Plan) -> dict[str, Any]:
    tensors = plan.outline.schedule.tensors
    shapes = {value.name: list(tensors[value.name].shape) for value in plan.graph.inputs}
    return {"inputs": shapes, "steps": len(plan.steps), "bytes": plan.nbytes}


def _step_arguments(step: Step) -> dict[str, Any]:
    """Describe a step, for a trace event."""
    result, parameters, copies = step.nbytes
    return {
        "layer": step.layer,
        "op": step.op.name,
        "kernel": step.kernel,
        **({} if step.via is None else {"via": step.via}),
        "shapes": {name: list(shape) for name, shape in step.shapes.items()},
        "result": list(step.shape),
        "layouts": dict(step.layouts),
        "GFLOP": step.cost.flops / 1e9,
        "bytes": step.cost.bytes,
        "memory": {"result": result, "parameters": parameters, "textures": copies},
    }
