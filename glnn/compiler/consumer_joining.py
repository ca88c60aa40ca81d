"""Pointwise consumers of a tensor join the epilogue of its producer: one launch, several outputs.

An optimiser's new slots and the new parameter are pointwise work on a gradient, each in the memory
of its old content; the gradient of a cross-entropy is such work on the logarithms that the loss
reads. The kernel that makes the gradient, or the logarithms, stores all of these as it finishes an
element. That spares a launch, which would wait for the producer, and one reading of the tensor.
(A pointwise node that is its operand's only consumer was fused in the graph before, by
`graph/passes/pointwise_fusion.py`.)
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
    """Join pointwise entries to the epilogues of their producers, where kernels can do so.

    live_out: tensors that are read after a run. in_place: True to join also entries that update a
    tensor in place. Returns True where some were joined.
    """
    live_out, number, any_joined = set(live_out), 0, False
    while schedule.backend.in_place and number < len(schedule.entries):
        join = _Join.find(schedule, number, live_out, in_place=in_place)
        if join is not None and join.apply():
            any_joined = True  # another entry has this number now
        else:
            number += 1
    return any_joined


@dataclass(frozen=True)
class _Consumer:
    """A pointwise entry that reads the result of another one.

    number: its number in the schedule. updated: the tensor that it updates in place, None where its
    result has memory of its own.
    """

    number: int
    entry: ScheduledOp
    updated: str | None

    @property
    def output(self) -> str:
        """The tensor that it makes."""
        return self.entry.lowered.output

    @property
    def target(self) -> str:
        """The operand of the joined epilogue in whose place the output is stored."""
        return self.output if self.updated is None else self.updated


@dataclass(frozen=True)
class _Join:
    """Consumers that may join the epilogue of their producer, the entry `number`.

    stored: True where the producer's own result must be stored, too, as it has other readers.
    """

    schedule: Schedule
    number: int
    consumers: Sequence[_Consumer]
    stored: bool

    @classmethod
    def find(
        cls, schedule: Schedule, producer: int, live_out: Container[str], *, in_place: bool
    ) -> _Join | None:
        """Return the join of the entry `producer` and its consumers; None where none may join."""
        entry, tensors = schedule.entries[producer], schedule.tensors
        name, kernel = entry.lowered.output, entry.choice
        if entry.host or entry.lowered.other_outputs or not isinstance(kernel, Kernel):
            return None
        if kernel.epilogue is None or not kernel.epilogue.updates or not _is_dense(tensors[name]):
            return None
        made, consumers, other_readers = {name}, list[_Consumer](), 0
        for number in range(producer + 1, len(schedule.entries)):
            other = schedule.entries[number]
            read = made.intersection(other.lowered.operands.values())
            joinable = bool(read) and _is_joinable(tensors, other, tensors[name], made)
            updated = _updated(tensors, other) if joinable else None
            if joinable and (in_place or updated is None):
                consumers.append(_Consumer(number, other, updated))
                made.add(other.lowered.output)
            else:
                other_readers += name in read
        if not consumers:
            return None
        aliases = [n for n, one in tensors.items() if one.memory == tensors[name].memory]
        stored = other_readers > 0 or name in live_out or len(aliases) > 1
        return cls(schedule, producer, consumers, stored)

    def apply(self) -> bool:
        """Join the consumers; return False, without any change, where that cannot be."""
        position, joined = self._position(), self._joined()
        if position is None or joined is None:
            return False
        schedule, produced = self.schedule, self._produced
        removed = {self.number, *(consumer.number for consumer in self.consumers)}
        schedule.replace({self.number: (joined,)})
        others = [i for i in range(len(schedule.entries)) if i not in removed]
        before = [i for i in others if i <= position]
        schedule.arrange([*before, self.number, *others[len(before) :]])
        if not self.stored:
            del schedule.tensors[produced]
        return True

    @property
    def _produced(self) -> str:
        """The tensor that the producer makes."""
        return self.schedule.entries[self.number].lowered.output

    def _position(self) -> int | None:
        """Return the number of an entry after which the joined entry can be; None where there is
        none.

        Where all consumers update tensors in place, that is the last of them, after all readers of
        the old contents: earlier, the next level would reuse memory that the joined entry reads,
        and wait for it. Other joins are as early as they can be.
        """
        last = max(consumer.number for consumer in self.consumers)
        if all(consumer.updated is not None for consumer in self.consumers):
            return last if self._may_be_after(last) else None
        first = self._first_position()
        return first if self._may_be_after(first) else None

    @property
    def _between(self) -> Sequence[int]:
        """The numbers of the other entries between the producer and the last consumer."""
        joined = {consumer.number for consumer in self.consumers}
        return [i for i in range(self.number + 1, max(joined)) if i not in joined]

    def _first_position(self) -> int:
        """Return the number of the last entry that must come before the joined entry."""
        entries, tensors, position = self.schedule.entries, self.schedule.tensors, self.number
        for consumer in self.consumers:
            earlier = (i for i in self._between if position < i < consumer.number)
            needed = (i for i in earlier if _depends(tensors, consumer.entry, entries[i]))
            position = max(needed, default=position)
        return position

    def _may_be_after(self, position: int) -> bool:
        """Return True where no entry up to `position` must come after the joined entry."""
        entries, tensors = self.schedule.entries, self.schedule.tensors
        for i in self._between:
            earlier = [entries[self.number]]
            earlier += [one.entry for one in self.consumers if one.number < i]
            if i <= position and any(_depends(tensors, entries[i], one) for one in earlier):
                return False
        return True

    def _joined(self) -> ScheduledOp | None:
        """Return the entry that computes all; None where its kernel cannot."""
        entry, tensors = self.schedule.entries[self.number], self.schedule.tensors
        values, operands = self._values(entry)
        first, *others = self.consumers
        output = self._produced if self.stored else first.output
        others = [*self.consumers] if self.stored else others
        stored = [values[output], *(values[one.output] for one in others)]
        if sum(value.calls for value in stored) > MOST_CALLS:
            return None
        for consumer in others:
            dense = tensors[consumer.target].layout == DENSE
            operands.setdefault(consumer.target, "full" if dense else "padded")
        sources = list(operands)
        epilogue = Epilogue(
            values[output],
            tuple(operands.values()),
            tuple((sources.index(one.target), values[one.output]) for one in others),
        )
        return self._entry(entry, epilogue, sources, output, tuple(one.output for one in others))

    def _values(self, entry: ScheduledOp) -> tuple[dict[str, Expr], dict[Source, Extent]]:
        """Return the expression of each tensor that is made, and the extent of each operand of
        these expressions, in the order of their arguments.
        """
        lowered, tensors = entry.lowered, self.schedule.tensors
        epilogue = lowered.epilogue or Epilogue(Arg(0))
        sources = [_source(entry, name) for name in epilogue.names]
        operands: dict[Source, Extent] = dict(zip(sources, epilogue.extents, strict=True))
        order = list(operands)
        arguments = (Arg(1 + order.index(one)) for one in sources)
        values = {lowered.output: epilogue.expr(Arg(0), *arguments)}
        like = tensors[lowered.output]
        for consumer in self.consumers:
            reads = [_source(consumer.entry, name) for name in consumer.entry.spec.op_shapes]
            for one in reads:
                extent = _extent(tensors, one, like)
                if one not in values and extent is not None:
                    operands.setdefault(one, extent)
            order, op = list(operands), consumer.entry.lowered.op
            assert isinstance(op, Pointwise)
            computed = (values.get(one) if isinstance(one, str) else None for one in reads)
            pairs = zip(reads, computed, strict=True)
            values[consumer.output] = op.expr(
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
        operands = {k: one for k, one in lowered.operands.items() if k in entry.spec.op_shapes}
        parameters = {k: one for k, one in lowered.parameters.items() if k in entry.spec.op_shapes}
        written = [tensors[name] for name in (output, *more)]
        if overlap([tensors[name] for name in operands.values()], written):
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
        new_layouts = backend.layouts(entry.choice, spec)
        if any(new_layouts[k] != padded.get(k, DENSE) for k in ("out", *epilogue.names)):
            return None
        if any(new_layouts[k] != entry.layouts[k] for k in (*operands, *parameters)):
            return None
        for k, source in named.items():
            if isinstance(source, str):
                is_matrix = extents[k] in ("full", "padded")
                operands[k] = source if is_matrix else schedule.flat_view(source)
            else:
                shape = types[k].shape
                parameters[k] = source.derive(DerivedParameter(k, shape, Reshape(shape)))
        ops = [lowered, *(consumer.entry.lowered for consumer in self.consumers)]
        names = dict.fromkeys(part for one in ops for part in one.name.split(" + "))
        joined = replace(
            lowered,
            name=" + ".join(names),
            operands=operands,
            parameters=parameters,
            output=output,
            epilogue=epilogue,
            other_outputs=more,
            unfused=None,
        )
        return ScheduledOp(joined, entry.choice, spec, new_layouts)


def _source(entry: ScheduledOp, operand: str) -> Source:
    """Return the tensor or the weight that is an operand of `entry`."""
    return entry.lowered.operands.get(operand) or entry.lowered.parameters[operand]


def _type(tensors: Tensors, source: Source) -> TensorType:
    return tensors[source].type if isinstance(source, str) else source.type


def _is_joinable(tensors: Tensors, entry: ScheduledOp, like: Tensor, made: Container[str]) -> bool:
    """Return True where `entry` is pointwise, its result has the type of `like`, and its operands
    are in `made` or can be read by an epilogue.
    """
    lowered, out = entry.lowered, tensors[entry.lowered.output]
    if (
        not isinstance(lowered.op, Pointwise)
        or entry.host
        or lowered.other_outputs
        or lowered.epilogue
    ):
        return False
    layouts = (DENSE, PADDED.simplify(out.shape)) if len(out.shape) == 2 else (DENSE,)
    if out.type != like.type or out.layout not in layouts:
        return False
    sources = (_source(entry, name) for name in entry.spec.op_shapes)
    return all(one in made or _extent(tensors, one, like) is not None for one in sources)


def _updated(tensors: Tensors, entry: ScheduledOp) -> str | None:
    """Return the operand that `entry` updates in place; None where its result has other memory."""
    out, names = tensors[entry.lowered.output], entry.lowered.operands.values()
    return next((name for name in names if _same_memory(tensors[name], out)), None)


def _same_memory(first: Tensor, second: Tensor) -> bool:
    return (first.memory, first.offset) == (second.memory, second.offset)


def _extent(tensors: Tensors, source: Source, like: Tensor) -> Extent | None:
    """Return the extent of an operand of an epilogue of results like `like`; None where no epilogue
    reads it.

    int32 operands may have one number for each row, as labels, or for each column, as classes.
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
    row_shape = (*(1,) * (len(like.shape) - 1), like.shape[-1])
    return "column" if type.shape in (row_shape, row_shape[-1:]) else None


def _depends(tensors: Tensors, second: ScheduledOp, first: ScheduledOp) -> bool:
    """Return True where `second`, which comes after `first`, must stay after it."""
    read, written = ([tensors[n] for n in one] for one in (_reads(first), first.lowered.results))
    reads, writes = ([tensors[n] for n in one] for one in (_reads(second), second.lowered.results))
    return overlap(written, [*reads, *writes]) or overlap(read, writes)


def _reads(entry: ScheduledOp) -> Iterable[str]:
    return entry.lowered.operands.values()


def _is_dense(tensor: Tensor) -> bool:
    """Return True for a float32 tensor that is row major without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE
