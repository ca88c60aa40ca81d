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

LEAST_STEP = 4096  # words: the least growth of a block of open size
EMPTY: Mapping[str, DeviceArray] = {}
NO_OUTPUTS: Mapping[str, DeviceArray | None] = {}
SLACK = 4  # a block of open size has room for up to 1 / 4 more, so that it seldom grows again
ALTERNATING = 2
"""Arrangements kept for each arrangement of states: a cache and its successor take turns."""


class DeviceWeight(Protocol):
    """A weight on a device."""

    def buffer(self) -> Any:
        """Return the weight's buffer."""

    def texture(self, view: TextureView) -> DataTexture:
        """Return a texture of the weight; `view` has numbers alone, no SizeIndex."""


class StateMemory(Protocol):
    """A state: its memories on a device, or its content on a backend without one."""

    type: TensorType
    memories: list[Any]
    current: int
    """The index of the memory with the content."""

    def reserve(self) -> None: ...
    def swap(self) -> None: ...
    def set(self, array: Array) -> None: ...
    def get(self) -> Array: ...


@dataclass(eq=False)
class Resources:
    """Device, programs, weights and inner memory, shared by all BufferSets of an executable."""

    device: Device | None
    programs: Sequence[Program]
    weights: Sequence[DeviceWeight]
    available: Callable[[], int | None]
    """Returns the free bytes of device memory; None where unknown."""
    states: Mapping[str, StateMemory] = field(default_factory=dict)
    memories: dict[int, BufferBlock] = field(default_factory=dict)
    """The memory of each shared block (`Block.own` is False), by the block's number."""
    textures: dict[int, DataTexture] = field(default_factory=dict)
    """The textures of shared blocks, by number."""
    checks_free_memory: bool = False
    """True where allocations check free memory first; the plan has checked for the first ones."""
    states_lost: bool = False
    """True where a run was interrupted while it updated states: their content is invalid."""
    generation: int = 0
    """Counts the allocations in `memories`."""


@dataclass(eq=False)
class _BoundObjects:
    """Buffers, weights, textures and vertex arrays of bound commands; free of reference cycles."""

    buffers: Mapping[int, Any]
    """The memory of each block."""
    weights: Sequence[DeviceWeight]
    textures: list[DataTexture] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)

    def buffer(self, index: int) -> Any:
        """Return GL's buffer of that number: blocks come first, then weights."""
        count = len(self.buffers)  # of all blocks
        return self.buffers[index].copy if index < count else self.weights[index - count].buffer()


@dataclass(eq=False)
class _Arrangement:
    """Commands for one arrangement of states and DeviceArrays in their memories."""

    objects: _BoundObjects
    stores: dict[str, Store] = field(default_factory=dict)
    """The store of each tensor that was looked up, by the tensor's name."""
    host: list[Callable[[], None]] = field(default_factory=list)
    """The bound functions of the host's steps."""
    host_memories: dict[str, Store] = field(default_factory=dict)
    """The store of each memory of the host's, which the views of a tensor share."""
    open_stores: list[tuple[HostStore, Maker]] = field(default_factory=list)
    """The stores in `host_memories` whose shape depends on sizes, and the function for it."""
    commands: Callable[[], None] = lambda: None
    is_bound: bool = False
    """True once it was bound to any sizes."""
    binding: tuple[object, ...] | None = None
    """The sizes of the symbols and the generation of memory that it is bound to."""


class _OutputKind:
    """Outputs of the same shape and block size, which are allocated together, as caches are."""

    def __init__(self, block: Block, shape: Shape) -> None:
        self._block, self._shape, self._shape_of = block, shape, maker(shape)
        self.outputs: list[tuple[Output, int]] = []
        """The outputs, and the number of the block of each."""

    def sizes(self, numbers: Sequence[int], device: Device) -> tuple[Shape, int, int]:
        """Return the shape, the words that a run writes, and the words to allocate beyond these."""
        words = self._block.size(numbers)
        if self._shape_of is None:
            return self._shape, words, 0
        return self._shape_of(numbers), words, growth(words, device)


