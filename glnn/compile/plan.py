"""A model made ready for a backend and input shapes: performers in order, and their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend, Performer
from glnn.compile.fuse import FusedNode, fuse
from glnn.compile.memory import Arena
from glnn.compile.prepared import Prepared
from glnn.compile.schedule import Entry, Parameter, Schedule, Task
from glnn.errors import LimitError, ModelError, UnsupportedOpError
from glnn.graph.operator import Cost, Operator, Shapes
from glnn.process import ProcessLock
from glnn.settings import Settings
from glnn.types import Shape

if TYPE_CHECKING:
    from glnn.model.model import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """What one performer of a plan does.

    layer: the layer that it belongs to. via: the kernel whose stage it is, None where it is whole.
    layouts: of each operand and of `out`. reads: by what the kernel reads each operand (see
    `Backend.reads`). memory: where the result lies, a block's number. nbytes: of the result, of the
    step's parameters, and of copies of its operands, in textures. passing: bytes of the
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


@dataclass(frozen=True)
class Outline:
    """A plan before anything is allocated.

    nodes: the model's ops. blocks: bytes of each block of memory that tensors share.
    """

    nodes: tuple[FusedNode, ...]
    schedule: Schedule
    arena: Arena
    steps: tuple[Step, ...]
    blocks: tuple[int, ...]

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
        model: Model,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        fused: bool = True,
        keep: bool = False,
    ) -> Outline:
        """The outline of `model`; the arguments are those of Plan, which raises the same."""
        kernels = dict(kernels or {})
        nodes = fuse(model, enabled=fused)
        names = {*(info.name for info in model.inputs), *(node.output for node in nodes)}
        schedule = Schedule(backend, kernels, names)
        for info in model.inputs:
            schedule.add_input(info.name, tuple(shapes[info.name]))
        for node in nodes:
            parameters = {name: Parameter.of(array) for name, array in node.parameters.items()}
            operands = dict(zip(node.op.inputs, node.inputs, strict=False))
            schedule.add(Task(node.name, node.op, operands, parameters, node.output, node.name))
        taken = {name for e in schedule.entries for name in (e.choice.name, e.task.via)}
        for name, kernel in kernels.items():
            if name not in schedule.ops:
                raise UnsupportedOpError(f"kernel for {name}: {model.name} has no op of that name")
            if kernel not in taken:
                raise UnsupportedOpError(f"kernel {name}={kernel} can compute no step of it")
        arena = Arena.of(schedule, model.outputs, share=backend.shares and not keep)
        steps = tuple(_step(schedule, arena, entry) for entry in schedule.entries)
        blocks = tuple(4 * size for size in arena.sizes)
        return cls(nodes, schedule, arena, steps, blocks)

    def check(self, available: int | None) -> None:
        """Raise LimitError where more is needed than the `available` bytes."""
        need = self.peak
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
    copies = backend.copies(entry.choice, entry.shapes, entry.layouts)
    packed = {
        name: 4 * backend.capacity(entry.layouts[name].size(parameter.shape))
        for name, parameter in task.parameters.items()
    }
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
        reads=backend.reads(entry.choice, entry.shapes, entry.layouts),
        memory=arena.block[out.memory],
        nbytes=(
            4 * out.layout.size(out.shape),
            sum(nbytes for name, nbytes in packed.items() if name not in copies),
            sum(copies.values()),
        ),
        passing=sum(nbytes for name, nbytes in packed.items() if name in copies),
        cost=task.op.cost_of(entry.shapes),
    )


class Plan:
    """A model on one backend for one set of input shapes.

    model: what to compute. backend: where. shapes: each input's shape.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    fused: whether biases and activations go into their producers' epilogues.
    keep: whether every tensor keeps its memory, so that `value` can be asked for any.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a layer or the device
    has too little memory, ShapeError where the shapes do not fit. Any thread may use it.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        fused: bool = True,
        keep: bool = False,
    ) -> None:
        self.model, self.backend = model, backend
        self._lock = ProcessLock()  # the cpu backend has several threads run at once

        def make() -> tuple[Outline, Prepared]:
            while True:
                outline = Outline.of(model, backend, shapes, kernels, fused=fused, keep=keep)
                outline.check(backend.available())
                if not outline.schedule.examine():
                    return outline, Prepared(outline.schedule, outline.arena)

        self.outline, self._prepared = backend.perform(make)

    @property
    def nodes(self) -> tuple[FusedNode, ...]:
        """The model's ops, some of them fused."""
        return self.outline.nodes

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
        for info in self.model.inputs:
            store = self._prepared.stores[info.name]
            store.set(feeds[info.name])
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
        return {name: self.value(name) for name in self.model.outputs}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its float32 array of the plan's shape.
        """
        return self.backend.perform(lambda: self._run(feeds))

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        with self._lock:
            self._upload(feeds)
            self._perform()
            return {name: self._value(name) for name in self.model.outputs}

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new float32 array.

        Raises ModelError where the plan has no such tensor: it may have been fused away, or its
        memory may serve others by now (`keep` prevents that).
        """
        tensors, arena = self.outline.schedule.tensors, self.outline.arena
        if name not in tensors:
            raise ModelError(f"the plan of {self.model.name} keeps no tensor {name!r}")
        if tensors[name].memory in arena.overwritten:
            raise ModelError(f"the memory of {name!r} serves others by now: plan with keep=True")
        return self.backend.perform(lambda: self._value(name))

    def _value(self, name: str) -> Array:
        # Copied: stores keep what they pulled, and a view of an input is the caller's own array.
        given = any(name == info.name for info in self.model.inputs)
        store = self._prepared.stores[name] if given else self._prepared.result(name)
        shape = self.outline.schedule.tensors[name].shape
        return np.array(store.pull().reshape(shape))
