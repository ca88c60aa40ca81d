"""Outlines: plans before anything is allocated, made to fit the free memory.

Where memory is short, a plan gives up the kernels that cost the most bytes for the time that they
save.
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
from glnn.compiler.lower import lower_graph
from glnn.compiler.memory_planner import Arena
from glnn.compiler.row_aliasing import alias_rows
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import KernelChoice, ScheduledOp
from glnn.compiler.state_binding import (
    NO_STATES,
    StateBinding,
    StateSpecs,
    assign_group_offsets,
    bind_states,
    resident_state_bytes,
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

TRIES = 8  # outlines that each search makes at most where memory is short
Selection = Mapping[int, int]
"""The index of the option taken, by the index of its decision."""
SMALL = 1 << 14  # floats: in a plan with states, smaller memories share no block
Key = tuple[str, str]
"""The prefix of a body's names (see `Outline.walk`), and the name of a tensor there."""


class Sized(Protocol):
    """Protocol of plans that need a number of bytes."""

    @property
    def need(self) -> int: ...


T = TypeVar("T", bound=Sized)


@dataclass(frozen=True)
class Decision:
    """A choice of a kernel that may be changed to save memory.

    options: the kernels that can compute the operator, first the one that was chosen. arena: the
    index of the arena of its tensors. levels: bytes live in that arena while it runs, by option.
    """

    options: tuple[Alternative, ...]
    arena: int
    levels: tuple[int, ...]

    def seconds(self, option: int) -> float:
        """Return the seconds of `option`, but no less than those of the option chosen first."""
        return max(self.options[i].takes.seconds for i in (0, option))

    def weights(self, option: int) -> int:
        """Return the bytes of the weights of `option`."""
        return self.options[option].takes.weights


