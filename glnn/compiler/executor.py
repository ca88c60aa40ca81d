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
"""Plans that wait for their first results."""
PLANS_KEPT = 4
REPEATS = 32
"""Runs of the same sizes, one after the other, for which a plan with kernels of its own pays."""
HELD = 256 << 20  # bytes of packed weights that are held until they are stored
SHARE = 16  # of the process's memory, where that is little
MOST_NAMED = 8  # operators that a warning names, and layers of each


class PlanKey(NamedTuple):
    """The inputs and outputs that a plan is asked for, and the kernels that there are.

    shapes: of the inputs, by name.
    contents: numbers of those inputs that decide sizes (`Graph.shape_input_arrays`), by name.
    small: True where int64 inputs are small (`types.all_small`), so that more is int32.
    kernels: the revision of the kernels that there are.
    wide: the float16 inputs that lie on the device, as float32.
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
    """The plan of the last run, and the inputs that it is the plan of."""

    key: PlanKey
    """The key of those inputs."""
    plan: Plan | PartitionedGraph
    """The plan."""
    types: ArrayTypes | None = None
    """Types whose inputs all have that key, but for large numbers, which a run refuses
    (LargeNumbersError); None where numbers decide, or before a second run."""

    def store_types(self, feeds: Mapping[str, Feed], shape_inputs: Mapping[str, Array]) -> None:
        """Set `types` from `feeds`, which have the key. shape_inputs: those that decide sizes."""
        self.types = None if shape_inputs else deciding_types(feeds, small=self.key.small)

    def matches(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where `feeds` have these types, and the kernels are the same as then."""
        known = self.types is not None and self.types.match(feeds)
        return known and self.key.kernels == revision()


_RangeKey = tuple[bool, int, frozenset[str]]


@dataclass(frozen=True, eq=False)
class _New:
    """A plan that was made just now."""

    plan: Plan
    """The plan that is to be written."""
    small: bool
    """True where int64 inputs must be small."""


class Saving:
    """New plans of `graph`, which `writer` writes once a run of theirs gave results.

    From the first weight on that is assigned anew none is kept: what is stored is of the model as
    it was loaded, which was just now. Any thread may use it.
    """

    def __init__(self, writer: PlanWriter, graph: Graph) -> None:
        self._writer, self._lock = writer, process_lock()
        self._new: list[_New] = []
        self.paused = False
        """Whether new plans wait until somebody knows whether they will run again."""
        read = (value for node in graph.nodes for value in node.reads)
        self._revisions: dict[Variable, int] = {
            value.data: value.data.revision  # type: ignore[union-attr, misc]
            for value in read
            if value.kind is Kind.VARIABLE
        }

    @property
    def waiting(self) -> bool:
        """Return True where there are new plans to write and writing is not paused."""
        return bool(self._new) and not self.paused

    def made(self, plan: Plan, small: bool) -> None:
        """Note that `plan` was made. small: whether inputs of int64 must be small for it."""
        with self._lock:
            new = [*(one for one in self._new if one.plan is not plan), _New(plan, small)]
            gone, self._new = new[:-MOST_WAITING], new[-MOST_WAITING:]
        for one in gone:
            _release(one.plan)

    def drop(self) -> None:
        """Keep none of those that wait."""
        with self._lock:
            gone, self._new = self._new, []
        for one in gone:
            _release(one.plan)

    def settle(self) -> None:
        """Have those kept that have run, once some run gave results. Only inside `perform`.

        Raises nothing: nobody asked for this, and the run has its results.
        """
        with self._lock:
            over = [one for one in self._new if one.plan.buffers.ran]
            self._new = [one for one in self._new if one not in over]
        for one in over:
            try:
                why = self._save(one)
            except Exception:
                LOG.debug("a plan of %s is not kept", one.plan.graph.name, exc_info=True)
                _release(one.plan)
                continue
            if why is not None:
                LOG.debug("a plan of %s is not kept: %s", one.plan.graph.name, why)
                _release(one.plan)

    def _save(self, new: _New) -> str | None:
        """Have a plan written; return why it is not."""
        if any(variable.revision != known for variable, known in self._revisions.items()):
            return "a weight was assigned"
        why = _why_not(new.plan)
        if why is None:
            executable = new.plan.validated_sizes.executable
            fixed = {name: new.plan.fixed(name) for name in executable.io.fixed()}
            self._writer.save(executable, new.plan.device_weights, fixed, new.small)
            # Written again once it is seen to be right for larger sizes, as of a cache that grows.
            saving, plan, small = weakref.ref(self), weakref.ref(new.plan), new.small
            new.plan.validated_sizes.on_growth = lambda: _write_again(saving(), plan(), small)
        return why