_ArrangementKey = tuple[tuple[int, ...], tuple[int, ...], tuple[BufferBlock, ...]]
"""The index of each state's current memory; the numbers of the blocks that DeviceArrays replace;
the memories of these DeviceArrays.
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
        """The memory of each block of which every BufferSet has one (`Block.own`), by number."""
        self._attached: dict[int, BufferBlock] = {}
        """The memories of DeviceArrays, by the number of the block that each replaces."""
        self._too_small: dict[str, DeviceArray] = {}
        """The inputs, by name, whose memory is too small to be attached: a run copies them."""
        self._output_arrays: dict[str, DeviceArray] = {}
        """The outputs that the bound commands write to attached memory, by name, until `keep`."""
        self._donated: list[tuple[Output, DeviceArray]] = []
        """Outputs that the next run writes to the memory of an input, and the DeviceArray of that
        input, which gives its memory up."""
        self._arrangements: dict[_ArrangementKey, _Arrangement] = {}
        """The arrangements, least recently used first."""
        self._sized_arrays = SizedArrays(executable.array_program)
        self._host_arrays: dict[str, Array] = {}
        """The tensors that follow from sizes and that the host reads, by name."""
        self._device_outputs = _output_kinds(executable)
        """The outputs that can stay on the device."""
        size_classes: dict[tuple[Size, ...], int] = {}
        self._device_inputs = {
            name: (
                block,
                size_classes.setdefault(executable.blocks[block].words, len(size_classes)),
            )
            for name, block in executable.device_inputs.items()
        }
        """The block of each input that may be a DeviceArray, and the number of its size class."""
        sample = {number: executable.blocks[i] for i, number in self._device_inputs.values()}
        self._input_sizes = [sample[number] for number in range(len(size_classes))]
        """A block of each size class: all caches are of one class."""
        makers = ((i, maker(view.words)) for i, view in enumerate(executable.commands.textures))
        self._open_views = [(i, make) for i, make in makers if make is not None]
        """The numbers of textures whose sizes depend on symbols, and the function for each size."""
        self._states = [resources.states[slot.name] for slot in executable.states]
        self._double_buffered = self._double_buffered_states()
        updated = [slot for slot in executable.states if slot.after is not None]
        self._in_place = self.device is not None and not all(slot.blocks[1:] for slot in updated)
        """True where a run updates a state in place."""
        self._segment = 0  # of the device's timeline: its last run ends with it
        self._arrangement: _Arrangement | None = None
        """The arrangement of the last binding."""
        self._input_names = frozenset(one.name for one in executable.io.inputs)
        self._generation = -1
        """The `Resources.generation` of the last binding."""
        self.sizes: tuple[int, ...] = ()
        """The sizes of the symbols in the last binding."""
        self.numbers: tuple[int, ...] = ()
        """The values of the executable's expressions in the last binding."""
        self._shapes: dict[str, Shape] = {}
        """The shapes of outputs in the last binding, by name."""
        self.nested: dict[tuple[HostStep, int], BufferSet] = {}
        """The BufferSets of the bodies of branches and loops."""
        state_blocks = {block for slot in executable.states for block in slot.blocks}
        self._blocks = [
            (i, block, depends(block.words))
            for i, block in enumerate(executable.blocks if self.device is not None else ())
            if i not in state_blocks
        ]
        """Number, block, and whether its size is open, of each block but those of states."""

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that it shares with no other BufferSet."""
        return sum(memory.nbytes for memory in self._memories.values())

    @property
    def nbytes_of_another(self) -> int:
        """Bytes that a further BufferSet takes: memory of its own, and textures that copy it."""
        views = zip(
            self.executable.commands.textures,
            self._arrangement.objects.textures if self._arrangement else (),
        )
        of_memories = (texture for view, texture in views if view.buffer in self._memories)
        return self.nbytes + sum(texture.nbytes for texture in of_memories)

    @property
    def substitution(self) -> Substitution:
        """The substitution of SymInts by the sizes of the last binding."""
        names = [symbol.name for symbol in self.executable.symbols]
        return Substitution.by_sizes(dict(zip(names, self.sizes, strict=True)))

    def bind(
        self,
        sizes: tuple[int, ...] = (),
        arrays: Mapping[str, DeviceArray] = EMPTY,
        outputs: Mapping[str, DeviceArray | None] = NO_OUTPUTS,
    ) -> None:
        """Bind the commands to these sizes of the symbols, which the guards admit.

        arrays: inputs on the device, which commands read in place. outputs: outputs that stay on
        the device (`keep`), each with the DeviceArray whose memory it may take, or None. Raises
        NoRoomError where too little memory is free.
        """
        is_bound = self._arrangement is not None and sizes == self.sizes
        self._too_small = {}  # here, as `_attach` is not called where `_attached` is empty
        try:
            if self.device is not None and (arrays or outputs or self._attached):
                self._attach(sizes, arrays, outputs)
                is_bound = False
            if not is_bound or self._generation != self._shared.generation:
                self._rebind(sizes)
            elif self._states:
                self._arrangement = self._bound_arrangement()
        except BaseException:  # the bindings are unknown, and new memory may lack its sized arrays
            self._attached, self._too_small, self._output_arrays, self._donated = {}, {}, {}, []
            self._arrangement = None
            self._arrangements.clear()
            self._sized_arrays = SizedArrays(self.executable.array_program)
            raise

    def _attach(
        self,
        sizes: tuple[int, ...],
        arrays: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray | None],
    ) -> None:
        """Replace blocks by the memories of `arrays`, and by new ones for `outputs`."""
        device, numbers = self.device, self.executable.numbers(sizes)
        assert device is not None
        attached: dict[int, BufferBlock] = {}
        words_of = [block.size(numbers) for block in self._input_sizes]
        for name, array in arrays.items():
            (block, size_class), memory = self._device_inputs[name], array.block(device)
            if memory.size >= words_of[size_class]:
                attached[block] = memory
            else:
                self._too_small[name] = array
        self._output_arrays, self._donated, available = {}, [], self._shared.available
        device.collect_garbage()  # outputs without references make room for new ones
        pool = BlockPool.for_device(device)
        for kind in self._device_outputs:
            shape, words, slack = kind.sizes(numbers, device)
            allocated: list[tuple[Output, int]] = []
            for output, block in kind.outputs:
                if output.name not in outputs:
                    continue
                donor = outputs[output.name]
                donated = None if donor is None else self._donated_memory(output, donor, attached)
                if donor is not None and donated is not None and donated.size >= words:
                    attached[block] = donated
                    self._donated.append((output, donor))
                else:
                    allocated.append((output, block))
            allocations = pool.allocate(len(allocated), words, slack, available)
            for (output, block), allocation in zip(allocated, allocations, strict=True):
                result = DeviceArray.from_allocation(shape, output.dtype, allocation)
                self._output_arrays[output.name] = result
                attached[block] = allocation.block
        self._attached = attached
        if self._memories:
            for block in attached:
                self._memories.pop(block, None)

    def _donated_memory(
        self, output: Output, array: DeviceArray, attached: Mapping[int, BufferBlock]
    ) -> BufferBlock | None:
        """Return the memory of `array` where `output` may be written there: exactly one input
        reads it, and `output` may replace that one. attached: the memories of inputs and of other
        outputs, by block.
        """
        readers = [block for block, memory in attached.items() if array.is_at(memory)]
        inputs = self.executable.device_inputs
        if len(readers) != 1 or readers[0] not in {inputs.get(name) for name in output.replaces}:
            return None
        return attached[readers[0]]

    def _rebind(self, sizes: tuple[int, ...]) -> None:
        """Evaluate the expressions, enlarge memory that is too small, and bind the commands."""
        numbers = self.executable.numbers(sizes)
        self._arrangement = None
        for arrangement in self._arrangements.values():  # they share sized arrays, and bodies
            arrangement.binding = None
        self._grow(sizes, numbers)
        self.sizes, self.numbers, self._shapes = sizes, numbers, {}
        self._generation = self._shared.generation
        self._arrangement = self._bound_arrangement()

    def _double_buffered_states(self) -> tuple[StateMemory, ...]:
        """Return the states that a run reads in one memory and writes to another; reserve both."""
        if self.device is None:
            return ()
        states = [
            self._shared.states[slot.name] for slot in self.executable.states if slot.blocks[1:]
        ]
        for state in states:
            state.reserve()
        return tuple(states)

    def _grow(self, sizes: tuple[int, ...], numbers: Sequence[int]) -> None:
        """Replace memories that are too small for a binding by larger ones: none shrinks."""
        requests: list[tuple[dict[int, BufferBlock], int, int]] = []  # memories, block, words
        slack: list[int] = []
        for i, block, is_open in self._blocks:
            memories = self._memories if block.own else self._shared.memories
            if i in self._attached:
                continue
            allocated = memories.get(i)
            if allocated is not None and not is_open:
                continue
            size = block.size(numbers)
            if allocated is None or allocated.size < size:
                assert self.device is not None
                requests.append((memories, i, size))
                slack.append(with_slack(size, self.device) - size if is_open else 0)
        if self._shared.checks_free_memory and requests:
            free = self._shared.available()
            nbytes = 4 * sum(size for _, _, size in requests)
            if free is not None and nbytes + 4 * sum(slack) > free:
                slack = [0] * len(requests)
            if free is not None and nbytes > free:
                raise NoRoomError(
                    f"{self.executable.name} needs {nbytes} bytes of device memory more for "
                    f"{dict(zip((s.name for s in self.executable.symbols), sizes))}, "
                    f"{free} are free"
                )
        for (memories, i, size), extra in zip(requests, slack, strict=True):
            assert self.device is not None
            memories[i] = MEMORIES[self.executable.blocks[i].kind](size + extra, self.device)
            self._shared.generation += memories is self._shared.memories

    def _bound_arrangement(self) -> _Arrangement:
        """Return the arrangement for the current memories of states and the attached memories,
        bound to the sizes of the last binding.
        """
        binding = self.sizes, self._generation
        states = tuple([state.current for state in self._states])
        key = states, tuple(self._attached), tuple(self._attached.values())
        result = self._arrangements.pop(key, None)
        if result is None:
            result = self._new_arrangement(states)
        self._arrangements[key] = result
        if result.binding == binding:
            return result
        buffers = self._buffers()
        previous_buffers = result.objects.buffers if result.is_bound else None
        result.binding = None  # until it is bound completely
        result.objects.buffers = buffers
        if self.device is not None:
            self._bind_device(result, self.device, previous_buffers)
        else:
            self._bind_cpu(result, previous_buffers is None)
        result.binding, result.is_bound = binding, True
        return result

    def _new_arrangement(self, states: tuple[int, ...]) -> _Arrangement:
        """Return an arrangement to be bound: a new one, or, where ALTERNATING are kept for these
        memories of states, the least recently used of these, which is removed.
        """
        same_states = [key for key in self._arrangements if key[0] == states]
        if len(same_states) >= ALTERNATING:
            return self._arrangements.pop(same_states[0])
        return _Arrangement(_BoundObjects({}, self._shared.weights))

    def _buffers(self) -> dict[int, Any]:
        """Return the memory of each block, by its number."""
        result: dict[int, Any] = {**self._shared.memories, **self._memories, **self._attached}
        for slot in self.executable.states if self.device is not None else ():
            state = self._shared.states[slot.name]
            for offset, block in enumerate(slot.blocks):
                result[block] = state.memories[(state.current + offset) % len(state.memories)]
        return result

    def _set_sized_arrays(self) -> None:
        """Compute and upload the tensors that follow from sizes and differ from before."""
        slots, arrays = self.executable.slots, self._sized_arrays.changed(self.numbers)
        self._host_arrays |= {k: v for k, v in arrays.items() if slots[k].block is None}
        for name, array in (arrays | self._host_arrays).items():
            self.store(name).put(array)

    def _bind_device(
        self,
        arrangement: _Arrangement,
        device: Device,
        previous_buffers: Mapping[int, Any] | None,
    ) -> None:
        """Bind the commands to the arrangement's memories.

        previous_buffers: those of its binding before, by block; None without one.
        """
        commands, executable = self.executable.commands, self.executable
        objects, buffer = arrangement.objects, arrangement.objects.buffer
        previous = {} if previous_buffers is None else previous_buffers
        buffers = {i for i, memory in objects.buffers.items() if previous.get(i) is not memory}
        if previous_buffers is None:
            for i in _directly_used_buffers(executable):
                if i >= len(executable.blocks):
                    buffer(i)  # a weight's: before its textures, which are then made from it
            objects.textures = [
                self._texture(arrangement, i) for i in range(len(commands.textures))
            ]
            objects.arrays = [self._vertex_array(arrangement, one) for one in commands.arrays]
            replaced = None
        else:
            bound_textures, numbers = objects.textures, self.numbers
            textures = {
                i for i, words in self._open_views if bound_textures[i].words < words(numbers)
            }
            if buffers:
                views = enumerate(commands.textures)
                textures |= {i for i, view in views if view.buffer in buffers}
            for i in textures:
                objects.textures[i] = self._texture(arrangement, i)
            arrays = {
                i
                for i, vertex_input in enumerate(commands.arrays if buffers else ())
                if any(block in buffers for _, block, _ in vertex_input.attributes)
            }
            for i in arrays:
                objects.arrays[i] = self._vertex_array(arrangement, commands.arrays[i])
            replaced = Replacements(buffers, textures, arrays)
        if buffers:
            arrangement.stores.clear()
            arrangement.host_memories.clear()
            arrangement.open_stores.clear()
        else:
            self._refresh_stores(arrangement)
        self._bind_host(arrangement, bool(buffers))
        bound = arrangement.commands
        if not isinstance(bound, BoundCommands):
            bound = BoundCommands(device, commands, self._shared.programs, buffer, objects)
            arrangement.commands = bound
        bound.bind(self.numbers, arrangement.host, replaced)

    def _vertex_array(self, arrangement: _Arrangement, vertex_input: VertexInput) -> Any:
        buffer = arrangement.objects.buffer
        attributes = {name: (buffer(i), floats) for name, i, floats in vertex_input.attributes}
        return self._shared.programs[vertex_input.program].vertex_array(attributes)

    def _bind_host(self, arrangement: _Arrangement, all_steps: bool) -> None:
        """Bind the host's steps that depend on sizes; `all_steps` where memory was replaced."""
        self._arrangement = arrangement  # where the steps look tensors up
        self._set_sized_arrays()
        steps, functions = self.executable.host, arrangement.host
        rebound = range(len(steps)) if all_steps or not functions else self.executable.open_steps
        for i in rebound:
            functions[i : i + 1] = [steps[i].bound(self)]

    def _bind_cpu(self, arrangement: _Arrangement, all_steps: bool) -> None:
        """Bind all steps on a backend without a device: they are the host's."""
        self._refresh_stores(arrangement)
        self._bind_host(arrangement, all_steps)
        steps, names = arrangement.host, self.executable.released
        stores = [tuple(map(self.store, dead)) for dead in names or ((),) * len(steps)]
        released = [[one for one in dead if isinstance(one, HostStore)] for dead in stores]

        def launch() -> None:
            with np.errstate(all="ignore"):
                for step, dead_stores in zip(steps, released, strict=True):
                    step()
                    for store in dead_stores:
                        store.release()

        arrangement.commands = launch

    def _refresh_stores(self, arrangement: _Arrangement) -> None:
        """Drop or resize the stores of tensors whose sizes or offsets differ between bindings."""
        open_buffers = self.executable.open_buffers
        for name in [name for name in arrangement.stores if name in open_buffers]:
            del arrangement.stores[name]
        for store, shape in arrangement.open_stores:
            store.resize(shape(self.numbers))

    def _texture(self, arrangement: _Arrangement, index: int) -> DataTexture:
        """Return the texture of that number, large enough for the last binding."""
        view, count = self.executable.commands.textures[index], len(self.executable.blocks)
        first, words = view.first, number(view.words, self.numbers)
        if view.buffer >= count:
            known = TextureView(view.buffer, first, words, view.texel, view.sampler)
            return self._shared.weights[view.buffer - count].texture(known)
        assert self.device is not None
        memory = arrangement.objects.buffers[view.buffer]
        shared = view.buffer in self._shared.memories and view.buffer not in self._attached
        cached = self._shared.textures.get(index) if shared else None
        if (
            cached is not None
            and cached.attached in (None, (memory.copy, first))
            and cached.words >= words
        ):
            return cached
        make = partial(DataTexture, self.device, texel=view.texel, sampler=view.sampler)
        most = memory.size - first // 4 if depends(view.words) else words
        try:
            result = make(min(with_slack(words, self.device), most))
        except LimitError:  # without the slack it may be small enough
            result = make(words)
        result.copy_from(memory.copy, first)
        if shared:
            self._shared.textures[index] = result
        return result

    @property
    def commands(self) -> Callable[[], None]:
        """The function that performs every step, once it is bound."""
        assert self._arrangement is not None
        return self._arrangement.commands

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
        commands = None if self._arrangement is None else self._arrangement.commands
        return isinstance(commands, BoundCommands) and commands.checked

    def weight(self, number: int) -> Any:
        """Return the weight of that number."""
        return self._shared.weights[number]

    def host(self, step: HostStep) -> Callable[[], None]:
        """Return the function of a host step, bound to the sizes of the last binding."""
        assert self._arrangement is not None
        return self._arrangement.host[self.executable.host.index(step)]

    def bind_commands(self, commands: CommandBuffer) -> BoundCommands:
        """Bind `commands` to the same buffers, textures and sizes as the executable's own."""
        arrangement, device = self._arrangement, self.device
        assert arrangement is not None and device is not None
        assert isinstance(arrangement.commands, BoundCommands)
        objects, programs = arrangement.objects, self._shared.programs
        result = BoundCommands(device, commands, programs, objects.buffer, objects)
        result.bind(self.numbers, arrangement.host)
        return result

    def store(self, name: str) -> Store:
        """Return a tensor's store for the last binding. Raises KeyError where there is none."""
        arrangement = self._arrangement
        assert arrangement is not None
        result = arrangement.stores.get(name)
        if result is None:
            slot = self.executable.slots[name]
            result = arrangement.stores[name] = self._create_store(arrangement, slot)
        return result

    def output(self, name: str) -> Store:
        """Return the store of the output of that name."""
        return self.store(self.executable.aliases.get(name, name))

    def _create_store(self, arrangement: _Arrangement, slot: TensorSlot) -> Store:
        shape: Shape = number(slot.shape, self.numbers)
        if slot.block is None or self.device is None:
            host_store = arrangement.host_memories.get(slot.memory)
            if host_store is None:
                host_store = arrangement.host_memories[slot.memory] = HostStore(shape, slot.dtype)
                make = maker(slot.shape)
                if make is not None and slot.name not in self._host_arrays:
                    arrangement.open_stores.append((host_store, make))
            return host_store
        is_open = slot.name in self.executable.open_layouts
        layout = self.substitution(slot.layout) if is_open else slot.layout
        memory, words = arrangement.objects.buffers[slot.block], number(slot.words, self.numbers)
        offset = number(slot.offset, self.numbers)
        store = Buffer(
            shape, layout, capacity=words, memory=memory, dtype=slot.dtype, offset=offset
        )
        if slot.block in self._attached:  # no `put`, which would mark it
            store.mark_written()
        return store

    def upload(self, arrays: Mapping[str, Array]) -> None:
        """Write the inputs to device memory, once the device is done with the last run's.

        arrays: the host's inputs, by name; inputs on the device are attached by `bind`.
        """
        device = self.device
        if device is not None and device.timeline.completed < self._segment:
            device.wait_for(self._segment)
        arrangement = self._arrangement
        assert arrangement is not None
        stores = arrangement.stores
        for name, array in arrays.items():
            (stores.get(name) or self.store(name)).put(array)
        for name, device_array in self._too_small.items():
            store = self.store(name)
            assert isinstance(store, Buffer) and device is not None
            store.copy_from(device_array.buffer(device), device)

    def keep(self, outputs: Iterable[Output]) -> dict[str, DeviceArray]:
        """Return the outputs of the last run as DeviceArrays, by name, but for those that the host
        has to read.

        No further run overwrites them: each takes over the memory that commands wrote, or is a
        copy.
        """
        result: dict[str, DeviceArray] = {}
        for output in outputs:
            array = self._output_arrays.pop(output.name, None) or self._copy_output(output)
            if array is not None:
                result[output.name] = array
        return result

    def _copy_output(self, output: Output) -> DeviceArray | None:
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
        if self._donated:
            for output, array in self._donated:
                self._output_arrays[output.name] = array.hand_over(output.dtype)
            self._donated = []
        device, shared = self.device, self._shared
        try:
            if device is None and self._states:
                self._launch_on_host()
            else:
                shared.states_lost = self._in_place
                self.commands()
                shared.states_lost = bool(self._double_buffered)
                for state in self._double_buffered:
                    state.swap()
            shared.states_lost = False
        finally:
            if device is not None:  # only now: a run may wait for the device in the middle
                self._segment = device.timeline.current

    def _launch_on_host(self) -> None:
        """Perform every step without a device, and make the new arrays the states' content."""
        for slot in self.executable.states:
            if slot.name in self.executable.slots:
                self.store(slot.name).set(self._shared.states[slot.name].get())
        self.commands()
        updates: list[tuple[StateMemory, Array]] = []
        for slot in self.executable.states:
            if slot.after is None:
                continue
            content, state = self.store(slot.after).pull(), self._shared.states[slot.name]
            # It may be a view of an input, which is the caller's, and have the shape of that.
            owned = content if content.base is None else np.array(content)
            updates.append((state, owned.reshape(state.type.shape)))
        self._shared.states_lost = True
        for state, array in updates:
            state.set(array)

    def result(self, name: str) -> Store:
        """Return the store of the output called `name`, as the last run left it."""
        return self.computed(self.executable.aliases.get(name, name))

    def computed(self, tensor: str) -> Store:
        """Return the store of a tensor that some step has written, or that is an input."""
        store = self.store(tensor)
        if tensor not in self._input_names and tensor not in self.executable.set_by_host:
            store.mark_written()
        return store


