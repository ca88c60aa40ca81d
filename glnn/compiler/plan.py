"""Plan: a graph compiled to an executable for one backend, and the runner of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import ge, le
from weakref import ref

import numpy as np

from glnn.backends import Backend, Launch
from glnn.backends.launch import FlushPolicy, GlLaunch
from glnn.compiler.cpu_fallback import Hosted
from glnn.compiler.emit import Emitted, EntryStep, SizeRange, emit, weight_keys
from glnn.compiler.memory_budget import Outline
from glnn.compiler.state_binding import StateSpecs, check_read, replaceable_inputs
from glnn.compiler.states import States
from glnn.compiler.step import Step
from glnn.compiler.weights import DeviceWeight, Weights
from glnn.core import html
from glnn.core.cached_property import cached_property
from glnn.core.plural import count_of
from glnn.core.process import check_memory, readable_bytes
from glnn.core.progress_bar import report_work
from glnn.core.settings import Settings
from glnn.core.size_table import compiled
from glnn.core.symint import Substitution, SymInt, hint
from glnn.core.trace_spans import Span, Spans, duration
from glnn.core.types import Array, DType, Shape, widened
from glnn.errors import LimitError, ModelError, NoRoomError
from glnn.graph.constant import OperatorResult, constant, depends_on_sizes, evaluated
from glnn.graph.graph import Graph, describe_result
from glnn.graph.operators.views import Identity
from glnn.graph.passes import Pass
from glnn.graph.passes.index_bounds import find_index_bounds
from glnn.graph.passes.int64_to_int32 import small_input_names
from glnn.runtime.buffer_set import SLACK, BufferSet, Resources
from glnn.runtime.device_array import Feed
from glnn.runtime.executable import Executable, Input, IOSpec, Output
from glnn.runtime.runner import Runner

LOG = logging.getLogger(__name__)
EXACT = SizeRange()


def check(outline: Outline, available: int | None) -> None:
    """Raise LimitError where `outline` needs more than the `available` bytes.

    It is a NoRoomError where these are what others leave.
    """
    need = outline.need
    if available is None or need <= available:
        return
    steps = {f"{at}{one.name}": one for at, part in outline.walk() for one in part.steps}
    sizes = {f"the result of {name}": step.nbytes[0] for name, step in steps.items()}
    sizes |= {f"the parameters of {name}": step.nbytes[1] for name, step in steps.items()}
    sizes |= {f"the textures of {name}": step.nbytes[2] for name, step in steps.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    named = ", ".join(f"{name} ({readable_bytes(sizes[name])})" for name in largest)
    said = readable_bytes(need), readable_bytes(available)
    if said[0] == said[1]:  # then all that tells the two from each other
        said = f"{need} B", f"{available} B"
    allowed = Settings.from_environment().memory == available
    kind = LimitError if allowed else NoRoomError
    raise kind(
        f"the model needs {said[0]} of device memory, "
        f"{'GLNN_MEMORY allows ' if allowed else ''}{said[1]}"
        f"{'' if allowed else ' are free'}; the largest tensors are {named}"
    )


def check_host(outline: Outline, weights: Weights) -> None:
    """Raise LimitError where the host has too little memory for a plan of the `cpu` backend.

    All tensors of a run are there until the next one, inputs are the caller's, and outputs are
    copied; weights that are made of others or widened are kept beside these.
    """
    nbytes = sum(hint(value.type.nbytes) for value in outline.graph.outputs)
    for within, part in outline.walk():
        callers = {value.name for value in part.graph.inputs} if not within else set()
        memories: dict[str, int] = {}
        for tensor in part.schedule.tensors.values():
            taken = memories.get(tensor.memory, 0)
            memories[tensor.memory] = max(taken, hint(tensor.type.nbytes))
        nbytes += sum(taken for memory, taken in memories.items() if memory not in callers)
    for weight, layout, copied in dict.fromkeys(weight_keys(outline)):
        made = isinstance(weight.constant, OperatorResult) or weight.type.dtype is DType.float16
        if made and (weight, layout, copied) not in weights:
            nbytes += hint(weight.type.nbytes)
    check_memory(nbytes, lambda: f"a run of {outline.graph.name} on cpu, of which {_most(outline)}")


def _most(outline: Outline) -> str:
    """Return the text by which errors name the step with the largest result."""
    tensors = [
        (entry, part.schedule.tensors[name].type)
        for _, part in outline.walk()
        for entry in part.schedule.entries
        for name in (entry.lowered.output, *entry.lowered.more)
    ]
    if not tensors:
        return "no step is known,"
    entry, type = max(tensors, key=lambda one: hint(one[1].nbytes))
    return (
        f"{describe_result(entry.lowered.layer, entry.lowered.op, type)} takes {hint(type.nbytes)},"
    )


class Plan(Runner):
    """Compile a graph for one backend, and run it for all shapes that `domain` admits.

    graph: what to compute. backend: where. shapes: each input's shape, by its name. kernels: the
    kernel to take for an op, by the op's name; others are chosen. without: the passes that are left
    out. keep: whether every tensor keeps its memory, so that `value` can be asked for any. weights:
    those that several plans share; None has its own. precision: as what the weights of contractions
    and tables that are looked up are stored, float32, float16 or int8. samples: of the batch; None
    where `graph` says by symbols of its inputs. states: what stays on the device from run to run.
    An input called as one of them is not given in a run: it is that state. updates: by a state's
    name the name of the output that is its content from the next run on; whatever a run computes,
    it computes of the content before. Such an output is not read back: the state is, unless it is
    readable.
    checked_inputs: the inputs whose indices a run checks, each with its name in errors; None for
    all. Where `graph` is a part of another graph, or a body, only some inputs are the model's own;
    the others were computed. domain: the symbols of the SymInts in `shapes`, and the guards; none
    where all sizes are known.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a layer or the device
    has too little memory, ShapeError where the shapes do not fit. Any thread may use it.
    """

    def __init__(
        self,
        graph: Graph,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        without: frozenset[Pass] = frozenset(),
        keep: bool = False,
        weights: Weights | None = None,
        precision: DType = DType.float32,
        samples: int | None = None,
        states: States | None = None,
        updates: Mapping[str, str] | None = None,
        checked_inputs: Mapping[str, str] | None = None,
        domain: SizeRange = EXACT,
    ) -> None:
        self.graph, self.backend, self._sizes = graph, backend, domain.sizes
        self._weights = Weights(backend) if weights is None else weights
        held = StateSpecs.bind(states, updates or {}, graph, backend)
        shapes = {**shapes, **held.shapes(graph)}
        made = Spans()

        def make_outline(available: int | None) -> Outline:
            return Outline.create(
                graph,
                backend,
                shapes,
                kernels,
                without=without,
                keep=keep,
                weights=self._weights,
                precision=precision,
                samples=samples,
                available=available,
                states=held,
            )

        def io(outline: Outline) -> IOSpec:
            bounds = find_index_bounds(graph, shapes)
            if checked_inputs is not None:
                bounds = {name: sizes for name, sizes in bounds.items() if name in checked_inputs}
            return _io(graph, outline, held, bounds, checked_inputs or {})

        own_ref = ref(self)  # no circle: whoever drops it gets its device memory back at once

        def fixed(name: str, buffers: BufferSet) -> Array:
            plan = own_ref()
            assert plan is not None  # it is what runs
            return plan._constant(name, buffers)

        def make() -> None:
            self.outline, self._emitted = self._make(make_outline, io, domain, states, made)
            taken = self.outline.nbytes
            if states is not None:
                taken -= sum(states[one.name].nbytes for one in self.outline.states)
            resources = Resources(
                backend.device,
                self._emitted.programs,
                self._emitted.weights,
                (states or backend).available,
                {one.name: states[one.name] for one in self.outline.states} if states else {},
            )
            executable = self._emitted.executable
            self.chosen_for = domain.sizes
            """The sizes of the symbols that kernels were chosen for."""
            Runner.__init__(
                self,
                executable,
                backend,
                resources,
                domain.sizes,
                fixed=fixed,
                nbytes=taken,
                lock=None if states is None else states.lock,
            )

        with made.record("plan"), report_work("planning", f"{graph.name} on {backend.name}"):
            backend.perform(make)
        self.made: tuple[Span, ...] = tuple(made)
        """When it was planned, the last of them as a whole: outlined, its kernels examined, then
        its memory and programs prepared."""
        graph_outputs = {value.name: value for value in self.outline.graph.outputs}
        self._constants = {
            name: OperatorResult(
                Identity(), (constant(self.outline.graph, graph_outputs[name], {}),), None, (), 0
            )
            for name in self.executable.io.fixed()
        }
        self._fixed_types = {name: graph_outputs[name].type.dtype for name in self._constants}
        self.sized_outputs = any(map(depends_on_sizes, self._constants.values()))
        """Whether an output that no run changes is another one for other sizes."""
        self._types = _dtypes_for_users(graph)
        self._log(shapes)

    def _make(
        self,
        make_outline: Callable[[int | None], Outline],
        io: Callable[[Outline], IOSpec],
        domain: SizeRange,
        states: States | None,
        made: Spans,
    ) -> tuple[Outline, Emitted]:
        """Make the outline, for the memory that is free, and its executable.

        Where the examination finds a kernel wrong on this driver, both are made again without it.
        Raises what Plan raises.
        """
        while True:
            available = (states or self.backend).available()
            with made.record("outline"):
                outline = make_outline(available)
            check(outline, available)
            if self.backend.device is None:
                check_host(outline, self._weights)
            with self._weights.ahead(weight_keys(outline)):
                with made.record("examine"):
                    again = outline.examine()
                if not again:
                    with made.record("prepare"):
                        return outline, emit(outline, self._weights, io(outline), domain)

    def _log(self, shapes: Mapping[str, Shape]) -> None:
        inputs = ", ".join(f"{name} {tuple(map(hint, shape))}" for name, shape in shapes.items())
        where = f"{self.graph.name} for {inputs} on {self.backend.name}"
        took = duration(self.made[-1].seconds)
        LOG.info("planned %s: %d steps, %d bytes, %s", where, len(self.steps), self.nbytes, took)

    def right_for(self, sizes: tuple[int, ...]) -> bool:
        """Return True where its kernels are right for these sizes (`ValidatedSizes`)."""
        return sizes == self._sizes or self.validated_sizes.covers(sizes)

    @property
    def is_open(self) -> bool:
        """Return True where the plan serves a range of sizes."""
        return bool(self.executable.symbols)

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where it can run inputs such as `feeds`, and its kernels are right there.

        Its guards must hold for their sizes. Those that its kernels were chosen for may be others;
        kernels that were not examined for sizes so large are examined now.
        """
        executable = self.executable
        return executable.admits(feeds) and self.right_for(executable.sizes(feeds))

    def was_chosen_for_others(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where its kernels were chosen for other sizes than those of `feeds`."""
        return self.executable.sizes(feeds) != self.chosen_for

    @cached_property
    def validated_sizes(self) -> ValidatedSizes:
        """The sizes for which its kernels were examined and are right."""
        return ValidatedSizes(self.executable, self.outline, self._sizes)

    @property
    def uploaded(self) -> tuple[Span, ...]:
        """When each weight was uploaded, those of all plans that share them."""
        return tuple(self._weights.uploaded)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order, for people to look at; `launches` has what performs each."""
        return self.outline.steps

    def __repr__(self) -> str:
        """Name the graph and the backend, with the number of steps."""
        steps = count_of(len(self.steps), "step")
        return f"Plan({self.graph.name} on {self.backend.name}: {steps})"

    def _repr_html_(self) -> str:
        """A row for each step, for notebooks; `glnn plan` shows more."""
        rows = [
            (
                step.name,
                step.op.label,
                step.kernel,
                " ".join(f"{name}={layout}" for name, layout in step.layouts.items()),
                " x ".join(map(str, step.shape)),
                "host" if step.memory is None else step.memory,
                readable_bytes(step.nbytes[0]),
                readable_bytes(step.nbytes[1]),
            )
            for step in self.steps
        ]
        heads = ("step", "op", "kernel", "layouts", "shape", "block", "result", "parameters")
        caption = (
            f"{self.graph.name} on {self.backend.name}: {count_of(len(rows), 'step')}, "
            f"{readable_bytes(self.nbytes)} of tensors and parameters"
        )
        return html.table(heads, rows, caption=caption, numbers=(5, 6, 7))

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """The operators that the host computes in a plan for a GPU."""
        return self.outline.hosted

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Calls that perform one step each, on the memory and with the sizes of the last run."""
        return self.backend.perform(
            lambda: tuple(map(self._commands_of_step, self._emitted.launches))
        )

    def _commands_of_step(self, launch: Launch) -> Launch:
        buffers, device = self.buffers, self.backend.device
        if isinstance(launch, EntryStep):
            return buffers.host(launch)
        assert isinstance(launch, GlLaunch) and device is not None
        encoder = self._emitted.encoder.fork()
        encoder.step(launch.name)
        launch.record(encoder, FlushPolicy(device))
        return buffers.bind_commands(encoder.finish())

    @property
    def device_weights(self) -> tuple[DeviceWeight, ...]:
        """The weights that it holds, without those of bodies and those that depend on sizes."""
        return tuple(one for one in self._emitted.weights if isinstance(one, DeviceWeight))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        return self.outline.nbytes

    def refresh(self) -> None:
        """Upload the weights that were assigned since the last run."""
        self.backend.perform(self._weights.refresh)

    def _prepare_run(self, names: Sequence[str]) -> None:
        if names:
            check_read(names, self.outline.states)
        self._weights.refresh()

    def _constant(self, name: str, buffers: BufferSet) -> Array:
        """Return the output of that name, which follows from weights and sizes, as they are now."""
        made = self._constants[name]
        if self.sized_outputs:
            made = OperatorResult(made.operator, (buffers.change(made.operands[0]),), None, (), 0)
        return np.array(evaluated(made, self._fixed_types[name]))

    def value(self, name: str) -> Array:
        """Return the tensor called `name` as the last run left it: a new array of its type.

        It is float32 where the device stores it as float16, and it is neither input nor output.

        Raises ModelError where the plan has no such tensor: it may have been fused away, its
        memory may serve others by now (`keep` prevents that), or it is a state.
        """
        if name in self._constants:
            return self.fixed(name)
        check_read((name,), self.outline.states)
        tensor = self.outline.schedule.tensors.get(self.outline.outputs.get(name, name))
        arena = self.outline.arena
        gone = arena.overwritten if self.backend.device else arena.lives.keys()
        if tensor is not None and tensor.memory in gone:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        _ = self._inner(name)
        results = self.backend.perform(lambda: self._in_flight(self.buffers, (name,), {}).results())
        return results[name]

    def _inner(self, name: str) -> Output:
        tensor = self.outline.schedule.tensors.get(name)
        if tensor is None:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        return Output(name, self._types.get(name, widened(tensor.type).dtype), tensor.shape)


class ValidatedSizes:
    """The sizes for which the kernels of a plan were examined and are right.

    sizes: the values of the symbols that they were examined for first.
    """

    def __init__(self, executable: Executable, outline: Outline, sizes: tuple[int, ...]) -> None:
        self._executable, self._largest = executable, sizes
        self._schedules = [part.schedule for _, part in outline.walk()]
        every = chain.from_iterable(one.measures for one in self._schedules)
        measures = dict.fromkeys(n.expr for n in every if isinstance(n, SymInt))
        symbols = [one.name for one in executable.symbols]
        self._measure = compiled(tuple(measures), symbols)
        self._most: tuple[int, ...] | None = None if measures else ()
        self.on_growth: Callable[[], None] = lambda: None
        """Called when larger sizes were found right, so that what is on disk is for them."""
        self._note(sizes)

    def _note(self, sizes: tuple[int, ...]) -> None:
        """Record that the kernels are right for `sizes`, and so for smaller ones.

        Not where a size that varies is even: workgroups may divide it, so that none was examined of
        which a part lies outside of the result.
        """
        pairs = zip(sizes, self._executable.symbols, strict=True)
        cut = all(size % 2 or one.low == one.high for size, one in pairs)
        if cut and all(map(ge, sizes, self._largest)):
            self._largest, self._most = sizes, self._measure(sizes)

    def covers(self, sizes: tuple[int, ...]) -> bool:
        """Return True where they are right for these sizes, examining them where need be.

        Raises NoRoomError where there is no memory to do that.
        """
        if self._most is not None and all(map(le, self._measure(sizes), self._most)):
            return True
        with suppress(LimitError):  # less may do
            if self._validate(self._larger(sizes)):
                return True
        return self._validate(sizes)

    def _larger(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return odd sizes within the symbols' bounds, larger than these where possible."""
        each = zip(sizes, self._largest, self._executable.symbols, strict=True)
        return tuple(
            one.high
            if one.low == one.high
            else max(most | 1, n | 1, (min(n + n // SLACK, one.high) - 1) | 1)
            for n, most, one in each
        )

    def _validate(self, sizes: tuple[int, ...]) -> bool:
        if not self._executable.holds(sizes) or not self._right(sizes):
            return False
        self._note(sizes)
        self.on_growth()
        return True

    def _right(self, sizes: tuple[int, ...]) -> bool:
        names = [one.name for one in self._executable.symbols]
        change = Substitution.by_sizes(dict(zip(names, sizes, strict=True)))
        return all(one.right(change) for one in self._schedules)

    @property
    def executable(self) -> Executable:
        """The executable, restricted to the sizes that were examined or are covered by these."""
        if self._most == ():  # nothing need be examined
            return self._executable
        if self._most is None:
            with suppress(LimitError):
                self._validate(self._larger(self._largest))
        pairs = zip(self._executable.symbols, self._largest, strict=True)
        exact = self._most is None
        symbols = (
            replace(one, low=most if exact else one.low, high=min(one.high, most))
            for one, most in pairs
        )
        return replace(self._executable, symbols=tuple(symbols))


def _io(
    graph: Graph,
    outline: Outline,
    states: StateSpecs,
    below: Mapping[str, tuple[int, ...]],
    called: Mapping[str, str],
) -> IOSpec:
    """Return the inputs and outputs of the plan of `graph`.

    below: sizes of the tables that each input has indices of (`find_index_bounds`). called: see
    Input.
    """
    inputs = {value.name: value for value in graph.inputs}
    carried = {one.name for one in outline.states}
    small = small_input_names(graph)
    tensors = outline.schedule.tensors
    takes = tuple(
        Input(
            name,
            inputs[name].type.dtype,
            tensors[name].shape,
            tensors[name].type.dtype,
            name in small,
            below.get(name, ()),
            called.get(name, ""),
        )
        for name in (value.name for value in outline.graph.inputs if value.name not in carried)
    )
    planned = {value.name: value for value in outline.graph.outputs}
    gives = []
    hidden = {output for name, output in states.updates.items() if name not in states.readable}
    replaced = replaceable_inputs(
        outline.schedule, [one.name for one in takes], dict(outline.outputs)
    )
    for value in graph.outputs:
        if value.name not in hidden:
            here = planned[value.name]
            fixed = here.name not in outline.outputs
            shape = here.type.shape if fixed else tensors[value.name].shape
            replaces = replaced.get(value.name, ())
            gives.append(Output(value.name, value.type.dtype, shape, fixed, replaces))
    return IOSpec(takes, tuple(gives))


def _dtypes_for_users(graph: Graph) -> dict[str, DType]:
    """Return the dtypes that users see of tensors which have another one on the device, by name."""
    ends = (*graph.inputs, *graph.outputs)
    dtypes = {v.name: v.type.dtype for v in ends if v.type.dtype is DType.float16}
    # Whatever stands for them in the plan.
    computed = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    return dtypes | {v.name: DType.int64 for v in computed if v.type.dtype is DType.int64}
