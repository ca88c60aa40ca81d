"""How long a plan takes: wall and kernel time apart, as Rovder 2019, table 2, sets them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from glnn.backends import Performer
from glnn.device import Timer
from glnn.model.plan import Plan, Step

Work = Callable[[], object]
WARM_UP = 3


@dataclass(frozen=True)
class StepTime:
    """One step's medians, in milliseconds.

    layer: the layer that it belongs to. via: the kernel whose stage it is, None where it is whole.
    wall_ms: from asking for the step to the device having done it. kernel_ms: the device's own
    time, None where no timer is to be believed. gflop: 1e9 operations of one run.
    """

    name: str
    op: str
    kernel: str
    gflop: float
    kernel_ms: float | None
    wall_ms: float
    layer: str
    via: str | None

    @property
    def overhead_ms(self) -> float | None:
        """Wall time that is not kernel time."""
        return None if self.kernel_ms is None else self.wall_ms - self.kernel_ms


@dataclass(frozen=True)
class Profile:
    """A plan's medians, in milliseconds.

    total_ms: input in, output out, all transfers included. upload_ms, perform_ms, download_ms: its
    parts, each waited for, so that their sum exceeds the total. kernel_ms: the device's own time
    for all steps. timer: why kernel times are missing, None where they are not.
    """

    backend: str
    total_ms: float
    upload_ms: float
    perform_ms: float
    download_ms: float
    kernel_ms: float | None
    timer: str | None
    layers: tuple[StepTime, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        return asdict(self)


def profile(
    plan: Plan,
    feeds: Mapping[str, NDArray[Any]],
    repeat: int = 20,
    advance: Callable[[], None] = lambda: None,
) -> Profile:
    """Time `plan` on `feeds`, each thing `repeat` times, and take medians.

    advance: called after each of the `2 + len(plan.steps)` stages, for a progress bar.
    """
    return plan.backend.perform(lambda: _profile(plan, feeds, repeat, advance))


def _profile(
    plan: Plan,
    feeds: Mapping[str, NDArray[Any]],
    repeat: int,
    advance: Callable[[], None],
) -> Profile:
    backend, device = plan.backend, plan.backend.device
    total = _wall(lambda: plan.run(feeds), repeat)
    advance()
    parts = _parts(plan, feeds, repeat)
    advance()
    timer = Timer(device) if device else None
    if timer:
        timer.prove(plan.perform)
    kernel = _kernel(timer, plan.perform, repeat)
    layers = []
    for step, perform in zip(plan.steps, plan.performers, strict=True):
        layers.append(_step(step, perform, backend.finish, timer, repeat))
        advance()
    doubt = timer.doubt if timer else "no GPU"
    if doubt is not None:  # what was measured before the doubt arose is not believed either
        kernel, layers = None, [replace(layer, kernel_ms=None) for layer in layers]
    return Profile(backend.name, total, *parts, kernel, doubt, tuple(layers))


def _step(
    step: Step,
    perform: Performer,
    finish: Callable[[], None],
    timer: Timer | None,
    repeat: int,
) -> StepTime:
    def once() -> None:
        perform()
        finish()

    wall = _wall(once, repeat)
    kernel = _kernel(timer, perform, repeat)
    gflop = step.cost.flops / 1e9
    return StepTime(step.name, step.op.name, step.kernel, gflop, kernel, wall, step.layer, step.via)


def _wall(work: Work, repeat: int) -> float:
    """Median milliseconds of `work` by the clock on the wall."""
    for _ in range(min(WARM_UP, repeat)):
        work()
    return 1e3 * median(_seconds(work) for _ in range(repeat))


def _seconds(work: Work) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _kernel(timer: Timer | None, work: Callable[[], None], repeat: int) -> float | None:
    """Median milliseconds of `work` by the device's timer."""
    if timer is None:
        return None
    times = [timer.measure(work) for _ in range(repeat)]
    believed = [t for t in times if t is not None]
    return 1e3 * median(believed) if len(believed) > repeat // 2 else None


def _parts(
    plan: Plan, feeds: Mapping[str, NDArray[Any]], repeat: int
) -> tuple[float, float, float]:
    """Median milliseconds of the upload, the steps and the download, each waited for."""

    def upload() -> None:
        plan.upload(feeds)
        plan.backend.finish()

    def perform() -> None:
        plan.perform()
        plan.backend.finish()

    uploads, performs, downloads = [], [], []
    for _ in range(repeat):
        uploads.append(_seconds(upload))
        performs.append(_seconds(perform))
        downloads.append(_seconds(plan.download))
    return 1e3 * median(uploads), 1e3 * median(performs), 1e3 * median(downloads)
