"""What a plan will be, step by step, and the memory that it will take, before any is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from glnn.backends import Backend
from glnn.compile.lower import lowered
from glnn.compile.memory import Arena
from glnn.compile.schedule import Schedule
from glnn.compile.step import Step
from glnn.compile.step import held as held_by
from glnn.compile.weights import Weight, Weights
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.constant import constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators.control import Control
from glnn.layout import parse
from glnn.settings import Settings
from glnn.types import DType, Shape, TensorType


@dataclass(frozen=True)
class Outline:
    """A plan before anything is allocated.

    graph: what is computed, its pointwise work joined. blocks: bytes of each block of memory that
    tensors share. held: bytes of the parameters that are on the device already. bodies: by the
    first result of each step that runs graphs, the outlines of these; they have blocks of their
    own. outputs: the tensor of each output that runs change, of a body in row major. constants: of
    a body, those of its outputs that no run changes.
    """

    graph: Graph
    schedule: Schedule
    arena: Arena
    steps: tuple[Step, ...]
    blocks: tuple[int, ...]
    held: int
    bodies: Mapping[str, tuple[Outline, ...]]
    outputs: Mapping[Value, str]
    constants: Mapping[Value, Weight]

    def walk(self, within: str = "") -> Iterator[tuple[str, Outline]]:
        """Itself and all bodies in it, each behind those before it, and what it is called.

        So `loop/body/` is the body of `loop`, whose steps' names that goes before.
        """
        yield within, self
        for step in self.steps:
            for body in self.bodies.get(step.output, ()):
                yield from body.walk(f"{within}{step.name}/{body.graph.name}/")

    @property
    def every(self) -> Iterator[Step]:
        """The steps, those of bodies too."""
        return (step for _, outline in self.walk() for step in outline.steps)

    @property
    def tensors(self) -> int:
        """Bytes of all blocks of memory."""
        return sum(sum(outline.blocks) for _, outline in self.walk())

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        handed = sum(outline.handed for _, outline in self.walk())
        return handed + sum(step.nbytes[1] for step in self.every)

    @property
    def handed(self) -> int:
        """Bytes of `constants`, which are kept as weights are."""
        backend, rows = self.schedule.backend, parse("R")
        shapes = (weight.shape for weight in self.constants.values())
        return sum(4 * backend.capacity(rows.size(shape)) for shape in shapes)

    @property
    def saved(self) -> int:
        """Bytes that the parameters which are stored as float16 would take more as float32."""
        return sum(step.saved for step in self.every)

    @property
    def copies(self) -> int:
        """Bytes of the textures that hold copies of operands."""
        return sum(step.nbytes[2] for step in self.every)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the plan takes."""
        return self.tensors + self.parameters + self.copies

    @property
    def peak(self) -> int:
        """Bytes that it takes at the most, which may be while it is made ready."""
        return self._grown(0)[1]

    def _grown(self, taken: int) -> tuple[int, int]:
        """Bytes once it is ready, where `taken` were before, and at the most until then."""
        taken += sum(self.blocks)
        most = taken
        for step in self.steps:
            taken += sum(step.nbytes[1:])
            most = max(most, taken + step.passing)
            for body in self.bodies.get(step.output, ()):
                taken, within = body._grown(taken)
                most = max(most, within)
        taken += self.handed
        return taken, max(most, taken)

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
        made = cls._of(graph, backend, shapes, kernels, fused, keep, weights, precision, body=False)
        schedules = [outline.schedule for _, outline in made.walk()]
        entries = [entry for schedule in schedules for entry in schedule.entries]
        taken = {name for e in entries for name in (e.choice.name, e.task.via)}
        for name, kernel in kernels.items():
            if not any(name in schedule.ops for schedule in schedules):
                raise UnsupportedOpError(f"kernel for {name}: {graph.name} has no op of that name")
            if kernel not in taken:
                raise UnsupportedOpError(f"kernel {name}={kernel} can compute no step of it")
        return made

    @classmethod
    def _of(
        cls,
        graph: Graph,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str],
        fused: bool,
        keep: bool,
        weights: Weights | None,
        precision: DType,
        *,
        body: bool,
    ) -> Outline:
        graph, schedule = lowered(
            graph, backend, shapes, kernels, fused=fused, precision=precision, body=body
        )
        changing = [value for value in graph.outputs if graph.changes(value)]
        outputs = {v: schedule.in_rows(v.name) if body else v.name for v in changing}
        fixed = [value for value in graph.outputs if body and value not in outputs]
        constants = {value: Weight.made_of(constant(graph, value, {})) for value in fixed}
        bodies: dict[str, tuple[Outline, ...]] = {}
        kept = list(outputs.values())
        for entry in schedule.entries:
            if isinstance(op := entry.task.op, Control):
                given = op.given(op.positional(dict(entry.problem.operands)))
                bodies[entry.task.output] = tuple(
                    cls._of(
                        one,
                        backend,
                        _shapes(types),
                        kernels,
                        fused,
                        keep,
                        weights,
                        precision,
                        body=True,
                    )
                    for one, types in zip(op.bodies, given, strict=True)
                )
                kept += [*entry.task.operands.values(), entry.task.output, *entry.task.more]
        arena = Arena.of(schedule, kept, share=backend.shares and not keep)
        steps = tuple(Step.of(schedule, arena, entry) for entry in schedule.entries)
        blocks = tuple(4 * size for size in arena.sizes)
        held = held_by(schedule, weights) if weights else 0
        held += sum(one.held for some in bodies.values() for one in some)
        return cls(graph, schedule, arena, steps, blocks, held, bodies, outputs, constants)

    def examine(self) -> bool:
        """See whether its kernels are right here; whether some are not, so that it is made anew."""
        return any(outline.schedule.examine() for _, outline in self.walk())

    def check(self, available: int | None) -> None:
        """Raise LimitError where more is needed than the `available` bytes."""
        need = self.peak - self.held
        if available is None or need <= available:
            return
        steps = {f"{at}{one.name}": one for at, outline in self.walk() for one in outline.steps}
        sizes = {f"the result of {name}": step.nbytes[0] for name, step in steps.items()}
        sizes |= {f"the parameters of {name}": step.nbytes[1] for name, step in steps.items()}
        sizes |= {f"the textures of {name}": step.nbytes[2] for name, step in steps.items()}
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


def _shapes(types: Mapping[str, TensorType]) -> dict[str, Shape]:
    return {name: type.shape for name, type in types.items()}


def _mib(nbytes: int, digits: int = 1) -> str:
    return f"{nbytes / 2**20:.{digits}f} MiB"
