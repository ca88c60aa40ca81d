"""Updates of states that lie one behind the other are fused: one launch makes all of them.

Optimisers do the same with each parameter, and launches of little work cost the host more time than
the device. PyTorch has optimisers of many tensors for that, `foreach` and `fused`. Here memory is
arranged instead (see `States.add_together`): states that are updated alike lie one behind the
other, and so do their gradients. Pointwise work on each of them is then pointwise work on the whole
range, which any kernel does. Nothing reads its results in the gaps between the tensors.
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
"""The properties that all entries joined into one launch have in common."""


def fuse_updates(schedule: Schedule, groups: Iterable[str], live_out: Iterable[str]) -> None:
    """Join entries that update states in the memories `groups` alike; then the producers of their
    operands, which are placed one behind the other, too.

    live_out: tensors that stay in memory of their own, as they are read after a run.
    """
    groups = set(groups)
    fixed = {schedule.tensors[name].memory for name in live_out}
    tried: set[tuple[str, ...]] = set()
    while True:
        runs = [run for run in _runs(schedule, groups, fixed) if _names(run) not in tried]
        runs.sort(key=len, reverse=True)  # an operand can be placed for one run only
        movable = next((run for run in runs if _is_movable(schedule, run)), None)
        if movable is None:
            return
        tried.add(_names(movable))
        groups |= _join(schedule, movable)


@dataclass(frozen=True, eq=False)
class _Member:
    """An entry that may be joined with others.

    number: its number in the schedule. out: the tensor that it makes. unplaced: the operands whose
    memory may still be put anywhere. rows: the operands that are a row of a matrix in such a
    memory.
    """

    entry: ScheduledOp
    number: int
    out: Tensor
    unplaced: tuple[str, ...]
    rows: tuple[str, ...]

    @property
    def first(self) -> int:
        """The word at which its result begins."""
        return self.out.offset or 0

    @property
    def words(self) -> int:
        """The words that its result takes."""
        return self.out.layout.words(self.out.type)


Run = Sequence[_Member]
"""Members of one kind whose results lie one behind the other."""


def _names(run: Run) -> tuple[str, ...]:
    return tuple(member.entry.lowered.output for member in run)


def _runs(schedule: Schedule, groups: Container[str], fixed: Container[str]) -> Iterator[Run]:
    """Yield runs of entries that can be joined if the order allows it.

    fixed: memories that cannot become a part of another one.
    """
    kinds: dict[Kind, list[_Member]] = {}
    taken: set[Kind] = set()  # a gradient that updates two states can be placed only once
    results = (name for entry in schedule.entries for name in entry.lowered.results)
    written = [schedule.tensors[name].memory for name in results]
    for number, entry in enumerate(schedule.entries):
        out = schedule.tensors[entry.lowered.output]
        lowered = entry.lowered
        plain = isinstance(lowered.op, Pointwise) and not (
            entry.host or lowered.parameters or lowered.other_outputs
        )
        if not plain or lowered.epilogue or out.memory not in groups or not _is_dense(out):
            continue
        kind: list[object] = [lowered.op, entry.choice, out.memory]
        unplaced: dict[str, str] = {}  # the operand in each memory
        rows: dict[str, str] = {}
        for name, tensor in lowered.operands.items():
            operand = schedule.tensors[tensor]
            if operand.shape == ():
                kind.append(tensor)
            elif operand.type != out.type or not _is_dense(operand):
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
            elif written.count(operand.memory) != 1 or not _is_free(
                schedule, operand.memory, fixed
            ):
                break
            else:
                memories = list(unplaced)
                seen = operand.memory in memories
                kind.append(memories.index(operand.memory) if seen else len(memories))
                unplaced.setdefault(operand.memory, name)
        else:
            if not any((*kind, memory) in taken for memory in (*unplaced, *rows)):
                member = _Member(entry, number, out, tuple(unplaced.values()), tuple(rows.values()))
                kinds.setdefault(tuple(kind), []).append(member)
                taken |= {(*kind, memory) for memory in (*unplaced, *rows)}
    for members in kinds.values():
        yield from _adjoining(sorted(members, key=lambda member: member.first))


def _is_dense(tensor: Tensor) -> bool:
    """Return True for float32 tensors that are row major without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE


def _is_free(schedule: Schedule, memory: str, fixed: Container[str]) -> bool:
    """Return True where `memory` may become a part of another: all of its tensors have one size."""
    tensors = [tensor for tensor in schedule.tensors.values() if tensor.memory == memory]
    one_size = len({tensor.layout.words(tensor.type) for tensor in tensors}) == 1
    return memory not in fixed and one_size


def _adjoining(members: Run) -> Iterator[Run]:
    """Yield the runs of `members`, sorted by offset, that are adjacent in memory."""
    ends = [
        i
        for i, (one, other) in enumerate(pairwise(members), 1)
        if other.first != one.first + aligned(one.words)
    ]
    for first, last in pairwise((0, *ends, len(members))):
        if last - first > 1:
            yield members[first:last]


