"""Updates of states that lie one behind the other are fused: one launch makes all of them.

Optimisers do the same with each parameter, and launches of little work cost the host more time than
the device. PyTorch has optimisers of many tensors for that, `foreach` and `fused`. Here memory is
arranged instead (see `States.add_together`): states that are updated alike lie one behind the
other, and so do the gradients that they are updated by. Pointwise work on each of them is then
pointwise work on the whole range, which any kernel does. Its results between the tensors are read
by nobody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from glnn.compiler.row_aliasing import SideBySide, row_of, side_by_side
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp, ScheduledOp, Tensor
from glnn.compiler.state_binding import MemoryOffsets, move_memories
from glnn.core.layout import Strip
from glnn.core.layout.layout import DENSE, aligned
from glnn.core.types import DType, TensorType
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.operators.pointwise import Pointwise

Kind = tuple[object, ...]
"""The properties that entries of one launch share."""


def fuse_updates(schedule: Schedule, wholes: Iterable[str], live_out: Iterable[str]) -> None:
    """Join what updates states in the memories `wholes` alike; then what makes that which it reads.

    live_out: tensors that stay in memory of their own, as somebody reads them after a run.
    """
    wholes = set(wholes)
    fixed = {schedule.tensors[name].memory for name in live_out}
    done: set[tuple[str, ...]] = set()  # what was seen to need its order
    while True:
        runs = [run for run in _runs(schedule, wholes, fixed) if _names(run) not in done]
        runs.sort(key=len, reverse=True)  # what lies beside a long one cannot beside others
        movable = next((run for run in runs if _movable(schedule, run)), None)
        if movable is None:
            return
        done.add(_names(movable))
        wholes |= _join(schedule, movable)


@dataclass(frozen=True, eq=False)
class _Member:
    """An entry that may be joined with others.

    at: its place among the entries. out: the tensor that it makes. unplaced: the operands whose
    memory may still be put anywhere. rows: those that are a row of a matrix in such a memory.
    """

    entry: ScheduledOp
    at: int
    out: Tensor
    unplaced: tuple[str, ...]
    rows: tuple[str, ...]

    @property
    def first(self) -> int:
        """The word that its result begins at."""
        return self.out.offset or 0

    @property
    def words(self) -> int:
        """Return the words that the result takes."""
        return self.out.layout.words(self.out.type)


Run = Sequence[_Member]
"""Members of one kind whose results lie one behind the other."""


def _names(run: Run) -> tuple[str, ...]:
    return tuple(member.entry.lowered.output for member in run)


def _runs(schedule: Schedule, wholes: Container[str], fixed: Container[str]) -> Iterator[Run]:
    """Yield groups of entries that can be joined if the order allows it."""
    kinds: dict[Kind, list[_Member]] = {}
    taken: set[Kind] = set()  # a gradient that two are updated by lies beside others but once
    made = [schedule.tensors[name].memory for e in schedule.entries for name in e.lowered.results]
    for at, entry in enumerate(schedule.entries):
        out = schedule.tensors[entry.lowered.output]
        lowered = entry.lowered
        plain = isinstance(lowered.op, Pointwise) and not (
            entry.host or lowered.parameters or lowered.more
        )
        if not plain or lowered.epilogue or out.memory not in wholes or not _dense(out):
            continue
        kind: list[object] = [lowered.op, entry.choice, out.memory]
        unplaced: dict[str, str] = {}
        rows: dict[str, str] = {}
        for name, tensor in lowered.operands.items():
            operand = schedule.tensors[tensor]
            if operand.shape == ():
                kind.append(tensor)
            elif operand.type != out.type or not _dense(operand):
                break
            elif (
                operand.offset is not None
                and operand.memory not in fixed
                and (row_of(schedule, operand.memory) == aligned(out.layout.words(out.type)))
            ):
                kind.append(
                    (
                        list(rows).index(operand.memory) if operand.memory in rows else len(rows),
                        operand.offset > 0,
                    )
                )
                rows.setdefault(operand.memory, name)
            elif operand.offset is not None:
                kind.append((operand.memory, operand.offset - (out.offset or 0)))
            elif made.count(operand.memory) != 1 or not _free(schedule, operand.memory, fixed):
                break
            else:
                known = list(unplaced)
                place = known.index(operand.memory) if operand.memory in known else len(known)
                kind.append(place)
                unplaced.setdefault(operand.memory, name)
        else:
            if not any((*kind, memory) in taken for memory in (*unplaced, *rows)):
                member = _Member(entry, at, out, tuple(unplaced.values()), tuple(rows.values()))
                kinds.setdefault(tuple(kind), []).append(member)
                taken |= {(*kind, memory) for memory in (*unplaced, *rows)}
    for members in kinds.values():
        yield from _adjoining(sorted(members, key=lambda member: member.first))


def _dense(tensor: Tensor) -> bool:
    """Return True for float32 tensors that are row major without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE


def _free(schedule: Schedule, memory: str, fixed: Container[str]) -> bool:
    """Return True where `memory` may be a part of another: its tensors have one size."""
    seen = [tensor for tensor in schedule.tensors.values() if tensor.memory == memory]
    alike = len({tensor.layout.words(tensor.type) for tensor in seen}) == 1
    return memory not in fixed and alike


