"""The states that a plan reads and updates, and where their new content lies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from glnn.backends import Backend
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.compiler.states import States
from glnn.compiler.step import Step
from glnn.compiler.weights import Weight
from glnn.core.symint import same
from glnn.core.types import Shape, TensorType
from glnn.errors import ModelError, ShapeError
from glnn.graph.constant import constant
from glnn.graph.graph import Graph
from glnn.graph.operators.pointwise import Pointwise


@dataclass(frozen=True)
class StateSpecs:
    """The states that a graph is planned with.

    types: of all that there are, by name. doubled: those that have a second memory. updates: by the
    name of a state, the output that is its content from the next run on. group_offsets: of
    those that lie in a memory with others, by name, the first of these and the word that it begins
    at. readable: those whose updates runs can be asked for.
    """

    types: Mapping[str, TensorType] = field(default_factory=dict)
    doubled: Container[str] = ()
    updates: Mapping[str, str] = field(default_factory=dict)
    group_offsets: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    readable: Container[str] = ()

    @classmethod
    def bind(
        cls, states: States | None, updates: Mapping[str, str], graph: Graph, backend: Backend
    ) -> StateSpecs:
        """Return `states` bound to `graph`. Raises ModelError or ShapeError unless they fit."""
        if states is not None and states.backend is not backend:
            raise ModelError(f"{graph.name} on {backend.name} was given states of another backend")
        all_of = {} if states is None else {name: states[name] for name in states.names}
        doubled = {name for name, state in all_of.items() if len(state.memories) > 1}
        types = {name: state.type for name, state in all_of.items()}
        readable = {name for name, state in all_of.items() if state.readable}
        offsets = {} if states is None else states.group_offsets
        specs = cls(types, doubled, updates, offsets, readable)
        specs._check(graph)
        return specs

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


def _takes(declared: TensorType, type: TensorType) -> bool:
    """Return True where a state of `type` fits an input of type `declared`."""
    if declared.dtype is not type.dtype or len(declared.dims) != len(type.dims):
        return False
    pairs = zip(declared.dims, type.dims, strict=True)
    return all(isinstance(dim, str) or dim == size for dim, size in pairs)


NO_STATES = StateSpecs()


@dataclass(frozen=True)
class StateBinding:
    """A state in a plan.

    name: the state's. before: the tensor of its content when a run begins, None where the plan does
    not read it. after: the tensor of its content from then on, None where that stays as it is.
    readable: see `States.add`.
    """

    name: str
    before: str | None
    after: str | None
    readable: bool = False

    def blocks(self, schedule: Schedule, arena: Arena) -> tuple[int, ...]:
        """Its block of memory; two, the latter of the new content, where it is not in place."""
        ends = (name for name in (self.before, self.after) if name is not None)
        return tuple(dict.fromkeys(arena.block[schedule.tensors[name].memory] for name in ends))


def bind_states(schedule: Schedule, graph: Graph, specs: StateSpecs) -> tuple[StateBinding, ...]:
    """The states of `graph`, which `schedule` computes, those that it updates in memory of its own.

    That is the state's where it can be updated in place. Raises ShapeError where what is to be the
    content is of another type.
    """
    inputs = {value.name for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    ends = set(specs.updates.values())
    taken = {schedule.tensors[name].memory for name in inputs}
    taken |= {
        schedule.tensors[name].memory
        for name in outputs
        if name in schedule.tensors and name not in ends
    }
    bindings: list[StateBinding] = []
    for name, type in specs.types.items():
        before, output = name if name in inputs else None, specs.updates.get(name)
        if output == name or 0 in type.dims:
            output = None
        if before is None and output is None:
            continue
        after = None
        if output is not None:
            if output in schedule.tensors:
                after = schedule.in_rows(output)
                if schedule.tensors[after].memory in taken and not _updated(
                    schedule, before, after
                ):
                    after = schedule.copy_of(after)
            else:
                after = schedule.weight_tensor(
                    output, Weight.made_of(constant(graph, outputs[output], {}))
                )
            if (got := schedule.tensors[after].type) != type:
                raise ShapeError(f"state {name!r} is {type}, its update {output!r} is {got}")
            taken.add(schedule.tensors[after].memory)
        bindings.append(StateBinding(name, before, after, name in specs.readable))
    if schedule.backend.in_place:
        _update_in_place(schedule, bindings)
        bindings = [
            _copied(schedule, one) if one.name in specs.group_offsets else one for one in bindings
        ]
    return tuple(bindings)


def _updated(schedule: Schedule, before: str | None, after: str) -> bool:
    """Return True where an operator wrote the content `after` into the memory of the old one."""
    if before is None or not schedule.backend.in_place:
        return False
    return schedule.tensors[before].memory == schedule.tensors[after].memory and before != after


def _copied(schedule: Schedule, one: StateBinding) -> StateBinding:
    """`one`, whose place is for good: what is computed elsewhere is copied there, last of all."""
    if one.before is None or one.after is None:
        return one
    old, new = schedule.tensors[one.before], schedule.tensors[one.after]
    if old.memory == new.memory:
        return one
    after = schedule.copy_of(one.after)
    schedule.tensors[after] = replace(schedule.tensors[after], memory=old.memory)
    return replace(one, after=after)


def check_read(names: Iterable[str], states: Iterable[StateBinding]) -> None:
    """Raise ModelError if one of `names` is a state of `states`, before a run or after it."""
    for name in names:  # most steps are asked for none
        for one in states:
            if name == one.name or (name == one.after and not one.readable):
                raise ModelError(f"{name!r} is state {one.name!r}: it is read by States.read")


def on_device(
    states: Iterable[StateBinding], specs: StateSpecs, schedule: Schedule, arena: Arena
) -> int:
    """Bytes of the blocks of `states` that are on the device already."""
    taken_blocks: set[int] = set()
    for one in states:
        blocks = one.blocks(schedule, arena)
        taken_blocks.update(blocks if one.name in specs.doubled else blocks[:1])
    return sum(4 * arena.sizes[block] for block in taken_blocks)


def with_double_buffers(
    steps: Sequence[Step], states: Iterable[StateBinding], schedule: Schedule, arena: Arena
) -> tuple[Step, ...]:
    """`steps`, those with two sets of textures that read or write a state which has two memories:
    they are launched from either.
    """
    blocks = (one.blocks(schedule, arena) for one in states)
    doubled = {block for some in blocks if len(some) > 1 for block in some}

    def is_doubled(entry: ScheduledOp) -> bool:
        memories = (schedule.tensors[name].memory for name in entry.tensors)
        return any(arena.block.get(memory) in doubled for memory in memories)

    return tuple(
        replace(step, nbytes=(*step.nbytes[:2], 2 * step.nbytes[2])) if is_doubled(entry) else step
        for step, entry in zip(steps, schedule.entries, strict=True)
    )


def _update_in_place(schedule: Schedule, states: Iterable[StateBinding]) -> None:
    """Have the memory of each `after` be that of `before`, where that can be."""
    tensors = schedule.tensors
    made, read = _uses(schedule)
    named = defaultdict[str, list[str]](list)
    for name, tensor in tensors.items():
        named[tensor.memory].append(name)
    for one in states:
        if one.before is None or one.after is None or one.readable:
            continue
        old, new = tensors[one.before].memory, tensors[one.after].memory
        if len(made[new]) != 1 or not _is_free(schedule, old, read[old], made[new][0]):
            continue
        for name in named[new]:
            tensors[name] = replace(tensors[name], memory=old)
        made[old] += made.pop(new)
        read[old] += read.pop(new, [])
        named[old] += named.pop(new)


_Uses = defaultdict[str, list[int]]


def _uses(schedule: Schedule) -> tuple[_Uses, _Uses]:
    """Return by memory the entries that write to it, and those that read it, in their order."""
    tensors = schedule.tensors
    made, read = _Uses(list), _Uses(list)
    for i, entry in enumerate(schedule.entries):
        for memory in {tensors[name].memory for name in entry.lowered.results}:
            made[memory].append(i)
        for memory in {tensors[name].memory for name in entry.lowered.operands.values()}:
            read[memory].append(i)
    return made, read


def replaceable_inputs(
    schedule: Schedule, inputs: Iterable[str], outputs: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return by output the inputs in whose memory a run may write it.

    Those are of its type and layout, and nothing reads them but the one step that makes it, which
    reads each element just before it writes that. outputs: by name the tensors that they are.
    """
    if schedule.backend.device is None or not schedule.backend.in_place:
        return {}
    tensors, (made, read) = schedule.tensors, _uses(schedule)
    given = Counter(tensors[name].memory for name in (*inputs, *outputs.values()))
    result: dict[str, tuple[str, ...]] = {}
    for output, tensor in outputs.items():
        new = tensors[tensor]
        writers = made[new.memory]
        result[output] = tuple(
            name
            for name in inputs
            for old in (tensors[name],)
            if len(writers) == given[new.memory] == given[old.memory] == 1
            and not made[old.memory]
            and {*read[old.memory]} == {*writers}
            and len(old.type.dims) == len(new.type.dims)
            and all(map(same, old.type.shape, new.type.shape))
            and _is_free(schedule, old.memory, writers, writers[0])
        )
    return result


