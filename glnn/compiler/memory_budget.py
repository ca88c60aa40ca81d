"""Outlines: plans before anything is allocated, made to fit the memory that there is.

Which kernels a plan gives up where memory is short: those that cost the most bytes for the time
that they save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from glnn.backends import Backend, Choice
from glnn.backends.backend import Alternative
from glnn.compiler.concat_aliasing import alias_concats
from glnn.compiler.consumer_joining import join_consumers
from glnn.compiler.cpu_fallback import Hosted
from glnn.compiler.fp16_storage import store_as_fp16
from glnn.compiler.lower import lowered
from glnn.compiler.memory_planner import Arena
from glnn.compiler.row_aliasing import alias_rows
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import KernelChoice
from glnn.compiler.state_binding import (
    NO_STATES,
    StateBinding,
    StateSpecs,
    assign_group_offsets,
    bind_states,
    on_device,
    with_double_buffers,
)
from glnn.compiler.step import Step, resident_bytes
from glnn.compiler.update_fusion import fuse_updates
from glnn.compiler.weights import Weight, Weights
from glnn.core.cached_property import cached_property
from glnn.core.layout import parse
from glnn.core.symint import hint
from glnn.core.types import DType, Shape, widened
from glnn.errors import UnsupportedOpError
from glnn.graph.constant import constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators.control_flow import Control
from glnn.graph.passes import Pass, batch_size_of
from glnn.kernels.kernel import Kernel
from glnn.kernels.selector import names_of

TRIES = 8  # plans that are looked at in each way where memory is short
Selection = Mapping[int, int]
"""The place of an option, by the place of its decision."""
SMALL = 1 << 14  # floats of what shares no memory where launches may change places
Key = tuple[str, str]
"""What goes before the names of a body, as `Outline.walk` has it, and a tensor there."""


class Needing(Protocol):
    """Protocol of objects that need a number of bytes."""

    @property
    def need(self) -> int: ...


T = TypeVar("T", bound=Needing)


@dataclass(frozen=True)
class Open:
    """A decision that memory may change.

    options: the kernels that there are, first the one that was chosen. arena: the place of the
    arena that its tensors lie in. levels: bytes there that are needed at the same time, by option.
    """

    options: tuple[Alternative, ...]
    arena: int
    levels: tuple[int, ...]

    def seconds(self, option: int) -> float:
        """Return the seconds of `option`, but no less than those of the option chosen first."""
        return max(one.takes.seconds for one in (self.options[0], self.options[option]))

    def weights(self, option: int) -> int:
        """Bytes of the weights."""
        return self.options[option].takes.weights


@dataclass(frozen=True)
class Budget:
    """Estimate of the bytes that a plan needs, for each choice of its kernels.

    decisions: those that memory may change. floors: bytes of each arena that are needed at the same
    time whatever is decided. rest: bytes of all else.
    """

    decisions: Sequence[Open]
    floors: Sequence[int]
    rest: int

    @classmethod
    def from_need(cls, need: int, decisions: Sequence[Open], floors: Sequence[int]) -> Budget:
        """Return the budget of a plan that needs `need` bytes as it was decided."""
        estimate = cls(decisions, floors, 0).need({})
        return cls(decisions, floors, need - estimate)

    def need(self, selection: Selection) -> int:
        """Bytes that are needed with `selection`, else with what was chosen."""
        levels, weights = list(self.floors), 0
        for i, decision in enumerate(self.decisions):
            option = selection.get(i, 0)
            levels[decision.arena] = max(levels[decision.arena], decision.levels[option])
            weights += decision.weights(option)
        return self.rest + weights + sum(levels)

    def within(self, nbytes: int) -> Selection | None:
        """Return choices for which `nbytes` suffice; None where there are none."""
        selection: dict[int, int] = {}
        while (missing := self.need(selection) - nbytes) > 0:
            best = max(
                self._moves(selection), key=lambda m: self._gain(selection, m, missing), default={}
            )
            if self._gain(selection, best, missing) <= 0:
                break
            selection |= best
        least = selection if missing <= 0 else self.least()
        return self.restored(least, nbytes) if self.need(least) <= nbytes else None

    def least(self) -> Selection:
        """Return the choices that need the fewest bytes."""
        result: dict[int, int] = {}
        for arena, floor in enumerate(self.floors):
            numbers = [i for i, decision in enumerate(self.decisions) if decision.arena == arena]
            levels = {floor, *(level for i in numbers for level in self.decisions[i].levels)}
            able = (self._fit_below(numbers, most) for most in levels)
            ways: list[Selection] = [way for way in able if way is not None]
            best = min(ways, key=self.need)
            result |= best
        return result

    def _fit_below(self, numbers: Sequence[int], most: int) -> dict[int, int] | None:
        """Return options of the decisions `numbers` with the fewest weights and levels up to
        `most`, or None.
        """
        result = {}
        for i in numbers:
            decision = self.decisions[i]
            able = [o for o in range(len(decision.options)) if decision.levels[o] <= most]
            if not able:
                return None
            result[i] = min((decision.weights(o), decision.seconds(o), o) for o in able)[-1]
        return result

    def _saved(self, selection: Selection, move: Selection) -> int:
        """Return the bytes that `move` saves where `selection` has been made."""
        return self.need(selection) - self.need({**selection, **move})

    def _gain(self, selection: Selection, move: Selection, missing: int) -> float:
        """Return the bytes of those `missing` that `move` saves for each second it costs."""
        saved = min(self._saved(selection, move), missing)
        losing = sum(
            self.decisions[i].seconds(option) - self.decisions[i].seconds(selection.get(i, 0))
            for i, option in move.items()
        )
        return saved / max(losing, 1e-9) if saved > 0 else saved

    def _moves(self, selection: Selection) -> Iterator[dict[int, int]]:
        """Yield changes that save memory: one decision to an option of fewer weights, or all that
        fill an arena the most to options that fill it less.
        """
        for i, decision in enumerate(self.decisions):
            now = decision.weights(selection.get(i, 0))
            for option in range(len(decision.options)):
                if decision.weights(option) < now:
                    yield {i: option}
        for arena, floor in enumerate(self.floors):
            numbers = [i for i, decision in enumerate(self.decisions) if decision.arena == arena]
            level = max((self.decisions[i].levels[selection.get(i, 0)] for i in numbers), default=0)
            if level > floor:
                full = [
                    i for i in numbers if self.decisions[i].levels[selection.get(i, 0)] == level
                ]
                lower = {i: self._lower(i, level) for i in full}
                move = {i: option for i, option in lower.items() if option is not None}
                if len(move) == len(full):
                    yield move

    def _lower(self, i: int, level: int) -> int | None:
        """The fastest option of a decision that needs less than `level`."""
        decision = self.decisions[i]
        able = [o for o in range(len(decision.options)) if decision.levels[o] < level]
        return min(able, key=lambda option: (decision.seconds(option), option), default=None)

    def rebased(self, selection: Selection, need: int) -> Budget:
        """The same, `need` bytes being needed with `selection`."""
        return replace(self, rest=self.rest + need - self.need(selection))

    def restored(
        self, selection: Selection, nbytes: int, some: Iterable[int] | None = None
    ) -> Selection:
        """Return `selection` with what need not be given up for `nbytes`: of all, or of `some`."""
        result = dict(selection)
        for i in self.losing(selection) if some is None else some:
            decision = self.decisions[i]
            for option in sorted(range(len(decision.options)), key=decision.seconds):
                faster = decision.seconds(option) < decision.seconds(result[i])
                if faster and self.need({**result, i: option}) <= nbytes:
                    result[i] = option
                    break
        return result

    def losing(self, selection: Selection) -> list[int]:
        """The decisions in `selection`, those first that lose the most time."""

        def seconds(i: int) -> float:
            return self.decisions[i].seconds(selection[i]) - self.decisions[i].seconds(0)

        return sorted(selection, key=seconds, reverse=True)


def fitted(budget: Budget, decide: Callable[[Selection], T], available: int) -> T:
    """Return the result of `decide` for the choices that need at most `available` bytes, or else
    the fewest.

    decide: gives what really comes of what is taken. It tells what the budget does not know, how
    memories of several sizes share blocks.
    """
    selection, result = _descended(budget, decide, available)
    tries = TRIES if result.need <= available else 0
    for some in (None, *((i,) for i in budget.losing(selection))):
        more = budget.rebased(selection, result.need).restored(selection, available, some)
        if more != selection and tries:
            tries -= 1
            tried = decide(more)
            if tried.need <= available:
                selection, result = more, tried
    return result


def _descended(
    budget: Budget, decide: Callable[[Selection], T], available: int
) -> tuple[Selection, T]:
    """The first that fits, of what is taken for fewer and fewer bytes; else the least."""
    aim, never, least = available, 0, available
    for _ in range(TRIES):
        selection = budget.within(aim)
        if selection is None:
            never = max(never, aim)
        else:
            plan = decide(selection)
            if plan.need <= available:
                return selection, plan
            least = min(least, aim)
            aim -= plan.need - available
        if selection is None or aim <= never:
            if never >= least:
                break
            aim = (least + never) // 2
    return (selection := budget.least()), decide(selection)


@dataclass(frozen=True)
class OutlineOptions:
    """Options of an outline beside its graph and shapes.

    samples: of a batch. instead: what to take for chosen kernels, by the tensor of the result.
    """

    backend: Backend
    kernels: Mapping[str, str]
    without: frozenset[Pass]
    keep: bool
    weights: Weights | None
    precision: DType
    samples: int
    states: StateSpecs = NO_STATES
    instead: Mapping[Key, Choice] = field(default_factory=dict)

    def with_selection(
        self, keys: Sequence[Key], budget: Budget, selection: Selection
    ) -> OutlineOptions:
        """The same with `selection` of the decisions so called."""
        choices = {keys[i]: budget.decisions[i].options[o].choice for i, o in selection.items()}
        return replace(self, instead=choices)


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
    carried: tuple[StateBinding, ...]
    tight: bool = False
    """True where it was made for less memory than the fastest kernels need."""

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

    @cached_property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, of a plan for a GPU."""
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
        shapes = (tuple(map(hint, weight.shape)) for weight in self.constants.values())
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
        uploaded = most = 0
        for step in self.every:  # weights come first, one after the other
            uploaded += step.nbytes[1] + step.fixed_copies
            most = max(most, uploaded + step.passing)
        return max(most, self.nbytes)

    @property
    def need(self) -> int:
        """Bytes of `peak` that are not there yet."""
        return self.peak - self.held

    @classmethod
    def create(
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
        states: StateSpecs = NO_STATES,
    ) -> Outline:
        """The outline of `graph`; the arguments are those of Plan, which raises the same.

        available: the bytes that it should need at the most. Where the fastest kernels need more,
        others are taken instead, until it does or nothing helps.
        """
        kernels, count = dict(kernels or {}), samples or batch_size_of(graph, shapes)
        outline_options = OutlineOptions(
            backend, kernels, frozenset(without), keep, weights, precision, count, states
        )
        made = cls._build(graph, shapes, outline_options)
        if available is not None and made.need > available:
            # What is updated at once is there at once, few kernels pool, no output needs a copy.
            outline_options = replace(
                outline_options,
                without=outline_options.without | {Pass.GROUP, Pass.POOLED, Pass.ROWS},
            )
            made = cls._build(graph, shapes, outline_options)
            if made.need > available:
                made = cls._fitted(made, graph, shapes, outline_options, available)
            made = replace(made, tight=True)
        schedules = [outline.schedule for _, outline in made.walk()]
        entries = [entry for schedule in schedules for entry in schedule.entries]
        names = {name for e in entries for name in (e.choice.name, e.lowered.via)}
        for name, kernel in kernels.items():
            if not any(name in schedule.ops for schedule in schedules):
                raise UnsupportedOpError(f"kernel for {name}: {graph.name} has no op of that name")
            for one in names_of(kernel) or (kernel,):
                if one not in names:
                    raise UnsupportedOpError(f"kernel {name}={one} can compute no step of it")
        return made

    @classmethod
    def _fitted(
        cls,
        made: Outline,
        graph: Graph,
        shapes: Mapping[str, Shape],
        outline_options: OutlineOptions,
        available: int,
    ) -> Outline:
        """`made` with other kernels, such that it needs what is `available`; as little as it can
        where that is not enough.
        """
        keys, budget = made._budget()

        def decide(selection: Selection) -> Outline:
            return cls._build(
                graph, shapes, outline_options.with_selection(keys, budget, selection)
            )

        return fitted(budget, decide, available)

    def _budget(self) -> tuple[list[Key], Budget]:
        """Return the decisions that memory may change: their keys, and the budget made of them."""
        keys: list[Key] = []
        decisions: list[Open] = []
        floors: list[int] = []
        for number, (within, outline) in enumerate(self.walk()):
            others = set(range(len(outline.schedule.entries)))
            for decision, options in outline.open:
                levels = tuple(outline.level(decision, option) for option in options)
                decisions.append(Open(options, number, levels))
                keys.append((within, decision.lowered.output))
                others -= set(decision.entries)
            floors.append(4 * outline.arena.floor(others))
        return keys, Budget.from_need(self.need, decisions, floors)

    @property
    def most(self) -> int:
        """Bytes that share blocks and are needed at the same time."""
        return 4 * self.arena.floor(set(range(len(self.schedule.entries))))

    def level(self, decision: KernelChoice, option: Alternative) -> int:
        """Bytes that share blocks and are needed at the same time where that option is taken."""
        tensors, entries = self.schedule.tensors, decision.entries
        ending = {
            name: 4 * self.arena.ending(tensors[tensor].memory, entries)
            for name, tensor in decision.lowered.operands.items()
        }
        return 4 * self.arena.live_beside(entries) + option.takes.level(ending)

    @property
    def open(self) -> list[tuple[KernelChoice, tuple[Alternative, ...]]]:
        """The decisions that memory may change, each with the kernels that there are for it, first
        the one that was chosen. Not those where a kernel was asked for, nor those for stages.
        """
        backend, decisions = self.schedule.backend, self.schedule.decisions
        outline_options = [one for one in decisions if one.lowered.via is None and one.entries]
        alike = {(one.choice, one.spec): one for one in outline_options}
        alternatives = {key: tuple(backend.alternatives(*key)) for key in alike}
        options = [(one, alternatives[one.choice, one.spec]) for one in outline_options]
        return [(one, some) for one, some in options if len(some) > 1]

    @classmethod
    def _build(
        cls,
        graph: Graph,
        shapes: Mapping[str, Shape],
        outline_options: OutlineOptions,
        within: str = "",
    ) -> Outline:
        """within: what goes before the names of what is in a body; empty where it is none."""
        backend, body = outline_options.backend, bool(within)
        states = NO_STATES if body else outline_options.states
        graph, schedule = lowered(
            graph,
            backend,
            shapes,
            outline_options.kernels,
            without=outline_options.without,
            precision=outline_options.precision,
            samples=outline_options.samples,
            body=body,
            instead={
                name: choice
                for (at, name), choice in outline_options.instead.items()
                if at == within
            },
            states=states.types,
            updates=states.updates,
        )
        there = bind_states(schedule, graph, states)
        updated = states.updates.values()
        changing = [v for v in graph.outputs if graph.changes(v) and v.name not in updated]
        outputs = schedule.for_host(changing, body, Pass.ROWS not in outline_options.without)
        outputs |= {
            states.updates[one.name]: one.after for one in there if one.readable and one.after
        }
        fixed = [value for value in graph.outputs if body and value.name not in outputs]
        types = graph.infer_types(graph.input_types(shapes)) if fixed else {}
        constants = {
            value: Weight(constant(graph, value, {}), widened(types.get(value, value.type)))
            for value in fixed
        }
        bodies: dict[str, tuple[Outline, ...]] = {}
        wholes = assign_group_offsets(schedule, there, states)
        ends = (name for one in there for name in (one.before, one.after) if name is not None)
        kept = [*outputs.values(), *ends]
        if (
            Pass.SUBVIEWS not in outline_options.without
            and not {"concat", "move"} & outline_options.kernels.keys()
        ):
            alias_concats(schedule, kept)
            alias_rows(schedule, kept)
        if outline_options.precision is DType.float16 and not (
            body or there or Pass.HALVES in outline_options.without
        ):
            store_as_fp16(schedule, kept)
        without = outline_options.without | (frozenset() if wholes else {Pass.CONSUMERS})
        schedule = _with_joined_consumers(schedule, wholes, kept, without)
        for entry in schedule.entries:
            if isinstance(op := entry.lowered.op, Control):
                body_types = op.body_types(op.positional(dict(entry.spec.operands)))
                body_shapes = ({k: one.shape for k, one in some.items()} for some in body_types)
                bodies[entry.lowered.output] = tuple(
                    cls._build(
                        one,
                        own_shapes,
                        outline_options,
                        f"{within}{entry.lowered.name}/{one.name}/",
                    )
                    for one, own_shapes in zip(op.bodies, body_shapes, strict=True)
                )
                kept += [
                    *entry.lowered.operands.values(),
                    entry.lowered.output,
                    *entry.lowered.more,
                ]
        share, least = backend.shares and not outline_options.keep, SMALL if there else 0
        arena = Arena.plan(schedule, kept, share=share, least=least)
        hinted = schedule.hinted  # what people are told, and memory, are of the sizes at hand
        steps = with_double_buffers(Step.all_of(hinted, arena), there, schedule, arena)
        blocks = tuple(4 * size for size in arena.sizes)
        held = resident_bytes(hinted, outline_options.weights) if outline_options.weights else 0
        held += sum(one.held for some in bodies.values() for one in some)
        held += on_device(there, states, schedule, arena)
        return cls(graph, schedule, arena, steps, blocks, held, bodies, outputs, constants, there)

    def examine(self) -> bool:
        """See whether its kernels are right here; whether some are not, so that it is made anew."""
        return any(outline.schedule.examine() for _, outline in self.walk())


