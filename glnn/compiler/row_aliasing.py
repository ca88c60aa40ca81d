"""Slices of consecutive elements without launches: each is a range of its operand's memory.

Matrices whose rows are such slices may lie side by side, as columns of a wider one, so that the
same work on a row of each is one launch (`update_fusion`).
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
    """Replace slices of consecutive elements in `schedule` by ranges of their operands' memories,
    where such a range can be bound and is not overwritten before the slice was read.

    live_out: tensors that stay in memory of their own, as they are read after a run.
    """
    if not schedule.backend.subviews:
        return
    fixed = {schedule.tensors[name].memory for name in live_out}
    aliased: set[int] = set()
    for number, entry in enumerate(schedule.entries):
        start = _start(schedule, entry)
        if start is None or not _is_unchanged_while_read(schedule, number):
            continue
        out = schedule.tensors[entry.lowered.output].memory
        x = schedule.tensors[entry.lowered.operands["x"]]
        if out in fixed or any(one.host for one in _readers(schedule, out)):
            continue
        for name, tensor in schedule.tensors.items():
            if tensor.memory == out:
                offset = start + (x.offset or 0) + (tensor.offset or 0)
                schedule.tensors[name] = replace(tensor, memory=x.memory, offset=offset)
        aliased.add(number)
    if aliased:
        schedule.arrange([i for i in range(len(schedule.entries)) if i not in aliased])


def _start(schedule: Schedule, entry: ScheduledOp) -> int | None:
    """Return the element of its operand at which the slice `entry` starts; None where it is no
    slice of consecutive elements, or a range from there cannot be bound.
    """
    op, tensors = entry.lowered.op, schedule.tensors
    if not isinstance(op, Slice) or entry.host or "x" not in entry.lowered.operands:
        return None
    x, out = tensors[entry.lowered.operands["x"]], tensors[entry.lowered.output]
    if x.memory == out.memory or not (_dense(x) and _dense(out)):
        return None
    start, stride, inner_whole = 0, 1, True  # True while all inner dimensions are whole
    for size, (first, count, step) in reversed([*zip(x.shape, op.walks(x.shape), strict=True)]):
        if step != 1 or (count != 1 and not inner_whole):
            return None
        start, stride = start + first * stride, stride * size
        inner_whole = inner_whole and count == size
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


def _is_unchanged_while_read(schedule: Schedule, number: int) -> bool:
    """Return True where nothing writes to the operand of the slice `number` before the last reader
    of the slice, and nothing else writes to the slice.
    """
    tensors, entry = schedule.tensors, schedule.entries[number]
    source = tensors[entry.lowered.operands["x"]].memory
    result = tensors[entry.lowered.output].memory
    last, writes = number, list[int]()
    for i, one in enumerate(schedule.entries):
        if any(tensors[name].memory == result for name in one.lowered.operands.values()):
            last = max(last, i)
        outs = [tensors[name].memory for name in one.lowered.results]
        if result in outs and i != number:
            return False
        if source in outs and i > number:
            writes.append(i)
    return not any(i <= last for i in writes)


def row_of(schedule: Schedule, memory: str) -> int | None:
    """Return the row length of the matrix in `memory`, if all other tensors there are parts of a
    row; else None.
    """
    writers = _writers(schedule, memory)
    if len(writers) != 1:
        return None
    name = schedule.entries[writers[0]].lowered.output
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
    """The changes to a schedule that make matrices columns of a wider one."""

    tensors: Mapping[str, Tensor]
    """The tensors in the matrices' memories, by name, with their new place."""
    entries: Mapping[int, ScheduledOp]
    """The entries that write the matrices, by number, with their new layouts."""


def side_by_side(schedule: Schedule, columns: Mapping[str, int], wide: int) -> SideBySide | None:
    """Return the changes that make matrices columns of one whose rows have `wide` elements; None
    where a kernel cannot write its matrix so. The schedule stays as it is.

    columns: the first column of each matrix, by its memory, for which `row_of` is not None.
    """
    wide_memory = schedule.free(f"{next(iter(columns))} side by side")
    changed: dict[int, ScheduledOp] = {}
    moved: dict[str, Tensor] = {}
    for memory, first in columns.items():
        (writer,) = _writers(schedule, memory)
        entry = schedule.entries[writer]
        matrix = schedule.tensors[entry.lowered.output]
        length, layout = matrix.shape[1], Strip(PADDED, first, wide)
        if (new_entry := with_layouts(schedule, entry, {"out": layout})) is None:
            return None
        changed[writer] = new_entry
        for name, tensor in schedule.tensors.items():
            if name == entry.lowered.output:
                moved[name] = Tensor(tensor.type, layout, wide_memory)
            elif tensor.memory == memory:
                row, column = divmod(tensor.offset or 0, length)
                offset = row * wide + first + column
                moved[name] = replace(tensor, memory=wide_memory, offset=offset)
    return SideBySide(moved, changed)


def _writers(schedule: Schedule, memory: str) -> list[int]:
    """Return the numbers of the entries that write to `memory`."""
    return [
        number
        for number, entry in enumerate(schedule.entries)
        if schedule.tensors[entry.lowered.output].memory == memory
    ]
