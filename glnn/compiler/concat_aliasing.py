"""Channels that are only placed: concatenations and slices that no launch makes.

What makes an operand of a concatenation of channels writes it to where it belongs there, as some
channels of wider images (`core/layout/strip.py`), where it and all who read that can; what cannot
be placed so is copied to its place. A concatenation that begins another one is itself placed in
that, so that all layers of a block of a DenseNet (Huang et al. 2017) write into one memory. A slice
of channels is read where it lies. Only whole vec4 are placed: each part but the last has a multiple
of four channels. All this is done to a schedule whose kernels are chosen, and changes none of them.
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
"""The kernel that copies what nobody can place: it takes strips."""


def alias_concats(schedule: Schedule, live_out: Iterable[str]) -> None:
    """Have concatenations and slices of channels in `schedule` be only placed, where that can be.

    live_out: tensors that stay in memory of their own, as somebody reads them after a run.
    """
    if not schedule.backend.subviews:
        return
    made = {schedule.tensors[entry.lowered.output].memory for entry in schedule.entries}
    fixed = {schedule.tensors[name].memory for name in live_out}
    fixed |= {tensor.memory for tensor in schedule.tensors.values()} - made
    laying = _Laying(schedule, fixed)
    for number, entry in reversed([*enumerate(schedule.entries)]):
        if isinstance(entry.lowered.op, Concat):
            laying.concatenation(number)
    for number, entry in enumerate(schedule.entries):
        if isinstance(entry.lowered.op, Move):
            laying.slice(number)
    schedule.replace(laying.entries)


@dataclass(frozen=True)
class _Target:
    """A tensor's place inside a concatenation's memory, from channel `start` of each pixel on."""

    memory: str
    start: int
    wide: int
    pixels: int
    channels: int

    def layout(self, tensor: Tensor) -> Strip | None:
        """Return the layout of `tensor` in the target; None where it has other pixels than the
        target, or is a part of another memory already.
        """
        if tensor.type.dtype is not DType.float32 or tensor.offset is not None:
            return None
        shape, layout = tensor.shape, tensor.layout
        if layout == IMAGES and shape[1] == self.channels:
            fits = shape[0] * prod(shape[2:]) == self.pixels
            return Strip(IMAGES, self.start, self.wide) if fits else None
        if not isinstance(layout, RowMajor) or shape != (self.pixels, self.channels):
            return None
        fits = layout.row(shape) == _whole(self.channels)
        return Strip(PADDED, self.start, self.wide) if fits else None


class _Laying:
    """A schedule, and what is to be in the place of each of its entries."""

    def __init__(self, schedule: Schedule, fixed: Iterable[str]) -> None:
        """fixed: the memories that stay what they are."""
        self.schedule = schedule
        self.entries: dict[int, Sequence[ScheduledOp]] = {}
        self._fixed = frozenset(fixed)
        self._updated = set[str]()  # memories in which a launch changes what lies there
        self._tensors = defaultdict[str, list[str]](list)  # by memory
        self._users = defaultdict[str, set[int]](set)  # of a tensor: the entries that have it
        for name, tensor in schedule.tensors.items():
            self._tensors[tensor.memory].append(name)
        for number, entry in enumerate(schedule.entries):
            self._put(number, (entry,))
            if entry.lowered.op.updates in entry.lowered.operands:
                self._updated.add(schedule.tensors[entry.lowered.output].memory)

    def concatenation(self, number: int) -> None:
        """Place the operands of the concatenation so numbered, where at least one can be."""
        (entry,) = self.entries[number]
        tensors, out = self.schedule.tensors, self.schedule.tensors[entry.lowered.output]
        operands = tuple(entry.lowered.operands.values())
        # Numbers that no run changes are operands of the spec alone.
        all_computed = len(operands) == len(entry.spec.operands)
        several = 1 < len(operands) == len(set(operands))
        if out.memory in self._fixed or not (all_computed and several) or not _of_channels(entry):
            return
        wide = out.layout.wide if isinstance(out.layout, Strip) else _whole(out.shape[1])
        pixels, start = out.shape[0] * prod(out.shape[2:]), out.layout.first
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
        left = [
            copy
            for name, target, copy in zip(operands, targets, copies, strict=True)
            if not self._move(name, target, number)
        ]
        if len(left) == len(operands) == len(entry.spec.operands):
            return
        for copied, tensor in left:
            tensors[copied.lowered.output] = tensor
            self._tensors[tensor.memory].append(copied.lowered.output)
        self._put(number, [self._with_layouts(copied) for copied, _ in left])

    def _place_in_slice_source(
        self, number: int, operands: Sequence[str], targets: Sequence[_Target]
    ) -> bool:
        """Have the concatenation so numbered lie where its first operand is sliced from, if that
        has as many channels, of which nobody reads those behind the slice once others are to be
        there. Return True where that is done: then the first operand is in place.

        Channels that ShuffleNet V2 (Ma et al. 2018) leaves as they are are never copied so.
        """
        tensors, first = self.schedule.tensors, operands[0]
        out = tensors[self.entries[number][0].lowered.output]
        writers = [self._makers(name) for name in operands]
        if not all(writers):
            return False
        slice_op = writers[0][0]
        if self._memory_users(first) != {slice_op, number}:
            return False
        cut = self.schedule.entries[slice_op]
        name = cut.lowered.operands.get("x", "") if _sliced(cut) == 0 else ""
        x = tensors.get(name)
        if x is None or (x.layout, x.shape) != (out.layout, out.shape):
            return False
        memories = [x.memory, tensors[first].memory]
        alone = [self._tensors[memory] for memory in memories] == [[name], [first]]
        if not alone or not self._fixed.isdisjoint(memories):
            return False
        if any(isinstance(self.schedule.entries[i].lowered.op, Concat) for i in self._makers(name)):
            return False  # its own parts may be read later
        readers = self._users[name] - {slice_op}
        slices = [user for user in readers if _sliced(self.schedule.entries[user]) is not None]
        slice_outputs = [self.schedule.entries[user].lowered.output for user in slices]
        last = max(readers.union(*map(self._memory_users, slice_outputs)))
        if last >= min(min(numbers) for numbers in writers[1:]):
            return False
        strip = Strip(IMAGES, 0, targets[0].wide)
        tensors[name] = replace(x, memory=out.memory)
        tensors[first] = replace(tensors[first], layout=strip, memory=out.memory)
        self._tensors[out.memory] += [name, first]
        self._put(slice_op, ())
        for user in slices:
            self.slice(user)
        self._updated.add(out.memory)
        return True

    def _memory_users(self, name: str) -> set[int]:
        """Return the numbers of the entries that have something in the memory of a tensor."""
        memory = self.schedule.tensors[name].memory
        return set[int]().union(*(self._users[one] for one in self._tensors[memory]))

    def _makers(self, name: str) -> list[int]:
        """Return the numbers of the entries that write to the memory of a tensor."""
        memory = self.schedule.tensors[name].memory
        return [
            number
            for number in self._memory_users(name)
            for entry in self.entries[number]
            if self.schedule.tensors[entry.lowered.output].memory == memory
        ]

    def slice(self, number: int) -> None:
        """See the slice so numbered where its operand has it, if all who read it can."""
        if not self.entries[number]:
            return  # it is no launch any more
        (entry,) = self.entries[number]
        start, output = _sliced(entry), entry.lowered.output
        out = self.schedule.tensors[output]
        if start is None or out.layout != IMAGES:
            return
        x = self.schedule.tensors[entry.lowered.operands["x"]]
        if x.memory in self._updated:
            return
        wide = x.layout.wide if isinstance(x.layout, Strip) else _whole(x.shape[1])
        pixels = out.shape[0] * prod(out.shape[2:])
        target = _Target(x.memory, x.layout.first + start, wide, pixels, out.shape[1])
        if self._move(output, target, number):
            self._put(number, ())

    def _put(self, number: int, entries: Sequence[ScheduledOp]) -> None:
        """Have `entries` in the place of the one so numbered."""
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
        """`entry` once its operands have been placed."""
        layouts = {k: self.schedule.tensors[v].layout for k, v in entry.lowered.operands.items()}
        changed = with_layouts(self.schedule, entry, layouts)
        return entry if changed is None else changed

    def _move(self, name: str, target: _Target, maker: int) -> bool:
        """Have all that lies in the memory of `name` lie at `target`, if that can be.

        maker: the number of the entry that will not be there, which need not be asked.
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
        for number in set[int]().union(*(self._users[one] for one in moved)) - {maker}:
            changed[number] = []
            for entry in self.entries[number]:
                layouts = _layouts_in(entry, moved)
                if (made := with_layouts(schedule, entry, layouts) if layouts else entry) is None:
                    return False
                changed[number].append(made)
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
    """Return `entry` with these layouts; None where its kernel cannot take or give them."""
    kernel, spec, device = entry.choice, entry.spec, schedule.backend.device
    if entry.host or not isinstance(kernel, Kernel) or device is None or entry.lowered.joins:
        return None
    offers, here = device.capabilities, spec.hinted
    if not all(map(kernel.takes_subviews, new_layouts)) or here.split(kernel, offers):
        return None
    if "full" in spec.extents.values() and (spec.extents.keys() | {"out"}) & new_layouts.keys():
        return None  # what new_layouts as the result does is to do so still
    changed = spec.with_layouts({**spec.layouts, **{k: one.name for k, one in new_layouts.items()}})
    here = changed.hinted
    if why_not_spec(kernel, here) or why_not_here(kernel, here, offers):
        return None
    layouts = schedule.backend.layouts(kernel, changed)
    if layouts != {**entry.layouts, **new_layouts} or here.split(kernel, offers):
        return None
    return replace(entry, spec=changed, layouts=layouts)


