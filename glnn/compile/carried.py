"""The states of a plan: where each has its content before a run, and where it comes to be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glnn.backends import Backend
from glnn.compile.memory import Arena
from glnn.compile.schedule import Schedule
from glnn.compile.states import States
from glnn.compile.step import Step
from glnn.compile.task import Entry
from glnn.compile.weights import Weight
from glnn.errors import ModelError, ShapeError
from glnn.graph.constant import constant
from glnn.graph.graph import Graph
from glnn.graph.operators.pointwise import Pointwise
from glnn.types import Shape, TensorType


@dataclass(frozen=True)
class Held:
    """The states that a graph is planned with.

    types: of all that there are, by name. doubled: those that have a second memory. updates: by the
    name of a state, the output that is its content from the next run on. places: of those that lie
    in a memory with others, by name, the first of these and the word that it begins at.
    """

    types: Mapping[str, TensorType] = field(default_factory=dict)
    doubled: Container[str] = ()
    updates: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, states: States | None, updates: Mapping[str, str], graph: Graph, backend: Backend
    ) -> Held:
        """Those of `states`. Raises ModelError or ShapeError unless they fit `graph`."""
        if states is not None and states.backend is not backend:
            raise ModelError(f"{graph.name} on {backend.name} was given states of another backend")
        all_of = {} if states is None else {name: states[name] for name in states.names}
        doubled = {name for name, state in all_of.items() if len(state.memories) > 1}
        types = {name: state.type for name, state in all_of.items()}
        held = cls(types, doubled, updates, {} if states is None else states.places)
        held._check(graph)
        return held

    def shapes(self, graph: Graph) -> dict[str, Shape]:
        """The shapes of those inputs of `graph` that are states."""
        names = (value.name for value in graph.inputs)
        return {name: self.types[name].shape for name in names if name in self.types}

    def _check(self, graph: Graph) -> None:
        outputs = {value.name: value for value in graph.outputs}
        inputs = set(graph.inputs)
        for name, output in self.updates.items():
            if name not in self.types:
                raise ModelError(f"updates: there is no state {name!r}")
            if output not in outputs:
                raise ModelError(f"updates[{name!r}]: {graph.name} has no output {output!r}")
        for value in graph.inputs:
            type = self.types.get(value.name)
            if type is not None and not _takes(value.type, type):
                raise ShapeError(f"state {value.name!r} is {type}, {graph.name} takes {value.type}")
        ends = set(self.updates.values())
        for name, value in outputs.items():
            if value in inputs and name in self.types and name not in ends:
                raise ModelError(f"output {name!r} is a state: it is read by States.read")


def _takes(given: TensorType, type: TensorType) -> bool:
    """Whether what is `given` may be of `type`."""
    if given.dtype is not type.dtype or len(given.dims) != len(type.dims):
        return False
    pairs = zip(given.dims, type.dims, strict=True)
    return all(isinstance(dim, str) or dim == size for dim, size in pairs)


NO_STATES = Held()


@dataclass(frozen=True)
class Carried:
    """A state in a plan.

    name: the state's. before: the tensor of its content when a run begins, None where the plan does
    not read it. after: the tensor of its content from then on, None where that stays as it is.
    """

    name: str
    before: str | None
    after: str | None

    def blocks(self, schedule: Schedule, arena: Arena) -> tuple[int, ...]:
        """Its block of memory; two, the latter of the new content, where it is not in place."""
        ends = (name for name in (self.before, self.after) if name is not None)
        return tuple(dict.fromkeys(arena.block[schedule.tensors[name].memory] for name in ends))


def carried(schedule: Schedule, graph: Graph, held: Held) -> tuple[Carried, ...]:
    """The states of `graph`, which `schedule` computes, those that it updates in memory of its own.

    That is the state's where it can be updated in place. Raises ShapeError where what is to be the
    content is of another type.
    """
    inputs = {value.name for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    ends = set(held.updates.values())
    taken = {schedule.tensors[name].memory for name in inputs}
    taken |= {
        schedule.tensors[name].memory
        for name in outputs
        if name in schedule.tensors and name not in ends
    }
    found: list[Carried] = []
    for name, type in held.types.items():
        before, output = name if name in inputs else None, held.updates.get(name)
        if output == name or 0 in type.dims:
            output = None
        if before is None and output is None:
            continue
        after = None
        if output is not None:
            if output in schedule.tensors:
                after = schedule.in_rows(output)
                if schedule.tensors[after].memory in taken:
                    after = schedule.apart(after)
            else:
                after = schedule.made(output, Weight.made_of(constant(graph, outputs[output], {})))
            if (got := schedule.tensors[after].type) != type:
                raise ShapeError(f"state {name!r} is {type}, its update {output!r} is {got}")
            taken.add(schedule.tensors[after].memory)
        found.append(Carried(name, before, after))
    if schedule.backend.in_place:
        _place(schedule, found)
        found = [_copied(schedule, one) if one.name in held.places else one for one in found]
    return tuple(found)


def _copied(schedule: Schedule, one: Carried) -> Carried:
    """`one`, whose place is for good: what is computed elsewhere is copied there, last of all."""
    if one.before is None or one.after is None:
        return one
    old, new = schedule.tensors[one.before], schedule.tensors[one.after]
    if old.memory == new.memory:
        return one
    after = schedule.apart(one.after)
    schedule.tensors[after] = replace(schedule.tensors[after], memory=old.memory)
    return replace(one, after=after)


def check_read(names: Iterable[str], states: Iterable[Carried]) -> None:
    """Raise ModelError if one of `names` is a state of `states`, before a run or after it."""
    for name in names:  # most steps are asked for none
        for one in states:
            if name in (one.name, one.after):
                raise ModelError(f"{name!r} is state {one.name!r}: it is read by States.read")


def on_device(states: Iterable[Carried], held: Held, schedule: Schedule, arena: Arena) -> int:
    """Bytes of the blocks of `states` that are on the device already."""
    found: set[int] = set()
    for one in states:
        blocks = one.blocks(schedule, arena)
        found.update(blocks if one.name in held.doubled else blocks[:1])
    return sum(4 * arena.sizes[block] for block in found)


def with_turns(
    steps: Sequence[Step], states: Iterable[Carried], schedule: Schedule, arena: Arena
) -> tuple[Step, ...]:
    """`steps`, those with two sets of textures that read or write a state which has two memories:
    they are launched from either.
    """
    blocks = (one.blocks(schedule, arena) for one in states)
    turning = {block for some in blocks if len(some) > 1 for block in some}

    def turns(entry: Entry) -> bool:
        memories = (schedule.tensors[name].memory for name in entry.tensors)
        return any(arena.block.get(memory) in turning for memory in memories)

    return tuple(
        replace(step, nbytes=(*step.nbytes[:2], 2 * step.nbytes[2])) if turns(entry) else step
        for step, entry in zip(steps, schedule.entries, strict=True)
    )


def _place(schedule: Schedule, states: Iterable[Carried]) -> None:
    """Have the memory of each `after` be that of `before`, where that can be."""
    tensors, entries = schedule.tensors, schedule.entries
    made, read = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    named = defaultdict[str, list[str]](list)
    for i, entry in enumerate(entries):
        made[tensors[entry.task.output].memory].append(i)
        for memory in {tensors[name].memory for name in entry.task.operands.values()}:
            read[memory].append(i)
    for name, tensor in tensors.items():
        named[tensor.memory].append(name)
    for one in states:
        if one.before is None or one.after is None:
            continue
        old, new = tensors[one.before].memory, tensors[one.after].memory
        if len(made[new]) != 1 or not _free(schedule, old, read[old], made[new][0]):
            continue
        for name in named[new]:
            tensors[name] = replace(tensors[name], memory=old)
        made[old] += made.pop(new)
        read[old] += read.pop(new, [])
        named[old] += named.pop(new)


def _free(schedule: Schedule, memory: str, readers: Iterable[int], made: int) -> bool:
    """Whether the entry number `made` may write to `memory`, which `readers` read."""
    for i in readers:
        entry = schedule.entries[i]
        named = entry.task.operands.items()
        reads = {k for k, v in named if schedule.tensors[v].memory == memory}
        if i > made or (i == made and not _aligned(schedule, entry, reads)):
            return False
    return True


def _aligned(schedule: Schedule, entry: Entry, operands: set[str]) -> bool:
    """Whether `entry` reads of `operands` but what lies where it writes, just before it does."""
    task, out = entry.task, schedule.tensors[entry.task.output]
    tensors = {name: schedule.tensors[task.operands[name]] for name in operands}
    if any((one.type.dims, one.layout) != (out.type.dims, out.layout) for one in tensors.values()):
        return False
    if entry.host:
        return False
    if isinstance(task.op, Pointwise):
        return True
    extents = {} if task.epilogue is None else task.epilogue.named_extents
    return all(extents.get(name) == "full" for name in operands)