@dataclass(frozen=True)
class Budget:
    """Estimate of the bytes that a plan needs, for each choice of its kernels.

    A `Selection` names the decisions that take another option than the chosen one, option 0.

    decisions: those that may be changed to save memory. floors: bytes live at the same time in each
    arena whatever is decided. fixed: bytes of everything else.
    """

    decisions: Sequence[Decision]
    floors: Sequence[int]
    fixed: int

    @classmethod
    def from_need(cls, need: int, decisions: Sequence[Decision], floors: Sequence[int]) -> Budget:
        """Return the budget of a plan that needs `need` bytes with the chosen options."""
        estimate = cls(decisions, floors, 0).need({})
        return cls(decisions, floors, need - estimate)

    def need(self, selection: Selection) -> int:
        """Return the bytes needed with `selection`."""
        levels, weights = list(self.floors), 0
        for i, decision in enumerate(self.decisions):
            option = selection.get(i, 0)
            levels[decision.arena] = max(levels[decision.arena], decision.levels[option])
            weights += decision.weights(option)
        return self.fixed + weights + sum(levels)

    def fit(self, nbytes: int) -> Selection | None:
        """Return a selection that needs at most `nbytes`; None where there is none.

        Greedy: as long as bytes are missing, the change is made that saves the most of them for the
        time that it costs. Changes that turn out unnecessary are undone at the end.
        """
        selection: dict[int, int] = {}
        while (missing := self.need(selection) - nbytes) > 0:
            best = max(
                self._moves(selection), key=lambda m: self._gain(selection, m, missing), default={}
            )
            if self._gain(selection, best, missing) <= 0:
                break
            selection |= best
        fitting = selection if missing <= 0 else self.smallest()
        return self.restore(fitting, nbytes) if self.need(fitting) <= nbytes else None

    def smallest(self) -> Selection:
        """Return the selection that needs the fewest bytes."""
        result: dict[int, int] = {}
        for arena, floor in enumerate(self.floors):
            indices = self._in_arena(arena)
            levels = {floor, *(level for i in indices for level in self.decisions[i].levels)}
            selections = (self._fit_below(indices, level) for level in levels)
            candidates: list[Selection] = [one for one in selections if one is not None]
            best = min(candidates, key=self.need)
            result |= best
        return result

    def _in_arena(self, arena: int) -> list[int]:
        """Return the indices of the decisions whose tensors are in `arena`."""
        return [i for i, decision in enumerate(self.decisions) if decision.arena == arena]

    def _fit_below(self, indices: Sequence[int], level: int) -> dict[int, int] | None:
        """Return the options of the decisions `indices` with the fewest bytes of weights whose
        levels are at most `level`; None where a decision has no such option.
        """
        result = {}
        for i in indices:
            decision = self.decisions[i]
            options = [o for o in range(len(decision.options)) if decision.levels[o] <= level]
            if not options:
                return None
            result[i] = min((decision.weights(o), decision.seconds(o), o) for o in options)[-1]
        return result

    def _saved(self, selection: Selection, move: Selection) -> int:
        """Return the bytes that `move` saves when it is added to `selection`."""
        return self.need(selection) - self.need({**selection, **move})

    def _gain(self, selection: Selection, move: Selection, missing: int) -> float:
        """Return how many of the `missing` bytes `move` saves for each second that it costs."""
        saved = min(self._saved(selection, move), missing)
        seconds = sum(
            self.decisions[i].seconds(option) - self.decisions[i].seconds(selection.get(i, 0))
            for i, option in move.items()
        )
        return saved / max(seconds, 1e-9) if saved > 0 else saved

    def _moves(self, selection: Selection) -> Iterator[dict[int, int]]:
        """Yield changes that save memory: one decision takes an option of fewer weights, or all
        decisions at the highest level of an arena take options of a lower level.
        """
        for i, decision in enumerate(self.decisions):
            now = decision.weights(selection.get(i, 0))
            for option in range(len(decision.options)):
                if decision.weights(option) < now:
                    yield {i: option}
        for arena, floor in enumerate(self.floors):
            indices = self._in_arena(arena)
            level = max((self.decisions[i].levels[selection.get(i, 0)] for i in indices), default=0)
            if level > floor:
                full = [
                    i for i in indices if self.decisions[i].levels[selection.get(i, 0)] == level
                ]
                lower = {i: self._lower(i, level) for i in full}
                move = {i: option for i, option in lower.items() if option is not None}
                if len(move) == len(full):
                    yield move

    def _lower(self, i: int, level: int) -> int | None:
        """Return the fastest option of decision `i` below `level`; None where there is none."""
        decision = self.decisions[i]
        options = [o for o in range(len(decision.options)) if decision.levels[o] < level]
        return min(options, key=lambda option: (decision.seconds(option), option), default=None)

    def calibrated(self, selection: Selection, need: int) -> Budget:
        """Return the budget corrected so that `selection` needs `need` bytes."""
        return replace(self, fixed=self.fixed + need - self.need(selection))

    def restore(
        self, selection: Selection, nbytes: int, indices: Iterable[int] | None = None
    ) -> Selection:
        """Return `selection` with faster options where these still fit into `nbytes`.

        indices: the decisions that may be changed back; None for all in `selection`.
        """
        result = dict(selection)
        for i in self.by_lost_time(selection) if indices is None else indices:
            decision = self.decisions[i]
            for option in sorted(range(len(decision.options)), key=decision.seconds):
                faster = decision.seconds(option) < decision.seconds(result[i])
                if faster and self.need({**result, i: option}) <= nbytes:
                    result[i] = option
                    break
        return result

    def by_lost_time(self, selection: Selection) -> list[int]:
        """Return the decisions in `selection`, the one that loses the most time first."""

        def seconds(i: int) -> float:
            return self.decisions[i].seconds(selection[i]) - self.decisions[i].seconds(0)

        return sorted(selection, key=seconds, reverse=True)


def fit_plan(budget: Budget, build: Callable[[Selection], T], available: int) -> T:
    """Return a plan that needs at most `available` bytes, or else the smallest.

    build: makes the plan of a selection. It tells what the budget only estimates: how memories of
    several sizes share blocks.
    """
    selection, plan = _first_fitting(budget, build, available)
    tries = TRIES if plan.need <= available else 0
    for indices in (None, *((i,) for i in budget.by_lost_time(selection))):
        faster = budget.calibrated(selection, plan.need).restore(selection, available, indices)
        if faster != selection and tries:
            tries -= 1
            faster_plan = build(faster)
            if faster_plan.need <= available:
                selection, plan = faster, faster_plan
    return plan


