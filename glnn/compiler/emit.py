"""Emit an outline as an executable: commands for the device, and steps for the host.

A body is planned as any graph is. Its inputs and results are copied on the device, so that a body
may return one of its inputs. The host reads conditions, one number each, unless they are constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from weakref import ref

import numpy as np

from glnn.backends.backend import Backend, Launch, Operand, Transfer
from glnn.backends.cpu import NumpyStep
from glnn.backends.launch import encode, order_by_level
from glnn.compiler.memory_budget import Outline
from glnn.compiler.memory_planner import Arena
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import ScheduledOp, Tensor
from glnn.compiler.weights import ArrayWriter, Key, Weight, Weights
from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout, parse
from glnn.core.progress_bar import report_work
from glnn.core.size_table import Size, SizeTable, Template
from glnn.core.symint import Guard, Substitution, hint
from glnn.core.types import Array, Shape, TensorType, widened
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.gl.buffer import MIN_WORDS
from glnn.gl.command_encoder import BlockPart, CommandEncoder
from glnn.gl.program import Program
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator
from glnn.graph.operators import CacheAppend, If, Loop
from glnn.kernels.reference import Preparation
from glnn.runtime.array_program import ArrayProgram
from glnn.runtime.buffer_set import BufferSet, DeviceWeight, Resources
from glnn.runtime.executable import Block, Executable, IOSpec, StateSlot, Symbol, TensorSlot
from glnn.runtime.store import HostStore, Store

NOTHING = IOSpec((), ())


@dataclass(frozen=True)
class Body:
    """The body of a branch or a loop, with memory for its inputs and results."""

    inputs: tuple[Store, ...]
    """Memory of the inputs, in the graph's order."""
    run: Launch
    """Launches all steps, without waiting."""
    results: tuple[Callable[[], Store], ...]
    """Functions that return the outputs' memory, row major, after a run."""


@dataclass(frozen=True)
class ControlCall:
    """An If or a Loop: a step whose bodies the host runs."""

    backend: Backend
    op: Operator
    numbers: Mapping[str, Callable[[], Array]]
    """Functions that read conditions and trip counts, by the operand's name."""
    operands: tuple[Callable[[], Store], ...]
    """Functions that return the memory of the other operands, row major."""
    bodies: tuple[Body, ...]
    """The bodies of the operator."""
    outs: tuple[Store, ...]
    """Memory of the results."""

    def copy(self, sources: Iterable[Store], targets: Iterable[Store]) -> None:
        """Copy `sources` to `targets` pairwise, up to the end of the shorter of the two."""
        for source, target in zip(sources, targets, strict=False):
            self.backend.copy(source, target)


def control_launch(call: ControlCall) -> Launch:
    """Return the launch that runs a branch or a loop. Raises UnsupportedOpError for other
    operators.
    """
    if isinstance(call.op, If):
        return _branch(call)
    if isinstance(call.op, Loop):
        return _loop(call, call.op)
    raise UnsupportedOpError(f"nothing here runs the bodies of {call.op.name}")


def _branch(call: ControlCall) -> Launch:
    then_body, else_body = call.bodies

    def launch() -> None:
        condition = bool(call.numbers["condition"]().item())
        body, first = (then_body, 0) if condition else (else_body, len(then_body.inputs))
        call.copy((operand() for operand in call.operands[first:]), body.inputs)
        body.run()
        call.copy((result() for result in body.results), call.outs)

    return launch


