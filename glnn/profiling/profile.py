"""Times of a plan, wall and kernel as in Rovder 2019, table 2, and this process's resources."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.compiler.plan import Plan
from glnn.compiler.step import Step
from glnn.core import html
from glnn.core.plural import count_of
from glnn.core.trace_spans import duration
from glnn.core.types import Array, Shape
from glnn.errors import GlnnError, printable, shown
from glnn.gl import Timer
from glnn.gl.timer import SHARE
from glnn.profiling.timing import warm_up

Work = Callable[[], object]
WARM_UP = 3


@dataclass(frozen=True)
class StepTime:
    """The medians of one step, in milliseconds.

    layer: the layer that it belongs to. via: the kernel whose stage it is; None for a whole kernel.
    wall_ms: from the submission of the step to its end on the device. kernel_ms: the device's own
    time in the same runs; None without a reliable timer. gflop: 1e9 operations of one run.
    """

    name: str
    op: str
    kernel: str
    gflop: float
    kernel_ms: float | None
    wall_ms: float
    layer: str
    via: str | None


@dataclass(frozen=True)
class Profile:
    """A plan's medians, in milliseconds.

    total_ms: a run from arrays to arrays, all transfers included. upload_ms, perform_ms,
    download_ms: its parts, each waited for, so that their sum exceeds the total. kernel_ms: the
    device's own time for all steps together, no less than the sum over the steps. timer: why kernel
    times are missing, and at which step; None where they are not. cpu_ms: the mean time of the
    host's processors in a run, in all threads of this process, the driver's too. rss_bytes,
    peak_rss_bytes: the process's resident memory after these runs, and its peak since `begin_peak`;
    None where unknown. gpu_bytes: the plan's memory on the device; None on the cpu.
    """

    backend: str
    total_ms: float
    upload_ms: float
    perform_ms: float
    download_ms: float
    kernel_ms: float | None
    timer: str | None
    layers: tuple[StepTime, ...]
    cpu_ms: float = 0.0
    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    gpu_bytes: int | None = None

    @property
    def layers_ms(self) -> float:
        """The sum of the steps' wall times, each timed by itself and waited for."""
        return sum(step.wall_ms for step in self.layers)

    @property
    def title(self) -> str:
        """The backend, and the times of a whole run and of its parts."""
        return (
            f"{self.backend}: {self.total_ms:.3g} ms a run; upload {self.upload_ms:.3g}, "
            f"steps {self.perform_ms:.3g}, download {self.download_ms:.3g}, each waited for"
        )

    def __repr__(self) -> str:
        return f"Profile({self.title}; {count_of(len(self.layers), 'step')})"

    def __str__(self) -> str:
        """A line for the whole run, and one for each step."""
        lines = [self.title]
        for step in self.layers:
            kernel = "" if step.kernel_ms is None else f", kernel {step.kernel_ms:.3g} ms"
            times = f"{step.wall_ms:.3g} ms{kernel}"
            lines.append(f"  {step.name}: {step.op} by {step.kernel}, {times}")
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        """A row for each step, and what a whole run takes, for notebooks."""
        rows = [
            (
                step.name, step.op, step.kernel, f"{step.gflop:.3g}", _number(step.kernel_ms),
                _number(step.wall_ms),
            )
            for step in self.layers
        ]  # fmt: skip
        heads = ("step", "op", "kernel", "GFLOP", "kernel ms", "wall ms")
        notes = [f"no kernel times: {self.timer}"] if self.timer is not None else []
        return html.table(heads, rows, caption=self.title, numbers=(3, 4, 5), notes=notes)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain dicts, lists and numbers."""
        return {**asdict(self), "layers_ms": self.layers_ms}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


class Planner(Protocol):
    """An object that makes plans, as a session."""

    def plan(self, shapes: Mapping[str, Shape], *, feeds: Mapping[str, Array]) -> Any:
        """Return the plan for inputs of `shapes`."""


def profile(
    plan: Plan | Planner,
    feeds: Mapping[str, NDArray[Any]],
    repeat: int = 20,
    advance: Callable[[], None] = lambda: None,
) -> Profile:
    """Time `plan` on `feeds`: medians of `repeat` runs, of their parts, and of each step.

    plan: a plan for the shapes of `feeds`, or a session, which plans them. Raises GlnnError for
    others. advance: called after each of the `2 + len(plan.steps)` stages, for a progress bar.
    """
    planned = _plan_of(plan, feeds)
    return planned.backend.perform(lambda: _profile(planned, feeds, repeat, advance))


def _plan_of(plan: Plan | Planner, feeds: Mapping[str, Array]) -> Plan:
    """Return `plan`, or that of the session for `feeds`."""
    if hasattr(plan, "launches"):
        return plan  # type: ignore[return-value]
    if not callable(getattr(plan, "plan", None)):
        raise GlnnError(f"profile takes a plan or a session, got {shown(plan)}")
    shapes = {name: np.shape(array) for name, array in feeds.items()}
    result: Plan = plan.plan(shapes, feeds=feeds)
    return result


def _profile(
    plan: Plan,
    feeds: Mapping[str, NDArray[Any]],
    repeat: int,
    advance: Callable[[], None],
) -> Profile:
    backend, device = plan.backend, plan.backend.device
    warm_up(lambda: plan.run(feeds))
    total = wall_ms(lambda: plan.run(feeds), repeat)
    cpu = processor_ms(lambda: plan.run(feeds), repeat)
    advance()
    parts = _parts(plan, feeds, repeat)
    advance()
    timer = Timer(device) if device else None
    doubt = None if timer else "no GPU"
    if device and not device.capabilities.timer_query:
        doubt = "no timer query"
    _, kernel = _spent(timer, plan.launch, backend.finish, repeat)
    doubt = doubt or _doubt(timer, "all steps together")
    layers = []
    for step, launch in zip(plan.steps, plan.launches, strict=True):
        layers.append(_step(step, *_spent(timer, launch, backend.finish, repeat)))
        doubt = doubt or _doubt(timer, f"step {step.name}")
        advance()
    if timer is not None and doubt is None:
        doubt, kernel, layers = _check_agreement(
            kernel, layers, min(total, parts[1]), 1e3 * timer.overhead
        )
    if doubt is not None:  # times measured before the doubt arose are unreliable, too
        kernel, layers = None, [replace(layer, kernel_ms=None) for layer in layers]
    gpu = None if device is None else plan.nbytes
    times = (backend.name, total, *parts, kernel, doubt, tuple(layers))
    return Profile(*times, cpu, *resident(), gpu)


def _doubt(timer: Timer | None, what: str) -> str | None:
    """Return why the timer became unreliable when `what` was timed, None where it did not."""
    return None if timer is None or timer.doubt is None else f"{what}: {timer.doubt}"


def _step(step: Step, wall: float, kernel: float | None) -> StepTime:
    gflop = step.cost.flops / 1e9
    return StepTime(step.name, step.op.name, step.kernel, gflop, kernel, wall, step.layer, step.via)


def _check_agreement(
    kernel: float | None, layers: list[StepTime], wall: float, rest: float
) -> tuple[str | None, float | None, list[StepTime]]:
    """Return why the kernel times contradict each other, None where they do not, and the times.

    kernel: milliseconds of all steps together. wall: the same by the wall clock. rest: the most
    milliseconds for which the device may wait for the submission of a step. Times of different runs
    differ a little: within the tolerance, a sum is scaled down to the whole that it is part of.
    """
    times = [layer.kernel_ms for layer in layers if layer.kernel_ms is not None]
    if kernel is None or len(times) < len(layers):
        return "not proved for every step", kernel, layers
    if kernel > (1 + SHARE) * wall:
        what = f"all steps together: the timer says {duration(kernel / 1e3)}"
        return f"{what} where other runs took {duration(wall / 1e3)} by the clock", kernel, layers
    kernel, added = min(kernel, wall), sum(times)
    if added > (1 + SHARE) * kernel or kernel - added > SHARE * kernel + len(layers) * rest:
        what = f"the steps' kernel times, {duration(added / 1e3)} together,"
        return f"{what} are not the whole's {duration(kernel / 1e3)}", kernel, layers
    if added > kernel:
        share = kernel / added * (1 - 1e-9)  # and what rounding adds
        layers = [replace(s, kernel_ms=share * t) for s, t in zip(layers, times, strict=True)]
    return None, kernel, layers


def _spent(
    timer: Timer | None, work: Callable[[], None], finish: Callable[[], None], repeat: int
) -> tuple[float, float | None]:
    """Return the median milliseconds of `work` by the wall clock and, in the same runs, by the
    timer.

    The latter is None where the timer is unreliable, and from then on.
    """

    def once() -> None:
        work()
        finish()

    if timer is not None and timer.prove(work) is None:
        sample = timer.measure(work, repeat)
        if sample is not None:
            return 1e3 * sample.wall, 1e3 * sample.gpu
    return wall_ms(once, repeat), None


def wall_ms(work: Work, repeat: int) -> float:
    """Return the median milliseconds of `work` by the wall clock."""
    for _ in range(min(WARM_UP, repeat)):
        work()
    return 1e3 * median(_seconds(work) for _ in range(repeat))


def processor_ms(work: Work, repeat: int) -> float:
    """Return the mean milliseconds of processor time that `work` takes, as its clock ticks."""
    start = process_time()
    for _ in range(repeat):
        work()
    return 1e3 * (process_time() - start) / repeat


def _seconds(work: Work) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _parts(
    plan: Plan, feeds: Mapping[str, NDArray[Any]], repeat: int
) -> tuple[float, float, float]:
    """Return the median milliseconds of the upload, the steps and the download, each waited for."""

    def upload() -> None:
        plan.upload(feeds)
        plan.backend.finish()

    def launch() -> None:
        plan.launch()
        plan.backend.finish()

    for _ in range(min(WARM_UP, repeat)):  # whole runs have not warmed these paths up
        upload()
        launch()
        plan.download()
    uploads, launches, downloads = [], [], []
    for _ in range(repeat):
        uploads.append(_seconds(upload))
        launches.append(_seconds(launch))
        downloads.append(_seconds(plan.download))
    return 1e3 * median(uploads), 1e3 * median(launches), 1e3 * median(downloads)


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK = "5"  # has Linux reset the peak


def resident() -> tuple[int | None, int | None]:
    """Return the resident bytes of this process: now, and the peak since `begin_peak`.

    None where the system has no such files in /proc.
    """
    try:
        lines = STATUS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None, None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return _bytes(fields.get("VmRSS")), _bytes(fields.get("VmHWM"))


def begin_peak() -> None:
    """Collect garbage, and reset the peak of `resident` where Linux allows it."""
    gc.collect()
    with suppress(OSError):
        CLEAR.write_text(PEAK)


def _bytes(text: str | None) -> int | None:
    """Parse a size as Linux writes it, `1234 kB`."""
    number, _, unit = (text or "").strip().partition(" ")
    return int(number) << 10 if number.isdigit() and unit == "kB" else None