def _of_channels(entry: ScheduledOp) -> bool:
    """Return True where `entry` concatenates images stored channels last along their channels."""
    op, layouts = entry.lowered.op, entry.layouts.values()
    channels = isinstance(op, Concat) and op.axis % 4 == 1
    return (
        channels and all(without_strip(layout) == IMAGES for layout in layouts) and not entry.host
    )


def _sliced(entry: ScheduledOp) -> int | None:
    """The channel that `entry` takes from, where it takes channels as they follow one another."""
    op = entry.lowered.op
    lie = all(without_strip(layout) == IMAGES for layout in entry.layouts.values())
    if not isinstance(op, Move) or not lie or entry.host or len(entry.spec.operands) != 1:
        return None
    x, out = entry.spec.shape("x"), entry.spec.result_shape
    index_map = op.map(x)
    start = next((axis.start for axis in index_map.dims[1] if axis.axis == 1), 0)
    axes = tuple((Axis(n, i, start if i == 1 else 0),) for i, n in enumerate(out))
    images = same(x[2:], out[2:]) and same(x[0], out[0]) and index_map.dims == axes
    inside = start >= 0 and start + out[1] <= x[1] and start % 4 == 0
    return start if images and inside else None


def _whole(channels: int) -> int:
    """Numbers of a pixel of so many channels, whole vec4."""
    return -(-channels // 4) * 4