def _is_movable(schedule: Schedule, run: Run) -> bool:
    """Return True where all of `run` can be computed where its last member is."""
    numbers = {member.number for member in run}
    writes: list[Tensor] = []
    reads: list[Tensor] = []
    for number in range(min(numbers), max(numbers) + 1):
        entry, tensors = schedule.entries[number], schedule.tensors
        out = tensors[entry.lowered.output]
        operands = [tensors[name] for name in entry.lowered.operands.values()]
        results = [out, *(tensors[name] for name in entry.lowered.other_outputs)]
        if overlap([*results, *operands], writes) or overlap(results, reads):
            return False
        if number in numbers:
            writes.append(out)
            reads += operands
    return True


def overlap(tensors: Iterable[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True where one of `tensors` overlaps one of `others` in memory."""
    return any(
        start < other_stop and other_start < stop
        for one in tensors
        for other in others
        if one.memory == other.memory
        for start, stop in _ranges(one)
        for other_start, other_stop in _ranges(other)
    )


def _start(tensor: Tensor) -> int:
    return tensor.offset or 0


def _ranges(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Yield the ranges of words of its memory that a tensor takes, each with its exclusive end."""
    layout, start = tensor.layout, _start(tensor)
    words = layout.words(tensor.type)
    if not isinstance(layout, Strip):
        yield start, start + words
        return
    row_words = layout.base.words(tensor.type) // (words // layout.pixel_stride)
    for row in range(start + layout.offset, start + words, layout.pixel_stride):
        yield row, row + row_words


def _join(schedule: Schedule, run: Run) -> set[str]:
    """Replace `run` by one entry where its last member is, and return the new memories of the
    operands that were placed for it. Change nothing where no kernel computes so much at once.
    """
    first, last = run[0], run[-1]
    stacks: list[SideBySide] = []
    for name in first.rows:
        if (stack := _stack_rows(schedule, run, name)) is None:
            return set()
        stacks.append(stack)
    type = TensorType((last.first + last.words - first.first,))
    lowered, offsets = first.entry.lowered, _operand_offsets(schedule, run)
    before, operands = dict(schedule.tensors), dict(lowered.operands)
    for stack in stacks:
        schedule.tensors.update(stack.tensors)
    for name, tensor in lowered.operands.items():
        operand = schedule.tensors[tensor]
        if operand.shape != ():
            memory, start = offsets.get(operand.memory) or (operand.memory, _start(operand))
            operands[name] = schedule.free(f"{tensor} and others")
            schedule.tensors[operands[name]] = Tensor(type, DENSE, memory, start)
    names = list(dict.fromkeys(member.entry.lowered.name for member in run))
    label = f"{names[0]} and {len(run) - 1} more" if len(names) > 1 else names[0]
    output, end = schedule.free(f"{lowered.output} and others"), len(schedule.entries)
    joined = LoweredOp(label, lowered.op, operands, {}, output, label, joins=_names(run))
    try:
        schedule.add(replace(joined, kernel=first.entry.choice.name))
    except (LimitError, UnsupportedOpError):
        schedule.tensors = before
        return set()
    schedule.tensors[output] = replace(first.out, type=type)
    for stack in stacks:
        schedule.replace({number: (entry,) for number, entry in stack.entries.items()})
    move_memories(schedule, offsets)
    numbers = {member.number for member in run}
    position = max(numbers)
    earlier = [i for i in range(position) if i not in numbers]
    schedule.arrange([*earlier, end, *range(position + 1, end)])
    return {memory for memory, _ in offsets.values()}


def _stack_rows(schedule: Schedule, run: Run, name: str) -> SideBySide | None:
    """Return the matrices of whose rows the operands `name` of the members are, side by side in the
    order of the results; None where they cannot lie so.
    """
    tensors = [schedule.tensors[member.entry.lowered.operands[name]] for member in run]
    columns = {
        tensor.memory: member.first - run[0].first
        for member, tensor in zip(run, tensors, strict=True)
    }
    wide = run[-1].first + aligned(run[-1].words) - run[0].first
    return side_by_side(schedule, columns, wide)


def _operand_offsets(schedule: Schedule, run: Run) -> MemoryOffsets:
    """Return offsets in new memories for the unplaced operands of `run`, in the order of its
    results.
    """
    offsets: MemoryOffsets = {}
    for name in run[0].unplaced:
        tensors = [(member, member.entry.lowered.operands[name]) for member in run]
        group = schedule.free(f"{tensors[0][1]} and others")
        for member, tensor in tensors:
            memory = schedule.tensors[tensor].memory
            offsets[memory] = group, member.first - run[0].first
    return offsets
