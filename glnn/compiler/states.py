"""Tensors that stay on a device from run to run, shared by the plans that read and update them.

Updates of states that lie one behind the other, joined: one launch makes all of them.

Optimisers do the same with each parameter, and launches of little work cost the host more time than
the device. PyTorch's answer are optimisers of many tensors, `foreach` and `fused`. Here memory is
arranged instead (see `States.add_together`): states that are updated alike lie one behind the
other, and so come to lie the gradients that they are updated by. Pointwise work on each of them is
then pointwise work on the whole range, which any kernel does. What it makes of the words between
them nobody reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from glnn.backends import Backend
from glnn.backends.backend import Memory, Transfer
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp, ScheduledOp, Tensor
from glnn.compiler.step import Step
from glnn.compiler.weights import Weight
from glnn.core.layout.layout import DENSE
from glnn.core.process import process_lock
from glnn.core.settings import Settings
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import LimitError, ModelError, ShapeError, UnsupportedOpError, shown
from glnn.graph.constant import constant
from glnn.graph.graph import Graph
from glnn.graph.operators.pointwise import Pointwise
from glnn.runtime.store import Store

HELD = (DType.float32, DType.int32)
"""The types that a state may have."""
ALIGNMENT = 64  # words: no device asks for more than 256 bytes where a part of a buffer is bound
SMALL = 1 << 16  # bytes of a state for which room to read it by is kept


def aligned(words: int) -> int:
    """The words after which another tensor may begin in the same memory."""
    return -(-words // ALIGNMENT) * ALIGNMENT


class State:
    """The type and memory of one state in `States`.

    Where a launch cannot write what it reads, there are two that take turns: a run reads the one
    and writes the other.
    """

    def __init__(
        self,
        backend: Backend,
        type: TensorType,
        memory: Memory | None = None,
        offset: int | None = None,
        readable: bool = False,
    ) -> None:
        """memory: where it is to lie from the word `offset` on, for good; None has its own.
        readable: see `States.add`.
        """
        self.type, self._backend, self.readable = type, backend, readable
        self.words = backend.capacity(DENSE.words(type))
        """The words of one of its memories."""
        self.offset = offset
        """The word of its memory that it begins at; None where that is its own."""
        self.memories: list[Memory | None] = []
        self._stores: list[Store] = []
        self._way: Store | None = None
        self.current = 0
        """The index of the memory that has the content."""
        self._add(self._allocate() if memory is None else memory)

    def _allocate(self) -> Memory | None:
        way = Transfer.TO_HOST if self.readable else None
        return self._backend.memory(self.words, way)

    def _add(self, memory: Memory | None) -> None:
        store = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype, self.offset)
        self.memories.append(memory)
        self._stores.append(store)

    def reserve(self) -> None:
        """Have a second memory."""
        if len(self.memories) < 2:
            self._add(self._allocate())

    def turn(self) -> None:
        """Have the content be in the other memory."""
        self.current = 1 - self.current

    @property
    def nbytes(self) -> int:
        """Bytes of its memories."""
        words = self.words if self.offset is None else aligned(self.words)
        return 4 * words * len(self.memories)

    def set(self, array: Array) -> None:
        """Take `array`, which nobody changes any more. Only inside `perform`, as what follows."""
        store = self._stores[self.current]
        store.put(array)
        store.mark_written()  # the host's array is not needed any more

    def copy_from(self, source: State) -> None:
        """Take the content of `source`, of the same type, on the device."""
        if source._backend.device is None:  # in place the host may change its arrays
            self.set(np.array(source.get()))
        else:
            self._backend.copy(source._stores[source.current], self._stores[self.current])

    def get(self) -> Array:
        """The content as the host has it, on a backend without a device."""
        return self._stores[self.current].pull()

    def read(self) -> Array:
        """A copy of the content."""
        store = self._stores[self.current]
        if self._backend.device is None:
            return store.fetch()
        # By way of another buffer: drivers may move to the host's memory what was read there.
        way = self._way
        if way is None:
            memory = self._backend.memory(self.words, Transfer.TO_HOST)
            way = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype)
            self._way = way if 4 * self.words <= SMALL else None
        self._backend.copy(store, way)
        return way.fetch()


class States:
    """Tensors of one backend that stay where they are from run to run, by name.

    Plans that are given them read and update them (see `Plan`). They are float32 or int32, and lie
    row major in memory that only the device sees. Any thread may use them. What is done after the
    device was lost raises DeviceError: their content went with it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock = process_lock()
        """Held by runs on a backend whose runs do not take turns by themselves."""
        self._states: dict[str, State] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were added."""
        return tuple(self._states)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that they take."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def group_offsets(self) -> dict[str, tuple[str, int]]:
        """Return for each state in a shared memory the first state of that memory, and its word
        offset.
        """
        firsts: dict[int, str] = {}
        result: dict[str, tuple[str, int]] = {}
        for name, state in self._states.items():
            if state.offset is not None:
                first = firsts.setdefault(id(state.memories[0]), name)
                result[name] = first, state.offset
        return result

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def __getitem__(self, name: str) -> State:
        if name not in self._states:
            raise ModelError(f"there is no state {name!r}, there are {list(self._states)}")
        return self._states[name]

    def add(self, name: str, array: Array, *, readable: bool = False) -> None:
        """A new state called `name` that holds a copy of `array`, which is float32 or int32.

        readable: whether runs can be asked for the output that updates it. Then the host sees its
        memory, and a run leaves the one that the run before it wrote as it is, so that the host can
        read that while the next run is computed. Raises ModelError where there is one of that name,
        ShapeError on another type, and LimitError where the device has too little memory.
        """
        self._check(name, array)
        self.backend.perform(lambda: self._add(name, array, readable))

    def copy(self) -> States:
        """Return these states, of the same memory, to which others can be added."""
        copied = States(self.backend)
        copied.lock, copied._states = self.lock, dict(self._states)
        return copied

    def add_together(self, arrays: Mapping[str, Array]) -> None:
        """New states, as by `add`, which lie one behind the other in memory where that can be.

        Then plans that update them all in the same way do so in one launch.
        """
        for name, array in arrays.items():
            self._check(name, array)
        self.backend.perform(lambda: self._add_together(arrays))

    def _check(self, name: str, array: Array) -> None:
        if name in self._states:
            raise ModelError(f"there is a state {name!r} already")
        specs = (*HELD, DType.int64) if self.backend.device is None else HELD
        if not isinstance(array, np.ndarray) or DType.of(array) not in specs:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else shown(array)
            raise ShapeError(f"state {name!r} must be a float32 or int32 array, got {got}")

    def _add(self, name: str, array: Array, readable: bool = False) -> None:
        self._need(name, 4 * self._words(array))
        self._set(name, State(self.backend, TensorType.of(array), readable=readable), array)

    def _add_together(self, arrays: Mapping[str, Array]) -> None:
        for names in _shared(arrays, self._words, self.backend.adjoining // 4):
            if len(names) == 1:
                self._add(names[0], arrays[names[0]])
                continue
            words = [aligned(self._words(arrays[name])) for name in names]
            self._need(names[0], 4 * sum(words))
            memory = self.backend.memory(sum(words))
            for name, offset in zip(names, accumulate(words, initial=0)):
                type = TensorType.of(arrays[name])
                self._set(name, State(self.backend, type, memory, offset), arrays[name])

    def _words(self, array: Array) -> int:
        return self.backend.capacity(DENSE.words(TensorType.of(array)))

    def _need(self, name: str, nbytes: int) -> None:
        """Raise LimitError where so many bytes are not free."""
        free = self.available()
        if free is not None and nbytes > free:
            raise LimitError(
                f"state {name!r} needs {nbytes} bytes of device memory, {free} are free"
            )

    def _set(self, name: str, state: State, array: Array) -> None:
        state.set(np.array(array))
        self._states[name] = state

    def available(self) -> int | None:
        """Bytes of device memory that are free beside them; None where nobody knows."""
        free = self.backend.available()
        if free is None or Settings.from_environment().memory is None:
            return free
        return free - self.nbytes  # what GLNN_MEMORY allows is for all together

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Copies of the states so called, None for all, as the last run left them.

        Waits for the device. Raises ModelError where there is none of a name.
        """
        states = {name: self[name] for name in (self.names if names is None else names)}
        with self.lock:
            return self.backend.perform(lambda: {k: state.read() for k, state in states.items()})

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Have the states so called hold copies of `arrays`, of their shapes and dtypes.

        Raises ModelError where there is none of a name, ShapeError on another type.
        """
        for name, array in arrays.items():
            wanted = self[name].type
            like = isinstance(array, np.ndarray) and array.dtype == wanted.dtype.numpy
            if not like or array.shape != wanted.shape:
                got = shown(array)
                if isinstance(array, np.ndarray):
                    got = f"a {array.dtype} array of shape {array.shape}"
                raise ShapeError(f"state {name!r} is {wanted}, got {got}")

        def write() -> None:
            for name, array in arrays.items():
                self[name].set(np.array(array))

        with self.lock:
            self.backend.perform(write)


def _shared(
    arrays: Mapping[str, Array], words: Callable[[Array], int], most: int
) -> list[list[str]]:
    """Group the names of `arrays`, in their order, into memories of at most `most` words."""
    result: list[list[str]] = []
    left = 0
    for name, array in arrays.items():
        size = aligned(words(array))
        fits = array.dtype == np.float32 and array.size and size <= left
        if not fits:
            result.append([])
            left = most if array.dtype == np.float32 and array.size else 0
        result[-1].append(name)
        left -= size
    return result


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


def with_turns(
    steps: Sequence[Step], states: Iterable[StateBinding], schedule: Schedule, arena: Arena
) -> tuple[Step, ...]:
    """`steps`, those with two sets of textures that read or write a state which has two memories:
    they are launched from either.
    """
    blocks = (one.blocks(schedule, arena) for one in states)
    turning = {block for some in blocks if len(some) > 1 for block in some}

    def turns(entry: ScheduledOp) -> bool:
        memories = (schedule.tensors[name].memory for name in entry.tensors)
        return any(arena.block.get(memory) in turning for memory in memories)

    return tuple(
        replace(step, nbytes=(*step.nbytes[:2], 2 * step.nbytes[2])) if turns(entry) else step
        for step, entry in zip(steps, schedule.entries, strict=True)
    )


def _update_in_place(schedule: Schedule, states: Iterable[StateBinding]) -> None:
    """Have the memory of each `after` be that of `before`, where that can be."""
    tensors, entries = schedule.tensors, schedule.entries
    made, read = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    named = defaultdict[str, list[str]](list)
    for i, entry in enumerate(entries):
        made[tensors[entry.lowered.output].memory].append(i)
        for memory in {tensors[name].memory for name in entry.lowered.operands.values()}:
            read[memory].append(i)
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
    if isinstance(lowered.op, Pointwise):
        return True
    extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
    return all(extents.get(name) == "full" for name in operands)


MemoryOffsets = dict[str, tuple[str, int]]
"""For memories that are parts of others: of which, and the word that they begin at there."""
Kind = tuple[object, ...]
"""The properties that entries of one launch share."""


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
    _move(schedule, places)
    return frozenset(names.values())


def group(schedule: Schedule, wholes: Iterable[str], live_out: Iterable[str]) -> None:
    """Join what updates states in the memories `wholes` alike; then what makes that which it reads.

    live_out: tensors that stay in memory of their own, as somebody reads them after a run.
    """
    wholes = set(wholes)
    fixed = {schedule.tensors[name].memory for name in live_out}
    done: set[tuple[str, ...]] = set()  # what was seen to need its order
    while True:
        runs = [run for run in _runs(schedule, wholes, fixed) if _names(run) not in done]
        runs.sort(key=len, reverse=True)  # what lies beside a long one cannot beside others
        movable = next((run for run in runs if _movable(schedule, run)), None)
        if movable is None:
            return
        done.add(_names(movable))
        wholes |= _join(schedule, movable)


@dataclass(frozen=True, eq=False)
class _Member:
    """An entry that may be joined with others.

    at: its place among the entries. out: the tensor that it makes. alone: the operands whose memory
    nobody has arranged yet.
    """

    entry: ScheduledOp
    at: int
    out: Tensor
    alone: tuple[str, ...]

    @property
    def first(self) -> int:
        """The word that its result begins at."""
        return self.out.offset or 0

    @property
    def words(self) -> int:
        """Return the words that the result takes."""
        return self.out.layout.words(self.out.type)


Run = Sequence[_Member]
"""Members of one kind whose results lie one behind the other."""


def _names(run: Run) -> tuple[str, ...]:
    return tuple(member.entry.lowered.output for member in run)


def _runs(schedule: Schedule, wholes: Container[str], fixed: Container[str]) -> Iterator[Run]:
    """Yield groups of entries that can be joined if the order allows it."""
    kinds: dict[Kind, list[_Member]] = {}
    taken: set[Kind] = set()  # a gradient that two are updated by lies beside others but once
    made = [schedule.tensors[entry.lowered.output].memory for entry in schedule.entries]
    for at, entry in enumerate(schedule.entries):
        out = schedule.tensors[entry.lowered.output]
        lowered = entry.lowered
        plain = isinstance(lowered.op, Pointwise) and not (
            entry.host or lowered.parameters or lowered.more
        )
        if not plain or lowered.epilogue or out.memory not in wholes or not _dense(out):
            continue
        kind: list[object] = [lowered.op, entry.choice, out.memory]
        alone: dict[str, str] = {}
        for name, tensor in lowered.operands.items():
            operand = schedule.tensors[tensor]
            if operand.shape == ():
                kind.append(tensor)
            elif operand.type != out.type or not _dense(operand):
                break
            elif operand.offset is not None:
                kind.append((operand.memory, operand.offset - (out.offset or 0)))
            elif made.count(operand.memory) != 1 or not _free(schedule, operand.memory, fixed):
                break
            else:
                kind.append(
                    list(alone).index(operand.memory) if operand.memory in alone else len(alone)
                )
                alone.setdefault(operand.memory, name)
        else:
            if not any((*kind, memory) in taken for memory in alone):
                member = _Member(entry, at, out, tuple(alone.values()))
                kinds.setdefault(tuple(kind), []).append(member)
                taken |= {(*kind, memory) for memory in alone}
    for members in kinds.values():
        yield from _adjoining(sorted(members, key=lambda member: member.first))


def _dense(tensor: Tensor) -> bool:
    """Return True for float32 tensors that are row major without gaps."""
    return tensor.type.dtype is DType.float32 and tensor.layout == DENSE


def _free(schedule: Schedule, memory: str, fixed: Container[str]) -> bool:
    """Return True where `memory` may be a part of another: its tensors have one size."""
    seen = [tensor for tensor in schedule.tensors.values() if tensor.memory == memory]
    alike = len({tensor.layout.words(tensor.type) for tensor in seen}) == 1
    return memory not in fixed and alike


def _adjoining(members: Run) -> Iterator[Run]:
    """Yield the runs of `members`, sorted by place, that are adjacent in memory."""
    ends = [
        at
        for at, (one, other) in enumerate(pairwise(members), 1)
        if other.first != one.first + aligned(one.words)
    ]
    for first, last in pairwise((0, *ends, len(members))):
        if last - first > 1:
            yield members[first:last]


def _movable(schedule: Schedule, run: Run) -> bool:
    """Return True where all of `run` can be computed at the place of its last member."""
    places = sorted(member.at for member in run)
    positions = set(places)
    writes: list[Tensor] = []
    reads: list[Tensor] = []
    for at in range(places[0], places[-1] + 1):
        entry, tensors = schedule.entries[at], schedule.tensors
        out = tensors[entry.lowered.output]
        operands = [tensors[name] for name in entry.lowered.operands.values()]
        made = [out, *(tensors[name] for name in entry.lowered.more)]
        if _meet([*made, *operands], writes) or _meet(made, reads):
            return False
        if at in positions:
            writes.append(out)
            reads += operands
    return True


def _meet(some: Iterable[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True where a tensor of `some` overlaps one of `others` in memory."""
    return any(
        one.memory == other.memory and _start(one) < _stop(other) and _start(other) < _stop(one)
        for one in some
        for other in others
    )


