"""Executor: the plans of one graph on one backend, found or made for the inputs of each run."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any, NamedTuple

from glnn.backends import Backend, open_backend, opened
from glnn.compiler.cpu_fallback import Hosted
from glnn.compiler.emit import SizeRange
from glnn.compiler.partitioned_graph import PartitionedGraph, plan_graph
from glnn.compiler.plan import EXACT, Plan
from glnn.compiler.range_plans import RangePlans
from glnn.compiler.shape_advice import missing_numbers, nearby_sizes
from glnn.compiler.states import States
from glnn.compiler.weights import Weights
from glnn.core.process import memory_limit, process_lock
from glnn.core.settings import Settings
from glnn.core.types import (
    Array,
    ArrayTypes,
    DType,
    LargeNumbersError,
    Shape,
    TensorType,
    all_small,
    content,
)
from glnn.errors import (
    DeviceError,
    LimitError,
    NoRoomError,
    ShapeError,
    UnsupportedOpError,
)
from glnn.gl import Device
from glnn.graph.graph import Graph, Kind, Value, Variable
from glnn.graph.passes import Pass, batch_size_of
from glnn.graph.passes.float16_inputs import widen_inputs
from glnn.graph.passes.int64_to_int32 import has_int64_inputs, mark_small_inputs
from glnn.kernels.library import revision
from glnn.runtime.device_array import (
    Feed,
    any_on_device,
    as_host_array,
    deciding_types,
    host_arrays,
    located,
)
from glnn.runtime.runner import FinishedRun, Out, Run, run_within, within_memory
from glnn.runtime.store import T
from glnn.stored.plan_cache import PlanWriter

LOG = logging.getLogger(__name__)
MOST_WAITING = 4
"""The most plans that wait for their first results before they are written."""
PLANS_KEPT = 4
REPEATS = 32
"""Consecutive runs of the same sizes after which these get a plan with kernels of their own."""
HELD = 256 << 20  # the most bytes of packed weights that are held until they are written
SHARE = 16  # these bytes are at most the process's memory divided by this
MOST_NAMED = 8  # operators that a warning names, and layers of each


class PlanKey(NamedTuple):
    """The inputs and outputs that a plan is for, and the revision of the kernels.

    shapes: of the inputs, by name.
    contents: numbers of those inputs that decide sizes (`Graph.shape_input_arrays`), by name.
    small: True where int64 inputs are small (`types.all_small`), so that more is int32.
    kernels: the revision of the kernels.
    wide: the float16 inputs that are on the device, where they are float32.
    keep: True where every tensor is kept after a run.
    outputs: the values to compute; None for the graph's outputs.
    """

    shapes: frozenset[tuple[str, Shape]]
    contents: frozenset[tuple[str, Any]]
    small: bool
    kernels: int
    wide: frozenset[str] = frozenset()
    keep: bool = False
    outputs: tuple[Value, ...] | None = None

    @classmethod
    def create(
        cls,
        shapes: Mapping[str, Shape],
        shape_inputs: Mapping[str, Array],
        *,
        small: bool = False,
        wide: frozenset[str] = frozenset(),
        keep: bool = False,
        outputs: tuple[Value, ...] | None = None,
    ) -> PlanKey:
        """Return the key for inputs of `shapes`, of which `shape_inputs` decide sizes."""
        contents = frozenset((name, content(array)) for name, array in shape_inputs.items())
        return cls(frozenset(shapes.items()), contents, small, revision(), wide, keep, outputs)


@dataclass(eq=False)
class _LatestPlan:
    """The plan of the last run, and the key of that run's inputs."""

    key: PlanKey
    plan: Plan | PartitionedGraph
    types: ArrayTypes | None = None
    """Types that determine the key, except that a run refuses large int64 numbers
    (LargeNumbersError); None where numbers of inputs decide sizes, or before a second run."""

    def store_types(self, feeds: Mapping[str, Feed], shape_inputs: Mapping[str, Array]) -> None:
        """Set `types` from `feeds`, of that key. shape_inputs: the feeds that decide sizes."""
        self.types = None if shape_inputs else deciding_types(feeds, small=self.key.small)

    def matches(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where `feeds` have these types, and the kernels are still the same."""
        match = self.types is not None and self.types.match(feeds)
        return match and self.key.kernels == revision()


_RangeKey = tuple[bool, int, frozenset[str]]


@dataclass(frozen=True, eq=False)
class _PendingPlan:
    """A plan that is to be written.

    small: True where its int64 inputs must be small.
    """

    plan: Plan
    small: bool


class Saving:
    """Queue of new plans of `graph`, which `writer` writes to disk after their first run.

    Once a weight was assigned, no further plan is written: stored plans are of the model as it was
    loaded. Any thread may use it.
    """

    def __init__(self, writer: PlanWriter, graph: Graph) -> None:
        self._writer, self._lock = writer, process_lock()
        self._pending: list[_PendingPlan] = []
        self.paused = False
        """True while it is undecided whether the new plans will run again."""
        values = (value for node in graph.nodes for value in node.reads)
        self._revisions: dict[Variable, int] = {
            value.data: value.data.revision  # type: ignore[union-attr, misc]
            for value in values
            if value.kind is Kind.VARIABLE
        }

    @property
    def waiting(self) -> bool:
        """Return True where there are new plans to write and writing is not paused."""
        return bool(self._pending) and not self.paused

    def add(self, plan: Plan, small: bool) -> None:
        """Have `plan` written after its first run. small: True where int64 inputs must be small."""
        with self._lock:
            others = [one for one in self._pending if one.plan is not plan]
            pending = [*others, _PendingPlan(plan, small)]
            dropped, self._pending = pending[:-MOST_WAITING], pending[-MOST_WAITING:]
        for one in dropped:
            _release(one.plan)

    def drop(self) -> None:
        """Drop the plans that are to be written."""
        with self._lock:
            dropped, self._pending = self._pending, []
        for one in dropped:
            _release(one.plan)

    def settle(self) -> None:
        """Write the plans that have run. Only inside `perform`, after a run gave results.

        Raises nothing: the caller asked for a run, which has its results.
        """
        with self._lock:
            finished = [one for one in self._pending if one.plan.buffers.ran]
            self._pending = [one for one in self._pending if one not in finished]
        for one in finished:
            try:
                why = self._save(one)
            except Exception:
                LOG.debug("a plan of %s is not kept", one.plan.graph.name, exc_info=True)
                _release(one.plan)
                continue
            if why is not None:
                LOG.debug("a plan of %s is not kept: %s", one.plan.graph.name, why)
                _release(one.plan)

    def _save(self, pending: _PendingPlan) -> str | None:
        """Write a plan; return why it cannot be, None where it was."""
        if any(variable.revision != loaded for variable, loaded in self._revisions.items()):
            return "a weight was assigned"
        why = _why_not_saved(pending.plan)
        if why is None:
            executable = pending.plan.validated_sizes.executable
            fixed = {name: pending.plan.fixed(name) for name in executable.io.fixed()}
            self._writer.save(executable, pending.plan.device_weights, fixed, pending.small)
            # Written again once it was validated for larger sizes, as those of a growing cache.
            saving, plan, small = weakref.ref(self), weakref.ref(pending.plan), pending.small
            pending.plan.validated_sizes.on_growth = lambda: _write_again(saving(), plan(), small)
        return why


def _write_again(saving: Saving | None, plan: Plan | None, small: bool) -> None:
    """Have `plan` written again, if it and `saving` still exist."""
    if saving is not None and plan is not None:
        saving.add(plan, small)


def _release(plan: Plan) -> None:
    """Release the packed words of the plan's weights, which are held for writing."""
    for weight in plan.device_weights:
        weight.packed_words = None


def _why_not_saved(plan: Plan) -> str | None:
    """Return why a plan cannot be written to disk; None where it can."""
    executable = plan.executable
    if plan.outline.is_reduced and Settings.from_environment().memory is None:
        return "it was made while little memory was free"
    if any(plan.fixed(name).dtype == DType.object.numpy for name in executable.io.fixed()):
        return "an output is no tensor of numbers"
    if plan.sized_outputs:
        return "an output follows from sizes alone"
    return executable.why_not_saved


class Executor:
    """Runs a graph on a backend, by plans that are made when inputs need them.

    graph: the graph to run. backend, device, gpu, limits: see `backends.open_backend`; backend may
    also be an open one. kernels: the kernel to take for an op, by the op's name. precision: see
    `Plan`. without: names of passes that are left out. plans: the number of plans for exact sizes
    that are kept. weights: those of another executor, to share them. states, updates: see `Plan`.

    Where sizes are open, or numbers of inputs decide them, one plan serves a range of sizes
    (`RangePlans`), and is bound to the sizes of each run. Sizes that are repeated often get a plan
    of their own, as do those that cannot be planned for a range. The last few plans are kept, and
    all share the weights. Any thread may use it. Raises DeviceError where the backend does not
    open.
    """

    def __init__(
        self,
        graph: Graph,
        backend: str | Backend = "auto",
        *,
        device: Device | None = None,
        gpu: int | str | None = None,
        limits: str | None = None,
        kernels: Mapping[str, str] | None = None,
        precision: DType = DType.float32,
        without: Iterable[str | Pass] = (),
        plans: int = PLANS_KEPT,
        weights: Weights | None = None,
        states: States | None = None,
        updates: Mapping[str, str] | None = None,
    ) -> None:
        self._most_plans = plans
        self._states, self._updates = states, dict(updates or {})
        self.graph, self._precision = graph, precision
        self._without = Pass.named(without)
        if isinstance(backend, str):
            backend = open_backend(
                backend, device, gpu=gpu, limits=limits, gl_kernels=bool(kernels)
            )
        self.backend: Backend = backend
        self._device_options = device, gpu, limits
        self._logged_hosted = False  # True once a warning named the operators of the host
        self._lock = process_lock()
        self._kernels = dict(kernels or {})
        self._plans: OrderedDict[PlanKey, Plan | PartitionedGraph] = OrderedDict()
        self._range_plans: dict[_RangeKey, RangePlans[Plan | PartitionedGraph]] = {}
        """Plans for ranges of sizes, by `small`, `kernels` and `wide` of a PlanKey."""
        self._latest: _LatestPlan | None = None
        """The plan of the last run."""
        self._weights = Weights(self.backend, graph) if weights is None else weights
        self._repeats = 0
        """Consecutive runs whose inputs had the key of the run before."""
        self.saving: Saving | None = None
        """The queue of plans to write to disk; None where none is written."""

    @property
    def range_plans(self) -> tuple[Plan | PartitionedGraph, ...]:
        """The plans that each serve a range of sizes."""
        return tuple(
            plan for range_plans in self._range_plans.values() for plan in range_plans.plans
        )

    def save_by(self, writer: PlanWriter) -> None:
        """Have `writer` keep plans on disk from now on."""
        self.saving = Saving(writer, self.graph)

    def run(
        self,
        feeds: Mapping[str, Feed],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Out] | None = None,
    ) -> dict[str, Array]:
        """Return `outputs`, None for all, for the inputs `feeds`; see `Plan.run`."""
        backend, names = self._open(), None if outputs is None else tuple(outputs)
        feeds = self._located(feeds, backend)
        result = run_within(
            backend,
            lambda: self.with_room(
                feeds, backend, lambda plan: plan.run_on_thread(feeds, names, out)
            ),
            lambda: self._begin_run(backend, feeds, names, out or {}),
        )
        if self.saving is not None and self.saving.waiting:
            with suppress(DeviceError):  # another thread closed it; the run has its results
                backend.perform(self.saving.settle)
        return result

    def _located(self, feeds: Mapping[str, Feed], backend: Backend) -> Mapping[str, Feed]:
        """Return `feeds` with each DeviceArray on the backend's device.

        Those whose numbers decide sizes become arrays of the host.
        """
        if not any_on_device(feeds):
            return feeds
        names = self.graph.shape_input_names({name: one.shape for name, one in feeds.items()})
        shape_inputs = {name: as_host_array(feeds[name]) for name in names}
        return located({**feeds, **shape_inputs}, backend.device)

    def with_room(
        self,
        feeds: Mapping[str, Feed],
        backend: Backend,
        work: Callable[[Plan | PartitionedGraph], T],
    ) -> T:
        """Call `work` with the plan for `feeds`, and return its result.

        Where memory is short, all plans are dropped, which frees their memory, and these sizes get
        a plan of their own. They also get one where a plan for a range of sizes cannot be bound to
        them. Only inside `perform`.
        """
        exact = False
        while True:
            plan: Plan | PartitionedGraph | None = None
            try:
                plan = self.plan_for(feeds, backend, exact)
                return work(plan)
            except LargeNumbersError:
                latest = self._latest
                if latest is None or latest.types is None:
                    raise
                latest.types = None  # `plan_for` looks at the numbers now
                continue
            except (LimitError, MemoryError) as error:
                clear_frames(error.__traceback__)  # its frames would keep the plan and its memory
                full = isinstance(error, (NoRoomError, MemoryError))
                of_range = plan is not None and plan.is_open
                if exact or not (of_range or (full and (self._plans or self.range_plans))):
                    raise
                LOG.debug("%s: %s", self.graph.name, error)
            exact, self._latest = True, None
            if full:
                with self._lock:
                    self._plans.clear()
                    self._range_plans.clear()

    @property
    def device(self) -> Device | None:
        """The device that it runs on; None on the `cpu` backend."""
        return self.backend.device

    def ready(self, feeds: Mapping[str, Feed]) -> None:
        """Make the plan for inputs like `feeds` unless it exists. Raises what `Plan` raises."""
        backend = self._open()
        feeds = self._located(feeds, backend)
        within_memory(backend, lambda: self.with_room(feeds, backend, lambda plan: None))

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` in the thread that may use the device; return its result."""
        return self._open().perform(work)

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """Begin a run on the device; see `run`. Only inside `perform`."""
        return self._begin_run(self.backend, feeds, outputs, out)

    def _begin_run(
        self,
        backend: Backend,
        feeds: Mapping[str, Feed],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Out],
    ) -> Run:
        def begin(plan: Plan | PartitionedGraph) -> Run:
            if isinstance(plan, PartitionedGraph) or backend.device is None or outputs == ():
                return FinishedRun(plan.run_on_thread(feeds, outputs, out))
            return plan.begin(feeds, outputs, out)

        return self.with_room(feeds, backend, begin)

    def settle(self) -> None:
        """See `glnn.runtime.runner.ModelExecutor`."""
        if self.saving is not None and self.saving.waiting:
            self.saving.settle()

    def plan_for(
        self, feeds: Mapping[str, Feed], backend: Backend, exact: bool = False
    ) -> Plan | PartitionedGraph:
        """Return the plan for inputs like `feeds`: most often that of the last run.

        Only inside `perform`. exact: True for a plan of these sizes alone.
        """
        latest, shape_inputs = self._latest, dict[str, Array]()
        if latest is None or latest.plan.backend is not backend or not latest.matches(feeds):
            shapes = {name: array.shape for name, array in feeds.items()}
            host_feeds = host_arrays(feeds)
            shape_inputs = self.graph.shape_input_arrays(host_feeds)
            small = backend.device is not None and all_small(host_feeds)
            half = DType.float16.numpy
            wide = frozenset(
                name for name, one in feeds.items() if one.dtype == half and name not in host_feeds
            )
            key = PlanKey.create(shapes, shape_inputs, small=small, wide=wide)
            if latest is None or latest.plan.backend is not backend or latest.key != key:
                self._repeats = 0
                return self._plan(key, backend, shape_inputs, None if exact else feeds)
            latest.store_types(feeds, shape_inputs)
        self._repeats += 1
        if self._repeats == REPEATS and latest.plan.was_chosen_for_others(feeds):
            with suppress(LimitError, MemoryError):  # no memory is left for another plan
                return self._plan(latest.key, backend, shape_inputs)
        return latest.plan

    def values(self, feeds: Mapping[str, Array], requested: tuple[Value, ...]) -> dict[str, Array]:
        """Return any values of the graph for the inputs `feeds`, by name; see `Plan.run`.

        A plan of its own has them as further outputs, so that none of them is fused into its
        consumers.
        """
        backend, names = self._open(), tuple(value.name for value in requested)
        shapes = {name: array.shape for name, array in feeds.items()}
        shape_inputs = self.graph.shape_input_arrays(feeds)
        outputs = tuple(dict.fromkeys((*self.graph.outputs, *requested)))
        key = PlanKey.create(shapes, shape_inputs, outputs=outputs)
        return backend.perform(
            lambda: self._plan(key, backend, shape_inputs).run_on_thread(feeds, names)
        )

    def plan(
        self,
        shapes: Mapping[str, Shape],
        *,
        keep: bool = False,
        feeds: Mapping[str, Array] | None = None,
    ) -> Plan:
        """Return the plan for inputs of `shapes`, made now unless it exists; see `Plan`.

        feeds: inputs whose numbers may decide sizes and branches. Its int64 inputs must be small.
        Raises UnsupportedOpError where sizes known only in a run make it several plans.
        """
        backend = self._open()
        small = backend.device is not None and has_int64_inputs(self.graph)
        shape_inputs = self.graph.shape_input_arrays(feeds or {})
        key = PlanKey.create(shapes, shape_inputs, small=small, keep=keep)
        result = within_memory(backend, lambda: self._plan(key, backend, shape_inputs))
        if isinstance(result, PartitionedGraph):
            raise UnsupportedOpError(f"{result.why}, so there is no single plan")
        self._weights.release()  # it may never run
        return result

    def with_states(self, graph: Graph, states: States, updates: Mapping[str, str]) -> Executor:
        """Return an executor of `graph` with states, with the same backend, options and weights.

        Only inside `perform`, and only as long as the backend is the same.
        """
        return Executor(
            graph,
            self.backend,
            kernels=self._kernels,
            precision=self._precision,
            without=self._without,
            weights=self._weights,
            states=states,
            updates=updates,
        )

    def _plan(
        self,
        key: PlanKey,
        backend: Backend,
        shape_inputs: Mapping[str, Array],
        feeds: Mapping[str, Feed] | None = None,
    ) -> Plan | PartitionedGraph:
        """Return the plan for `key`: a stored one, one for a range of sizes, or a new one.

        shape_inputs: the inputs whose numbers decide sizes. feeds: the inputs, where the plan may
        be for a range of sizes; None where it must be for exactly these.
        """
        with self._lock:
            plan, ranges = self._plans.get(key), self._ranges(key)
            if plan is None and feeds is not None:
                plan = ranges.find(feeds)
            if plan is None:
                plan = self._compile(key, backend, shape_inputs, None if feeds is None else ranges)
                if not plan.is_open:
                    self._plans[key] = plan
                    if len(self._plans) > self._most_plans:
                        self._plans.popitem(last=False)
            if key in self._plans:
                self._plans.move_to_end(key)
            self._latest = None if key.keep or key.outputs else _LatestPlan(key, plan)
        return plan

    def _ranges(self, key: PlanKey) -> RangePlans[Plan | PartitionedGraph]:
        """Return the plans for ranges of sizes that may serve `key`.

        Plans of an earlier revision of the kernels are dropped.
        """
        range_key: _RangeKey = key.small, key.kernels, key.wide
        if range_key not in self._range_plans:
            current = {k: v for k, v in self._range_plans.items() if k[1] == key.kernels}
            self._range_plans = {**current, range_key: RangePlans()}
        return self._range_plans[range_key]

    def _compile(
        self,
        key: PlanKey,
        backend: Backend,
        shape_inputs: Mapping[str, Array],
        ranges: RangePlans[Plan | PartitionedGraph] | None,
    ) -> Plan | PartitionedGraph:
        """Return a new plan for `key`. One for a range of sizes, where possible, joins `ranges`.

        Raises what `plan_graph` raises, ShapeError with advice.
        """
        graph, shapes = self.graph, dict(key.shapes)
        if self._states is not None:
            shapes |= {name: self._states[name].type.shape for name in self._states.names}
        if key.outputs is not None:
            graph = Graph(graph.nodes, graph.inputs, key.outputs, graph.name)
        if key.small:
            graph = mark_small_inputs(graph, shape_inputs)
        if key.wide:
            graph = widen_inputs(graph, key.wide)
        types = graph.input_types(shapes)

        def make(
            types: Mapping[str, TensorType],
            shape_inputs: Mapping[str, Array],
            domain: SizeRange = EXACT,
        ) -> Plan | PartitionedGraph:
            return plan_graph(
                graph,
                backend,
                types,
                self._kernels,
                keep=key.keep,
                weights=self._weights,
                precision=self._precision,
                samples=batch_size_of(graph, shapes),
                without=self._without,
                shape_inputs=shape_inputs,
                states=self._states,
                updates=self._updates,
                domain=domain,
            )

        temporary = key.keep or key.outputs or key.contents or key.wide
        saving = None if temporary else self.saving
        holdable = 0 if saving is None else min(HELD, memory_limit() // SHARE)
        with self._weights.holding(holdable):
            try:
                plan = None if ranges is None else ranges.add(graph, shapes, shape_inputs, make)
                plan = plan or make(types, shape_inputs)
            except ShapeError as error:
                advice = nearby_sizes(graph, types, shape_inputs)
                advice += missing_numbers(graph, types, shape_inputs)
                raise ShapeError(f"{error}{advice}") from None
        if saving is not None and isinstance(plan, Plan):
            saving.add(plan, key.small)
        elif saving is not None:
            self._weights.release()
        self._log_hosted(plan.hosted)
        return plan

    def _log_hosted(self, hosted: tuple[Hosted, ...]) -> None:
        """Warn once which operators the host computes in a GPU's plan."""
        hosted = tuple(one for one in hosted if not one.is_moved)
        if not hosted or self._logged_hosted:
            return
        self._logged_hosted = True
        layers: dict[str, list[str]] = {}
        for one in hosted:
            layers.setdefault(str(one), []).append(one.layer)
        listed = [f"{what} in {', '.join(names[:MOST_NAMED])}" for what, names in layers.items()]
        more = f"; and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
        LOG.warning(
            "%s: the host computes %s%s", self.graph.name, "; ".join(listed[:MOST_NAMED]), more
        )

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """The operators that the host computes in the plan that ran last."""
        return self._latest.plan.hosted if self._latest else ()

    def _open(self) -> Backend:
        """Return the backend, opened on a new device where its own was lost."""
        device = self.backend.device
        if device is None or device.lost is None:
            return self.backend
        with self._lock:
            lost = self.backend.device
            if lost is not None and lost.lost is not None:
                device, gpu, limits = self._device_options
                new_device = None if device is None else lost.reopen()
                backend = open_backend(self.backend.name, new_device, gpu=gpu, limits=limits)
                LOG.warning("%s; renewed: %s", lost.lost, backend.device)
                self._plans.clear()
                self._range_plans.clear()
                self._latest = None
                self._weights = Weights(backend, self.graph)
                self.backend = backend  # last: other threads read it without the lock
            return self.backend


def run(graph: Graph, feeds: Mapping[str, Array], backend: str | Backend) -> dict[str, Array]:
    """Run `graph` once and return its outputs. Raises what `Plan` raises."""
    chosen = opened(backend)
    types = graph.input_types({name: array.shape for name, array in feeds.items()})
    shape_inputs = graph.shape_input_arrays(feeds)
    return chosen.perform(
        lambda: plan_graph(graph, chosen, types, shape_inputs=shape_inputs).run_on_thread(
            feeds, None
        )
    )