def _is_dense(store: Store) -> TypeGuard[Buffer]:
    """Return True where `store` has the layout of a DeviceArray: float32, row major."""
    return isinstance(store, Buffer) and store.dtype is DType.float32 and store.layout == DENSE


def growth(words: int, device: Device) -> int:
    """Return the words to allocate beyond `words` for a tensor that grows from run to run.

    They are half as many, so that a cache is reallocated a logarithmic number of times.
    """
    most = device.capabilities.max_shader_storage_block_size // 4
    return max(with_slack(words + words // 2, device) - words, 0) if 2 * words < most else 0


def with_slack(words: int, device: Device) -> int:
    """Return the words to allocate for `words`, so that a little more fits, too."""
    step = max(1 << max(words.bit_length() - SLACK.bit_length(), 0), LEAST_STEP)
    most = device.capabilities.max_shader_storage_block_size // 4
    return max(words, min(-(-words // step) * step, most or words))


def _output_kinds(executable: Executable) -> tuple[_OutputKind, ...]:
    """Return the outputs that can stay on the device, by shape and block size."""
    kinds: dict[Any, _OutputKind] = {}
    for output in executable.io.outputs:
        index = executable.device_outputs.get(output.name)
        if index is None:
            continue
        block = executable.blocks[index]
        key = block.words, output.shape
        if key not in kinds:
            kinds[key] = _OutputKind(block, output.shape)
        kinds[key].outputs.append((output, index))
    return tuple(kinds.values())


def _directly_used_buffers(executable: Executable) -> list[int]:
    """Return the buffers that commands bind, copy or read vertices from, not as textures alone."""
    numbers = [i for array in executable.commands.arrays for _, i, _ in array.attributes]
    for name, *arguments in executable.commands.commands:
        if name in ("bind", "copy"):
            numbers += [arguments[0]] if name == "bind" else [arguments[0], arguments[2]]
    return list(dict.fromkeys(numbers))
