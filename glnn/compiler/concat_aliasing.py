"""Concatenations and slices of channels without launches.

The producer of an operand of a concatenation writes directly into the concatenation's memory, as
some channels of wider images (a strip, `core/layout/strip.py`), where its kernel and those of all
readers can; other operands are copied there. A concatenation that is the first operand of another
one is placed in that, so that all layers of a block of a DenseNet (Huang et al. 2017) write into
one memory. A slice of channels is a strip of its operand's memory. Strips consist of whole vec4:
each operand but the last has a multiple of four channels. The schedule's kernels are chosen before,
and stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp, ScheduledOp, Tensor
from glnn.core.layout import Layout, Strip, parse, without_strip
from glnn.core.layout.layout import CHANNELS_LAST, PADDED, RowMajor
from glnn.core.symint import same
from glnn.core.types import DType
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.index_map import Axis
from glnn.graph.operators.concat import Concat
from glnn.graph.operators.move import Move, Slice
from glnn.kernels.capability_check import why_not_here, why_not_spec
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

IMAGES = parse(CHANNELS_LAST)
COPYING = "nhwc"
"""The kernel that copies operands whose producers cannot write strips."""


def alias_concats(schedule: Schedule, live_out: Iterable[str]) -> None:
    """Replace concatenations and slices of channels in `schedule` by strips, where possible.

    live_out: tensors that stay in memory of their own, as they are read after a run.
    """
    if not schedule.backend.subviews:
        return
    written = {schedule.tensors[entry.lowered.output].memory for entry in schedule.entries}
    fixed = {schedule.tensors[name].memory for name in live_out}
    fixed |= {tensor.memory for tensor in schedule.tensors.values()} - written
    placement = _Placement(schedule, fixed)
    for number, entry in reversed([*enumerate(schedule.entries)]):
        if isinstance(entry.lowered.op, Concat):
            placement.place_operands(number)
    for number, entry in enumerate(schedule.entries):
        if isinstance(entry.lowered.op, Move):
            placement.place_slice(number)
    schedule.replace(placement.entries)


@dataclass(frozen=True)
class _Target:
    """A tensor's place inside a concatenation's memory, from channel `start` of each pixel on."""

    memory: str
    start: int
    wide: int
    pixels: int
    channels: int

    def layout(self, tensor: Tensor) -> Strip | None:
        """Return the layout of `tensor` at this place; None where it has other pixels or channels,
        or is a part of another memory already.
        """
        if tensor.type.dtype is not DType.float32 or tensor.offset is not None:
            return None
        shape, layout = tensor.shape, tensor.layout
        if layout == IMAGES and shape[1] == self.channels:
            fits = shape[0] * prod(shape[2:]) == self.pixels
            return Strip(IMAGES, self.start, self.wide) if fits else None
        if not isinstance(layout, RowMajor) or shape != (self.pixels, self.channels):
            return None
        fits = layout.row(shape) == _padded(self.channels)
        return Strip(PADDED, self.start, self.wide) if fits else None


class _Placement:
    """A schedule, and the entries that are to replace each of its entries, by number."""

    def __init__(self, schedule: Schedule, fixed: Iterable[str]) -> None:
        """fixed: the memories that cannot become a part of another one."""
        self.schedule = schedule
        self.entries: dict[int, Sequence[ScheduledOp]] = {}
        self._fixed = frozenset(fixed)
        self._updated = set[str]()
        """Memories in which a launch overwrites a tensor."""
        self._tensors = defaultdict[str, list[str]](list)
        """The tensors in each memory."""
        self._users = defaultdict[str, set[int]](set)
        """The numbers of the entries that read or write each tensor."""
        for name, tensor in schedule.tensors.items():
            self._tensors[tensor.memory].append(name)
        for number, entry in enumerate(schedule.entries):
            self._replace(number, (entry,))
            if entry.lowered.op.updates in entry.lowered.operands:
                self._updated.add(schedule.tensors[entry.lowered.output].memory)

    def place_operands(self, number: int) -> None:
        """Place the operands of the concatenation `number`, where at least one can be."""
        (entry,) = self.entries[number]
        tensors, out = self.schedule.tensors, self.schedule.tensors[entry.lowered.output]
        operands = tuple(entry.lowered.operands.values())
        # Constants are operands of the spec alone.
        all_computed = len(operands) == len(entry.spec.operands)
        several = 1 < len(operands) == len(set(operands))
        if out.memory in self._fixed or not (all_computed and several) or not _of_channels(entry):
            return
        wide = out.layout.pixel_stride if isinstance(out.layout, Strip) else _padded(out.shape[1])
        pixels, start = out.shape[0] * prod(out.shape[2:]), out.layout.offset
        targets: list[_Target] = []
        for name in operands:
            channels = tensors[name].shape[1]
            targets.append(_Target(out.memory, start, wide, pixels, channels))
            start += channels
        if any(one.channels % 4 for one in targets[:-1]):
            return
        copies: list[tuple[ScheduledOp, Tensor]] = []
        for name, target in zip(operands, targets, strict=True):
            if (copy := self._copy(entry, name, target)) is None:
                return
            copies.append(copy)
        if self._place_in_slice_source(number, operands, targets):
            operands, targets, copies = operands[1:], targets[1:], copies[1:]
        needed_copies = [
            copy
            for name, target, copy in zip(operands, targets, copies, strict=True)
            if not self._place(name, target, number)
        ]
        if len(needed_copies) == len(operands) == len(entry.spec.operands):
            return
        for copied, tensor in needed_copies:
            tensors[copied.lowered.output] = tensor
            self._tensors[tensor.memory].append(copied.lowered.output)
        self._replace(number, [self._with_layouts(copied) for copied, _ in needed_copies])

    def _place_in_slice_source(
        self, number: int, operands: Sequence[str], targets: Sequence[_Target]
    ) -> bool:
        """Place the concatenation `number` in the tensor that its first operand is a slice of.

        That tensor must have as many channels, and nothing may read those behind the slice once the
        other operands are written there. Return True where it was done: then the first operand is
        in place. So channels that ShuffleNet V2 (Ma et al. 2018) passes on unchanged are never
        copied.
        """
        tensors, first = self.schedule.tensors, operands[0]
        out = tensors[self.entries[number][0].lowered.output]
        writers = [self._makers(name) for name in operands]
        if not all(writers):
            return False
        slice_op = writers[0][0]
        if self._memory_users(first) != {slice_op, number}:
            return False
        entry = self.schedule.entries[slice_op]
        name = entry.lowered.operands.get("x", "") if _slice_start(entry) == 0 else ""
        x = tensors.get(name)
        if x is None or (x.layout, x.shape) != (out.layout, out.shape):
            return False
        memories = [x.memory, tensors[first].memory]
        unshared = [self._tensors[memory] for memory in memories] == [[name], [first]]
        if not unshared or not self._fixed.isdisjoint(memories):
            return False
        if any(isinstance(self.schedule.entries[i].lowered.op, Concat) for i in self._makers(name)):
            return False  # its operands may be read later
        readers = self._users[name] - {slice_op}
        slices = [user for user in readers if _slice_start(self.schedule.entries[user]) is not None]
        slice_outputs = [self.schedule.entries[user].lowered.output for user in slices]
        last = max(readers.union(*map(self._memory_users, slice_outputs)))
        if last >= min(min(numbers) for numbers in writers[1:]):
            return False
        strip = Strip(IMAGES, 0, targets[0].wide)
        tensors[name] = replace(x, memory=out.memory)
        tensors[first] = replace(tensors[first], layout=strip, memory=out.memory)
        self._tensors[out.memory] += [name, first]
        self._replace(slice_op, ())
        for user in slices:
            self.place_slice(user)
        self._updated.add(out.memory)
        return True

    def _memory_users(self, name: str) -> set[int]:
        """Return the numbers of the entries that read or write the memory of the tensor `name`."""
        memory = self.schedule.tensors[name].memory
        return set[int]().union(*(self._users[one] for one in self._tensors[memory]))

    def _makers(self, name: str) -> list[int]:
        """Return the numbers of the entries that write to the memory of the tensor `name`."""
        memory = self.schedule.tensors[name].memory
        return [
            number
            for number in self._memory_users(name)
            for entry in self.entries[number]
            if self.schedule.tensors[entry.lowered.output].memory == memory
        ]

    def place_slice(self, number: int) -> None:
        """Make the slice `number` a strip of its operand, if all of its readers can read that."""
        if not self.entries[number]:
            return  # it was replaced already
        (entry,) = self.entries[number]
        start, output = _slice_start(entry), entry.lowered.output
        out = self.schedule.tensors[output]
        if start is None or out.layout != IMAGES:
            return
        x = self.schedule.tensors[entry.lowered.operands["x"]]
        if x.memory in self._updated:
            return
        wide = x.layout.pixel_stride if isinstance(x.layout, Strip) else _padded(x.shape[1])
        pixels = out.shape[0] * prod(out.shape[2:])
        target = _Target(x.memory, x.layout.offset + start, wide, pixels, out.shape[1])
        if self._place(output, target, number):
            self._replace(number, ())

    def _replace(self, number: int, entries: Sequence[ScheduledOp]) -> None:
        """Replace the entry `number` by `entries`."""
        self.entries[number] = entries
        for entry in entries:
            for name in (entry.lowered.output, *entry.lowered.operands.values()):
                self._users[name].add(number)

    def _copy(
        self, entry: ScheduledOp, name: str, target: _Target
    ) -> tuple[ScheduledOp, Tensor] | None:
        """Return an entry that copies operand `name` of `entry` to `target`, and the tensor it
        makes; None where no kernel can.
        """
        source = self.schedule.tensors[name]
        layout = Strip(IMAGES, target.start, target.wide)
        op = Slice((0,), (target.channels,), (1,), (1,))
        layout_names = {"x": source.layout.name, "out": layout.name}
        spec = OpSpec.create(op, {"x": source.type}, layout_names)
        try:
            choice = self.schedule.backend.choose(spec, COPYING)
        except (UnsupportedOpError, LimitError):
            return None
        copy = self.schedule.free(f"{name} in {entry.lowered.output}")
        label = f"{entry.lowered.name}: {name}"
        lowered = LoweredOp(label, op, {"x": name}, {}, copy, entry.lowered.layer)
        layouts = self.schedule.backend.layouts(choice, spec)
        tensor = Tensor(source.type, layout, target.memory)
        if layouts["out"] != layout:
            return None
        return ScheduledOp(lowered, choice, spec, layouts), tensor

    def _with_layouts(self, entry: ScheduledOp) -> ScheduledOp:
        """Return `entry` with the layouts that its operands have now."""
        layouts = {k: self.schedule.tensors[v].layout for k, v in entry.lowered.operands.items()}
        changed = with_layouts(self.schedule, entry, layouts)
        return entry if changed is None else changed

    def _place(self, name: str, target: _Target, removed: int) -> bool:
        """Place all tensors in the memory of `name` at `target`; return False where some user's
        kernel cannot take them there.

        removed: the number of the concatenation or slice that this replaces.
        """
        schedule, memory = self.schedule, self.schedule.tensors[name].memory
        if memory in self._fixed or memory in self._updated or memory == target.memory:
            return False
        moved: dict[str, Tensor] = {}
        for other in self._tensors[memory]:
            tensor = schedule.tensors[other]
            layout = target.layout(tensor)
            if layout is None:
                return False
            moved[other] = replace(tensor, layout=layout, memory=target.memory)
        changed: dict[int, list[ScheduledOp]] = {}
        for number in set[int]().union(*(self._users[one] for one in moved)) - {removed}:
            changed[number] = []
            for entry in self.entries[number]:
                layouts = _layouts_in(entry, moved)
                if (new := with_layouts(schedule, entry, layouts) if layouts else entry) is None:
                    return False
                changed[number].append(new)
        schedule.tensors.update(moved)
        self._tensors[target.memory] += self._tensors.pop(memory)
        self.entries |= changed
        return True


def _layouts_in(entry: ScheduledOp, tensors: Mapping[str, Tensor]) -> dict[str, Layout]:
    """Return the layouts of those operands of `entry`, and of its result, that are in `tensors`."""
    names = {**entry.lowered.operands, "out": entry.lowered.output}
    return {operand: tensors[name].layout for operand, name in names.items() if name in tensors}


def with_layouts(
    schedule: Schedule, entry: ScheduledOp, new_layouts: Mapping[str, Layout]
) -> ScheduledOp | None:
    """Return `entry` with these layouts; None where its kernel cannot read or write them."""
    kernel, spec, device = entry.choice, entry.spec, schedule.backend.device
    if entry.host or not isinstance(kernel, Kernel) or device is None or entry.lowered.joins:
        return None
    offers = device.capabilities
    if not all(map(kernel.takes_subviews, new_layouts)) or spec.hinted.split(kernel, offers):
        return None
    if "full" in spec.extents.values() and (spec.extents.keys() | {"out"}) & new_layouts.keys():
        return None  # operands of the epilogue must keep the result's layout
    changed = spec.with_layouts({**spec.layouts, **{k: one.name for k, one in new_layouts.items()}})
    hinted = changed.hinted
    if why_not_spec(kernel, hinted) or why_not_here(kernel, hinted, offers):
        return None
    layouts = schedule.backend.layouts(kernel, changed)
    if layouts != {**entry.layouts, **new_layouts} or hinted.split(kernel, offers):
        return None
    return replace(entry, spec=changed, layouts=layouts)


def _of_channels(entry: ScheduledOp) -> bool:
    """Return True where `entry` concatenates images stored channels last along their channels."""
    op, layouts = entry.lowered.op, entry.layouts.values()
    channels = isinstance(op, Concat) and op.axis % 4 == 1
    return (
        channels and all(without_strip(layout) == IMAGES for layout in layouts) and not entry.host
    )


def _slice_start(entry: ScheduledOp) -> int | None:
    """Return the first channel of `entry` if it is a slice of consecutive channels, else None."""
    op = entry.lowered.op
    channels_last = all(without_strip(layout) == IMAGES for layout in entry.layouts.values())
    if not isinstance(op, Move) or not channels_last or entry.host or len(entry.spec.operands) != 1:
        return None
    x, out = entry.spec.shape("x"), entry.spec.result_shape
    index_map = op.map(x)
    start = next((axis.start for axis in index_map.dims[1] if axis.axis == 1), 0)
    axes = tuple((Axis(n, i, start if i == 1 else 0),) for i, n in enumerate(out))
    images = same(x[2:], out[2:]) and same(x[0], out[0]) and index_map.dims == axes
    inside = start >= 0 and start + out[1] <= x[1] and start % 4 == 0
    return start if images and inside else None


def _padded(channels: int) -> int:
    """Return `channels` rounded up to whole vec4."""
    return -(-channels // 4) * 4
