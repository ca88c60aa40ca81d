"""Slices of whole rows, which are read where they lie: no launch makes them.

Matrices whose rows are read so may lie side by side, as columns of a wider one, so that what is
done to the same row of each is one launch (`update_fusion`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from glnn.compiler.concat_aliasing import with_layouts
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp, Tensor
from glnn.core.layout import Strip
from glnn.core.layout.layout import DENSE, PADDED, aligned
from glnn.core.types import DType
from glnn.graph.operators.move import Slice


def alias_rows(schedule: Schedule, live_out: Iterable[str]) -> None:
    """Have each slice of neighbouring numbers in `schedule` be a range of its operand's memory,
    where that can be bound by itself and nobody writes there before the slice was read.

    live_out: tensors that stay in memory of their own, as somebody reads them after a run.
    """
    if not schedule.backend.subviews:
        return
    fixed = {schedule.tensors[name].memory for name in live_out}
    aliased: set[int] = set()
    for at, entry in enumerate(schedule.entries):
        start = _start(schedule, entry)
        if start is None or not _is_unchanged_while_read(schedule, at):
            continue
        out = schedule.tensors[entry.lowered.output].memory
        x = schedule.tensors[entry.lowered.operands["x"]]
        if out in fixed or any(one.host for one in _readers(schedule, out)):
            continue
        for name, tensor in schedule.tensors.items():
            if tensor.memory == out:
                place = start + (x.offset or 0) + (tensor.offset or 0)
                schedule.tensors[name] = replace(tensor, memory=x.memory, offset=place)
        aliased.add(at)
    if aliased:
        schedule.arrange([at for at in range(len(schedule.entries)) if at not in aliased])


def _start(schedule: Schedule, entry: ScheduledOp) -> int | None:
    """Return the number of its operand that `entry` begins at, if it only cuts out what follows
    from there and that can be bound.
    """
    op, tensors = entry.lowered.op, schedule.tensors
    if not isinstance(op, Slice) or entry.host or "x" not in entry.lowered.operands:
        return None
    x, out = tensors[entry.lowered.operands["x"]], tensors[entry.lowered.output]
    if x.memory == out.memory or not (_dense(x) and _dense(out)):
        return None
    start, apart, whole = 0, 1, True  # whether all later dimensions are taken as they are
    for size, (first, count, step) in reversed([*zip(x.shape, op.walks(x.shape), strict=True)]):
        if step != 1 or (count != 1 and not whole):
            return None
        start, apart, whole = start + first * apart, apart * size, whole and count == size
    return start if start == aligned(start) else None


def _dense(tensor: Tensor) -> bool:
    """Return True for float32 tensors of known sizes, row major without gaps."""
    known = all(type(size) is int for size in tensor.shape)
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE and known


def _readers(schedule: Schedule, memory: str) -> list[ScheduledOp]:
    """Return the entries that read `memory`."""
    return [
        entry
        for entry in schedule.entries
        if any(schedule.tensors[name].memory == memory for name in entry.lowered.operands.values())
    ]


def _is_unchanged_while_read(schedule: Schedule, at: int) -> bool:
    """Return True where nobody writes to the memory that the slice number `at` reads until the
    last reader of the slice is done, and nobody else writes to the slice.
    """
    tensors, entry = schedule.tensors, schedule.entries[at]
    source = tensors[entry.lowered.operands["x"]].memory
    made = tensors[entry.lowered.output].memory
    last, writes = at, list[int]()
    for i, one in enumerate(schedule.entries):
        if any(tensors[name].memory == made for name in one.lowered.operands.values()):
            last = max(last, i)
        outs = [tensors[name].memory for name in (one.lowered.output, *one.lowered.more)]
        if made in outs and i != at:
            return False
        if source in outs and i > at:
            writes.append(i)
    return not any(i <= last for i in writes)


def row_of(schedule: Schedule, memory: str) -> int | None:
    """Return the numbers of a row of the matrix that `memory` is, of which all readers read parts
    of a row; None where it is no such matrix.
    """
    makers = _makers(schedule, memory)
    if len(makers) != 1:
        return None
    name = schedule.entries[makers[0]].lowered.output
    matrix = schedule.tensors[name]
    if len(matrix.shape) != 2 or matrix.offset is not None or not _dense(matrix):
        return None
    row = matrix.shape[1]
    for other, tensor in schedule.tensors.items():
        if tensor.memory == memory and other != name:
            start = tensor.offset or 0
            if start % row + tensor.layout.words(tensor.type) > row:
                return None
    return row


@dataclass(frozen=True)
class SideBySide:
    """Matrices as columns of a wider one: what differs in the schedule that they are of."""

    tensors: Mapping[str, Tensor]
    """The tensors in their memories, by name, where they then lie."""
    entries: Mapping[int, ScheduledOp]
    """The entries that make them, by number, with kernels that write there."""


def side_by_side(schedule: Schedule, columns: Mapping[str, int], wide: int) -> SideBySide | None:
    """Return the matrices `columns` as columns of one whose rows have `wide` numbers; None where a
    kernel cannot write its matrix so. The schedule stays as it is.

    columns: by the matrix's memory, for which there is a `row_of`, where each begins.
    """
    whole = schedule.free(f"{next(iter(columns))} side by side")
    changed: dict[int, ScheduledOp] = {}
    moved: dict[str, Tensor] = {}
    for memory, first in columns.items():
        (maker,) = _makers(schedule, memory)
        entry = schedule.entries[maker]
        matrix = schedule.tensors[entry.lowered.output]
        row, layout = matrix.shape[1], Strip(PADDED, first, wide)
        if (made := with_layouts(schedule, entry, {"out": layout})) is None:
            return None
        changed[maker] = made
        for name, tensor in schedule.tensors.items():
            if name == entry.lowered.output:
                moved[name] = Tensor(tensor.type, layout, whole)
            elif tensor.memory == memory:
                line, place = divmod(tensor.offset or 0, row)
                at = line * wide + first + place
                moved[name] = replace(tensor, memory=whole, offset=at)
    return SideBySide(moved, changed)


def _makers(schedule: Schedule, memory: str) -> list[int]:
    """Return the numbers of the entries that write to `memory`."""
    return [
        number
        for number, entry in enumerate(schedule.entries)
        if schedule.tensors[entry.lowered.output].memory == memory
    ]