def _adjoining(members: Run) -> Iterator[Run]:
    """Yield the runs of `members`, sorted by place, that are adjacent in memory."""
    ends = [
        at
        for at, (one, other) in enumerate(pairwise(members), 1)
        if other.first != one.first + aligned(one.words)
    ]
    for first, last in pairwise((0, *ends, len(members))):
        if last - first > 1:
            yield members[first:last]


def _movable(schedule: Schedule, run: Run) -> bool:
    """Return True where all of `run` can be computed at the place of its last member."""
    places = sorted(member.at for member in run)
    positions = set(places)
    writes: list[Tensor] = []
    reads: list[Tensor] = []
    for at in range(places[0], places[-1] + 1):
        entry, tensors = schedule.entries[at], schedule.tensors
        out = tensors[entry.lowered.output]
        operands = [tensors[name] for name in entry.lowered.operands.values()]
        made = [out, *(tensors[name] for name in entry.lowered.more)]
        if overlap([*made, *operands], writes) or overlap(made, reads):
            return False
        if at in positions:
            writes.append(out)
            reads += operands
    return True


def overlap(some: Iterable[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True where a tensor of `some` overlaps one of `others` in memory."""
    return any(
        start < other_stop and other_start < stop
        for one in some
        for other in others
        if one.memory == other.memory
        for start, stop in _ranges(one)
        for other_start, other_stop in _ranges(other)
    )


def _start(tensor: Tensor) -> int:
    return tensor.offset or 0


def _ranges(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the words of its memory that a tensor takes, from a first to before a last."""
    layout, start = tensor.layout, _start(tensor)
    words = layout.words(tensor.type)
    if not isinstance(layout, Strip):
        yield start, start + words
        return
    taken = layout.whole.words(tensor.type) // (words // layout.wide)
    for row in range(start + layout.first, start + words, layout.wide):
        yield row, row + taken


def _join(schedule: Schedule, run: Run) -> set[str]:
    """Have one entry, where the last of `run` is, in the place of all, and give the memories that
    this puts others into; or leave all as it is, where no kernel takes so much.
    """
    first, last = run[0], run[-1]
    stacks: list[SideBySide] = []
    for name in first.rows:
        if (stack := _stack_rows(schedule, run, name)) is None:
            return set()
        stacks.append(stack)
    type = TensorType((last.first + last.words - first.first,))
    lowered, places = first.entry.lowered, _adjoining_places(schedule, run)
    before, operands = dict(schedule.tensors), dict(lowered.operands)
    for stack in stacks:
        schedule.tensors.update(stack.tensors)
    for name, tensor in lowered.operands.items():
        operand = schedule.tensors[tensor]
        if operand.shape != ():
            memory, at = places.get(operand.memory) or (operand.memory, _start(operand))
            operands[name] = schedule.free(f"{tensor} and others")
            schedule.tensors[operands[name]] = Tensor(type, DENSE, memory, at)
    names = list(dict.fromkeys(member.entry.lowered.name for member in run))
    label = f"{names[0]} and {len(run) - 1} more" if len(names) > 1 else names[0]
    output, end = schedule.free(f"{lowered.output} and others"), len(schedule.entries)
    whole = LoweredOp(label, lowered.op, operands, {}, output, label, joins=_names(run))
    try:
        schedule.add(replace(whole, kernel=first.entry.choice.name))
    except (LimitError, UnsupportedOpError):
        schedule.tensors = before
        return set()
    schedule.tensors[output] = replace(first.out, type=type)
    for stack in stacks:
        schedule.replace({number: (entry,) for number, entry in stack.entries.items()})
    move_memories(schedule, places)
    joined = {member.at for member in run}
    at = max(joined)
    left = [i for i in range(end) if i not in joined]
    schedule.arrange([*(i for i in left if i < at), end, *(i for i in left if i > at)])
    return {memory for memory, _ in places.values()}


def _stack_rows(schedule: Schedule, run: Run, name: str) -> SideBySide | None:
    """Return the matrices of which operand `name` of each member is a row side by side, in the
    order of the results; None where they cannot lie so.
    """
    tensors = [schedule.tensors[member.entry.lowered.operands[name]] for member in run]
    columns = {
        tensor.memory: member.first - run[0].first
        for member, tensor in zip(run, tensors, strict=True)
    }
    wide = run[-1].first + aligned(run[-1].words) - run[0].first
    return side_by_side(schedule, columns, wide)


def _adjoining_places(schedule: Schedule, run: Run) -> MemoryOffsets:
    """Return places one behind the other for operands of `run` that have none yet, in the order of
    its results.
    """
    places: MemoryOffsets = {}
    for name in run[0].unplaced:
        tensors = [(member, member.entry.lowered.operands[name]) for member in run]
        whole = schedule.free(f"{tensors[0][1]} and others")
        for member, tensor in tensors:
            memory = schedule.tensors[tensor].memory
            places[memory] = whole, member.first - run[0].first
    return places
