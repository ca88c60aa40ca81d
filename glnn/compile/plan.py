"""A graph made ready for a backend and input shapes: performers in order, and their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from glnn.backends import Backend, Performer
from glnn.compile.lower import lowered
from glnn.compile.memory import Arena
from glnn.compile.prepared import Prepared
from glnn.compile.schedule import Entry, Schedule
from glnn.compile.weights import Weights
from glnn.errors import LimitError, ModelError, UnsupportedOpError
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Cost, Operator, Shapes
from glnn.process import ProcessLock
from glnn.settings import Settings
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Step:
    """What one performer of a plan does.

    layer: the layer that it belongs to. via: the kernel whose stage it is, None where it is whole.
    layouts: of each operand and of `out`. reads: by what the kernel reads each operand (see
    `Backend.reads`). memory: where the result lies, a block's number. nbytes: of the result, of the
    step's parameters, and of copies of its operands, in textures. host: whether the host computes
    it, so that its operands are read back and its results uploaded. passing: bytes of the
    parameters that go into textures, until they are there.
    """

    name: str
    layer: str
    op: Operator
    kernel: str
    via: str | None
    inputs: tuple[str, ...]
    output: str
    shapes: Shapes
    shape: Shape
    layouts: Mapping[str, str]
    reads: Mapping[str, str]
    memory: int
    nbytes: tuple[int, int, int]
    passing: int
    cost: Cost
    host: bool


@dataclass(frozen=True)
class Outline:
    """A plan before anything is allocated.

    graph: what is computed, its pointwise work joined. blocks: bytes of each block of memory that
    tensors share. held: bytes of the parameters that are on the device already.
    """

    graph: Graph
    schedule: Schedule
    arena: Arena
    steps: tuple[Step, ...]
    blocks: tuple[int, ...]
    held: int

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        return sum(step.nbytes[1] for step in self.steps)

    @property
    def copies(self) -> int:
        """Bytes of the textures that hold copies of operands."""
        return sum(step.nbytes[2] for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the plan takes."""
        return sum(self.blocks) + self.parameters + self.copies

    @property
    def peak(self) -> int:
        """Bytes that it takes at the most, which may be while it is made ready."""
        taken = most = sum(self.blocks)
        for step in self.steps:
            taken += sum(step.nbytes[1:])
            most = max(most, taken + step.passing)
        return most

    @classmethod
    def of(
        cls,
        graph: Graph,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        fused: bool = True,
        keep: bool = False,
        weights: Weights | None = None,
    ) -> Outline:
        """The outline of `graph`; the arguments are those of Plan, which raises the same."""
        kernels = dict(kernels or {})
        graph, schedule = lowered(graph, backend, shapes, kernels, fused=fused)
        taken = {name for e in schedule.entries for name in (e.choice.name, e.task.via)}
        for name, kernel in kernels.items():
            if name not in schedule.ops:
                raise UnsupportedOpError(f"kernel for {name}: {graph.name} has no op of that name")
            if kernel not in taken:
                raise UnsupportedOpError(f"kernel {name}={kernel} can compute no step of it")
        kept = [v.name for v in graph.outputs if v.name in schedule.tensors]
        arena = Arena.of(schedule, kept, share=backend.shares and not keep)
        steps = tuple(_step(schedule, arena, entry) for entry in schedule.entries)
        blocks = tuple(4 * size for size in arena.sizes)
        held = _held(schedule, weights) if weights else 0
        return cls(graph, schedule, arena, steps, blocks, held)

    def check(self, available: int | None) -> None:
        """Raise LimitError where more is needed than the `available` bytes."""
        need = self.peak - self.held
        if available is None or need <= available:
            return
        sizes = {f"the result of {step.name}": step.nbytes[0] for step in self.steps}
        sizes |= {f"the parameters of {step.name}": step.nbytes[1] for step in self.steps}
        sizes |= {f"the textures of {step.name}": step.nbytes[2] for step in self.steps}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} ({_mib(sizes[name])})" for name in largest)
        digits = 1  # as many as tell the two from each other, and what there is from nothing
        while digits < 7 and _mib(available, digits) in (_mib(need, digits), _mib(0, digits)):
            digits += 1
        allowed = Settings.from_environment().memory == available
        raise LimitError(
            f"the model needs {_mib(need, digits)} of device memory, "
            f"{'GLNN_MEMORY allows ' if allowed else ''}{_mib(available, digits)}"
            f"{'' if allowed else ' are free'}; the largest tensors are {named}"
        )


def _mib(nbytes: int, digits: int = 1) -> str:
    return f"{nbytes / 2**20:.{digits}f} MiB"


def _step(schedule: Schedule, arena: Arena, entry: Entry) -> Step:
    task = entry.task
    out = schedule.tensors[task.output]
    backend = schedule.backend
    copies = {} if entry.host else backend.copies(entry.choice, entry.problem)
    packed = (
        {}
        if entry.host
        else {
            name: 4 * backend.capacity(entry.layouts[name].size(parameter.shape))
            for name, parameter in task.parameters.items()
        }
    )
    return Step(
        name=task.name,
        layer=task.layer,
        op=task.op,
        kernel=entry.choice.name,
        via=task.via,
        inputs=tuple(task.operands.values()),
        output=task.output,
        shapes=entry.shapes,
        shape=out.shape,
        layouts={name: layout.name for name, layout in entry.layouts.items()},
        reads={} if entry.host else backend.reads(entry.choice, entry.problem),
        memory=arena.block[out.memory],
        nbytes=(
            4 * out.layout.size(out.shape),
            sum(nbytes for name, nbytes in packed.items() if name not in copies),
            sum(copies.values()),
        ),
        passing=_passing(packed, copies),
        cost=entry.problem.cost,
        host=entry.host,
    )