def _first_fitting(
    budget: Budget, build: Callable[[Selection], T], available: int
) -> tuple[Selection, T]:
    """Return the first plan that fits, of selections for fewer and fewer bytes; else the smallest.

    The budget may underestimate: the plan of a selection for `target` bytes may need more than
    `available`. Then the target goes down by the excess, or by bisection between `too_low`, for
    which there is no selection, and `too_high`, whose plan did not fit.
    """
    target, too_low, too_high = available, 0, available
    for _ in range(TRIES):
        selection = budget.fit(target)
        if selection is None:
            too_low = max(too_low, target)
        else:
            plan = build(selection)
            if plan.need <= available:
                return selection, plan
            too_high = min(too_high, target)
            target -= plan.need - available
        if selection is None or target <= too_low:
            if too_low >= too_high:
                break
            target = (too_high + too_low) // 2
    return (selection := budget.smallest()), build(selection)


@dataclass(frozen=True)
class OutlineOptions:
    """Options of an outline beside its graph and shapes; see `Plan`.

    samples: of a batch. overrides: kernels to take in place of the chosen ones, by the tensor of
    the result.
    """

    backend: Backend
    kernels: Mapping[str, str]
    without: frozenset[Pass]
    keep: bool
    weights: Weights | None
    precision: DType
    samples: int
    states: StateSpecs = NO_STATES
    overrides: Mapping[Key, Choice] = field(default_factory=dict)

    def with_selection(
        self, keys: Sequence[Key], budget: Budget, selection: Selection
    ) -> OutlineOptions:
        """Return these options with `selection` as overrides. keys: of the budget's decisions."""
        choices = {keys[i]: budget.decisions[i].options[o].choice for i, o in selection.items()}
        return replace(self, overrides=choices)


