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

    types: the type of each state, by name. doubled: the states that have a second memory. updates:
    by the name of a state, the output that is its content from the next run on. group_offsets: by
    the name of a state that shares a memory with others, the first state of that memory and the
    word at which it begins there. readable: states whose updates a run can return.
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
        """Return the shapes of the inputs of `graph` that are states."""
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
            if type is not None and not _accepts(value.type, type):
                raise ShapeError(f"state {value.name!r} is {type}, {graph.name} takes {value.type}")
        updates = set(self.updates.values())
        for name, value in outputs.items():
            if value in inputs and name in self.types and name not in updates:
                raise ModelError(f"output {name!r} is a state: it is read by States.read")


def _accepts(declared: TensorType, type: TensorType) -> bool:
    """Return True where a state of `type` fits an input of type `declared`."""
    if declared.dtype is not type.dtype or len(declared.dims) != len(type.dims):
        return False
    pairs = zip(declared.dims, type.dims, strict=True)
    return all(isinstance(dim, str) or dim == size for dim, size in pairs)


NO_STATES = StateSpecs()


@dataclass(frozen=True)
class StateBinding:
    """A state in a plan.

    name: the state's. before: the tensor of its content before a run, None where the plan does not
    read it. after: the tensor of its content after the run, None where the plan does not update it.
    readable: see `States.add`.
    """

    name: str
    before: str | None
    after: str | None
    readable: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors `before` and `after`, as far as there are any."""
        return tuple(name for name in (self.before, self.after) if name is not None)

    def blocks(self, schedule: Schedule, arena: Arena) -> tuple[int, ...]:
        """Return its block of memory, or two, the second of the new content, where the update is
        not in place.
        """
        memories = (schedule.tensors[name].memory for name in self.tensors)
        return tuple(dict.fromkeys(arena.block[memory] for memory in memories))


def bind_states(schedule: Schedule, graph: Graph, specs: StateSpecs) -> tuple[StateBinding, ...]:
    """Return the states that `graph` reads or updates, and give each update a memory.

    An update is in place where that can be; else it has a memory that no input, output or other
    state has, to which it is copied if need be. Raises ShapeError where an update has another type
    than its state.
    """
    inputs = {value.name for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    updates = set(specs.updates.values())
    taken = {schedule.tensors[name].memory for name in inputs}
    taken |= {
        schedule.tensors[name].memory
        for name in outputs
        if name in schedule.tensors and name not in updates
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
                is_taken = schedule.tensors[after].memory in taken
                if is_taken and not _is_in_place(schedule, before, after):
                    after = schedule.copy_of(after)
            else:
                after = schedule.weight_tensor(
                    output, Weight.from_expression(constant(graph, outputs[output], {}))
                )
            if (got := schedule.tensors[after].type) != type:
                raise ShapeError(f"state {name!r} is {type}, its update {output!r} is {got}")
            taken.add(schedule.tensors[after].memory)
        bindings.append(StateBinding(name, before, after, name in specs.readable))
    if schedule.backend.in_place:
        _update_in_place(schedule, bindings)
        bindings = [
            _copy_back(schedule, one) if one.name in specs.group_offsets else one
            for one in bindings
        ]
    return tuple(bindings)


def _is_in_place(schedule: Schedule, before: str | None, after: str) -> bool:
    """Return True where an operator writes the content `after` into the memory of `before`."""
    if before is None or not schedule.backend.in_place:
        return False
    return schedule.tensors[before].memory == schedule.tensors[after].memory and before != after


def _copy_back(schedule: Schedule, binding: StateBinding) -> StateBinding:
    """Return `binding` updated in place: new content elsewhere is copied to it at the end of a run.

    States that share a memory with others cannot change places with a second memory.
    """
    if binding.before is None or binding.after is None:
        return binding
    old, new = schedule.tensors[binding.before], schedule.tensors[binding.after]
    if old.memory == new.memory:
        return binding
    after = schedule.copy_of(binding.after)
    schedule.tensors[after] = replace(schedule.tensors[after], memory=old.memory)
    return replace(binding, after=after)


def check_read(names: Iterable[str], states: Iterable[StateBinding]) -> None:
    """Raise ModelError if one of `names` is a state, or the update of one that is not readable."""
    for name in names:  # most runs request no outputs
        for one in states:
            if name == one.name or (name == one.after and not one.readable):
                raise ModelError(f"{name!r} is state {one.name!r}: it is read by States.read")


def resident_state_bytes(
    states: Iterable[StateBinding], specs: StateSpecs, schedule: Schedule, arena: Arena
) -> int:
    """Return the bytes of the blocks of `states` that are on the device already."""
    resident: set[int] = set()
    for one in states:
        blocks = one.blocks(schedule, arena)
        resident.update(blocks if one.name in specs.doubled else blocks[:1])
    return sum(4 * arena.sizes[block] for block in resident)


def with_double_buffers(
    steps: Sequence[Step], states: Iterable[StateBinding], schedule: Schedule, arena: Arena
) -> tuple[Step, ...]:
    """Return `steps` with twice the bytes of textures where a step uses a double-buffered state: it
    has a set of textures for each of the state's memories.
    """
    blocks_of = (one.blocks(schedule, arena) for one in states)
    doubled = {block for blocks in blocks_of if len(blocks) > 1 for block in blocks}

    def is_doubled(entry: ScheduledOp) -> bool:
        memories = (schedule.tensors[name].memory for name in entry.tensors)
        return any(arena.block.get(memory) in doubled for memory in memories)

    return tuple(
        replace(step, nbytes=(*step.nbytes[:2], 2 * step.nbytes[2])) if is_doubled(entry) else step
        for step, entry in zip(steps, schedule.entries, strict=True)
    )


def _update_in_place(schedule: Schedule, states: Iterable[StateBinding]) -> None:
    """Give each `after` the memory of `before`, where the update can be in place."""
    tensors = schedule.tensors
    writers, readers = _uses(schedule)
    names = defaultdict[str, list[str]](list)  # of the tensors in each memory
    for name, tensor in tensors.items():
        names[tensor.memory].append(name)
    for one in states:
        if one.before is None or one.after is None or one.readable:
            continue
        old, new = tensors[one.before].memory, tensors[one.after].memory
        if len(writers[new]) != 1 or not _may_write(schedule, writers[new][0], old, readers[old]):
            continue
        for name in names[new]:
            tensors[name] = replace(tensors[name], memory=old)
        writers[old] += writers.pop(new)
        readers[old] += readers.pop(new, [])
        names[old] += names.pop(new)


_Uses = defaultdict[str, list[int]]


def _uses(schedule: Schedule) -> tuple[_Uses, _Uses]:
    """Return by memory the numbers of the entries that write to it, and of those that read it."""
    tensors = schedule.tensors
    writers, readers = _Uses(list), _Uses(list)
    for i, entry in enumerate(schedule.entries):
        for memory in {tensors[name].memory for name in entry.lowered.results}:
            writers[memory].append(i)
        for memory in {tensors[name].memory for name in entry.lowered.operands.values()}:
            readers[memory].append(i)
    return writers, readers


def replaceable_inputs(
    schedule: Schedule, inputs: Iterable[str], outputs: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return by output the inputs in whose memory a run may write it.

    Such an input has the output's type and layout. Its only reader is the step that writes the
    output, which reads each element just before it writes the same element. outputs: the tensor of
    each output, by name.
    """
    if schedule.backend.device is None or not schedule.backend.in_place:
        return {}
    tensors, (writers, readers) = schedule.tensors, _uses(schedule)
    counts = Counter(tensors[name].memory for name in (*inputs, *outputs.values()))
    result: dict[str, tuple[str, ...]] = {}
    for output, tensor in outputs.items():
        new = tensors[tensor]
        producers = writers[new.memory]
        result[output] = tuple(
            name
            for name in inputs
            for old in (tensors[name],)
            if len(producers) == counts[new.memory] == counts[old.memory] == 1
            and not writers[old.memory]
            and {*readers[old.memory]} == {*producers}
            and len(old.type.dims) == len(new.type.dims)
            and all(map(same, old.type.shape, new.type.shape))
            and _may_write(schedule, producers[0], old.memory, producers)
        )
    return result


def _may_write(schedule: Schedule, number: int, memory: str, readers: Iterable[int]) -> bool:
    """Return True where entry `number` may write to `memory`, which the entries `readers` read."""
    for i in readers:
        entry = schedule.entries[i]
        operands = entry.lowered.operands.items()
        reads = {k for k, v in operands if schedule.tensors[v].memory == memory}
        if i > number or (i == number and not _is_elementwise(schedule, entry, reads)):
            return False
    return True


def _is_elementwise(schedule: Schedule, entry: ScheduledOp, operands: set[str]) -> bool:
    """Return True where `entry` reads each element of `operands` only just before it writes the
    same element of its result.
    """
    lowered, out = entry.lowered, schedule.tensors[entry.lowered.output]
    tensors = {name: schedule.tensors[lowered.operands[name]] for name in operands}
    if any((one.type.dims, one.layout) != (out.type.dims, out.layout) for one in tensors.values()):
        return False
    if entry.host:
        return False
    if (copied := schedule.backend.operand_in_result(entry.choice, entry.spec)) is not None:
        return operands == {copied}  # its copy to the result would overwrite any other operand
    if isinstance(lowered.op, Pointwise):
        return True
    extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
    return all(extents.get(name) == "full" for name in operands)


MemoryOffsets = dict[str, tuple[str, int]]
"""By a memory that is a part of another: that other memory, and the word at which it begins."""


def assign_group_offsets(
    schedule: Schedule, bindings: Iterable[StateBinding], specs: StateSpecs
) -> frozenset[str]:
    """Put the states `bindings` into the memories of their groups, as `specs` says.

    Return the names of these memories.
    """
    groups: dict[str, str] = {}
    offsets: MemoryOffsets = {}
    for one in bindings:
        if one.name not in specs.group_offsets:
            continue
        first, offset = specs.group_offsets[one.name]
        group = groups.setdefault(first, schedule.free(f"{first} and others"))
        offsets |= {schedule.tensors[name].memory: (group, offset) for name in one.tensors}
    move_memories(schedule, offsets)
    return frozenset(groups.values())


def move_memories(schedule: Schedule, offsets: MemoryOffsets) -> None:
    """Make memories parts of others, as `offsets` says."""
    for name, tensor in schedule.tensors.items():
        if tensor.memory in offsets:
            memory, offset = offsets[tensor.memory]
            offset += tensor.offset or 0
            schedule.tensors[name] = replace(tensor, memory=memory, offset=offset)