def _with_joined_consumers(
    schedule: Schedule, wholes: Iterable[str], live_out: Sequence[str], without: frozenset[Pass]
) -> Schedule:
    """Return `schedule` with updates of states joined, in the way that leaves fewest launches.

    wholes: the memories of states that were added together, as those of training are; other plans
    join nothing. Those of many parameters are one launch as they lie one behind the other; where
    some of them join the kernels that make their gradients, the others may become several.
    """
    result: list[Schedule] = []
    if Pass.CONSUMERS not in without:
        join_consumers(schedule, live_out, in_place=False)
        joined = schedule.copy()
        if join_consumers(joined, live_out, in_place=True):
            result.append(joined)
    result.append(schedule)
    if Pass.GROUP not in without:
        for one in result:
            fuse_updates(one, wholes, live_out)
    return min(result, key=lambda one: len(one.entries))


@dataclass(frozen=True)
class Reason:
    """Why one kernel was chosen.

    name: of what it computes. kernel: what it is called, with the parts that it works in. other:
    the kernel it is held against: one that computes all at once, else what was given up. times: how
    often as fast it is by prediction. weights, workspace: bytes that it takes more, of weights and
    of what is there at the same time. given_up: what would have been chosen had there been memory;
    None where it was. lacking: bytes that there would have to be more for that, as far as that can
    be told.
    """

    name: str
    op: str
    kernel: str
    other: str
    times: float
    weights: int
    workspace: int
    given_up: str | None
    lacking: int


def reasons(outline: Outline, available: int | None) -> Iterator[Reason]:
    """Yield the reasons for all decisions of `outline` and its bodies that change the size of
    weights.

    available: bytes that it was to need at the most; None for as many as it likes.
    """
    room = None if available is None else available - outline.need
    for within, part in outline.walk():
        for decision, options in part.open:
            if len({option.takes.weights for option in options}) > 1:
                yield _reason(part, within, decision, options, room)


def _reason(
    outline: Outline,
    within: str,
    decision: KernelChoice,
    options: tuple[Alternative, ...],
    room: int | None,
) -> Reason:
    """room: bytes that there are still."""
    chosen, backend = options[0], outline.schedule.backend
    first = backend.choose(decision.spec)
    wanted = next((option for option in options if option.choice == first), chosen)
    whole = next((option for option in options[1:] if not _staged(option)), None)
    held = [*filter(None, [whole]), wanted, *options[1:]]
    other = next(option for option in held if option is not chosen)
    weights, levels = chosen.takes.weights, outline.level
    above = max(levels(decision, wanted) - outline.most, 0)
    return Reason(
        within + decision.lowered.name,
        decision.lowered.op.name,
        _called(chosen),
        _called(other),
        other.takes.seconds / chosen.takes.seconds,
        weights - other.takes.weights,
        levels(decision, chosen) - levels(decision, other),
        None if wanted is chosen or room is None else _called(wanted),
        wanted.takes.weights - weights + above - (room or 0),
    )


def _staged(option: Alternative) -> bool:
    return isinstance(option.choice, Kernel) and bool(option.choice.stages)


def _called(option: Alternative) -> str:
    """The kernel's name, with the parts that it works in."""
    kernel = option.choice
    # Of kernels without stages PARTS is no count.
    parts = kernel.defaults.get("PARTS", 1) if isinstance(kernel, Kernel) and kernel.stages else 1
    return kernel.name if parts == 1 else f"{kernel.name} in {parts} parts"
