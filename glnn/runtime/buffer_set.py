"""BufferSet: an executable bound to sizes and memory, for one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from glnn.core.layout.layout import DENSE
from glnn.core.size_table import Maker, Size, depends, maker, number
from glnn.core.symint import Substitution
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import LimitError, NoRoomError
from glnn.gl import Buffer, BufferBlock, DataTexture, Device
from glnn.gl.block_pool import BlockPool
from glnn.gl.buffer import MEMORIES
from glnn.gl.command_buffer import (
    BoundCommands,
    CommandBuffer,
    Replacements,
    TextureView,
    VertexInput,
)
from glnn.gl.program import Program
from glnn.runtime.array_program import SizedArrays
from glnn.runtime.device_array import DeviceArray
from glnn.runtime.executable import Block, Executable, HostStep, Output, TensorSlot
from glnn.runtime.store import HostStore, Store

if TYPE_CHECKING:
    from typing import TypeGuard

LEAST_STEP = 4096  # words by which memory of an open size grows at least
EMPTY: Mapping[str, DeviceArray] = {}
NO_OUTPUTS: Mapping[str, DeviceArray | None] = {}
SLACK = 4  # such memory has room for up to 1 / 4 more, so that it seldom grows again
ALTERNATING = 2
"""Arrangements of DeviceArrays that are kept: a cache and the one made of it take turns."""


class DeviceWeight(Protocol):
    """A weight on a device."""

    def buffer(self) -> Any:
        """Return the buffer that has it."""

    def texture(self, view: TextureView) -> DataTexture:
        """Return a texture that shows it, of known sizes."""


class StateMemory(Protocol):
    """A state: its memories, and its content on a backend without a device."""

    type: TensorType
    memories: list[Any]
    current: int
    """The index of the memory that has the content."""

    def reserve(self) -> None: ...
    def swap(self) -> None: ...
    def set(self, array: Array) -> None: ...
    def get(self) -> Array: ...


@dataclass(eq=False)
class Resources:
    """The device, programs, weights and inner memory that all BufferSets of an executable share."""

    device: Device | None
    programs: Sequence[Program]
    weights: Sequence[DeviceWeight]
    available: Callable[[], int | None]
    """Bytes of device memory that are free; None where nobody knows."""
    states: Mapping[str, StateMemory] = field(default_factory=dict)
    memories: dict[int, BufferBlock] = field(default_factory=dict)
    """The blocks of memory that are not each BufferSet's own."""
    textures: dict[int, DataTexture] = field(default_factory=dict)
    """The textures that show these, by their numbers."""
    checks_free_memory: bool = False
    """Whether free memory is looked at before more is taken: for the first the plan has looked."""
    states_lost: bool = False
    """Whether a run ended while it updated states: their content is of no run."""
    generation: int = 0
    """Counts the times that one of `memories` was replaced by a larger one."""


@dataclass(eq=False)
class _DeviceParts:
    """Buffers, weights and textures that commands on a device use; free of reference cycles."""

    buffers: Mapping[int, Any]
    """The memory of each block."""
    weights: Sequence[DeviceWeight]
    textures: list[DataTexture] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)

    def buffer(self, place: int) -> Any:
        """Return GL's buffer of that number: blocks come first, then weights."""
        count = len(self.buffers)  # of all blocks
        return self.buffers[place].copy if place < count else self.weights[place - count].buffer()


@dataclass(eq=False)
class _Arrangement:
    """Commands for one arrangement of states and DeviceArrays in their memories."""

    parts: _DeviceParts
    stores: dict[str, Store] = field(default_factory=dict)
    host: list[Callable[[], None]] = field(default_factory=list)
    """The host's steps."""
    owners: dict[str, Store] = field(default_factory=dict)
    """The store of each memory of the host's, which views share."""
    open_stores: list[tuple[HostStore, Maker]] = field(default_factory=list)
    """Those of them whose shape depends on sizes, with what makes it."""
    commands: Callable[[], None] = lambda: None
    is_bound: bool = False
    """Whether it was bound before, to whatever."""
    made_for: tuple[object, ...] | None = None
    """The sizes of the symbols, and the generation of memory, that it is bound to."""