@dataclass(frozen=True)
class Outline:
    """A plan before anything is allocated.

    graph: the graph after all passes. blocks: bytes of each block of memory that tensors share.
    resident: bytes of parameters and states that are on the device already. bodies: the outlines of
    the graphs that a branch or loop runs, by the first result of its step; they have blocks of
    their own. outputs: the tensor of each output that runs change, by its name. constants: the
    outputs of a body that no run changes. states: the states that the plan reads or updates.
    """

    graph: Graph
    schedule: Schedule
    arena: Arena
    steps: tuple[Step, ...]
    blocks: tuple[int, ...]
    resident: int
    bodies: Mapping[str, tuple[Outline, ...]]
    outputs: Mapping[str, str]
    constants: Mapping[Value, Weight]
    states: tuple[StateBinding, ...]
    is_reduced: bool = False
    """True where it was made for less memory than the fastest kernels need."""

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Outline]]:
        """Yield this outline and those of all bodies in it, in order, each with the prefix of its
        steps' names: `loop/body/` for the body `body` of the step `loop`.
        """
        yield prefix, self
        for step in self.steps:
            for body in self.bodies.get(step.output, ()):
                yield from body.walk(f"{prefix}{step.name}/{body.graph.name}/")

    @property
    def all_steps(self) -> Iterator[Step]:
        """The steps, those of bodies too."""
        return (step for _, outline in self.walk() for step in outline.steps)

    @cached_property
    def hosted(self) -> tuple[Hosted, ...]:
        """Return the steps that the host computes, of a plan for a GPU."""
        return tuple(
            Hosted(step.layer, step.op.label, step.why) for step in self.all_steps if step.why
        )

    @property
    def tensors(self) -> int:
        """Bytes of all blocks of memory."""
        return sum(sum(outline.blocks) for _, outline in self.walk())

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        constants = sum(outline.constant_bytes for _, outline in self.walk())
        return constants + sum(step.nbytes[1] for step in self.all_steps)

    @property
    def constant_bytes(self) -> int:
        """Bytes of `constants`, which are stored as weights are."""
        backend, rows = self.schedule.backend, parse("R")
        shapes = (tuple(map(hint, weight.shape)) for weight in self.constants.values())
        return sum(4 * backend.capacity(rows.size(shape)) for shape in shapes)

    @property
    def saved(self) -> int:
        """Bytes saved by parameters that are stored as float16 or int8 instead of float32."""
        return sum(step.saved for step in self.all_steps)

    @property
    def copies(self) -> int:
        """Bytes of the textures that hold copies of operands."""
        return sum(step.nbytes[2] for step in self.all_steps)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the plan takes."""
        return self.tensors + self.parameters + self.copies

    @property
    def peak(self) -> int:
        """The most bytes that it takes at one time, which may be while weights are uploaded."""
        uploaded = most = 0
        for step in self.all_steps:  # weights are uploaded first, one after the other
            uploaded += step.nbytes[1] + step.fixed_copies
            most = max(most, uploaded + step.upload_peak)
        return max(most, self.nbytes)

    @property
    def need(self) -> int:
        """Bytes of `peak` that are yet to be allocated."""
        return self.peak - self.resident

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
        """Return the outline of `graph`. Takes the arguments of Plan, and raises the same.

        available: the most bytes that it should need. Where the fastest kernels need more, others
        are taken instead, as far as that helps.
        """
        kernels, count = dict(kernels or {}), samples or batch_size_of(graph, shapes)
        outline_options = OutlineOptions(
            backend, kernels, frozenset(without), keep, weights, precision, count, states
        )
        outline = cls._build(graph, shapes, outline_options)
        if available is not None and outline.need > available:
            # Fused updates need all of their operands live at once, few kernels pool, and outputs
            # need no copies in rows.
            outline_options = replace(
                outline_options,
                without=outline_options.without | {Pass.GROUP, Pass.POOLED, Pass.ROWS},
            )
            outline = cls._build(graph, shapes, outline_options)
            if outline.need > available:
                outline = outline._fitted(graph, shapes, outline_options, available)
            outline = replace(outline, is_reduced=True)
        schedules = [part.schedule for _, part in outline.walk()]
        entries = [entry for schedule in schedules for entry in schedule.entries]
        names = {name for e in entries for name in (e.choice.name, e.lowered.stage_of)}
        for name, kernel in kernels.items():
            if not any(name in schedule.ops for schedule in schedules):
                raise UnsupportedOpError(f"kernel for {name}: {graph.name} has no op of that name")
            for one in names_of(kernel) or (kernel,):
                if one not in names:
                    raise UnsupportedOpError(f"kernel {name}={one} can compute no step of it")
        return outline

    def _fitted(
        self,
        graph: Graph,
        shapes: Mapping[str, Shape],
        outline_options: OutlineOptions,
        available: int,
    ) -> Outline:
        """Return the outline of `graph` with other kernels, such that it needs at most `available`
        bytes, or as few as it can.
        """
        keys, budget = self._budget()

        def build(selection: Selection) -> Outline:
            return self._build(
                graph, shapes, outline_options.with_selection(keys, budget, selection)
            )

        return fit_plan(budget, build, available)

    def _budget(self) -> tuple[list[Key], Budget]:
        """Return the keys of the decisions that memory may change, and the budget of these."""
        keys: list[Key] = []
        decisions: list[Decision] = []
        floors: list[int] = []
        for number, (prefix, outline) in enumerate(self.walk()):
            others = set(range(len(outline.schedule.entries)))
            for choice, options in outline.open_choices:
                levels = tuple(outline.live_bytes(choice, option) for option in options)
                decisions.append(Decision(options, number, levels))
                keys.append((prefix, choice.lowered.output))
                others -= set(choice.entries)
            floors.append(4 * outline.arena.floor(others))
        return keys, Budget.from_need(self.need, decisions, floors)

    @property
    def most_live_bytes(self) -> int:
        """The most bytes of shared blocks that are live at the same time."""
        return 4 * self.arena.floor(set(range(len(self.schedule.entries))))

    def live_bytes(self, choice: KernelChoice, option: Alternative) -> int:
        """Return the bytes of shared blocks that are live while `option` computes the operator of
        `choice`.
        """
        tensors, entries = self.schedule.tensors, choice.entries
        freed = {
            name: 4 * self.arena.freed_by(entries, tensors[tensor].memory)
            for name, tensor in choice.lowered.operands.items()
        }
        return 4 * self.arena.live_beside(entries) + option.takes.level(freed)

    @property
    def open_choices(self) -> list[tuple[KernelChoice, tuple[Alternative, ...]]]:
        """The choices that memory may change, each with all kernels for it, the chosen one first.

        Choices of kernels that were asked for are left out, and those for stages of a kernel.
        """
        backend, decisions = self.schedule.backend, self.schedule.decisions
        choices = [one for one in decisions if one.lowered.stage_of is None and one.entries]
        keys = dict.fromkeys((one.choice, one.spec) for one in choices)
        alternatives = {key: tuple(backend.alternatives(*key)) for key in keys}
        pairs = [(one, alternatives[one.choice, one.spec]) for one in choices]
        return [(choice, options) for choice, options in pairs if len(options) > 1]

    @classmethod
    def _build(
        cls,
        graph: Graph,
        shapes: Mapping[str, Shape],
        outline_options: OutlineOptions,
        prefix: str = "",
    ) -> Outline:
        """Return the outline of `graph`. prefix: see `walk`; empty where it is no body."""
        backend, body = outline_options.backend, bool(prefix)
        states = NO_STATES if body else outline_options.states
        graph, schedule = lower_graph(
            graph,
            backend,
            shapes,
            outline_options.kernels,
            without=outline_options.without,
            precision=outline_options.precision,
            samples=outline_options.samples,
            body=body,
            overrides={
                name: choice
                for (start, name), choice in outline_options.overrides.items()
                if start == prefix
            },
            states=states.types,
            updates=states.updates,
        )
        bindings = bind_states(schedule, graph, states)
        updated = states.updates.values()
        changing = [v for v in graph.outputs if graph.changes(v) and v.name not in updated]
        outputs = schedule.for_host(changing, body, Pass.ROWS not in outline_options.without)
        outputs |= {
            states.updates[one.name]: one.after for one in bindings if one.readable and one.after
        }
        fixed = [value for value in graph.outputs if body and value.name not in outputs]
        types = graph.infer_types(graph.input_types(shapes)) if fixed else {}
        constants = {
            value: Weight(constant(graph, value, {}), widened(types.get(value, value.type)))
            for value in fixed
        }
        groups = assign_group_offsets(schedule, bindings, states)
        live_out = [*outputs.values(), *(name for one in bindings for name in one.tensors)]
        if (
            Pass.SUBVIEWS not in outline_options.without
            and not {"concat", "move"} & outline_options.kernels.keys()
        ):
            alias_concats(schedule, live_out)
            alias_rows(schedule, live_out)
        if outline_options.precision is DType.float16 and not (
            body or bindings or Pass.HALVES in outline_options.without
        ):
            store_as_fp16(schedule, live_out)
        without = outline_options.without | (frozenset() if groups else {Pass.CONSUMERS})
        schedule = _with_joined_updates(schedule, groups, live_out, without)
        bodies: dict[str, tuple[Outline, ...]] = {}
        for entry in schedule.entries:
            if isinstance(entry.lowered.op, Control):
                bodies[entry.lowered.output] = cls._build_bodies(entry, outline_options, prefix)
                live_out += entry.tensors
        share, least = backend.shares and not outline_options.keep, SMALL if bindings else 0
        arena = Arena.plan(schedule, live_out, share=share, least=least)
        hinted = schedule.hinted  # steps for people, and bytes, are of the sizes at hand
        steps = with_double_buffers(Step.all_of(hinted, arena), bindings, schedule, arena)
        blocks = tuple(4 * size for size in arena.sizes)
        resident = resident_bytes(hinted, outline_options.weights) if outline_options.weights else 0
        resident += sum(body.resident for outlines in bodies.values() for body in outlines)
        resident += resident_state_bytes(bindings, states, schedule, arena)
        return cls(
            graph, schedule, arena, steps, blocks, resident, bodies, outputs, constants, bindings
        )

    @classmethod
    def _build_bodies(
        cls, entry: ScheduledOp, outline_options: OutlineOptions, prefix: str
    ) -> tuple[Outline, ...]:
        """Return the outlines of the bodies of `entry`, a branch or a loop."""
        op, start = entry.lowered.op, f"{prefix}{entry.lowered.name}/"
        assert isinstance(op, Control)
        body_types = op.body_types(op.positional(dict(entry.spec.operands)))
        return tuple(
            cls._build(
                body,
                {name: type.shape for name, type in types.items()},
                outline_options,
                f"{start}{body.name}/",
            )
            for body, types in zip(op.bodies, body_types, strict=True)
        )

    def examine(self) -> bool:
        """Compare its kernels with NumPy; return True where some are wrong, to be made anew."""
        return any(outline.schedule.examine() for _, outline in self.walk())


def _with_joined_updates(
    schedule: Schedule, groups: Iterable[str], live_out: Sequence[str], without: frozenset[Pass]
) -> Schedule:
    """Return `schedule` with updates of states joined, in the way that leaves the fewest launches.

    An update may join the kernel that makes its gradient (`join_consumers`), and the updates of
    many parameters become one launch (`fuse_updates`). Where some do the former, the others may
    take several launches for the latter: so both ways are tried, with and without the former.

    groups: the memories of states that were added together, as those of training are; plans without
    such memories join nothing.
    """
    candidates: list[Schedule] = []
    if Pass.CONSUMERS not in without:
        join_consumers(schedule, live_out, in_place=False)
        joined = schedule.copy()
        if join_consumers(joined, live_out, in_place=True):
            candidates.append(joined)
    candidates.append(schedule)
    if Pass.GROUP not in without:
        for candidate in candidates:
            fuse_updates(candidate, groups, live_out)
    return min(candidates, key=lambda one: len(one.entries))


@dataclass(frozen=True)
class Reason:
    """Why one kernel was chosen.

    name: the name of the step. op: its operator. kernel: the kernel's name, with the number of
    parts that it works in. other: the kernel it is compared with: one without stages, else the one
    that was given up. times: how many times as fast as `other` it is by prediction. weights,
    workspace: bytes that it takes more than `other`, of weights and of live tensors. given_up: the
    kernel that would have been chosen with enough memory; None where that is `kernel`. lacking:
    estimate of the further bytes that `given_up` would need.
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
    """Yield the reasons for all choices of `outline` and its bodies that change the size of
    weights.

    available: the most bytes that it was to need; None for any number.
    """
    free = None if available is None else available - outline.need
    for prefix, part in outline.walk():
        for choice, options in part.open_choices:
            if len({option.takes.weights for option in options}) > 1:
                yield _reason(part, prefix, choice, options, free)