def _is_free(schedule: Schedule, memory: str, readers: Iterable[int], made: int) -> bool:
    """Return True where entry `made` may write to `memory`, which the entries `readers` read."""
    for i in readers:
        entry = schedule.entries[i]
        named = entry.lowered.operands.items()
        reads = {k for k, v in named if schedule.tensors[v].memory == memory}
        if i > made or (i == made and not _aligned(schedule, entry, reads)):
            return False
    return True


def _aligned(schedule: Schedule, entry: ScheduledOp, operands: set[str]) -> bool:
    """Return True where `entry` reads each element of `operands` only just before it writes that
    element.
    """
    lowered, out = entry.lowered, schedule.tensors[entry.lowered.output]
    tensors = {name: schedule.tensors[lowered.operands[name]] for name in operands}
    if any((one.type.dims, one.layout) != (out.type.dims, out.layout) for one in tensors.values()):
        return False
    if entry.host:
        return False
    if (other := schedule.backend.operand_in_result(entry.choice, entry.spec)) is not None:
        return operands == {other}  # any other one would be overwritten by its copy
    if isinstance(lowered.op, Pointwise):
        return True
    extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
    return all(extents.get(name) == "full" for name in operands)


MemoryOffsets = dict[str, tuple[str, int]]
"""For memories that are parts of others: of which, and the word that they begin at there."""


def assign_group_offsets(
    schedule: Schedule, bindings: Iterable[StateBinding], specs: StateSpecs
) -> frozenset[str]:
    """Put the states `bindings` into the memories of their groups, as `specs` says.

    Return the names of these memories.
    """
    names: dict[str, str] = {}
    places: MemoryOffsets = {}
    for one in bindings:
        if one.name not in specs.group_offsets:
            continue
        first, offset = specs.group_offsets[one.name]
        whole = names.setdefault(first, schedule.free(f"{first} and others"))
        ends = (name for name in (one.before, one.after) if name is not None)
        places |= {schedule.tensors[name].memory: (whole, offset) for name in ends}
    move_memories(schedule, places)
    return frozenset(names.values())


def move_memories(schedule: Schedule, places: MemoryOffsets) -> None:
    """Make memories parts of others, as `places` says."""
    for name, tensor in schedule.tensors.items():
        if tensor.memory in places:
            memory, offset = places[tensor.memory]
            offset += tensor.offset or 0
            schedule.tensors[name] = replace(tensor, memory=memory, offset=offset)
