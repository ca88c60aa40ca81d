"""Choice of the fastest backend for a graph, measured at its first run and cached.

A session with the backend `auto` has an `AutoExecutor` in place of an `Executor`. The first run on
inputs of a class of shapes is done by each backend in turn, a few times; it returns the results of
the first backend. The fastest one is stored in the user's cache, by device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from glnn.backends import Backend, open_each
from glnn.backends.backend_choice_cache import BackendChoiceCache
from glnn.backends.gl import GlBackend
from glnn.compiler.cpu_fallback import Hosted
from glnn.compiler.executor import Executor, Saving
from glnn.compiler.plan import Plan
from glnn.compiler.range_plans import range_name
from glnn.core.cached_property import cached_property
from glnn.core.progress_bar import report_work
from glnn.core.settings import BACKENDS, Settings
from glnn.core.types import Array, ArrayTypes, Shape, beyond_int32
from glnn.errors import (
    GlnnError,
    LimitError,
    ShaderError,
    UnsupportedOpError,
    first_line,
)
from glnn.gl import Capabilities, Device
from glnn.graph.fingerprint import fingerprint
from glnn.graph.graph import Graph, Value
from glnn.kernels.architecture import architecture
from glnn.kernels.cost_model import device_rates
from glnn.runtime.device_array import (
    DeviceArray,
    Feed,
    deciding_types,
    host_arrays,
    stays_on_device,
)
from glnn.runtime.options import TIE, BackendChoice
from glnn.runtime.runner import FinishedRun, Out, Run, ThreadSafeRun, unaliased
from glnn.runtime.store import T
from glnn.stored.plan_cache import PlanWriter

FAR = 3.0
"""A backend that takes this many times as long as the fastest so far is not timed further."""
LONG = 0.3
"""Seconds of runs after which no further one is timed."""
RUNS, ENOUGH, LEAST = 20, 0.1, 3
"""The most runs; the seconds of runs that are enough; and the fewest runs, where these are short.
"""
BOUND, BOUND_RUNS = 20.0, 10
"""Seconds of measuring, planning included, after which no further backend is timed; or the time of
as many runs of the fastest so far, where that is longer: then a slow machine chooses as a fast one
does."""
SOFTWARE_LAST = ("cpu", "feedback", "compute")
GPU_FIRST = ("compute", "cpu", "feedback")
"""The order in which backends are timed: the slowest last, which the bound may leave out."""
REFUSALS = (LimitError, UnsupportedOpError, ShaderError)
"""The errors of a backend that cannot compute a model on this device at all."""

Clock = Callable[[], float]
LOG = logging.getLogger(__name__)
WIDE = "it may refuse int64 numbers beyond int32's"


@dataclass
class Timings:
    """Seconds of a warm run by each backend, and why others have none."""

    seconds: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    """The errors of those that failed."""

    @property
    def choice(self) -> BackendChoice:
        """The fastest backend; at least one must have a time."""
        return BackendChoice.from_seconds(self.seconds, self.why)

    @property
    def is_lasting(self) -> bool:
        """True where measuring again would give the same: no device was lost, no memory short."""
        return all(isinstance(one, REFUSALS) for one in self.failures)


def timing_order(device: Capabilities) -> tuple[str, ...]:
    """Return the backends' names in the order in which they are timed beside `device`."""
    return SOFTWARE_LAST if device.software else GPU_FIRST


def time_backends(
    names: Sequence[str],
    prepare: Callable[[str], Callable[[], object]],
    device: Capabilities,
    clock: Clock,
) -> Timings:
    """Time the backends of `names`, except those that are too slow to matter.

    Args:
        names: The backends in their order.
        prepare: Returns, for a backend's name, a function that runs the work once on it.
        device: The device that all but the cpu are for.
        clock: Returns seconds.

    Raises:
        GlnnError, MemoryError: The error of the first run, unless a backend refuses the work; the
            first refusal where all refuse it.
    """
    result, first_done = Timings(), None  # the time at which the first backend had run once
    run: Callable[[], object] | None = None
    for name in names:
        if first_done is not None and (reason := _reason_to_skip(name, result, device)):
            result.why[name] = reason
            continue
        best = min(result.seconds.values(), default=None)
        runs = BOUND_RUNS * (best or 0.0)
        if first_done is not None and (spent := clock() - first_done) > max(BOUND, runs):
            result.why[name] = f"measuring had taken {spent:.0f} s by then"
            continue
        run = None  # frees its memory before the next backend allocates
        try:
            with report_work("timing", name):
                run = prepare(name)
                start = clock()
                run()
                first = clock() - start
                first_done = clock() if first_done is None else first_done
                limit = max(BOUND - (clock() - first_done), runs)
                result.seconds[name], reason = warm_seconds(run, first, best, clock, limit)
        except (GlnnError, MemoryError) as error:
            if first_done is None and not isinstance(error, REFUSALS):
                raise  # a wrong input, or the device was reset: nothing was measured
            result.failures.append(error)
            reason = first_line(error)
        if reason:
            result.why[name] = reason
    if first_done is None:
        raise result.failures[0]
    return result