def _reason(
    outline: Outline,
    prefix: str,
    choice: KernelChoice,
    options: tuple[Alternative, ...],
    free: int | None,
) -> Reason:
    """Return the reason for `choice`. free: bytes that are left; None for any number."""
    chosen, backend = options[0], outline.schedule.backend
    fastest_kernel = backend.choose(choice.spec)
    fastest = next((option for option in options if option.choice == fastest_kernel), chosen)
    unstaged = next((option for option in options[1:] if not _is_staged(option)), None)
    candidates = [*filter(None, [unstaged]), fastest, *options[1:]]
    other = next(option for option in candidates if option is not chosen)
    weights, live_bytes = chosen.takes.weights, outline.live_bytes
    above = max(live_bytes(choice, fastest) - outline.most_live_bytes, 0)
    return Reason(
        prefix + choice.lowered.name,
        choice.lowered.op.name,
        _kernel_name(chosen),
        _kernel_name(other),
        other.takes.seconds / chosen.takes.seconds,
        weights - other.takes.weights,
        live_bytes(choice, chosen) - live_bytes(choice, other),
        None if fastest is chosen or free is None else _kernel_name(fastest),
        fastest.takes.weights - weights + above - (free or 0),
    )


def _is_staged(option: Alternative) -> bool:
    return isinstance(option.choice, Kernel) and bool(option.choice.stages)


def _kernel_name(option: Alternative) -> str:
    """Return the kernel's name, with the number of parts that it works in."""
    kernel = option.choice
    # Of kernels without stages PARTS is no count.
    parts = kernel.defaults.get("PARTS", 1) if isinstance(kernel, Kernel) and kernel.stages else 1
    return kernel.name if parts == 1 else f"{kernel.name} in {parts} parts"
