"""Plan: a graph compiled to an executable for one backend, and run on it."""

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

    It is a NoRoomError unless `GLNN_MEMORY` is the limit: other plans may free memory.
    """
    need = outline.need
    if available is None or need <= available:
        return
    steps = {f"{prefix}{one.name}": one for prefix, part in outline.walk() for one in part.steps}
    sizes = {f"the result of {name}": step.nbytes[0] for name, step in steps.items()}
    sizes |= {f"the parameters of {name}": step.nbytes[1] for name, step in steps.items()}
    sizes |= {f"the textures of {name}": step.nbytes[2] for name, step in steps.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    named = ", ".join(f"{name} ({readable_bytes(sizes[name])})" for name in largest)
    needed, limit = readable_bytes(need), readable_bytes(available)
    if needed == limit:  # they differ by less than is shown
        needed, limit = f"{need} B", f"{available} B"
    by_setting = Settings.from_environment().memory == available
    kind = LimitError if by_setting else NoRoomError
    raise kind(
        f"the model needs {needed} of device memory, "
        f"{'GLNN_MEMORY allows ' if by_setting else ''}{limit}"
        f"{'' if by_setting else ' are free'}; the largest tensors are {named}"
    )


def check_host(outline: Outline, weights: Weights) -> None:
    """Raise LimitError where the host has too little memory for a plan of the `cpu` backend.

    All tensors of a run stay until the next one. The inputs are the caller's arrays, and outputs
    are copied. Weights that are computed from others or widened take memory beside these.
    """
    nbytes = sum(hint(value.type.nbytes) for value in outline.graph.outputs)
    for prefix, part in outline.walk():
        inputs = {value.name for value in part.graph.inputs} if not prefix else set()
        sizes: dict[str, int] = {}  # bytes of each memory
        for tensor in part.schedule.tensors.values():
            size = hint(tensor.type.nbytes)
            sizes[tensor.memory] = max(sizes.get(tensor.memory, 0), size)
        nbytes += sum(size for memory, size in sizes.items() if memory not in inputs)
    for weight, layout, copied in dict.fromkeys(weight_keys(outline)):
        is_new = isinstance(weight.constant, OperatorResult) or weight.type.dtype is DType.float16
        if is_new and (weight, layout, copied) not in weights:
            nbytes += hint(weight.type.nbytes)
    check_memory(
        nbytes,
        lambda: f"a run of {outline.graph.name} on cpu, of which {_describe_largest(outline)}",
    )


def _describe_largest(outline: Outline) -> str:
    """Return the text by which errors name the step with the largest result."""
    tensors = [
        (entry, part.schedule.tensors[name].type)
        for _, part in outline.walk()
        for entry in part.schedule.entries
        for name in entry.lowered.results
    ]
    if not tensors:
        return "no step is known,"
    entry, type = max(tensors, key=lambda one: hint(one[1].nbytes))
    return (
        f"{describe_result(entry.lowered.layer, entry.lowered.op, type)} takes {hint(type.nbytes)},"
    )


class Plan(Runner):
    """Compile a graph for one backend, and run it for all shapes that `domain` admits.

    graph: the graph to compile. backend: the backend that runs it. shapes: each input's shape, by
    its name. kernels: the kernel to take for an op, by the op's name; others are chosen. without:
    the passes that are left out. keep: True to let every tensor keep its memory, so that `value`
    can read any. weights: weights that several plans share; None for new ones. precision: the type
    as which weights of contractions and lookup tables are stored: float32, float16 or int8.
    samples: of the batch; None where symbols of the inputs of `graph` tell.

    states: tensors that stay on the device from run to run. An input with the name of a state is
    not fed: it is that state. updates: by a state's name, the output that is its content from the
    next run on. All that a run computes, it computes from the content before. Such an output is not
    returned, unless the state is readable: `States.read` reads the state.

    checked_inputs: the inputs whose indices a run checks, each with its name in errors; None for
    all. Where `graph` is a part of another graph, or a body, only some inputs are the model's; the
    others were computed. domain: the symbols of the SymInts in `shapes`, and the guards; EXACT
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
        state_specs = StateSpecs.bind(states, updates or {}, graph, backend)
        shapes = {**shapes, **state_specs.shapes(graph)}
        spans = Spans()

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
                states=state_specs,
            )

        def io(outline: Outline) -> IOSpec:
            bounds = find_index_bounds(graph, shapes)
            if checked_inputs is not None:
                bounds = {name: sizes for name, sizes in bounds.items() if name in checked_inputs}
            return _io(graph, outline, state_specs, bounds, checked_inputs or {})

        plan_ref = ref(self)  # no cycle: a dropped plan frees its device memory at once

        def fixed(name: str, buffers: BufferSet) -> Array:
            plan = plan_ref()
            assert plan is not None  # it is running
            return plan._constant(name, buffers)

        def make() -> None:
            self.outline, self._emitted = self._make(make_outline, io, domain, states, spans)
            nbytes = self.outline.nbytes
            if states is not None:
                nbytes -= sum(states[one.name].nbytes for one in self.outline.states)
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
                nbytes=nbytes,
                lock=None if states is None else states.lock,
            )

        with spans.record("plan"), report_work("planning", f"{graph.name} on {backend.name}"):
            backend.perform(make)
        self.planning_spans: tuple[Span, ...] = tuple(spans)
        """The times of planning: the outline, the examination of kernels, the preparation of memory
        and programs; last, the whole."""
        graph_outputs = {value.name: value for value in self.outline.graph.outputs}
        self._constants = {
            name: OperatorResult(
                Identity(), (constant(self.outline.graph, graph_outputs[name], {}),), None, (), 0
            )
            for name in self.executable.io.fixed()
        }
        self._fixed_types = {name: graph_outputs[name].type.dtype for name in self._constants}
        self.sized_outputs = any(map(depends_on_sizes, self._constants.values()))
        """True where an output that no run changes depends on symbolic sizes."""
        self._types = _dtypes_for_users(graph)
        self._log(shapes)

    def _make(
        self,
        make_outline: Callable[[int | None], Outline],
        io: Callable[[Outline], IOSpec],
        domain: SizeRange,
        states: States | None,
        spans: Spans,
    ) -> tuple[Outline, Emitted]:
        """Make the outline, for the memory that is free, and its executable.

        Where the examination finds a kernel wrong on this driver, both are made again without it.
        Raises what Plan raises.
        """
        while True:
            available = (states or self.backend).available()
            with spans.record("outline"):
                outline = make_outline(available)
            check(outline, available)
            if self.backend.device is None:
                check_host(outline, self._weights)
            with self._weights.ahead(weight_keys(outline)):
                with spans.record("examine"):
                    found_wrong = outline.examine()
                if not found_wrong:
                    with spans.record("prepare"):
                        return outline, emit(outline, self._weights, io(outline), domain)

    def _log(self, shapes: Mapping[str, Shape]) -> None:
        inputs = ", ".join(f"{name} {tuple(map(hint, shape))}" for name, shape in shapes.items())
        where = f"{self.graph.name} for {inputs} on {self.backend.name}"
        took = duration(self.planning_spans[-1].seconds)
        LOG.info("planned %s: %d steps, %d bytes, %s", where, len(self.steps), self.nbytes, took)

    def right_for(self, sizes: tuple[int, ...]) -> bool:
        """Return True where its kernels are right for these sizes (`ValidatedSizes`)."""
        return sizes == self._sizes or self.validated_sizes.covers(sizes)

    @property
    def is_open(self) -> bool:
        """Return True where the plan serves a range of sizes."""
        return bool(self.executable.symbols)

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where its guards hold for `feeds`, and its kernels are right for their sizes.

        The sizes may differ from those that the kernels were chosen for; kernels that were not
        examined for sizes as large are examined now.
        """
        executable = self.executable
        return executable.admits(feeds) and self.right_for(executable.sizes(feeds))

    def was_chosen_for_others(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where its kernels were chosen for sizes other than those of `feeds`."""
        return self.executable.sizes(feeds) != self.chosen_for

    @cached_property
    def validated_sizes(self) -> ValidatedSizes:
        """The sizes for which its kernels were examined and are right."""
        return ValidatedSizes(self.executable, self.outline, self._sizes)

    @property
    def uploaded(self) -> tuple[Span, ...]:
        """The times at which each weight was uploaded, of all plans that share the weights."""
        return tuple(self._weights.uploaded)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Descriptions of the steps in order; `launches` has the launch of each."""
        return self.outline.steps

    def __repr__(self) -> str:
        """Name the graph and the backend, with the number of steps."""
        steps = count_of(len(self.steps), "step")
        return f"Plan({self.graph.name} on {self.backend.name}: {steps})"

    def _repr_html_(self) -> str:
        """Return a table of the steps, for notebooks; `glnn plan` shows more."""
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
        """Functions that launch one step each, on the memory and with the sizes of the last run."""
        return self.backend.perform(lambda: tuple(map(self._bind_launch, self._emitted.launches)))

    def _bind_launch(self, launch: Launch) -> Launch:
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
        """Its weights, without those of bodies and those that depend on symbolic sizes."""
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
        """Return the output `name`, which depends on weights and sizes alone, for their current
        values.
        """
        constant = self._constants[name]
        if self.sized_outputs:
            operands = (buffers.substitution(constant.operands[0]),)
            constant = OperatorResult(constant.operator, operands, None, (), 0)
        return np.array(evaluated(constant, self._fixed_types[name]))

    def value(self, name: str) -> Array:
        """Return a new array of the tensor `name` as the last run left it.

        It has the tensor's type, but a tensor inside the graph that is stored as float16 is
        float32.

        Raises ModelError where the plan has no such tensor: it may have been fused away, its memory
        may have been overwritten (`keep` prevents that), or it is a state.
        """
        if name in self._constants:
            return self.fixed(name)
        check_read((name,), self.outline.states)
        tensor = self.outline.schedule.tensors.get(self.outline.outputs.get(name, name))
        arena = self.outline.arena
        overwritten = arena.overwritten if self.backend.device else arena.lives.keys()
        if tensor is not None and tensor.memory in overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        _ = self._inner(name)  # raises ModelError for an unknown name
        results = self.backend.perform(lambda: self._in_flight(self.buffers, (name,), {}).results())
        return results[name]

    def _inner(self, name: str) -> Output:
        tensor = self.outline.schedule.tensors.get(name)
        if tensor is None:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        return Output(name, self._types.get(name, widened(tensor.type).dtype), tensor.shape)


class ValidatedSizes:
    """The sizes for which the kernels of a plan were examined and are right.

    sizes: the values of the symbols for which they were examined first.
    """

    def __init__(self, executable: Executable, outline: Outline, sizes: tuple[int, ...]) -> None:
        self._executable, self._largest = executable, sizes
        self._schedules = [part.schedule for _, part in outline.walk()]
        launch_sizes = chain.from_iterable(one.measures for one in self._schedules)
        measures = dict.fromkeys(n.expr for n in launch_sizes if isinstance(n, SymInt))
        symbols = [one.name for one in executable.symbols]
        self._measure = compiled(tuple(measures), symbols)
        self._bounds: tuple[int, ...] | None = None if measures else ()
        """The sizes of the launches up to which kernels are right; None before any are known."""
        self.on_growth: Callable[[], None] = lambda: None
        """Called when larger sizes were validated, so that the stored plan can be updated."""
        self._note(sizes)

    def _note(self, sizes: tuple[int, ...]) -> None:
        """Record that the kernels are right for `sizes`, and so for smaller ones.

        Not where a size that varies is even: workgroups may divide it, and then no workgroup was
        examined that is partly outside of the result.
        """
        pairs = zip(sizes, self._executable.symbols, strict=True)
        has_partial_groups = all(size % 2 or one.low == one.high for size, one in pairs)
        if has_partial_groups and all(map(ge, sizes, self._largest)):
            self._largest, self._bounds = sizes, self._measure(sizes)

    def covers(self, sizes: tuple[int, ...]) -> bool:
        """Return True where the kernels are right for `sizes`; examine them where need be.

        Raises NoRoomError where memory is too short for that.
        """
        if self._bounds is not None and all(map(le, self._measure(sizes), self._bounds)):
            return True
        with suppress(LimitError):  # `sizes` alone may take less
            if self._validate(self._larger(sizes)):
                return True
        return self._validate(sizes)

    def _larger(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return odd sizes within the symbols' bounds, larger than these where possible."""
        each = zip(sizes, self._largest, self._executable.symbols, strict=True)
        return tuple(
            one.high
            if one.low == one.high
            else max(largest | 1, n | 1, (min(n + n // SLACK, one.high) - 1) | 1)
            for n, largest, one in each
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
        """The executable, restricted to the sizes that were validated."""
        if self._bounds == ():  # no launch depends on the symbols
            return self._executable
        if self._bounds is None:
            with suppress(LimitError):
                self._validate(self._larger(self._largest))
        pairs = zip(self._executable.symbols, self._largest, strict=True)
        exact = self._bounds is None
        symbols = (
            replace(one, low=largest if exact else one.low, high=min(one.high, largest))
            for one, largest in pairs
        )
        return replace(self._executable, symbols=tuple(symbols))


def _io(
    graph: Graph,
    outline: Outline,
    states: StateSpecs,
    index_bounds: Mapping[str, tuple[int, ...]],
    error_names: Mapping[str, str],
) -> IOSpec:
    """Return the inputs and outputs of the plan of `graph`.

    index_bounds: sizes of the tables that each input has indices of (`find_index_bounds`).
    error_names: by an input, its name in errors about indices.
    """
    values = {value.name: value for value in graph.inputs}
    state_names = {one.name for one in outline.states}
    small = small_input_names(graph)
    tensors = outline.schedule.tensors
    inputs = tuple(
        Input(
            name,
            values[name].type.dtype,
            tensors[name].shape,
            tensors[name].type.dtype,
            name in small,
            index_bounds.get(name, ()),
            error_names.get(name, ""),
        )
        for name in (value.name for value in outline.graph.inputs if value.name not in state_names)
    )
    planned = {value.name: value for value in outline.graph.outputs}
    outputs = []
    hidden = {output for name, output in states.updates.items() if name not in states.readable}
    replaceable = replaceable_inputs(
        outline.schedule, [one.name for one in inputs], dict(outline.outputs)
    )
    for value in graph.outputs:
        if value.name not in hidden:
            fixed = value.name not in outline.outputs
            shape = planned[value.name].type.shape if fixed else tensors[value.name].shape
            replaces = replaceable.get(value.name, ())
            outputs.append(Output(value.name, value.type.dtype, shape, fixed, replaces))
    return IOSpec(inputs, tuple(outputs))


def _dtypes_for_users(graph: Graph) -> dict[str, DType]:
    """Return by name the dtypes of tensors for users, where the device stores another dtype."""
    io = (*graph.inputs, *graph.outputs)
    dtypes = {v.name: v.type.dtype for v in io if v.type.dtype is DType.float16}
    computed = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    return dtypes | {v.name: DType.int64 for v in computed if v.type.dtype is DType.int64}