def _write_again(saving: Saving | None, plan: Plan | None, small: bool) -> None:
    """Have a plan written again, if both are still there."""
    if saving is not None and plan is not None:
        saving.made(plan, small)


def _release(plan: Plan) -> None:
    """Hold the words of its weights no more: nobody stores them."""
    for kept in plan.device_weights:
        kept.packed_words = None


def _why_not(plan: Plan) -> str | None:
    """Return why a plan is not kept on disk; None where it is."""
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

    graph: what to compute. backend, device, gpu, limits: see `backends.open_backend`, or a backend
    that was opened so. kernels: kernels to take, by the name of the op. precision: of the weights,
    see `Plan`. without: names of passes that are left out. plans: how many are kept. weights: those
    that it shares with another executor. states, updates: see `Plan`; the graph says their sizes.

    One plan serves a range of sizes (`RangePlans`) where some are open, or numbers of inputs decide
    them: it is bound to those of a run. Sizes that come again and again get a plan of their own; so
    does what cannot be planned for a range. The last few are kept, and all share the weights. Any
    thread may use it. Raises DeviceError where the backend does not open.
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
        self._asked = device, gpu, limits
        self._logged_hosted = False  # of what the host computes
        self._lock = process_lock()
        self._kernels = dict(kernels or {})
        self._plans: OrderedDict[PlanKey, Plan | PartitionedGraph] = OrderedDict()
        self._range_plans: dict[_RangeKey, RangePlans[Plan | PartitionedGraph]] = {}
        """Plans for ranges of sizes, by `small`, `kernels` and `wide` of a PlanKey."""
        self._latest: _LatestPlan | None = None
        """The plan of the last run."""
        self._weights = Weights(self.backend, graph) if weights is None else weights
        self._repeats = 0
        """How often the inputs had the shapes of those before, one after the other."""
        self.saving: Saving | None = None
        """What keeps new plans on disk, where they are kept."""

    @property
    def range_plans(self) -> tuple[Plan | PartitionedGraph, ...]:
        """The plans that serve a range of sizes each."""
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
        """Return the outputs so called, None for all, for the inputs `feeds`; see `Plan.run`."""
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
            with suppress(DeviceError):  # closed by another thread: the run has its results
                backend.perform(self.saving.settle)
        return result

    def _located(self, feeds: Mapping[str, Feed], backend: Backend) -> Mapping[str, Feed]:
        """Return `feeds` with each DeviceArray on the backend's device.

        Those whose numbers decide sizes are the host's.
        """
        if not any_on_device(feeds):
            return feeds
        numbers = self.graph.shape_input_names({name: one.shape for name, one in feeds.items()})
        read = {name: as_host_array(feeds[name]) for name in numbers}
        return located({**feeds, **read}, backend.device)

    def with_room(
        self,
        feeds: Mapping[str, Feed],
        backend: Backend,
        do: Callable[[Plan | PartitionedGraph], T],
    ) -> T:
        """Return what `do` gives of the plan for such inputs.

        Where that has too little memory, all plans are dropped, which frees theirs, and these
        shapes get one of their own; also where one for a range of sizes cannot be bound to them.
        Only inside `perform`.
        """
        exact = False
        while True:
            plan: Plan | PartitionedGraph | None = None
            try:
                plan = self.plan_for(feeds, backend, exact)
                return do(plan)
            except LargeNumbersError:
                latest = self._latest
                if latest is None or latest.types is None:
                    raise
                latest.types = None  # their numbers say which plan it is
                continue
            except (LimitError, MemoryError) as error:
                clear_frames(error.__traceback__)  # whoever keeps it keeps no plan and its memory
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
        """The device that it runs on; None where no GL is involved."""
        return self.backend.device

    def ready(self, feeds: Mapping[str, Feed]) -> None:
        """Make the plan for inputs like `feeds` unless it is there. Raises what `Plan` raises."""
        backend = self._open()
        feeds = self._located(feeds, backend)
        within_memory(backend, lambda: self.with_room(feeds, backend, lambda plan: None))

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` where the device may be used, and return or raise what it does."""
        return self._open().perform(work)

    def begin(
        self, feeds: Mapping[str, Feed], outputs: tuple[str, ...], out: Mapping[str, Out]
    ) -> Run:
        """Have the device begin with a run, as `run` has it. To be called inside `perform`."""
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

        Only inside `perform`. exact: whether it must be for exactly these sizes.
        """
        latest, shape_inputs = self._latest, dict[str, Array]()
        if latest is None or latest.plan.backend is not backend or not latest.matches(feeds):
            shapes = {name: array.shape for name, array in feeds.items()}
            known = host_arrays(feeds)
            shape_inputs = self.graph.shape_input_arrays(known)
            small = backend.device is not None and all_small(known)
            half = DType.float16.numpy
            wide = frozenset(
                name for name, one in feeds.items() if one.dtype == half and name not in known
            )
            key = PlanKey.create(shapes, shape_inputs, small=small, wide=wide)
            if latest is None or latest.plan.backend is not backend or latest.key != key:
                self._repeats = 0
                return self._plan(key, backend, shape_inputs, None if exact else feeds)
            latest.store_types(feeds, shape_inputs)
        self._repeats += 1
        if self._repeats == REPEATS and latest.plan.was_chosen_for_others(feeds):
            with suppress(LimitError, MemoryError):  # then there is no room for another
                return self._plan(latest.key, backend, shape_inputs)
        return latest.plan

    def values(self, feeds: Mapping[str, Array], requested: tuple[Value, ...]) -> dict[str, Array]:
        """Return any values of the graph for the inputs `feeds`, by name; see `Plan.run`.

        Beside the graph's they are the outputs of a plan of its own: nothing joins them to what
        reads them.
        """
        backend, names = self._open(), tuple(value.name for value in requested)
        shapes, numbers = (
            {k: v.shape for k, v in feeds.items()},
            self.graph.shape_input_arrays(feeds),
        )
        outputs = tuple(dict.fromkeys((*self.graph.outputs, *requested)))
        key = PlanKey.create(shapes, numbers, outputs=outputs)
        return backend.perform(
            lambda: self._plan(key, backend, numbers).run_on_thread(feeds, names)
        )

    def plan(
        self,
        shapes: Mapping[str, Shape],
        *,
        keep: bool = False,
        feeds: Mapping[str, Array] | None = None,
    ) -> Plan:
        """Return the plan for inputs of `shapes`, made now unless it is there; see `Plan`.

        feeds: inputs whose numbers may decide about sizes and branches. Inputs of int64 must be
        small for it. Raises UnsupportedOpError where sizes that only a run
        tells make it several.
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
        """Return an executor of `graph`, this one's but for `states`, with the same weights.

        Only inside `perform`, and only as long as this one's backend is the same.
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
        """Return the plan for `key`: a kept one, one for a range of sizes, or a new one.

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
        """Return the plans for ranges of sizes of `key`; those of former kernels are dropped."""
        range_key: _RangeKey = key.small, key.kernels, key.wide
        if range_key not in self._range_plans:
            kept = {k: v for k, v in self._range_plans.items() if k[1] == key.kernels}
            self._range_plans = {**kept, range_key: RangePlans()}
        return self._range_plans[range_key]

    def _compile(
        self,
        key: PlanKey,
        backend: Backend,
        shape_inputs: Mapping[str, Array],
        ranges: RangePlans[Plan | PartitionedGraph] | None,
    ) -> Plan | PartitionedGraph:
        """Return a new plan for `key`: for a range of sizes, added to `ranges`, where that can be.

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
        held = 0 if saving is None else min(HELD, memory_limit() // SHARE)
        with self._weights.holding(held):
            try:
                plan = None if ranges is None else ranges.add(graph, shapes, shape_inputs, make)
                plan = plan or make(types, shape_inputs)
            except ShapeError as error:
                advice = nearby_sizes(graph, types, shape_inputs)
                advice += missing_numbers(graph, types, shape_inputs)
                raise ShapeError(f"{error}{advice}") from None
        if saving is not None and isinstance(plan, Plan):
            saving.made(plan, key.small)
        elif saving is not None:
            self._weights.release()
        self._log_hosted(plan.hosted)
        return plan

    def _log_hosted(self, hosted: tuple[Hosted, ...]) -> None:
        """Log once which operators the host computes beside a GPU."""
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
                device, gpu, limits = self._asked
                fresh = None if device is None else lost.reopen()
                renewed = open_backend(self.backend.name, fresh, gpu=gpu, limits=limits)
                LOG.warning("%s; renewed: %s", lost.lost, renewed.device)
                self._plans.clear()
                self._range_plans.clear()
                self._latest = None
                self._weights = Weights(renewed, self.graph)
                self.backend = renewed  # last: from here on others take it without the lock
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
