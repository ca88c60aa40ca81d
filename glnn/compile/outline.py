"""What a plan will be, step by step, and the memory that it will take, before any is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glnn.backends import Backend
from glnn.compile.lower import lowered
from glnn.compile.memory import Arena
from glnn.compile.schedule import Entry, Schedule
from glnn.compile.weights import Weights
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.graph import Graph
from glnn.graph.operator import Cost, Operator, Shapes
from glnn.kernels.problem import Problem
from glnn.layout import Layout
from glnn.settings import Settings
from glnn.types import DType, Shape, TensorType, widened


@dataclass(frozen=True)
class Step:
    """What one launch of a plan does.

    layer: the layer that it belongs to. via: the kernel whose stage it is, None where it is whole.
    layouts: of each operand and of `out`. reads: by what the kernel reads each operand (see
    `Backend.reads`). memory: where the result lies, a block's number. nbytes: of the result, of the
    step's parameters, and of copies of its operands, in textures. host: whether the host computes
    it, so that its operands are read back and its results uploaded. passing: bytes of the
    parameters that go into textures, until they are there. halves: the parameters that are stored
    as float16. saved: bytes that these would take more as float32.
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
    halves: tuple[str, ...]
    saved: int


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
    def saved(self) -> int:
        """Bytes that the parameters which are stored as float16 would take more as float32."""
        return sum(step.saved for step in self.steps)

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
        precision: DType = DType.float32,
    ) -> Outline:
        """The outline of `graph`; the arguments are those of Plan, which raises the same."""
        kernels = dict(kernels or {})
        graph, schedule = lowered(graph, backend, shapes, kernels, fused=fused, precision=precision)
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
    kept = {} if entry.host else {n: _kept(backend, w.type) for n, w in task.parameters.items()}
    packed = {name: _bytes(backend, entry.layouts[name], one) for name, one in kept.items()}
    halves = {name: one for name, one in kept.items() if one.dtype is DType.float16}
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
        halves=tuple(halves),
        saved=_wide(backend, entry, halves) - sum(copies.get(n, packed[n]) for n in halves),
    )


def _kept(backend: Backend, type: TensorType) -> TensorType:
    """A parameter's type as `backend` has it."""
    return TensorType(type.dims, backend.stored(type.dtype))


def _bytes(backend: Backend, layout: Layout, type: TensorType) -> int:
    """Bytes of a parameter's buffer."""
    return 4 * backend.capacity(layout.words(type))


def _wide(backend: Backend, entry: Entry, halves: Mapping[str, TensorType]) -> int:
    """Bytes that the parameters `halves` would take as float32."""
    if not halves:
        return 0
    problem, types = entry.problem, {name: widened(one) for name, one in halves.items()}
    operands = {**dict(problem.operands), **types}
    wide = Problem.of(problem.op, operands, problem.layouts, problem.epilogue)
    copies = backend.copies(entry.choice, wide)
    sizes = {name: _bytes(backend, entry.layouts[name], one) for name, one in types.items()}
    return sum(copies.get(name, nbytes) for name, nbytes in sizes.items())


def _held(schedule: Schedule, weights: Weights) -> int:
    """Bytes of the parameters of `schedule` that `weights` has on the device already."""
    backend, found = schedule.backend, 0
    for entry in schedule.entries:
        if entry.host:
            continue
        copies = backend.copies(entry.choice, entry.problem)
        for name, weight in entry.task.parameters.items():
            if (weight, entry.layouts[name], name in copies) in weights:
                size = _bytes(backend, entry.layouts[name], _kept(backend, weight.type))
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