class _OutputKind:
    """Outputs that are allocated alike, as caches are: of the size of `block`, and of `shape`."""

    def __init__(self, block: Block, shape: Shape) -> None:
        self._block, self._shape, self._shape_of = block, shape, maker(shape)
        self.outputs: list[tuple[Output, int]] = []
        """Those outputs, and the number of the block of each."""

    def sizes(self, numbers: Sequence[int], device: Device) -> tuple[Shape, int, int]:
        """Return the shape, the words that a run writes, and further words to allocate."""
        words = self._block.size(numbers)
        if self._shape_of is None:
            return self._shape, words, 0
        return self._shape_of(numbers), words, growth(words, device)


_Places = tuple[tuple[int, ...], tuple[int, ...], tuple[BufferBlock, ...]]
"""Where states lie, by the numbers of their memories; the blocks that DeviceArrays take the place
of, and theirs.
"""


class BufferSet:
    """The memory of inputs and outputs, and the commands, of one run at a time.

    The BufferSets of an executable share everything else, so that one may be filled and read while
    another runs. Only inside `perform`.
    """

    def __init__(self, executable: Executable, resources: Resources) -> None:
        self.executable, self._shared = executable, resources
        self.device = resources.device
        self._memories: dict[int, BufferBlock] = {}
        self._attached: dict[int, BufferBlock] = {}
        """By number the blocks that DeviceArrays have, in the place of its own."""
        self._too_small: dict[str, DeviceArray] = {}
        """The inputs whose blocks are smaller than what commands bind, by name."""
        self._kept: dict[str, DeviceArray] = {}
        """The outputs that a run writes there, until `keep`."""
        self._replaced: list[tuple[Output, DeviceArray]] = []
        """Those of the next run that it writes to the memory of an input, which that gives up."""
        self._arrangements: dict[_Places, _Arrangement] = {}
        """The last that was used is the last."""
        self._sized = SizedArrays(executable.sized)
        self._on_host: dict[str, Array] = {}
        """Of the tensors that follow from sizes those that the host reads."""
        kinds: dict[Any, _OutputKind] = {}
        for one in executable.io.outputs:
            if one.name in executable.device_outputs:
                place = executable.device_outputs[one.name]
                alike = executable.blocks[place].words, one.shape
                kind = kinds.get(alike)
                if kind is None:
                    kind = kinds[alike] = _OutputKind(executable.blocks[place], one.shape)
                kind.outputs.append((one, place))
        self._device_outputs = tuple(kinds.values())
        """The outputs that can stay on the device."""
        ends: dict[tuple[Size, ...], int] = {}
        self._device_inputs = {
            name: (place, ends.setdefault(executable.blocks[place].words, len(ends)))
            for name, place in executable.device_inputs.items()
        }
        """The block of each input that may lie there, and its size's number."""
        one_of = {number: executable.blocks[i] for i, number in self._device_inputs.values()}
        self._input_sizes = [one_of[number] for number in range(len(ends))]
        """A block of each of these sizes: caches have the same."""
        makers = ((i, maker(one.words)) for i, one in enumerate(executable.commands.textures))
        self._open_views = [(i, make) for i, make in makers if make is not None]
        self._states = [resources.states[one.name] for one in executable.states]
        self._swapped = self._doubled()
        updated = [one for one in executable.states if one.after is not None]
        self._in_place = self.device is not None and not all(one.blocks[1:] for one in updated)
        self._segment = 0  # of the device's work, by which its last run is over
        self._now: _Arrangement | None = None
        self._fed = frozenset(one.name for one in executable.io.inputs)
        self._generation = -1
        """The `Resources.generation` of the last binding."""
        self.sizes: tuple[int, ...] = ()
        self.numbers: tuple[int, ...] = ()
        """Those of the executable's expressions, of the last binding."""
        self._shapes: dict[str, Shape] = {}
        """The shapes of outputs in the last binding, by name."""
        self.nested: dict[tuple[HostStep, int], BufferSet] = {}
        """The BufferSets of the bodies of steps."""
        of_states = {block for one in executable.states for block in one.blocks}
        self._blocks = [
            (i, block, depends(block.words))
            for i, block in enumerate(executable.blocks if self.device is not None else ())
            if i not in of_states
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that is its own."""
        return sum(memory.nbytes for memory in self._memories.values())

    @property
    def room(self) -> int:
        """Bytes that another one takes: its memory, and textures that are copies of it."""
        views = zip(
            self.executable.commands.textures, self._now.parts.textures if self._now else ()
        )
        of_memories = (texture for view, texture in views if view.buffer in self._memories)
        return self.nbytes + sum(texture.nbytes for texture in of_memories)

    @property
    def change(self) -> Substitution:
        """Puts the sizes of the last binding in the place of SymInts."""
        names = [one.name for one in self.executable.symbols]
        return Substitution.by_sizes(dict(zip(names, self.sizes, strict=True)))

    def bind(
        self,
        sizes: tuple[int, ...] = (),
        arrays: Mapping[str, DeviceArray] = EMPTY,
        outputs: Mapping[str, DeviceArray | None] = NO_OUTPUTS,
    ) -> None:
        """Have it be for these sizes of the symbols, which the guards admit.

        arrays: inputs that lie on the device, which are read there. outputs: those that are to stay
        there (`keep`), with arrays that are given up for them. Raises NoRoomError where too little
        memory is free for these.
        """
        known = self._now is not None and sizes == self.sizes
        self._too_small = {}  # also where none is attached: those that are too small are not
        try:
            if self.device is not None and (arrays or outputs or self._attached):
                self._attach(sizes, arrays, outputs)
                known = False
            if not known or self._generation != self._shared.generation:
                self._rebind(sizes)
            elif self._states:
                self._now = self._arranged()
        except BaseException:  # nobody knows what is bound, and tables may lie in new memory
            self._attached, self._too_small, self._kept, self._replaced = {}, {}, {}, []
            self._now = None
            self._arrangements.clear()
            self._sized = SizedArrays(self.executable.sized)
            raise

    def _attach(
        self,
        sizes: tuple[int, ...],
        arrays: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray | None],
    ) -> None:
        """Put the blocks of `arrays`, and new ones for `outputs`, in the place of its own."""
        device, numbers = self.device, self.executable.numbers(sizes)
        assert device is not None
        attached: dict[int, BufferBlock] = {}
        words_of = [block.size(numbers) for block in self._input_sizes]
        for name, array in arrays.items():
            (place, size), memory = self._device_inputs[name], array.block(device)
            if memory.size >= words_of[size]:
                attached[place] = memory
            else:
                self._too_small[name] = array
        self._kept, self._replaced, available = {}, [], self._shared.available
        device.collect_garbage()  # so that outputs that nobody has any more are room for new ones
        pool = BlockPool.for_device(device)
        for kind in self._device_outputs:
            shape, words, slack = kind.sizes(numbers, device)
            fresh: list[tuple[Output, int]] = []
            for one, place in kind.outputs:
                if one.name not in outputs:
                    continue
                given = outputs[one.name]
                there = None if given is None else self._replaced_memory(one, given, attached)
                if given is not None and there is not None and there.size >= words:
                    attached[place] = there
                    self._replaced.append((one, given))
                else:
                    fresh.append((one, place))
            allocations = pool.allocate(len(fresh), words, slack, available)
            for (one, place), allocation in zip(fresh, allocations, strict=True):
                self._kept[one.name] = DeviceArray.from_allocation(shape, one.dtype, allocation)
                attached[place] = allocation.block
        self._attached = attached
        if self._memories:
            for place in attached:
                self._memories.pop(place, None)

    def _replaced_memory(
        self, output: Output, array: DeviceArray, attached: Mapping[int, BufferBlock]
    ) -> BufferBlock | None:
        """Return the memory of `array` where an output may be written there: it is read for one
        input alone, which that may replace. attached: the blocks of inputs and other outputs.
        """
        readers = [place for place, memory in attached.items() if array.is_at(memory)]
        inputs = self.executable.device_inputs
        if len(readers) != 1 or readers[0] not in {inputs.get(name) for name in output.replaces}:
            return None
        return attached[readers[0]]

    def _rebind(self, sizes: tuple[int, ...]) -> None:
        """Evaluate the expressions, have memory for them, and bind the commands."""
        numbers = self.executable.numbers(sizes)
        self._now = None
        for one in self._arrangements.values():  # they share tables of sizes, and bodies
            one.made_for = None
        self._grow(sizes, numbers)
        self.sizes, self.numbers, self._shapes = sizes, numbers, {}
        self._generation = self._shared.generation
        self._now = self._arranged()

    def _doubled(self) -> tuple[StateMemory, ...]:
        """The states that a run reads in one memory and writes to another."""
        if self.device is None:
            return ()
        memories = [
            self._shared.states[one.name] for one in self.executable.states if one.blocks[1:]
        ]
        for state in memories:
            state.reserve()
        return tuple(memories)

    def _grow(self, sizes: tuple[int, ...], numbers: Sequence[int]) -> None:
        """Replace blocks that are too small for a binding by larger ones: none shrinks."""
        wanted: list[tuple[dict[int, BufferBlock], int, int]] = []
        slack: list[int] = []
        for i, block, is_open in self._blocks:
            there = self._memories if block.own else self._shared.memories
            if i in self._attached:
                continue
            allocated = there.get(i)
            if allocated is not None and not is_open:
                continue
            size = block.size(numbers)
            if allocated is None or allocated.size < size:
                assert self.device is not None
                wanted.append((there, i, size))
                slack.append(with_slack(size, self.device) - size if is_open else 0)
        if self._shared.checks_free_memory and wanted:
            free = self._shared.available()
            more = 4 * sum(size for _, _, size in wanted)
            if free is not None and more + 4 * sum(slack) > free:
                slack = [0] * len(wanted)
            if free is not None and more > free:
                raise NoRoomError(
                    f"{self.executable.name} needs {more} bytes of device memory more for "
                    f"{dict(zip((s.name for s in self.executable.symbols), sizes))}, "
                    f"{free} are free"
                )
        for (there, i, size), beyond in zip(wanted, slack, strict=True):
            assert self.device is not None
            there[i] = MEMORIES[self.executable.blocks[i].kind](size + beyond, self.device)
            self._shared.generation += there is self._shared.memories

    def _arranged(self) -> _Arrangement:
        """Return the commands for where the states lie now, for the sizes of the last binding."""
        made_for = self.sizes, self._generation
        states = tuple([one.current for one in self._states])
        places = states, tuple(self._attached), tuple(self._attached.values())
        result = self._arrangements.pop(places, None)
        if result is None:
            result = self._take_arrangement(states)
        self._arrangements[places] = result
        if result.made_for == made_for:
            return result
        buffers = self._buffers()
        before = result.parts.buffers if result.is_bound else None
        result.made_for = None  # until all of it is
        result.parts.buffers = buffers
        if self.device is not None:
            self._bind_device(result, self.device, before)
        else:
            self._bind_cpu(result, before is None)
        result.made_for, result.is_bound = made_for, True
        return result

    def _take_arrangement(self, states: tuple[int, ...]) -> _Arrangement:
        """Remove and return an arrangement for such places of states, to be bound anew; a new one
        where another one may be kept beside those that there are.
        """
        alike = [one for one in self._arrangements if one[0] == states]
        if len(alike) >= ALTERNATING:
            return self._arrangements.pop(alike[0])
        return _Arrangement(_DeviceParts({}, self._shared.weights))

    def _buffers(self) -> dict[int, Any]:
        """Return the memory of each block, by its number."""
        result: dict[int, Any] = {**self._shared.memories, **self._memories, **self._attached}
        for one in self.executable.states if self.device is not None else ():
            state = self._shared.states[one.name]
            for other, block in enumerate(one.blocks):
                result[block] = state.memories[(state.current + other) % len(state.memories)]
        return result

    def _set_sized(self) -> None:
        """Compute and upload the tensors that follow from sizes, and are others than before."""
        slots, arrays = self.executable.slots, self._sized.changed(self.numbers)
        self._on_host |= {k: v for k, v in arrays.items() if slots[k].block is None}
        for name, array in (arrays | self._on_host).items():
            self.store(name).put(array)

    def _bind_device(
        self, now: _Arrangement, device: Device, before: Mapping[int, Any] | None
    ) -> None:
        """Bind the commands, for the memory that there is. before: what there was, by block."""
        commands, executable = self.executable.commands, self.executable
        parts, buffer = now.parts, now.parts.buffer
        known = {} if before is None else before
        buffers = {place for place, one in parts.buffers.items() if known.get(place) is not one}
        if before is None:
            for place in _bound(executable):
                if place >= len(executable.blocks):
                    buffer(place)  # before its textures, which are made of it then
            parts.textures = [self._texture(now, i) for i in range(len(commands.textures))]
            parts.arrays = [self._array(now, one) for one in commands.arrays]
            replaced = None
        else:
            shown, numbers = parts.textures, self.numbers
            textures = {i for i, words in self._open_views if shown[i].words < words(numbers)}
            if buffers:
                views = enumerate(commands.textures)
                textures |= {i for i, one in views if one.buffer in buffers}
            for i in textures:
                parts.textures[i] = self._texture(now, i)
            arrays = {
                i
                for i, one in enumerate(commands.arrays if buffers else ())
                if any(place in buffers for _, place, _ in one.attributes)
            }
            for i in arrays:
                parts.arrays[i] = self._array(now, commands.arrays[i])
            replaced = Replacements(buffers, textures, arrays)
        if buffers:
            now.stores.clear()
            now.owners.clear()
            now.open_stores.clear()
        else:
            self._forget_stores(now)
        self._bind_host(now, bool(buffers))
        bound = now.commands
        if not isinstance(bound, BoundCommands):
            bound = BoundCommands(device, commands, self._shared.programs, buffer, parts)
            now.commands = bound
        bound.bind(self.numbers, now.host, replaced)

    def _array(self, now: _Arrangement, one: VertexInput) -> Any:
        buffer = now.parts.buffer
        attributes = {name: (buffer(place), floats) for name, place, floats in one.attributes}
        return self._shared.programs[one.program].vertex_array(attributes)

    def _bind_host(self, now: _Arrangement, others: bool) -> None:
        """Bind the host's steps that depend on sizes; all where `others`, as memory is another."""
        self._now = now  # what they look for tensors in
        self._set_sized()
        steps = self.executable.host
        anew = range(len(steps)) if others or not now.host else self.executable.open_steps
        for i in anew:
            now.host[i : i + 1] = [steps[i].bound(self)]

    def _bind_cpu(self, now: _Arrangement, others: bool) -> None:
        """Bind all steps on a backend without a device: they are the host's."""
        self._forget_stores(now)
        self._bind_host(now, others)
        works, names = now.host, self.executable.released
        stores = [tuple(map(self.store, step)) for step in names or ((),) * len(works)]
        released = [[one for one in step if isinstance(one, HostStore)] for step in stores]

        def launch() -> None:
            with np.errstate(all="ignore"):
                for work, done in zip(works, released, strict=True):
                    work()
                    for store in done:
                        store.release()

        now.commands = launch

    def _forget_stores(self, now: _Arrangement) -> None:
        """Drop or resize the stores of tensors whose sizes or places differ between bindings."""
        open_buffers = self.executable.open_buffers
        for name in [name for name in now.stores if name in open_buffers]:
            del now.stores[name]
        for store, shape in now.open_stores:
            store.resize(shape(self.numbers))

    def _texture(self, now: _Arrangement, place: int) -> DataTexture:
        """Return the texture of that number, large enough for the last binding."""
        view, count = self.executable.commands.textures[place], len(self.executable.blocks)
        first, words = view.first, number(view.words, self.numbers)
        known = TextureView(view.buffer, first, words, view.texel, view.sampler)
        if view.buffer >= count:
            return self._shared.weights[view.buffer - count].texture(known)
        assert self.device is not None
        memory = now.parts.buffers[view.buffer]
        shared = view.buffer in self._shared.memories and view.buffer not in self._attached
        known_one = self._shared.textures.get(place) if shared else None
        if (
            known_one is not None
            and known_one.attached in (None, (memory.copy, first))
            and self._shows(known_one, view)
        ):
            return known_one
        make = partial(DataTexture, self.device, texel=view.texel, sampler=view.sampler)
        most = memory.size - first // 4 if depends(view.words) else words
        try:
            result = make(min(with_slack(words, self.device), most))
        except LimitError:  # without the slack it may be small enough
            result = make(words)
        result.copy_from(memory.copy, first)
        if shared:
            self._shared.textures[place] = result
        return result

    def _shows(self, texture: DataTexture, view: TextureView) -> bool:
        """Return True where `texture` has room for what `view` shows in the last binding."""
        words: int = number(view.words, self.numbers)
        return texture.words >= words

    @property
    def commands(self) -> Callable[[], None]:
        """Performs every step, once it is bound."""
        assert self._now is not None
        return self._now.commands

    def number(self, size: Any) -> Any:
        """Return a size or shape of the executable in the last binding."""
        return number(size, self.numbers) if self.executable.symbols else size

    def shape(self, output: Output) -> Shape:
        """Return the shape of an output in the last binding."""
        result = self._shapes.get(output.name)
        if result is None:
            result = self._shapes[output.name] = self.number(output.shape)
        return result

    @property
    def ran(self) -> bool:
        """Return True where the commands ran, and GL was checked for errors."""
        commands = None if self._now is None else self._now.commands
        return isinstance(commands, BoundCommands) and commands.checked

    def weight(self, number: int) -> Any:
        """Return the weight of that number."""
        return self._shared.weights[number]

    def host(self, step: HostStep) -> Callable[[], None]:
        """Return what performs a step of the host's, for the sizes of the last binding."""
        assert self._now is not None
        return self._now.host[self.executable.host.index(step)]

    def bind_commands(self, commands: CommandBuffer) -> BoundCommands:
        """Return `commands` of the same executable, bound as its own are."""
        now, device = self._now, self.device
        assert now is not None and device is not None and isinstance(now.commands, BoundCommands)
        result = BoundCommands(device, commands, self._shared.programs, now.parts.buffer, now.parts)
        result.bind(self.numbers, now.host)
        return result

    def store(self, name: str) -> Store:
        """Return a tensor's store for the last binding. Raises KeyError where there is none."""
        now = self._now
        assert now is not None
        result = now.stores.get(name)
        if result is None:
            result = now.stores[name] = self._made(now, self.executable.slots[name])
        return result

    def output(self, name: str) -> Store:
        """Return the store of the output of that name."""
        return self.store(self.executable.aliases.get(name, name))

    def _made(self, now: _Arrangement, slot: TensorSlot) -> Store:
        shape: Shape = number(slot.shape, self.numbers)
        if slot.block is None or self.device is None:
            result = now.owners.get(slot.memory)
            if result is None:
                result = now.owners[slot.memory] = HostStore(shape, slot.dtype)
                make = maker(slot.shape)
                if make is not None and slot.name not in self._on_host:
                    now.open_stores.append((result, make))
            return result
        is_open = slot.name in self.executable.open_layouts
        layout = self.change(slot.layout) if is_open else slot.layout
        memory, words = now.parts.buffers[slot.block], number(slot.words, self.numbers)
        offset = number(slot.offset, self.numbers)
        made = Buffer(shape, layout, capacity=words, memory=memory, dtype=slot.dtype, offset=offset)
        if slot.block in self._attached:  # nothing is put there, which would say so
            made.mark_written()
        return made

    def upload(self, arrays: Mapping[str, Array]) -> None:
        """Move the inputs to where the device reads them, once it does not read others there.

        arrays: those of the host, by name; those on the device are as the last binding has them.
        """
        device = self.device
        if device is not None and device.timeline.completed < self._segment:
            device.wait_for(self._segment)
        now = self._now
        assert now is not None
        stores = now.stores
        for name, array in arrays.items():
            (stores.get(name) or self.store(name)).put(array)
        for name, there in self._too_small.items():
            store = self.store(name)
            assert isinstance(store, Buffer) and device is not None
            store.copy_from(there.buffer(device), device)

    def keep(self, outputs: Iterable[Output]) -> dict[str, DeviceArray]:
        """Return outputs of the last run on the device, by name, without those that the host has to
        read.

        No further run overwrites them: each has the memory that commands wrote to, or a copy.
        """
        result: dict[str, DeviceArray] = {}
        for one in outputs:
            there = self._kept.pop(one.name, None) or self._copied(one)
            if there is not None:
                result[one.name] = there
        return result

    def _copied(self, output: Output) -> DeviceArray | None:
        """Return a copy of an output on the device; None where the host has to read it."""
        device = self.device
        if device is None or output.fixed:
            return None
        store = self.result(output.name)
        if not _is_dense(store):
            return None
        shape, available = self.shape(output), self._shared.available
        result = DeviceArray.allocate(device, shape, output.dtype, available=available)
        Buffer(store.shape, DENSE, memory=result.block(device)).copy_from(store, device)
        return result

    def launch(self) -> None:
        """Launch every step, without waiting for the device."""
        if self._replaced:
            for one, given in self._replaced:
                self._kept[one.name] = given.hand_over(one.dtype)
            self._replaced = []
        device, shared = self.device, self._shared
        try:
            if device is None and self._states:
                self._launch_here()
            else:
                shared.states_lost = self._in_place
                self.commands()
                shared.states_lost = bool(self._swapped)
                for state in self._swapped:
                    state.swap()
            shared.states_lost = False
        finally:
            if device is not None:  # only now: a run may wait for the device in the middle
                self._segment = device.timeline.current

    def _launch_here(self) -> None:
        """Perform every step where arrays are the host's: those of states change places."""
        for one in self.executable.states:
            if one.name in self.executable.slots:
                self.store(one.name).set(self._shared.states[one.name].get())
        self.commands()
        new: list[tuple[StateMemory, Array]] = []
        for one in self.executable.states:
            if one.after is None:
                continue
            content, state = self.store(one.after).pull(), self._shared.states[one.name]
            # A view may be one of an input, which is the caller's own, and has that one's shape.
            owned = content if content.base is None else np.array(content)
            new.append((state, owned.reshape(state.type.shape)))
        self._shared.states_lost = True
        for state, array in new:
            state.set(array)

    def result(self, name: str) -> Store:
        """Return the store of the tensor called `name`, as the last run left it."""
        return self.computed(self.executable.aliases.get(name, name))

    def computed(self, tensor: str) -> Store:
        """Return the store of a tensor that some step has written, or that is an input."""
        store = self.store(tensor)
        if tensor not in self._fed and tensor not in self.executable.set_by_host:
            store.mark_written()
        return store


def _is_dense(store: Store) -> TypeGuard[Buffer]:
    """Return True where a DeviceArray of that shape lies as `store` does."""
    return isinstance(store, Buffer) and store.dtype is DType.float32 and store.layout == DENSE


def growth(words: int, device: Device) -> int:
    """Return the words to allocate beyond `words` for a tensor that grows from run to run.

    They are half as many: how often a cache gets larger memory goes with the logarithm of its
    length.
    """
    most = device.capabilities.max_shader_storage_block_size // 4
    return max(with_slack(words + words // 2, device) - words, 0) if 2 * words < most else 0


def with_slack(words: int, device: Device) -> int:
    """Words to allocate for `words`, so that a little more fits, too."""
    step = max(1 << max(words.bit_length() - SLACK.bit_length(), 0), LEAST_STEP)
    most = device.capabilities.max_shader_storage_block_size // 4
    return max(words, min(-(-words // step) * step, most or words))


def _bound(executable: Executable) -> list[int]:
    """Return the buffers that commands use as such, not by textures alone."""
    numbers = [place for one in executable.commands.arrays for _, place, _ in one.attributes]
    for name, *arguments in executable.commands.commands:
        if name in ("bind", "copy"):
            numbers += [arguments[0]] if name == "bind" else [arguments[0], arguments[2]]
    return list(dict.fromkeys(numbers))
