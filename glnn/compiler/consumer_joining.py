"""Pointwise consumers of a tensor join the epilogue of its producer: one launch, several outputs.

An optimiser's new slots and the new parameter are pointwise work on a gradient, each in the memory
of its old content; the gradient of a cross-entropy is such work on the logarithms that the loss
reads. The kernel that makes the gradient, or the logarithms, stores all of these as it finishes a
number. That spares a launch which waits for others, and one reading of the tensor. (Pointwise work
that is its operand's only consumer was fused in the graph: `graph/passes/pointwise_fusion.py`.)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp, Tensor
from glnn.compiler.update_fusion import overlap
from glnn.compiler.weights import Weight
from glnn.core.layout.layout import DENSE, PADDED
from glnn.core.types import DType, TensorType
from glnn.graph.compose.decompositions import DerivedParameter
from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.expression import MOST_CALLS, Arg, Expr
from glnn.graph.operators import Reshape
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

Tensors = Mapping[str, Tensor]
Source = str | Weight
"""An operand: a tensor by its name, or a weight, which no run changes."""


def join_consumers(schedule: Schedule, live_out: Iterable[str], *, in_place: bool) -> bool:
    """Join pointwise entries to the entries that make what they read, where kernels can do so.

    live_out: tensors that somebody reads after a run. in_place: whether entries that update a
    tensor where it is join, too. Returns True where some were joined.
    """
    live_out, at, found = set(live_out), 0, False
    while schedule.backend.in_place and at < len(schedule.entries):
        join = _Join.find(schedule, at, live_out, in_place=in_place)
        if join is not None and join.apply():
            found = True  # the next entry has its number now
        else:
            at += 1
    return found


@dataclass(frozen=True)
class _Consumer:
    """A pointwise entry that reads what another makes.

    at: its number. old: the tensor that it updates in place, None where it has memory of its own.
    """

    at: int
    entry: ScheduledOp
    old: str | None

    @property
    def new(self) -> str:
        """The tensor that it makes."""
        return self.entry.lowered.output

    @property
    def target(self) -> str:
        """The operand of the joined epilogue that is replaced by what this one makes."""
        return self.new if self.old is None else self.old


@dataclass(frozen=True)
class _Join:
    """Consumers that may join the epilogue of the entry number `at`, their producer.

    stored: whether others read the result that the producer has without them.
    """

    schedule: Schedule
    at: int
    consumers: Sequence[_Consumer]
    stored: bool

    @classmethod
    def find(
        cls, schedule: Schedule, at: int, live_out: Container[str], *, in_place: bool
    ) -> _Join | None:
        """Return the consumers of what the entry number `at` makes; None where none may join."""
        entry, tensors = schedule.entries[at], schedule.tensors
        name, kernel = entry.lowered.output, entry.choice
        if entry.host or entry.lowered.more or not isinstance(kernel, Kernel):
            return None
        if kernel.epilogue is None or not kernel.epilogue.updates or not _is_dense(tensors[name]):
            return None
        made, consumers, readers = {name}, list[_Consumer](), 0
        for number in range(at + 1, len(schedule.entries)):
            other = schedule.entries[number]
            read = made.intersection(other.lowered.operands.values())
            joinable = bool(read) and _is_joinable(tensors, other, tensors[name], made)
            old = _replaced(tensors, other) if joinable else None
            if joinable and (in_place or old is None):
                consumers.append(_Consumer(number, other, old))
                made.add(other.lowered.output)
            else:
                readers += name in read
        if not consumers:
            return None
        sharing = [n for n, one in tensors.items() if one.memory == tensors[name].memory]
        return cls(schedule, at, consumers, readers > 0 or name in live_out or len(sharing) > 1)

    def apply(self) -> bool:
        """Join them; return False, leaving all as it is, where that cannot be."""
        position, joined = self._position(), self._joined()
        if position is None or joined is None:
            return False
        schedule, produced = self.schedule, self._produced
        gone = {self.at, *(consumer.at for consumer in self.consumers)}
        schedule.replace({self.at: (joined,)})
        left = [i for i in range(len(schedule.entries)) if i not in gone]
        before = [i for i in left if i <= position]
        schedule.arrange([*before, self.at, *left[len(before) :]])
        if not self.stored:
            del schedule.tensors[produced]
        return True

    @property
    def _produced(self) -> str:
        return self.schedule.entries[self.at].lowered.output

    def _position(self) -> int | None:
        """Return the number of an entry at which all can be computed; None where there is none.

        Where all update tensors in place, that is where the last of them is, behind all that reads
        the old contents: were they earlier, memory would be used again that they read while the
        next level runs. Others are as early as they can be.
        """
        last = max(consumer.at for consumer in self.consumers)
        if all(consumer.old is not None for consumer in self.consumers):
            return last if self._may_be_at(last) else None
        first = self._first_position(last)
        return first if self._may_be_at(first) else None

    @property
    def _between(self) -> Sequence[int]:
        """The numbers of the entries between the first and the last of what is joined."""
        joined = {consumer.at for consumer in self.consumers}
        return [i for i in range(self.at + 1, max(joined)) if i not in joined]

    def _first_position(self, last: int) -> int:
        """Return the number of the last entry that must come before what is joined."""
        entries, tensors, place = self.schedule.entries, self.schedule.tensors, self.at
        for consumer in self.consumers:
            waits = (i for i in self._between if place < i < consumer.at)
            needed = (i for i in waits if _depends(tensors, consumer.entry, entries[i]))
            place = max(needed, default=place)
        return place

    def _may_be_at(self, position: int) -> bool:
        """Return True where no entry up to `position` must come after what is joined."""
        entries, tensors = self.schedule.entries, self.schedule.tensors
        for i in self._between:
            first = [entries[self.at], *(one.entry for one in self.consumers if one.at < i)]
            if i <= position and any(_depends(tensors, entries[i], one) for one in first):
                return False
        return True

    def _joined(self) -> ScheduledOp | None:
        """Return the entry that computes all; None where its kernel cannot."""
        entry, tensors = self.schedule.entries[self.at], self.schedule.tensors
        values, operands = self._values(entry)
        first, *rest = self.consumers
        output = self._produced if self.stored else first.new
        rest = [*self.consumers] if self.stored else rest
        stored = [values[output], *(values[one.new] for one in rest)]
        if sum(value.calls for value in stored) > MOST_CALLS:
            return None
        for consumer in rest:
            whole = tensors[consumer.target].layout == DENSE
            operands.setdefault(consumer.target, "full" if whole else "padded")
        places = list(operands)
        epilogue = Epilogue(
            values[output],
            tuple(operands.values()),
            tuple((places.index(one.target), values[one.new]) for one in rest),
        )
        return self._entry(entry, epilogue, places, output, tuple(one.new for one in rest))

    def _values(self, entry: ScheduledOp) -> tuple[dict[str, Expr], dict[Source, Extent]]:
        """Return the expression of each tensor that is made, and the extent of each operand that
        these read, in the order of their arguments.
        """
        lowered, tensors = entry.lowered, self.schedule.tensors
        before = lowered.epilogue or Epilogue(Arg(0))
        beside = [_source(entry, name) for name in before.names]
        operands: dict[Source, Extent] = dict(zip(beside, before.extents, strict=True))
        order = list(operands)
        arguments = (Arg(1 + order.index(one)) for one in beside)
        values = {lowered.output: before.expr(Arg(0), *arguments)}
        like = tensors[lowered.output]
        for consumer in self.consumers:
            reads = [_source(consumer.entry, name) for name in consumer.entry.spec.op_shapes]
            for one in reads:
                extent = _extent(tensors, one, like)
                if one not in values and extent is not None:
                    operands.setdefault(one, extent)
            order, op = list(operands), consumer.entry.lowered.op
            assert isinstance(op, Pointwise)
            known = (values.get(one) if isinstance(one, str) else None for one in reads)
            pairs = zip(reads, known, strict=True)
            values[consumer.new] = op.expr(
                *(value or Arg(1 + order.index(one)) for one, value in pairs)
            )
        return values, operands

    def _entry(
        self,
        entry: ScheduledOp,
        epilogue: Epilogue,
        sources: Sequence[Source],
        output: str,
        more: tuple[str, ...],
    ) -> ScheduledOp | None:
        """Return `entry` with another epilogue, of the operands `sources`, which makes `output` and
        `more`; None where its kernel cannot.
        """
        schedule, tensors, lowered = self.schedule, self.schedule.tensors, entry.lowered
        backend, extents = schedule.backend, epilogue.named_extents
        own = {k: one for k, one in lowered.operands.items() if k in entry.spec.op_shapes}
        fixed = {k: one for k, one in lowered.parameters.items() if k in entry.spec.op_shapes}
        written = [tensors[name] for name in (output, *more)]
        if overlap([tensors[name] for name in own.values()], written):
            return None
        named = dict(zip(epilogue.names, sources, strict=True))
        result = tensors[output].shape
        types = {k: entry.spec.types[k] for k in entry.spec.op_shapes}
        for k, shape in epilogue.shapes(result).items():
            types[k] = TensorType(shape, _type(tensors, named[k]).dtype)
        layouts = {k: one for k, one in entry.spec.layouts.items() if k in entry.spec.op_shapes}
        layouts |= dict.fromkeys(epilogue.named("full"), DENSE.name)
        padded = {k: tensors[str(named[k])].layout for k in epilogue.named("padded")}
        layouts |= {k: layout.name for k, layout in padded.items()}
        spec = OpSpec.create(lowered.op, types, layouts, epilogue)
        if not backend.takes(entry.choice, spec):
            return None
        in_result = backend.operand_in_result(entry.choice, spec)
        if in_result is not None:
            source = named[in_result]
            if not isinstance(source, str) or not _same_memory(tensors[source], written[0]):
                return None
        taken = backend.layouts(entry.choice, spec)
        if any(taken[k] != padded.get(k, DENSE) for k in ("out", *epilogue.names)):
            return None
        if any(taken[k] != entry.layouts[k] for k in (*own, *fixed)):
            return None
        for k, source in named.items():
            if isinstance(source, str):
                whole = extents[k] in ("full", "padded")
                own[k] = source if whole else schedule.flat_view(source)
            else:
                shape = types[k].shape
                fixed[k] = source.made(DerivedParameter(k, shape, Reshape(shape)))
        joined = [lowered, *(consumer.entry.lowered for consumer in self.consumers)]
        names = dict.fromkeys(part for one in joined for part in one.name.split(" + "))
        made = replace(
            lowered,
            name=" + ".join(names),
            operands=own,
            parameters=fixed,
            output=output,
            epilogue=epilogue,
            more=more,
            unfused=None,
        )
        return ScheduledOp(made, entry.choice, spec, taken)


def _source(entry: ScheduledOp, operand: str) -> Source:
    """Return the tensor or the weight that is an operand of `entry`."""
    return entry.lowered.operands.get(operand) or entry.lowered.parameters[operand]


def _type(tensors: Tensors, source: Source) -> TensorType:
    return tensors[source].type if isinstance(source, str) else source.type


def _is_joinable(tensors: Tensors, entry: ScheduledOp, like: Tensor, made: Container[str]) -> bool:
    """Return True where `entry` computes, number by number, what is of the type of `like`, of
    operands that an epilogue can read beside those in `made`.
    """
    lowered, out = entry.lowered, tensors[entry.lowered.output]
    if not isinstance(lowered.op, Pointwise) or entry.host or lowered.more or lowered.epilogue:
        return False
    layouts = (DENSE, PADDED.at(out.shape)) if len(out.shape) == 2 else (DENSE,)
    if out.type != like.type or out.layout not in layouts:
        return False
    sources = (_source(entry, name) for name in entry.spec.op_shapes)
    return all(one in made or _extent(tensors, one, like) is not None for one in sources)


def _replaced(tensors: Tensors, entry: ScheduledOp) -> str | None:
    """Return the operand in whose place `entry` computes; None where it has memory of its own."""
    out, names = tensors[entry.lowered.output], entry.lowered.operands.values()
    return next((name for name in names if _same_memory(tensors[name], out)), None)


def _same_memory(first: Tensor, second: Tensor) -> bool:
    return (first.memory, first.offset) == (second.memory, second.offset)


def _extent(tensors: Tensors, source: Source, like: Tensor) -> Extent | None:
    """Return the extent of an operand beside results like `like`; None where no epilogue takes it.

    Integers are taken where there is one for each row, or for each place in it, as labels and
    classes are.
    """
    type = _type(tensors, source)
    if isinstance(source, str) and tensors[source].layout != DENSE:
        return None
    if type.dtype is DType.float32:
        if type == like.type:
            return "full" if isinstance(source, str) else None
        if prod(type.shape) == 1:
            return "one"
    elif type.dtype is not DType.int32:
        return None
    if len(like.shape) < 2:
        return None
    if type.shape == (*like.shape[:-1], 1):
        return "row"
    spread = (*(1,) * (len(like.shape) - 1), like.shape[-1])
    return "column" if type.shape in (spread, spread[-1:]) else None


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