def _reason_to_skip(name: str, timings: Timings, device: Capabilities) -> str:
    """Return why `name` cannot be the fastest, by the GPU's architecture; empty where it may be."""
    slower = device_rates(architecture(device)).feedback > TIE
    if name == "feedback" and "compute" in timings.seconds and slower:
        return "transform feedback is slower than compute shaders on such a GPU"
    return ""


def warm_seconds(
    run: Callable[[], object], first: float, best: float | None, clock: Clock, limit: float = BOUND
) -> tuple[float, str]:
    """Return the least seconds of a run after the first, and why timing was cut short, else "".

    The driver compiles in the first run, which may take a thousand times as long as the next: that
    run counts only if it took longer than `limit`.

    Args:
        run: Runs the model once.
        first: Seconds of the backend's first run, which was before.
        best: Seconds of the fastest other backend, None where there is none.
        clock: Returns seconds.
        limit: Seconds of the first run after which it is not repeated.
    """
    if first > limit:
        return first, f"its first run took {first:.0f} s and was not repeated"
    times: list[float] = []
    while len(times) < RUNS and (len(times) < LEAST or sum(times) < ENOUGH):
        start = clock()
        run()
        times.append(max(clock() - start, 1e-9))
        settled = len(times) > 1 or times[-1] > LONG
        if settled and best is not None and min(times) > FAR * best:
            return min(times), "far behind"
        if sum(times) > LONG:
            break
    return min(times), ""


@dataclass(eq=False)
class _LatestChoice:
    """The executor of the last run."""

    shapes: dict[str, Shape]
    """The shapes of its inputs."""
    executor: Executor
    choice: BackendChoice
    types: ArrayTypes | None = None
    """The types of inputs that this executor runs, whatever their numbers; None where numbers
    matter, or before a second run."""


class AutoExecutor:
    """Runs a graph on the fastest of `backends`, with the methods of `Executor`.

    backends: two or more open ones, by name. options: those of `Executor`. clock: returns seconds.

    While one thread measures, others run on the first backend. Any thread may use it.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Mapping[str, Backend],
        options: Mapping[str, Any],
        clock: Clock = perf_counter,
    ) -> None:
        self.graph, self._options, self._clock = graph, options, clock
        gl = next(one for one in backends.values() if isinstance(one, GlBackend))
        self._offers, self._choice_cache = gl.device.capabilities, gl.choice_cache
        self.gl_device: Device = gl.device
        """The device of the backends that run on the GPU."""
        self._names = [name for name in timing_order(self._offers) if name in backends]
        self._executors: dict[str, Executor] = {}
        self._choices: dict[str, BackendChoice] = {}
        """By class of shapes."""
        self._measuring = threading.Lock()
        self._disturbed = False
        """True where other threads ran while one measured."""
        self.stored_backend = next(name for name in BACKENDS if name in backends)
        """The one backend whose plans may be stored on disk."""
        self._saving: Saving | None = None
        self._latest: _LatestChoice | None = None
        self._warn_of_software(self._choice_cache)

    def _warn_of_software(self, cache: BackendChoiceCache) -> None:
        """Warn once that the device is a software renderer."""
        if self._offers.software and not cache.warned:
            cache.warned = True
            name = self._offers.renderer
            LOG.warning("%s is a software renderer: OpenGL ES runs on the CPU here", name)

    @property
    def backend(self) -> Backend:
        """Return the backend of the last run; before a run, the first to be tried."""
        return self._executor.backend

    @property
    def device(self) -> Device | None:
        """See `Executor`."""
        return self._executor.device

    @property
    def choice(self) -> BackendChoice | None:
        """Return the backend chosen for the last run's shapes, None before a run."""
        return None if self._latest is None else self._latest.choice

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, of the plan that ran last."""
        return self._executor.hosted

    @property
    def _executor(self) -> Executor:
        latest = self._latest
        return self._executor_for(self._names[0]) if latest is None else latest.executor

    def _executor_for(self, name: str) -> Executor:
        """Return the executor on the backend `name`, made on first use."""
        result = self._executors.get(name)
        if result is None:
            options = self._options
            if name == "cpu":
                options = {**options, "device": None, "gpu": None, "limits": None}
            executor = Executor(self.graph, name, **options)
            executor.saving = self._saving if name == self.stored_backend else None
            result = self._executors.setdefault(name, executor)
        return result

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """See `Executor`; the first run of inputs of a class of shapes is measured."""
        executor = self._chosen_executor(feeds)
        if executor is not None:
            return executor.run(feeds, outputs, out)
        names = None if outputs is None else tuple(outputs)
        if self._measuring.acquire(blocking=False):  # waiting here could deadlock
            try:
                self._disturbed = False
                return self._measure_and_store(lambda: self._measure(feeds, names, out))
            finally:
                self._measuring.release()
        return self._executor_for(self._names[0]).run(feeds, names, out)

    def save_by(self, writer: PlanWriter) -> None:
        """Have `writer` store plans of `stored_backend` from now on, where that is chosen."""
        self._saving = Saving(writer, self.graph)

    def _measure_and_store(self, measure: Callable[[], dict[str, Array]]) -> dict[str, Array]:
        """Call `measure` and return its result; store the plan on disk if it is the fastest
        backend's.
        """
        saving = self._saving
        if saving is None:
            return measure()
        saving.paused, previous = True, self._latest
        try:
            return measure()
        finally:
            new = self._latest if self._latest is not previous else None
            if new is None or new.choice.backend != self.stored_backend:
                saving.drop()
            saving.paused = False
            if saving.waiting and new is not None:
                new.executor.perform(saving.settle)

    def perform(self, work: Callable[[], T]) -> T:
        """See `Executor`."""
        return self._executor.perform(work)

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """See `Executor`; where the run is to be measured, it is done when this returns."""
        executor = self._chosen_executor(feeds)
        if executor is None:
            return FinishedRun(self.run(feeds, outputs, out))
        run = executor.perform(lambda: executor.begin(feeds, outputs, out))
        return run if isinstance(run, FinishedRun) else ThreadSafeRun(executor, run)

    def settle(self) -> None:
        """See `Executor`. The caller may be in `perform` of another device than the last run's."""
        self._executor.perform(self._executor.settle)

    def values(
        self, feeds: Mapping[str, Array], values_requested: tuple[Value, ...]
    ) -> dict[str, Array]:
        """See `Executor`; nothing is measured."""
        return (self._chosen_executor(feeds) or self._executor).values(feeds, values_requested)

    def plan(
        self,
        shapes: Mapping[str, Shape],
        *,
        keep: bool = False,
        feeds: Mapping[str, Array] | None = None,
    ) -> Plan:
        """See `Executor`; on the backend that was chosen for such shapes, else the first."""
        choice = self._choice_for(shape_class(shapes))
        executor = self._executor_for(self._names[0] if choice is None else choice.backend)
        return executor.plan(shapes, keep=keep, feeds=feeds)

    def executor_for(self, feeds: Mapping[str, Feed]) -> Executor:
        """Return the executor chosen for such inputs; measure it now unless it was."""
        if self._chosen_executor(feeds) is None:
            self.run(feeds)
        return self._chosen_executor(feeds) or self._executor

    def _chosen_executor(self, feeds: Mapping[str, Feed]) -> Executor | None:
        """Return the executor chosen for inputs of these shapes, None before it is measured."""
        if self._measuring.locked():
            self._disturbed = True
        latest = self._latest
        if latest is not None and latest.types is not None and latest.types.match(feeds):
            return latest.executor
        if "cpu" in self._names and beyond_int32(host_arrays(feeds)):
            wide = BackendChoice(
                "cpu", why=dict.fromkeys((n for n in self._names if n != "cpu"), WIDE)
            )
            self._latest = _LatestChoice({}, self._executor_for("cpu"), wide)
            return self._latest.executor
        shapes = {name: array.shape for name, array in feeds.items()}
        if latest is not None and latest.shapes == shapes:
            latest.types = deciding_types(feeds)
            return latest.executor
        choice = self._choice_for(shape_class(shapes))
        if choice is None:
            return None
        executor = self._executor_for(choice.backend)
        self._latest = _LatestChoice(shapes, executor, choice)
        return executor

    def _choice_for(self, shapes: str) -> BackendChoice | None:
        """Return the choice for the class `shapes`, of any session; None without one."""
        choice = self._choices.get(shapes)
        if choice is None:
            choice = self._choice_cache.find(self._key(shapes))
            if choice is None or choice.backend not in self._names:
                return None
            self._choices[shapes] = choice
            LOG.info("%s for %s: auto takes %s", self.graph.name, shapes, choice)
        return choice

    @cached_property
    def _fingerprint(self) -> str:
        precision, without = self._options["precision"], sorted(self._options["without"])
        options = f"{precision.value} {','.join(map(str, without))} {','.join(sorted(self._names))}"
        return f"{fingerprint(self.graph)} {options}"

    def _key(self, shapes: str) -> str:
        return BackendChoiceCache.key(self._fingerprint, shapes)

    def _measure(
        self,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out] | None,
    ) -> dict[str, Array]:
        """Run each backend on `feeds`, choose one for later runs, and return the outputs."""
        feeds = unaliased(feeds, out) if out else feeds  # later runs read the feeds again
        out = {k: DeviceArray if stays_on_device(one) else one for k, one in (out or {}).items()}
        results: list[dict[str, Array]] = []  # of the first run

        def prepare(name: str) -> Callable[[], object]:
            executor = self._executor_for(name)
            executor.ready(feeds)

            def run() -> None:
                outputs_now = executor.run(feeds, outputs, None if results else out)
                results[:] = results or [outputs_now]

            return run

        timings = time_backends(self._names, prepare, self._offers, self._clock)
        if timings.seconds:  # else each device was lost in a later run
            lasting = timings.is_lasting and not self._disturbed
            self._use(timings.choice, feeds, lasting)
        return results[0]

    def _use(self, choice: BackendChoice, feeds: Mapping[str, Feed], lasting: bool) -> None:
        """Use `choice` for inputs like `feeds` from now on, and drop executors without a choice.

        lasting: True to store it for other sessions: not where other threads ran in the meantime,
        which lengthens times, nor where a device was lost, which may work again.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        key = shape_class(shapes)
        LOG.info("%s for %s: auto takes %s", self.graph.name, key, choice)
        self._choices[key] = choice
        self._latest = _LatestChoice(shapes, self._executor_for(choice.backend), choice)
        if lasting:
            self._choice_cache.keep(self._key(key), choice, self.graph.name, key)
        used = {one.backend for one in self._choices.values()}
        for name in self._names:
            if name not in used:
                self._executors.pop(name, None)


def shape_class(shapes: Mapping[str, Shape]) -> str:
    """Return a key that shapes share whose sizes are in the same planned ranges."""
    return ",".join(
        f"{name}={'x'.join(map(range_name, shape))}" for name, shape in sorted(shapes.items())
    )


def executor_of(
    graph: Graph,
    backend: str | Backend,
    prefer: str = "fastest",
    *,
    kernels: Mapping[str, str] | None = None,
    **options: Any,
) -> Executor | AutoExecutor:
    """Return the executor of `graph` on `backend`; with "auto" on the fastest, where several open.

    prefer: "fastest", or "gpu" to keep the CPU free where there is a GPU. The others are those of
    `Executor`. Raises DeviceError where nothing opens.
    """
    device_options = {name: options.get(name) for name in ("device", "gpu", "limits")}
    backends = candidates(backend, kernels or {}, prefer, **device_options)
    if len(backends) > 1:
        return AutoExecutor(graph, backends, options)
    return Executor(graph, backend, kernels=kernels, **options)


def candidates(
    backend: str | Backend,
    kernels: Mapping[str, str],
    prefer: str = "fastest",
    *,
    device: Device | None = None,
    gpu: int | str | None = None,
    limits: str | None = None,
) -> dict[str, Backend]:
    """Return the backends to time, by name; none where there is nothing to choose.

    There is nothing to choose where a backend or kernels are named, `GLNN_BACKEND` names backends,
    or only one opens. Raises DeviceError where nothing opens.
    """
    if backend != "auto" or kernels or Settings.from_environment().backends:
        return {}
    backends = {one.name: one for one in open_each(device, gpu=gpu, limits=limits)}
    devices = [one.device for one in backends.values() if one.device is not None]
    if not devices:
        return {}  # nothing else opens
    offers = devices[0].capabilities
    if prefer == "gpu" and offers.software is None:
        backends.pop("cpu", None)
    if (
        backends.keys() == {"compute", "feedback"}
        and device_rates(architecture(offers)).feedback > TIE
    ):
        del backends["feedback"]
    return backends if len(backends) > 1 else {}