def _held(schedule: Schedule, weights: Weights) -> int:
    """Bytes of the parameters of `schedule` that `weights` has on the device already."""
    backend, found = schedule.backend, 0
    for entry in schedule.entries:
        if entry.host:
            continue
        copies = backend.copies(entry.choice, entry.problem)
        for name, weight in entry.task.parameters.items():
            if (weight, entry.layouts[name], name in copies) in weights:
                size = 4 * backend.capacity(entry.layouts[name].size(weight.shape))
                found += copies.get(name, size)
    return found


def _passing(packed: Mapping[str, int], copies: Mapping[str, int]) -> int:
    """Bytes beside the textures `copies`, at the most, while they are filled from buffers.

    packed: bytes of each parameter's buffer, which goes when it was copied.
    """
    taken = most = sum(nbytes for name, nbytes in packed.items() if name in copies)
    for name, nbytes in copies.items():
        taken += nbytes
        most = max(most, taken)
        taken -= packed.get(name, 0)
    return most - sum(copies.values())


class Plan:
    """A graph on one backend for one set of input shapes.

    graph: what to compute. backend: where. shapes: each input's shape, by its name.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    fused: whether pointwise work goes into its producers' epilogues.
    keep: whether every tensor keeps its memory, so that `value` can be asked for any.
    weights: those that several plans share; None has its own.

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
        fused: bool = True,
        keep: bool = False,
        weights: Weights | None = None,
    ) -> None:
        self.graph, self.backend = graph, backend
        self._lock = ProcessLock()  # the cpu backend has several threads run at once
        self._weights = Weights(backend) if weights is None else weights

        def make() -> tuple[Outline, Prepared]:
            options = {"fused": fused, "keep": keep}
            while True:
                outline = Outline.of(
                    graph, backend, shapes, kernels, **options, weights=self._weights
                )
                outline.check(backend.available())
                if not outline.schedule.examine():
                    return outline, Prepared(outline.schedule, outline.arena, self._weights)

        self.outline, self._prepared = backend.perform(make)
        self._fixed = self._constants()
        stores = self._prepared.stores
        self._inputs = {value.name: stores[value.name] for value in graph.inputs}

    def _constants(self) -> dict[str, Value]:
        """The outputs that no run changes, by name."""
        tensors, graph = self.outline.schedule.tensors, self.outline.graph
        return {value.name: value for value in graph.outputs if value.name not in tensors}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the graph's outputs."""
        return tuple(value.name for value in self.graph.outputs)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is performed, in order; `performers` has what performs it."""
        return self.outline.steps

    @property
    def performers(self) -> tuple[Performer, ...]:
        """What performs each step."""
        return self._prepared.performers

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        return self.outline.nbytes

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs, float32 arrays of the plan's shapes, to the device."""
        self.backend.perform(lambda: self._upload(feeds))

    def _upload(self, feeds: Mapping[str, Array]) -> None:
        for name, store in self._inputs.items():
            store.set(feeds[name])
            self.backend.upload(store)

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        self.backend.perform(self._perform)

    def _perform(self) -> None:
        # Drivers collect commands until somebody waits. Sending off the first step, then two, then
        # four has the device at work while the rest is still being asked for.
        batch = left = 1
        for performer in self.performers:
            performer()
            left -= 1
            if not left:
                self.backend.flush()
                left = batch = 2 * batch

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return {name: self.value(name) for name in self.outputs}

    def run(
        self, feeds: Mapping[str, Array], outputs: Iterable[str] | None = None
    ) -> dict[str, Array]:
        """The graph's outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its array of the plan's shape. outputs: the names of those
        that are wanted, None for all; no others are read back. Weights that were assigned since the
        last run are uploaded before.
        """
        names = self.outputs if outputs is None else tuple(outputs)
        return self.backend.perform(lambda: self._run(feeds, names))

    def _run(self, feeds: Mapping[str, Array], names: tuple[str, ...]) -> dict[str, Array]:
        with self._lock:
            self._weights.refresh()
            self._upload(feeds)
            self._perform()
            return {name: self._value(name) for name in names}

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new float32 array.

        Raises ModelError where the plan has no such tensor: it may have been fused away, or its
        memory may serve others by now (`keep` prevents that).
        """
        tensors, arena = self.outline.schedule.tensors, self.outline.arena
        if name in self._fixed:
            return self._value(name)
        if name not in tensors:
            raise ModelError(f"the plan of {self.graph.name} keeps no tensor {name!r}")
        if tensors[name].memory in arena.overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        return self.backend.perform(lambda: self._value(name))

    def _value(self, name: str) -> Array:
        if name in self._fixed:
            return evaluated(constant(self.outline.graph, self._fixed[name], {}))
        # Copied: stores keep what they pulled, and a view of an input is the caller's own array.
        store = self._inputs.get(name) or self._prepared.result(name)
        shape = self.outline.schedule.tensors[name].shape
        return np.array(store.pull().reshape(shape))