def _start(tensor: Tensor) -> int:
    return tensor.offset or 0


def _stop(tensor: Tensor) -> int:
    return _start(tensor) + tensor.layout.words(tensor.type)


def _join(schedule: Schedule, run: Run) -> set[str]:
    """Have one entry, where the last of `run` is, in the place of all, and give the memories that
    this puts others into; or leave all as it is, where no kernel takes so much.
    """
    first, last = run[0], run[-1]
    type = TensorType((last.first + last.words - first.first,))
    lowered, places = first.entry.lowered, _side_by_side(schedule, run)
    before, operands = dict(schedule.tensors), dict(lowered.operands)
    for name, tensor in lowered.operands.items():
        operand = schedule.tensors[tensor]
        if operand.shape != ():
            memory, at = places.get(operand.memory) or (operand.memory, _start(operand))
            operands[name] = schedule.free(f"{tensor} and others")
            schedule.tensors[operands[name]] = Tensor(type, DENSE, memory, at)
    names = list(dict.fromkeys(member.entry.lowered.name for member in run))
    label = f"{names[0]} and {len(run) - 1} more" if len(names) > 1 else names[0]
    output, end = schedule.free(f"{lowered.output} and others"), len(schedule.entries)
    whole = LoweredOp(label, lowered.op, operands, {}, output, label, joins=_names(run))
    try:
        schedule.add(replace(whole, kernel=first.entry.choice.name))
    except (LimitError, UnsupportedOpError):
        schedule.tensors = before
        return set()
    schedule.tensors[output] = replace(first.out, type=type)
    _move(schedule, places)
    gone = {member.at for member in run}
    at = max(gone)
    left = [i for i in range(end) if i not in gone]
    schedule.arrange([*(i for i in left if i < at), end, *(i for i in left if i > at)])
    return {memory for memory, _ in places.values()}


def _side_by_side(schedule: Schedule, run: Run) -> MemoryOffsets:
    """Return places side by side for operands of `run` that have none yet, in the order of its
    results.
    """
    places: MemoryOffsets = {}
    for name in run[0].alone:
        tensors = [(member, member.entry.lowered.operands[name]) for member in run]
        whole = schedule.free(f"{tensors[0][1]} and others")
        for member, tensor in tensors:
            memory = schedule.tensors[tensor].memory
            places[memory] = whole, member.first - run[0].first
    return places


def _move(schedule: Schedule, places: MemoryOffsets) -> None:
    """Have memories be the parts of others that `places` says."""
    for name, tensor in schedule.tensors.items():
        if tensor.memory in places and tensor.offset is None:
            memory, offset = places[tensor.memory]
            schedule.tensors[name] = replace(tensor, memory=memory, offset=offset)
