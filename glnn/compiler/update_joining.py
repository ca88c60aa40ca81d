"""Updates of states join the epilogue of the kernel that makes the gradient which they read.

An optimiser's new slots and the new parameter are pointwise work on a gradient, each in the memory
of its old content. Where one kernel makes the gradient, it stores all of them as it finishes a
number. That spares a launch which waits for others, and the gradient's way to memory and back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp, Tensor
from glnn.compiler.update_fusion import overlap
from glnn.core.layout.layout import DENSE
from glnn.core.types import DType, TensorType
from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.expression import MOST_CALLS, Arg, Expr
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

Tensors = Mapping[str, Tensor]


def join_updates(schedule: Schedule, live_out: Iterable[str]) -> bool:
    """Join updates in place to the entries that make what they read, where kernels can do so.

    live_out: tensors that somebody reads after a run. Returns True where some were joined.
    """
    live_out, at, found = set(live_out), 0, False
    while schedule.backend.in_place and at < len(schedule.entries):
        join = _Join.find(schedule, at, live_out)
        if join is not None and join.apply():
            found = True  # the next entry has its number now
        else:
            at += 1
    return found


@dataclass(frozen=True)
class _Update:
    """An entry that computes the new content of a state in the place of the old one.

    at: its number. old: the tensor of the old content.
    """

    at: int
    entry: ScheduledOp
    old: str

    @property
    def new(self) -> str:
        """The tensor of the new content."""
        return self.entry.lowered.output


@dataclass(frozen=True)
class _Join:
    """Updates that may join the epilogue of the entry number `at`.

    stored: whether others read the result that the entry has without them.
    """

    schedule: Schedule
    at: int
    updates: Sequence[_Update]
    stored: bool

    @classmethod
    def find(cls, schedule: Schedule, at: int, live_out: Container[str]) -> _Join | None:
        """Return the updates that read what the entry number `at` makes; None without any."""
        entry, tensors = schedule.entries[at], schedule.tensors
        name, kernel = entry.lowered.output, entry.choice
        if entry.host or entry.lowered.more or not isinstance(kernel, Kernel):
            return None
        if kernel.epilogue is None or not kernel.epilogue.updates or not _is_dense(tensors[name]):
            return None
        made, updates, readers = {name}, list[_Update](), 0
        for number in range(at + 1, len(schedule.entries)):
            other = schedule.entries[number]
            read = made.intersection(other.lowered.operands.values())
            old = _updated(tensors, other, tensors[name], made) if read else None
            if old is not None:
                updates.append(_Update(number, other, old))
                made.add(other.lowered.output)
            else:
                readers += name in read
        if not updates:
            return None
        sharing = [n for n, one in tensors.items() if one.memory == tensors[name].memory]
        return cls(schedule, at, updates, readers > 0 or name in live_out or len(sharing) > 1)

    def apply(self) -> bool:
        """Join them; return False, leaving all as it is, where that cannot be."""
        place, joined = self._place(), self._joined()
        if place is None or joined is None:
            return False
        schedule, gradient = self.schedule, self._gradient
        gone = {self.at, *(update.at for update in self.updates)}
        schedule.replace({self.at: (joined,)})
        left = [i for i in range(len(schedule.entries)) if i not in gone]
        before = [i for i in left if i <= place]
        schedule.arrange([*before, self.at, *left[len(before) :]])
        if not self.stored:
            del schedule.tensors[gradient]
        return True

    @property
    def _gradient(self) -> str:
        return self.schedule.entries[self.at].lowered.output

    def _place(self) -> int | None:
        """Return the number of the last update, at which all can be computed; None where an entry
        before that must come after what is joined.

        There the entry is in the level of the updates, which is behind all that reads the old
        contents: were it earlier, memory would be used again that it reads while the next level
        runs.
        """
        entries, tensors = self.schedule.entries, self.schedule.tensors
        joined = {update.at for update in self.updates}
        for i in range(self.at + 1, max(joined)):
            if i in joined:
                continue
            first = [entries[self.at], *(one.entry for one in self.updates if one.at < i)]
            if any(_depends(tensors, entries[i], one) for one in first):
                return None
        return max(joined)

    def _joined(self) -> ScheduledOp | None:
        """Return the entry that computes all; None where its kernel cannot."""
        entry = self.schedule.entries[self.at]
        values, operands = self._values(entry)
        first, *rest = self.updates
        output = self._gradient if self.stored else first.new
        rest = [*self.updates] if self.stored else rest
        if any(value.calls > MOST_CALLS for value in values.values()):
            return None
        if any(one.old not in operands for one in rest):
            return None
        places = list(operands)
        epilogue = Epilogue(
            values[output],
            tuple(operands.values()),
            tuple((places.index(one.old), values[one.new]) for one in rest),
        )
        return self._entry(entry, epilogue, places, output, tuple(one.new for one in rest))

    def _values(self, entry: ScheduledOp) -> tuple[dict[str, Expr], dict[str, Extent]]:
        """Return the expression of each tensor that is made, and the extent of each tensor that
        these read, in the order of their arguments.
        """
        lowered = entry.lowered
        before = lowered.epilogue or Epilogue(Arg(0))
        operands = {lowered.operands[name]: e for name, e in before.named_extents.items()}
        order = list(operands)
        arguments = (Arg(1 + order.index(lowered.operands[name])) for name in before.names)
        values = {lowered.output: before.expr(Arg(0), *arguments)}
        like = self.schedule.tensors[lowered.output]
        for update in self.updates:
            reads = update.entry.lowered.operands.values()
            for name in reads:
                extent = _extent(self.schedule.tensors[name], like)
                if name not in values and extent is not None:
                    operands.setdefault(name, extent)
            order, op = list(operands), update.entry.lowered.op
            assert isinstance(op, Pointwise)
            values[update.new] = op.expr(
                *(values.get(name) or Arg(1 + order.index(name)) for name in reads)
            )
        return values, operands

    def _entry(
        self,
        entry: ScheduledOp,
        epilogue: Epilogue,
        beside: Sequence[str],
        output: str,
        more: tuple[str, ...],
    ) -> ScheduledOp | None:
        """Return `entry` with another epilogue, of the tensors `beside`, which makes `output` and
        `more`; None where its kernel cannot.
        """
        schedule, tensors, lowered = self.schedule, self.schedule.tensors, entry.lowered
        backend, extents = schedule.backend, epilogue.named_extents
        own = {k: one for k, one in lowered.operands.items() if k in entry.spec.op_shapes}
        written = [tensors[name] for name in (output, *more)]
        if overlap([tensors[name] for name in own.values()], written):
            return None
        named = dict(zip(epilogue.names, beside, strict=True))
        types = {k: entry.spec.types[k] for k in entry.spec.op_shapes}
        types |= {k: tensors[one].type for k, one in named.items()}
        types |= {k: TensorType((1,)) for k, extent in extents.items() if extent == "one"}
        layouts = {k: one for k, one in entry.spec.layouts.items() if k in entry.spec.op_shapes}
        layouts |= {k: DENSE.name for k, extent in extents.items() if extent == "full"}
        spec = OpSpec.create(lowered.op, types, layouts, epilogue)
        if not backend.takes(entry.choice, spec):
            return None
        beside_out = backend.operand_in_result(entry.choice, spec)
        if beside_out is not None and not _same_place(tensors[named[beside_out]], written[0]):
            return None
        taken = backend.layouts(entry.choice, spec)
        full = (k for k, extent in extents.items() if extent == "full")
        if any(taken[k] != DENSE for k in ("out", *full)):
            return None
        if any(taken[k] != entry.layouts[k] for k in own):
            return None
        seen = {
            k: schedule.flat_view(one) if extents[k] == "one" else one for k, one in named.items()
        }
        joined = [lowered, *(update.entry.lowered for update in self.updates)]
        names = dict.fromkeys(part for one in joined for part in one.name.split(" + "))
        made = replace(
            lowered,
            name=" + ".join(names),
            operands={**own, **seen},
            output=output,
            epilogue=epilogue,
            more=more,
            unfused=None,
        )
        return ScheduledOp(made, entry.choice, spec, taken)


def _updated(
    tensors: Tensors, entry: ScheduledOp, like: Tensor, made: Container[str]
) -> str | None:
    """Return the operand in whose place `entry` computes, number by number, what is of the type of
    `like`, of operands that an epilogue can read beside those in `made`; None where it does not.
    """
    lowered, out = entry.lowered, tensors[entry.lowered.output]
    if not isinstance(lowered.op, Pointwise) or entry.host or out.type != like.type:
        return None
    if lowered.parameters or lowered.more or lowered.epilogue or not _is_dense(out):
        return None
    names = [name for name in lowered.operands.values() if name not in made]
    if any(_extent(tensors[name], like) is None for name in names):
        return None
    return next((name for name in names if _same_place(tensors[name], out)), None)


def _same_place(one: Tensor, other: Tensor) -> bool:
    return (one.memory, one.offset) == (other.memory, other.offset)


def _extent(tensor: Tensor, like: Tensor) -> Extent | None:
    """Return the extent of a tensor beside results like `like`; None where no epilogue takes it."""
    if not _is_dense(tensor):
        return None
    if tensor.type == like.type:
        return "full"
    return "one" if prod(tensor.shape) == 1 else None


def _depends(tensors: Tensors, second: ScheduledOp, first: ScheduledOp) -> bool:
    """Return True where `second`, which comes after `first`, must wait for it."""
    read, written = ([tensors[n] for n in one] for one in (_reads(first), first.lowered.results))
    reads, writes = ([tensors[n] for n in one] for one in (_reads(second), second.lowered.results))
    return overlap(written, [*reads, *writes]) or overlap(read, writes)


def _reads(entry: ScheduledOp) -> Iterable[str]:
    return entry.lowered.operands.values()


def _is_dense(tensor: Tensor) -> bool:
    """Return True for a float32 tensor that is row major without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE
