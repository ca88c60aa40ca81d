"""Tensors that are stored as float16 though they are computed as float32.

With weights of float16, the tensors between steps take half the bytes, too: a kernel rounds each
number as it stores it, after its sums and its epilogue, and widens it as it loads it. Kernels,
layouts and the tensors that share a memory (`concat_aliasing.py`) are decided before, and stay; all
tensors of a memory have one type. They are float16 where all kernels that write the memory can
store float16 and all that read it can load it. Inputs and outputs of the graph, tensors that the
host reads or writes, and those that are cast to integers stay float32.
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
    """Store the tensors of `schedule` as float16 where possible.

    live_out: tensors that stay as they are.
    """
    fixed = {schedule.tensors[name].memory for name in live_out if name in schedule.tensors}
    memories = _float32_memories(schedule) - fixed
    for entry in schedule.entries:
        memories -= _memories(schedule, entry) - _fp16_memories(schedule, entry)
    refused = True
    while refused:  # float32 operands of one step may make others refuse
        refused = False
        for entry in schedule.entries:
            names = _names(schedule, entry, memories)
            if names and not _accepts_fp16(schedule, entry, names):
                memories -= _memories(schedule, entry)
                refused = True
    for i, entry in enumerate(schedule.entries):
        if names := _names(schedule, entry, memories):
            schedule.entries[i] = replace(entry, spec=entry.spec.stored(names))
    for name, tensor in schedule.tensors.items():
        if tensor.memory in memories:
            type = TensorType(tensor.type.dims, DType.float16)
            schedule.tensors[name] = replace(tensor, type=type)


def _float32_memories(schedule: Schedule) -> set[str]:
    """Return the memories that steps write, and whose tensors are all whole and float32."""
    written = {schedule.tensors[entry.lowered.output].memory for entry in schedule.entries}
    others = {
        tensor.memory
        for tensor in schedule.tensors.values()
        if tensor.type.dtype is not DType.float32 or tensor.offset is not None
    }
    return written - others


def _memories(schedule: Schedule, entry: ScheduledOp) -> set[str]:
    """Return the memories that `entry` reads and writes."""
    return {schedule.tensors[name].memory for name in entry.tensors if name in schedule.tensors}


def _tensors(entry: ScheduledOp) -> dict[str, str]:
    """Return the tensor of each operand of `entry` that is computed, and of `out`."""
    return {**entry.lowered.operands, "out": entry.lowered.output}


def _fp16_memories(schedule: Schedule, entry: ScheduledOp) -> set[str]:
    """Return the memories of `entry` that its kernel can read and write as float16."""
    if entry.host or entry.lowered.other_outputs or not isinstance(entry.choice, Kernel):
        return set()
    if _makes_integers(entry):
        return set()
    candidates = entry.choice.fp16_candidates(entry.spec.extents)
    others = {
        schedule.tensors[tensor].memory
        for name, tensor in _tensors(entry).items()
        if name not in candidates or not _has_fp16_layout(entry, name)
    }
    return _memories(schedule, entry) - others


def _makes_integers(entry: ScheduledOp) -> bool:
    """Return True where `entry` casts floats to integers: these floats may be sums of products of
    integers, which float16 does not hold.
    """
    op, epilogue = entry.spec.op, entry.spec.epilogue
    expressions = [op.expr] if isinstance(op, Pointwise) else []
    expressions += [] if epilogue is None else [epilogue.expr]
    return any(one.name in INTEGER_CASTS for expr in expressions for one in expr.functions)


def _has_fp16_layout(entry: ScheduledOp, name: str) -> bool:
    """Return True where operand `name` has the layout channels last, or a row-major one."""
    layout = without_strip(entry.layouts[name])
    return layout.name == CHANNELS_LAST or layout.name in ("R", "R4")


def _names(schedule: Schedule, entry: ScheduledOp, memories: Container[str]) -> frozenset[str]:
    """Return the operands of `entry`, and `out`, that are in one of `memories`."""
    tensors = _tensors(entry).items()
    return frozenset(k for k, v in tensors if schedule.tensors[v].memory in memories)


def _accepts_fp16(schedule: Schedule, entry: ScheduledOp, names: Container[str]) -> bool:
    """Return True where the kernel of `entry` computes it with `names` stored as float16."""
    try:
        return schedule.backend.takes(entry.choice, entry.spec.stored(names))
    except UnsupportedOpError:
        return False
