"""Tensors that are stored as halves though they are computed as float32.

With weights of float16, what one step writes and others read takes half the bytes, too: a kernel
rounds each number as it stores it, after its sums, its epilogue and all else, and widens it as it
loads it. Which kernel computes what, and in which layout, is decided before and stays, and so is
what lies among others in one memory (`concat_aliasing.py`): all of a memory is stored alike. It is
halves where everyone who writes it can store halves and everyone who reads it can load them; inputs
and outputs of the graph, what the host reads or writes, and what becomes integers stay as they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.core.layout import without_strip
from glnn.core.layout.layout import CHANNELS_LAST
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.function import INTEGER_CASTS
from glnn.graph.operators import Pointwise
from glnn.kernels.kernel import Kernel


def store_as_fp16(schedule: Schedule, live_out: Iterable[str]) -> None:
    """Have the tensors of `schedule` that can be stored as float16 be so.

    live_out: those that stay.
    """
    taken = {schedule.tensors[name].memory for name in live_out if name in schedule.tensors}
    memories = _made(schedule) - taken
    for entry in schedule.entries:
        memories -= _memories(schedule, entry) - _able(schedule, entry)
    refused = True
    while refused:  # a step that cannot takes its tensors from others
        refused = False
        for entry in schedule.entries:
            names = _names(schedule, entry, memories)
            if names and not _takes(schedule, entry, names):
                memories -= _memories(schedule, entry)
                refused = True
    for i, entry in enumerate(schedule.entries):
        if names := _names(schedule, entry, memories):
            schedule.entries[i] = replace(entry, spec=entry.spec.stored(names))
    for name, tensor in schedule.tensors.items():
        if tensor.memory in memories:
            type = TensorType(tensor.type.dims, DType.float16)
            schedule.tensors[name] = replace(tensor, type=type)


def _made(schedule: Schedule) -> set[str]:
    """The memories of float32 that steps make: inputs are made by none."""
    made = {schedule.tensors[entry.lowered.output].memory for entry in schedule.entries}
    others = {
        tensor.memory
        for tensor in schedule.tensors.values()
        if tensor.type.dtype is not DType.float32 or tensor.offset is not None
    }
    return made - others


def _memories(schedule: Schedule, entry: ScheduledOp) -> set[str]:
    """All that `entry` reads and writes."""
    return {schedule.tensors[name].memory for name in entry.tensors if name in schedule.tensors}


def _tensors(entry: ScheduledOp) -> dict[str, str]:
    """The tensor of each operand of `entry` that is computed, and of `out`."""
    return {**entry.lowered.operands, "out": entry.lowered.output}


def _able(schedule: Schedule, entry: ScheduledOp) -> set[str]:
    """The memories of `entry` that its kernel reads and writes as float16 in their layouts."""
    if entry.host or entry.lowered.more or not isinstance(entry.choice, Kernel):
        return set()
    if _makes_integers(entry):
        return set()
    candidates = entry.choice.fp16_candidates(entry.spec.extents)
    unable = {
        schedule.tensors[tensor].memory
        for name, tensor in _tensors(entry).items()
        if name not in candidates or not _is_in_order(entry, name)
    }
    return _memories(schedule, entry) - unable


def _makes_integers(entry: ScheduledOp) -> bool:
    """Return True where `entry` makes integers of floats: these may be sums of products of
    integers, which halves do not hold.
    """
    op, epilogue = entry.spec.op, entry.spec.epilogue
    expressions = [op.expr] if isinstance(op, Pointwise) else []
    expressions += [] if epilogue is None else [epilogue.expr]
    return any(one.name in INTEGER_CASTS for expr in expressions for one in expr.functions)


def _is_in_order(entry: ScheduledOp, name: str) -> bool:
    """Return True where operand `name` has the layout channels last, or a row-major one."""
    layout = without_strip(entry.layouts[name])
    return layout.name == CHANNELS_LAST or layout.name in ("R", "R4")


def _names(schedule: Schedule, entry: ScheduledOp, memories: Container[str]) -> frozenset[str]:
    """The operands of `entry`, and `out`, that lie in one of `memories`."""
    tensors = _tensors(entry).items()
    return frozenset(k for k, v in tensors if schedule.tensors[v].memory in memories)


def _takes(schedule: Schedule, entry: ScheduledOp, names: Container[str]) -> bool:
    """Return True where the kernel of `entry` can read and write `names` as float16 in their
    layouts.
    """
    try:
        return schedule.backend.takes(entry.choice, entry.spec.stored(names))
    except UnsupportedOpError:
        return False