def _loop(call: ControlCall, op: Loop) -> Launch:
    (body,) = call.bodies
    iteration, condition, *inputs = body.inputs
    reads_condition = "condition" in call.numbers and not op.endless
    carried, stacked = call.outs[: op.carried], call.outs[op.carried :]
    rows = body.results[1 + op.carried :]

    def begin() -> int | None:
        """Copy the operands, and return the most iterations; None where there is no bound."""
        operands = [store() for store in call.operands]
        call.copy(operands, carried)
        call.copy(operands[op.carried :], inputs[op.carried :])
        _put(call.backend, condition, True)
        bounds = [call.numbers["trips"]().item()] if "trips" in call.numbers else []
        bounds += [s.shape[a] for s, a in zip(inputs[op.carried :], op.scanned, strict=False)]
        if "condition" in call.numbers and not call.numbers["condition"]().item():
            return 0
        return min(bounds, default=None)

    def launch() -> None:
        bound, count = begin(), 0
        while bound is None or count < bound:
            if op.counts:
                _put(call.backend, iteration, count)
            call.copy(carried, inputs)
            body.run()
            call.copy((result() for result in body.results[1:]), carried)
            for row, out in zip(rows, stacked, strict=True):
                call.backend.copy(row(), out, count)
            count += 1
            if reads_condition and not body.results[0]().pull().item():
                break

    return launch


def _put(backend: Backend, store: Store, number: int | bool) -> None:
    """Fill `store` with a number."""
    backend.wait_before_write()
    store.put(np.full(store.shape, number, store.dtype.numpy))


@dataclass(frozen=True)
class SizeRange:
    """The sizes that an executable serves: symbols with bounds, and guards.

    Without symbols all sizes are known.
    """

    symbols: tuple[Symbol, ...] = ()
    sizes: tuple[int, ...] = ()
    """The sizes of the symbols in the run that the executable is made for: their hints."""
    guards: Callable[[], tuple[Guard, ...]] = tuple


@dataclass(frozen=True, eq=False)
class Emitted:
    """An executable, and the programs and weights on the device that its numbers refer to."""

    executable: Executable
    programs: Sequence[Program]
    weights: Sequence[DeviceWeight]
    launches: Sequence[Launch]
    """The launch for each entry of the schedule: a GlLaunch, or an EntryStep of the host."""
    encoder: CommandEncoder


def host_transfers(outline: Outline) -> dict[int, Transfer]:
    """Return by number the blocks that the host writes before each run or reads after it.

    Empty where the host computes a step of the run: then it reads and writes in between, too.
    """
    schedule, block = outline.schedule, outline.arena.block
    if schedule.backend.device is None or any(entry.host for entry in schedule.entries):
        return {}
    result: dict[int, Transfer] = {}
    states = {one.name for one in outline.states}
    inputs = [v.name for v in outline.graph.inputs if v.name not in states]
    outputs = outline.outputs.values()
    for names, transfer in ((outputs, Transfer.TO_HOST), (inputs, Transfer.TO_DEVICE)):
        for memory in (schedule.tensors[name].memory for name in names):
            result |= {block[memory]: transfer} if memory in block else {}
    return result


def weight_keys(outline: Outline) -> Iterator[Key]:
    """Yield the keys of the weights of an outline and its bodies, in the order of their steps."""
    for _, part in outline.walk():
        for entry in part.schedule.entries:
            lowered = entry.lowered
            if lowered.op.control or entry.host or not lowered.parameters:
                continue
            copies = part.schedule.backend.copies(entry.choice, entry.spec)
            for name, weight in lowered.parameters.items():
                if not weight.sized:
                    yield weight, entry.layouts[name], name in copies


def emit(
    outline: Outline, weights: Weights, io: IOSpec = NOTHING, domain: SizeRange = SizeRange()
) -> Emitted:
    """Compile the programs of `outline`, upload its weights, and return it as an executable.

    Only inside `Backend.perform`. weights: the session's. io: the inputs and outputs. domain: the
    sizes that the executable serves. Raises what the backend raises of a kernel.
    """
    return _Emitter(outline.schedule, outline.arena, weights, outline, domain).emit(io)


def emit_schedule(schedule: Schedule, arena: Arena, weights: Weights) -> Emitted:
    """Return a schedule as an executable that declares no inputs and outputs."""
    return _Emitter(schedule, arena, weights, None, SizeRange()).emit(NOTHING)


