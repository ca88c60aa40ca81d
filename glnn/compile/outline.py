"""What a plan will be, step by step, and the memory that it will take, before any is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glnn.backends import Backend, Choice
from glnn.backends.backend import Alternative
from glnn.compile.budget import Budget, Open, Taken, fitted
from glnn.compile.carried import NO_STATES, Carried, Held, carried, on_device, with_turns
from glnn.compile.grouped import group, placed
from glnn.compile.halved import store_halves
from glnn.compile.hosted import Hosted
from glnn.compile.lower import lowered
from glnn.compile.memory import Arena
from glnn.compile.schedule import Schedule
from glnn.compile.step import Step
from glnn.compile.step import held as held_by
from glnn.compile.strips import lay_strips
from glnn.compile.task import Decision
from glnn.compile.weights import Weight, Weights
from glnn.errors import UnsupportedOpError
from glnn.graph.constant import constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators.control import Control
from glnn.graph.passes import Pass, samples_of
from glnn.kernels.select import names_of
from glnn.layout import parse
from glnn.types import DType, Shape

SMALL = 1 << 14  # floats of what shares no memory where launches may change places
Key = tuple[str, str]
"""What goes before the names of a body, as `Outline.walk` has it, and a tensor there."""


@dataclass(frozen=True)
class _Asked:
    """What an outline is made for, beside its graph and shapes.

    samples: of a batch. instead: what to take for chosen kernels, by the tensor of the result.
    """

    backend: Backend
    kernels: Mapping[str, str]
    without: frozenset[Pass]
    keep: bool
    weights: Weights | None
    precision: DType
    samples: int
    states: Held = NO_STATES
    instead: Mapping[Key, Choice] = field(default_factory=dict)

    def having(self, keys: Sequence[Key], budget: Budget, taken: Taken) -> _Asked:
        """The same with what is `taken` of the decisions so called."""
        found = {keys[i]: budget.decisions[i].options[o].choice for i, o in taken.items()}
        return replace(self, instead=found)


@dataclass(frozen=True)
class Outline:
    """A plan before anything is allocated.

    graph: what is computed, its pointwise work joined. blocks: bytes of each block of memory that
    tensors share. held: bytes of the parameters that are on the device already. bodies: by the
    first result of each step that runs graphs, the outlines of these; they have blocks of their
    own. outputs: the tensor that has each output that runs change, by its name. constants: of
    a body, those of its outputs that no run changes. carried: the states.
    """

    graph: Graph
    schedule: Schedule
    arena: Arena
    steps: tuple[Step, ...]
    blocks: tuple[int, ...]
    held: int
    bodies: Mapping[str, tuple[Outline, ...]]
    outputs: Mapping[str, str]
    constants: Mapping[Value, Weight]
    carried: tuple[Carried, ...]
    tight: bool = False
    """Whether it was made for less memory than the fastest kernels need."""

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
    def hosted(self) -> tuple[Hosted, ...]:
        """What the host computes, of a plan for a GPU."""
        return tuple(Hosted(step.layer, step.op.label, step.why) for step in self.every if step.why)

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
        """Bytes that parameters which are stored as float16 or int8 would take more as float32."""
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
        taken = most = 0
        for step in self.every:  # weights come first, one after the other
            taken += step.nbytes[1] + step.fixed_copies
            most = max(most, taken + step.passing)
        return max(most, self.nbytes)

    @property
    def need(self) -> int:
        """Bytes of `peak` that are not there yet."""
        return self.peak - self.held

    @classmethod
    def of(
        cls,
        graph: Graph,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        without: frozenset[Pass] = frozenset(),
        keep: bool = False,
        weights: Weights | None = None,
        precision: DType = DType.float32,
        available: int | None = None,
        samples: int | None = None,
        states: Held = NO_STATES,
    ) -> Outline:
        """The outline of `graph`; the arguments are those of Plan, which raises the same.

        available: the bytes that it should need at the most. Where the fastest kernels need more,
        others are taken instead, until it does or nothing helps.
        """
        kernels, count = dict(kernels or {}), samples or samples_of(graph, shapes)
        asked = _Asked(backend, kernels, without, keep, weights, precision, count, states)
        made = cls._of(graph, shapes, asked)
        if available is not None and made.need > available:
            # What is updated at once is there at once, few kernels pool, no output needs a copy.
            asked = replace(asked, without=asked.without | {Pass.GROUP, Pass.POOLED, Pass.ROWS})
            made = cls._of(graph, shapes, asked)
            if made.need > available:
                made = cls._fitted(made, graph, shapes, asked, available)
            made = replace(made, tight=True)
        schedules = [outline.schedule for _, outline in made.walk()]
        entries = [entry for schedule in schedules for entry in schedule.entries]
        taken = {name for e in entries for name in (e.choice.name, e.task.via)}
        for name, kernel in kernels.items():
            if not any(name in schedule.ops for schedule in schedules):
                raise UnsupportedOpError(f"kernel for {name}: {graph.name} has no op of that name")
            for one in names_of(kernel) or (kernel,):
                if one not in taken:
                    raise UnsupportedOpError(f"kernel {name}={one} can compute no step of it")
        return made

    @classmethod
    def _fitted(
        cls,
        made: Outline,
        graph: Graph,
        shapes: Mapping[str, Shape],
        asked: _Asked,
        available: int,
    ) -> Outline:
        """`made` with other kernels, such that it needs what is `available`; as little as it can
        where that is not enough.
        """
        keys, budget = made._budget()

        def decided(taken: Taken) -> Outline:
            return cls._of(graph, shapes, asked.having(keys, budget, taken))

        return fitted(budget, decided, available)

    def _budget(self) -> tuple[list[Key], Budget]:
        """What memory may change: whose decisions, and what they are."""
        keys: list[Key] = []
        decisions: list[Open] = []
        floors: list[int] = []
        for number, (within, outline) in enumerate(self.walk()):
            others = set(range(len(outline.schedule.entries)))
            for decision, options in outline.open:
                levels = tuple(outline.level(decision, option) for option in options)
                decisions.append(Open(options, number, levels))
                keys.append((within, decision.task.output))
                others -= set(decision.entries)
            floors.append(4 * outline.arena.floor(others))
        return keys, Budget.of(self.need, decisions, floors)

    @property
    def most(self) -> int:
        """Bytes that share blocks and are needed at the same time."""
        return 4 * self.arena.floor(set(range(len(self.schedule.entries))))

    def level(self, decision: Decision, option: Alternative) -> int:
        """Bytes that share blocks and are needed at the same time where that option is taken."""
        tensors, entries = self.schedule.tensors, decision.entries
        ending = {
            name: 4 * self.arena.ending(tensors[tensor].memory, entries)
            for name, tensor in decision.task.operands.items()
        }
        return 4 * self.arena.beside(entries) + option.takes.level(ending)

    @property
    def open(self) -> list[tuple[Decision, tuple[Alternative, ...]]]:
        """The decisions that memory may change, each with the kernels that there are for it, first
        the one that was chosen. Not those where a kernel was asked for, nor those for stages.
        """
        backend, decisions = self.schedule.backend, self.schedule.decisions
        asked = [one for one in decisions if one.task.via is None and one.entries]
        alike = {(one.choice, one.problem): one for one in asked}
        found = {key: tuple(backend.alternatives(*key)) for key in alike}
        options = [(one, found[one.choice, one.problem]) for one in asked]
        return [(one, some) for one, some in options if len(some) > 1]

    @classmethod
    def _of(
        cls, graph: Graph, shapes: Mapping[str, Shape], asked: _Asked, within: str = ""
    ) -> Outline:
        """within: what goes before the names of what is in a body; empty where it is none."""
        backend, body = asked.backend, bool(within)
        states = NO_STATES if body else asked.states
        graph, schedule = lowered(
            graph,
            backend,
            shapes,
            asked.kernels,
            without=asked.without,
            precision=asked.precision,
            samples=asked.samples,
            body=body,
            instead={name: choice for (at, name), choice in asked.instead.items() if at == within},
            states=states.types,
            updates=states.updates,
        )
        there = carried(schedule, graph, states)
        own = states.updates.values()
        changing = [v for v in graph.outputs if graph.changes(v) and v.name not in own]
        outputs = schedule.for_host(changing, body, Pass.ROWS not in asked.without)
        fixed = [value for value in graph.outputs if body and value.name not in outputs]
        constants = {value: Weight.made_of(constant(graph, value, {})) for value in fixed}
        bodies: dict[str, tuple[Outline, ...]] = {}
        wholes = placed(schedule, there, states)
        ends = (name for one in there for name in (one.before, one.after) if name is not None)
        kept = [*outputs.values(), *ends]
        if Pass.STRIPS not in asked.without and not {"concat", "move"} & asked.kernels.keys():
            lay_strips(schedule, kept)
        if asked.precision is DType.float16 and not (body or there or Pass.HALVES in asked.without):
            store_halves(schedule, kept)
        if Pass.GROUP not in asked.without:
            group(schedule, wholes, kept)
        for entry in schedule.entries:
            if isinstance(op := entry.task.op, Control):
                types = op.given(op.positional(dict(entry.problem.operands)))
                given = ({k: one.shape for k, one in some.items()} for some in types)
                bodies[entry.task.output] = tuple(
                    cls._of(one, own_shapes, asked, f"{within}{entry.task.name}/{one.name}/")
                    for one, own_shapes in zip(op.bodies, given, strict=True)
                )
                kept += [*entry.task.operands.values(), entry.task.output, *entry.task.more]
        share, least = backend.shares and not asked.keep, SMALL if there else 0
        arena = Arena.of(schedule, kept, share=share, least=least)
        hinted = schedule.hinted  # what people are told, and memory, are of the sizes at hand
        steps = with_turns(Step.all_of(hinted, arena), there, schedule, arena)
        blocks = tuple(4 * size for size in arena.sizes)
        held = held_by(hinted, asked.weights) if asked.weights else 0
        held += sum(one.held for some in bodies.values() for one in some)
        held += on_device(there, states, schedule, arena)
        return cls(graph, schedule, arena, steps, blocks, held, bodies, outputs, constants, there)

    def examine(self) -> bool:
        """See whether its kernels are right here; whether some are not, so that it is made anew."""
        return any(outline.schedule.examine() for _, outline in self.walk())