class _Emitter:
    """Writes one schedule as an executable, whose blocks of memory are those of `arena`."""

    def __init__(
        self,
        schedule: Schedule,
        arena: Arena,
        weights: Weights,
        outline: Outline | None,
        domain: SizeRange,
    ) -> None:
        self.schedule, self.arena, self.weights = schedule, arena, weights
        self.outline, self.domain = outline, domain
        self.backend: Backend = schedule.backend
        self.on_device = self.backend.device is not None
        self.encoder = CommandEncoder(SizeTable())
        self._sized: dict[tuple[Weight, Layout, bool], TensorSlot] = {}
        """The slot of each weight that depends on symbolic sizes, by weight, layout, and whether on
        the device."""
        self._weight_numbers: dict[Store, int] = {}
        """The index of each other weight in `_weights`, by its store."""
        self._weights: list[DeviceWeight] = []
        self._words: list[int] = []
        """The words of each weight in `_weights`."""

    def emit(self, io: IOSpec) -> Emitted:
        """Return the executable."""
        sized = self._allocate_sized_weights()
        blocks = self._blocks(io)
        for i in range(len(blocks)):
            self.encoder.buffer(BlockPart(i, MIN_WORDS))
        launches = self._launches()
        order = launches
        states = () if self.outline is None else self.outline.states
        if states:  # many small launches, few of which depend on one another
            order = order_by_level(launches)
        device = self.backend.device
        if device is not None:
            encode(self.encoder, order, device)
        commands = self.encoder.finish()
        slots = {name: self._slot(name, one) for name, one in self.schedule.tensors.items()}
        slots |= {one.name: one for one in self._sized.values()}
        host_steps = [one for one in order if isinstance(one, EntryStep)]
        io = io.sized(self.encoder.sizes)
        executable = Executable(
            name="" if self.outline is None else self.outline.graph.name,
            backend=self.backend.name,
            symbols=self.domain.symbols,
            expressions=self.encoder.sizes.expressions,
            guards=self.domain.guards(),
            blocks=blocks,
            weights=tuple(self._words),
            commands=commands,
            io=io,
            slots=slots,
            aliases={} if self.outline is None else dict(self.outline.outputs),
            nbytes=0 if self.outline is None else self.outline.peak,
            host=tuple(host_steps),
            released=() if self.on_device else self._released(host_steps),
            states=tuple(
                StateSlot(one.name, one.blocks(self.schedule, self.arena), one.after)
                for one in states
            ),
            set_by_host=self._set_by_host(),
            array_program=sized,
            why_not_saved=self._why_not_saved(bool(host_steps), sized),
        )
        return Emitted(
            executable, tuple(self.encoder.programs), self._weights, launches, self.encoder
        )

    def _released(self, steps: Sequence[EntryStep]) -> tuple[tuple[str, ...], ...]:
        """Return for each of `steps` the tensors whose memory no later step reads or writes."""
        tensors, last_uses = self.schedule.tensors, dict[str, tuple[int, str]]()
        for number, step in enumerate(steps):
            for name in step.tensors:
                last_uses[tensors[name].memory] = number, name
        released: list[list[str]] = [[] for _ in steps]
        for memory in self.arena.lives.keys() & last_uses.keys():
            number, name = last_uses[memory]
            released[number].append(name)
        return tuple(map(tuple, released))

    def _why_not_saved(self, hosted: bool, sized: ArrayProgram) -> str | None:
        """Return why the executable cannot be written to disk; None where it can."""
        if not self.on_device or hosted:
            return "the host has a part in it"
        if self.outline is not None and self.outline.states:
            return "it has states"
        if sized.why_not_saved is not None:
            return sized.why_not_saved
        if any(one.is_number for one in self.domain.symbols):
            return "a size depends on the numbers of an input"
        if any(program.key is None for program in self.encoder.programs):
            return "a program's binary is not kept"
        return None

    def _blocks(self, io: IOSpec) -> tuple[Block, ...]:
        """Return the blocks of memory with their sizes, those of sized weights at the end.

        io: the inputs and outputs. A body of a branch or loop declares none: the host writes its
        inputs in the middle of a run, when the device may still read them, so that they are in
        memory which GL alone writes, in the order of commands.
        """
        if not self.on_device:
            return ()
        transfers = {} if self.outline is None else host_transfers(self.outline)
        blocks = []
        for i, words in enumerate(self.arena.words(self.schedule)):
            most = max(map(hint, words), default=MIN_WORDS)
            transfer = transfers.get(i) if io != NOTHING else None
            kind = self.backend.memory_kind(max(most, self.arena.sizes[i]), transfer)
            sizes = tuple(dict.fromkeys(self.encoder.sizes.size(words)))
            if all(isinstance(one, int) for one in sizes):
                sizes = (max(most, self.arena.sizes[i]),)
            blocks.append(Block(sizes, kind, i in transfers))
        slots = (one for one in self._sized.values() if one.block is not None)
        return (*blocks, *(Block((one.words,), "shared", True) for one in slots))

    def _allocate_sized_weights(self) -> ArrayProgram:
        """Give each weight that depends on symbolic sizes a tensor in a block of its own.

        Return the program that computes these weights.
        """
        writer = ArrayWriter(self.encoder.sizes)
        size, count = self.encoder.sizes.size, len(self.arena.sizes)
        for entry in self.schedule.entries:
            for name, weight in entry.lowered.parameters.items():
                on_device = self._on_device(entry)
                key = weight, self._layout(entry, name), on_device
                if not weight.sized or entry.lowered.op.control or key in self._sized:
                    continue
                if weight.variables:  # an assignment would go unnoticed
                    raise UnsupportedOpError(
                        f"{weight.name} is made of a variable and of open sizes"
                    )
                tensor = f"sized {len(self._sized)}"
                while tensor in self.schedule.tensors:
                    tensor += "'"
                dtype = (
                    weight.type.dtype if self.on_device else self.backend.stored(weight.type.dtype)
                )
                block = count if on_device else None
                count += on_device
                words = self.backend.capacity(key[1].words(weight.type)) if on_device else 0
                writer.add(tensor, weight, dtype)
                self._sized[key] = TensorSlot(
                    tensor, size(weight.shape), dtype, key[1], size(words), block, tensor, None
                )
        return writer.written()

    def _on_device(self, entry: ScheduledOp) -> bool:
        return self.on_device and not entry.host

    def _layout(self, entry: ScheduledOp, name: str) -> Layout:
        return parse("R") if entry.host else entry.layouts[name]

    def _slot(self, name: str, tensor: Tensor) -> TensorSlot:
        """Return the slot of a tensor: its type, layout and place in memory."""
        size, on_device = self.encoder.sizes.size, self._is_on_device(tensor)
        words = self.backend.capacity(tensor.layout.words(tensor.type)) if on_device else 0
        return TensorSlot(
            name,
            size(tensor.shape),
            tensor.type.dtype,
            tensor.layout,
            size(words),
            self.arena.block[tensor.memory] if on_device else None,
            tensor.memory,
            size(tensor.offset),
        )

    def _is_on_device(self, tensor: Tensor) -> bool:
        """Return True where a tensor is in a device's memory."""
        return self.on_device and tensor.memory in self.arena.block

    def _operand(self, name: str) -> Operand:
        """Return the part of a block to which kernels are bound for the tensor `name`."""
        tensor = self.schedule.tensors[name]
        if not self._is_on_device(tensor):
            return HostStore((), tensor.type.dtype)  # no kernel is bound to it
        words = tensor.layout.words(tensor.type)
        capacity = self.backend.capacity(words)
        part = (0, -1) if tensor.offset is None else (4 * tensor.offset, 4 * capacity)
        return BlockPart(self.arena.block[tensor.memory], words, part)

    def _launches(self) -> list[Launch]:
        action = "compiling" if self.on_device else "preparing"
        with report_work(action, total=len(self.schedule.entries)) as work:
            return [self._launch(entry) for entry in work.counted(self.schedule.entries)]

    def _launch(self, entry: ScheduledOp) -> Launch:
        lowered = entry.lowered
        if lowered.op.control:
            outlines = self.outline.bodies[lowered.output] if self.outline is not None else ()
            domain = SizeRange(self.domain.symbols)
            bodies = [(one, emit(one, self.weights, domain=domain)) for one in outlines]
            return ControlStep(entry, self.backend, {}, self.weights, bodies)
        if entry.host:
            return ScheduledHostStep(entry, self.backend, self._sized_names(entry))
        copies = self.backend.copies(entry.choice, entry.spec) if lowered.parameters else {}
        sized = self._sized_names(entry)
        weights = {
            name: self._weight((weight, entry.layouts[name], name in copies))
            for name, weight in lowered.parameters.items()
            if name not in sized
        }
        if not self.on_device:
            numbers = {name: self._weight_numbers[store] for name, store in weights.items()}
            return self._cpu_step(entry, sized, numbers)
        operands: dict[str, Operand] = {k: self._operand(v) for k, v in lowered.operands.items()}
        for name in sized:
            slot = self._sized[lowered.parameters[name], self._layout(entry, name), True]
            assert slot.block is not None
            operands[name] = BlockPart(slot.block, slot.layout.words(lowered.parameters[name].type))
        operands |= weights
        out = self._operand(lowered.output)
        return self.backend.prepare(entry.choice, entry.spec, operands, out, self._runs_often)

    @cached_property
    def _runs_often(self) -> bool:
        """Return True for a decoder or training: many runs of little work follow one another."""
        if self.outline is not None and self.outline.states:
            return True
        return any(isinstance(one.lowered.op, CacheAppend) for one in self.schedule.entries)

    def _cpu_step(
        self, entry: ScheduledOp, sized: Mapping[str, str], numbers: Mapping[str, int]
    ) -> CpuStep:
        """Return a step of the `cpu` backend. numbers: of its weights in `_weights`, by operand."""
        spec, hinted, lowered = entry.spec, entry.spec.hinted, entry.lowered
        sizes, order = self.encoder.sizes, (*lowered.operands, *sized, *numbers)
        hinted_types = {name: hinted.types[name] for name in order}
        make = Preparation(hinted.op, hinted_types, hinted.results[0], hinted.epilogue)
        types = make.types
        if not make.any_sizes:
            operand_types = {name: widened(spec.types[name]) for name in spec.op_shapes}
            types = tuple(spec.op.positional(operand_types))
        shapes: list[Shape | None] = []
        for name in order:
            wanted = sizes.size(spec.types[name].shape)
            if name in lowered.operands:
                memory = self.schedule.tensors[lowered.operands[name]].memory
                stored = self._array_shapes[memory]
            else:
                stored = {sizes.size(lowered.parameters[name].shape)}
            shapes.append(None if stored == {wanted} else _reshape_target(wanted))
        parts = Template((spec.op, types, spec.epilogue), sizes)
        return CpuStep(entry, self.backend, sized, numbers, make, parts, Template(tuple(shapes)))

    @cached_property
    def _array_shapes(self) -> Mapping[str, set[tuple[Size, ...]]]:
        """The shapes of the tensors in each memory, and of the results that steps write there."""
        result: dict[str, set[tuple[Size, ...]]] = defaultdict(set)
        size, tensors = self.encoder.sizes.size, self.schedule.tensors
        for one in tensors.values():
            result[one.memory].add(size(one.shape))
        for entry in self.schedule.entries:
            for name, type in zip(entry.lowered.results, entry.spec.results):
                result[tensors[name].memory].add(size(type.shape))
        return result

    def _sized_names(self, entry: ScheduledOp) -> dict[str, str]:
        """Return by operand the tensors of an entry's weights that depend on symbolic sizes."""
        return {
            name: self._sized[weight, self._layout(entry, name), self._on_device(entry)].name
            for name, weight in entry.lowered.parameters.items()
            if weight.sized
        }

    def _weight(self, key: Key) -> Store:
        """Return the buffer of a weight, to which kernels are bound, and number it."""
        weight = self.weights.keep(*key)
        if weight.store not in self._weight_numbers:
            self._weight_numbers[weight.store] = len(self._weights)
            self._weights.append(weight)
            self._words.append(weight.store.nbytes // 4)
            if self.on_device:
                self.encoder.buffer(weight.store)  # type: ignore[arg-type]
        return weight.store

    def _set_by_host(self) -> frozenset[str]:
        """Return `Executable.set_by_host`."""
        tensors, of_host = self.schedule.tensors, set[str]()
        device_memories: set[str] = set()
        for entry in self.schedule.entries:
            if entry.host and not entry.lowered.op.control:
                of_host.update(entry.lowered.results)
            else:
                device_memories.update(tensors[name].memory for name in entry.lowered.results)
        return frozenset(name for name in of_host if tensors[name].memory not in device_memories)


def _reshape_target(shape: Shape) -> Shape:
    """Return `shape` as an argument of NumPy's reshape, with -1 in place of its only open size."""
    known = [one for one in shape if isinstance(one, int)]
    if len(known) != len(shape) - 1 or 0 in known:
        return shape
    return tuple([one if isinstance(one, int) else -1 for one in shape])


@dataclass(frozen=True, eq=False)
class EntryStep:
    """A step that the host performs, a `host` command: NumPy's work, or a branch or loop."""

    entry: ScheduledOp
    backend: Backend
    sized_weights: Mapping[str, str]
    """By operand, the tensors of the weights that depend on symbolic sizes."""

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors that it reads and writes."""
        return tuple(self.entry.tensors)

    @cached_property
    def sized(self) -> bool:
        """Return True where the launch depends on symbolic sizes."""
        spec = self.entry.spec
        return spec.hinted is not spec or bool(self.sized_weights)

    def bound(self, buffers: BufferSet) -> Callable[[], None]:
        """Return a function that performs it with the tensors of `buffers`, for their sizes."""
        raise NotImplementedError

    def __call__(self) -> None:
        raise NotImplementedError("it must be bound first")


class ScheduledHostStep(EntryStep):
    """A host step of a GPU's plan: reads operands back, computes by NumPy, uploads the results."""

    def bound(self, buffers: BufferSet) -> Callable[[], None]:
        """See `EntryStep`."""
        entry, change, backend = self.entry, buffers.substitution, self.backend
        lowered, spec = entry.lowered, entry.spec.substituted(change)
        outs = [buffers.store(name) for name in lowered.results]
        fixed = {n: w for n, w in lowered.parameters.items() if n not in self.sized_weights}
        operands = {**lowered.operands, **self.sized_weights}

        buffers_ref = ref(buffers)  # they own the launch: a cycle would keep device memory

        def launch() -> None:
            arrays = {k: _pull(buffers_ref, v) for k, v in operands.items()}
            arrays |= {k: weight.read() for k, weight in fixed.items()}
            arrays = {k: array.reshape(spec.shapes[k]) for k, array in arrays.items()}
            results = spec.compute_all(arrays)
            backend.wait_before_write()
            for store, type, result in zip(outs, spec.results, results, strict=True):
                array = np.ascontiguousarray(result, type.dtype.numpy)
                if array.size != prod(type.shape):  # the operator inferred a wrong shape
                    raise ShapeError(f"{lowered.op} gave {array.shape} in place of {type}")
                store.set(array.reshape(type.shape))
                backend.upload(store)

        return launch


@dataclass(frozen=True, eq=False)
class CpuStep(EntryStep):
    """A step of the `cpu` backend, where all arrays are the host's."""

    numbers: Mapping[str, int]
    """By operand, the numbers of the weights that no run changes."""
    preparation: Preparation
    parts: Template[tuple[Operator, tuple[TensorType | None, ...], Epilogue | None]]
    """The operator, the types of its operands, where it depends on these, and the epilogue."""
    shapes: Template[tuple[Shape | None, ...]]
    """The shapes to which operands are reshaped; None for arrays that always have theirs."""

    @property
    def sized(self) -> bool:
        """Return True where the launch depends on symbolic sizes."""
        return self.parts.is_open or self.shapes.is_open

    def bound(self, buffers: BufferSet) -> Callable[[], None]:
        """See `EntryStep`."""
        tensors, store = {**self.entry.lowered.operands, **self.sized_weights}, buffers.store
        stores = [store(one) for one in tensors.values()]
        stores += [buffers.weight(number).store for number in self.numbers.values()]
        compute = self.preparation(*self.parts(buffers.numbers))
        shapes = self.shapes(buffers.numbers)
        return NumpyStep(compute, tuple(stores), shapes, store(self.entry.lowered.output)).compute


@dataclass(frozen=True, eq=False)
class ControlStep(EntryStep):
    """A branch or a loop: the host reads conditions, and runs the bodies' executables."""

    weights: Weights
    bodies: Sequence[tuple[Outline, Emitted]]

    @property
    def sized(self) -> bool:
        """Return True where the launch depends on symbolic sizes."""
        return any(emitted.executable.symbols for _, emitted in self.bodies)

    def bound(self, buffers: BufferSet) -> Callable[[], None]:
        """See `EntryStep`."""
        lowered, change, buffers_ref = self.entry.lowered, buffers.substitution, ref(buffers)
        numbers: dict[str, Callable[[], Array]] = {}
        operands: list[Callable[[], Store]] = []
        for name in self.entry.spec.shapes:
            weight = lowered.parameters.get(name)
            if name in lowered.op.host:
                pull = partial(_pull, buffers_ref, lowered.operands.get(name, ""))
                numbers[name] = change(weight).read if weight else pull
            elif weight:
                operands.append(self._store(weight, change))
            else:
                operands.append(partial(_compute_store, buffers_ref, lowered.operands[name]))
        outs = tuple(buffers.store(name) for name in lowered.results)
        bodies = tuple(self._body(i, buffers, change) for i in range(len(self.bodies)))
        return control_launch(
            ControlCall(self.backend, lowered.op, numbers, tuple(operands), bodies, outs)
        )

    def _body(self, index: int, buffers: BufferSet, change: Substitution) -> Body:
        outline, emitted = self.bodies[index]
        body_buffers = buffers.nested.get((self, index))
        if body_buffers is None:
            resources = Resources(
                self.backend.device, emitted.programs, emitted.weights, self.backend.available
            )
            body_buffers = buffers.nested[self, index] = BufferSet(emitted.executable, resources)
            body_buffers.bind(buffers.sizes)
            resources.checks_free_memory = True
        body_buffers.bind(buffers.sizes)
        results: list[Callable[[], Store]] = []
        for value in outline.graph.outputs:
            if value.name in outline.outputs:
                results.append(partial(body_buffers.computed, outline.outputs[value.name]))
            else:
                results.append(self._store(outline.constants[value], change))
        inputs = tuple(body_buffers.store(value.name) for value in outline.graph.inputs)
        return Body(inputs, body_buffers.launch, tuple(results))

    def _store(self, weight: Weight, change: Substitution) -> Callable[[], Store]:
        """Return a function that returns the store of `weight`, row major, for the sizes of
        `change`.
        """
        if weight.sized:
            weight = replace(change(weight), for_one_run=True)
        if self.backend.holds(weight.type.dtype):
            device_weight = self.weights.keep(weight, parse("R"), False)
            return lambda: device_weight.store
        store = HostStore(weight.shape, weight.type.dtype)
        store.set(weight.read())
        return lambda: store


def _pull(buffers_ref: ref[BufferSet], tensor: str) -> Array:
    return _compute_store(buffers_ref, tensor).pull()


def _compute_store(buffers_ref: ref[BufferSet], tensor: str) -> Store:
    buffers = buffers_ref()
    assert buffers is not None  # it is what runs
    return buffers.computed(tensor)
