"""Executable: a compiled graph as plain data, with its commands, memory, inputs and outputs.

Every size in it is a number, or an expression of the open dimensions of the inputs.
`BufferSet.bind` evaluates these for the shapes of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout, parse
from glnn.core.layout.layout import DENSE
from glnn.core.size_table import (
    Size,
    SizeIndex,
    SizeTable,
    compiled,
    depends,
    number,
    size_indices,
)
from glnn.core.symint import ORDER, Expr, Guard, Substitution, SymInt, check
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import ModelError, ShapeError, shown
from glnn.gl.buffer import MEMORIES
from glnn.gl.command_buffer import MOST_WORDS, CommandBuffer, FormatError, plain, size_of
from glnn.runtime.array_program import NO_ARRAYS, ArrayProgram
from glnn.runtime.device_array import Feed


@dataclass(frozen=True)
class Input:
    """An input: the array that the caller passes, and its dtype on the device."""

    name: str
    dtype: DType
    """The dtype of the array that the caller passes."""
    shape: Shape
    """The shape of that array."""
    device_dtype: DType
    """The dtype on the device: int32 for int64 that is narrowed, float32 for float16."""
    small: bool = False
    """True where the plan holds for small int64 numbers only (`types.check_small`)."""
    table_sizes: tuple[int, ...] = ()
    """Sizes of the tables that its numbers are indices of, which a run checks."""
    error_name: str = ""
    """The name in errors about its indices, where a part of a graph gets the model's input from
    another part; `input 'name'` if empty."""

    def __post_init__(self) -> None:
        _check("input", self.name, self.dtype, self.shape)
        if not isinstance(self.device_dtype, DType):
            raise ModelError(f"input {self.name!r} takes a DType, got {shown(self.device_dtype)}")
        if any(type(size) is int and size < 1 for size in self.table_sizes):
            raise ModelError(
                f"input {self.name!r} is below sizes of tables, got {self.table_sizes}"
            )

    @property
    def narrowed(self) -> bool:
        """Return True where int64 numbers become int32, provided that all of them fit."""
        return self.dtype is DType.int64 and self.device_dtype is DType.int32


@dataclass(frozen=True)
class Output:
    """An output: the array that a run returns. On the device float16 is float32."""

    name: str
    dtype: DType
    """The dtype of the array that is returned."""
    shape: Shape
    """The shape of that array."""
    fixed: bool = False
    """True where weights and sizes alone determine it: no command computes it (`Runner.fixed`)."""
    replaces: tuple[str, ...] = ()
    """The inputs in whose memory it may be written: each element is read just before the write."""

    def __post_init__(self) -> None:
        _check("output", self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class IOSpec:
    """The inputs and outputs of a run. Raises ModelError where two inputs share a name."""

    inputs: tuple[Input, ...]
    """The inputs, in the order in which they are uploaded."""
    outputs: tuple[Output, ...]
    """The outputs that a run can return; the same one may be there twice."""

    def __post_init__(self) -> None:
        names = [one.name for one in self.inputs]
        if len(set(names)) < len(names):
            raise ModelError(f"the inputs of a plan need names of their own, got {names}")

    def fixed(self) -> Iterable[str]:
        """Return the names of the outputs that no command computes."""
        return dict.fromkeys(one.name for one in self.outputs if one.fixed)

    def sized(self, table: SizeTable) -> IOSpec:
        """Replace each SymInt of its shapes by a SizeIndex of `table`."""
        inputs = [
            replace(one, shape=table.size(one.shape), table_sizes=table.size(one.table_sizes))
            for one in self.inputs
        ]
        outputs = [replace(one, shape=table.size(one.shape)) for one in self.outputs]
        return IOSpec(tuple(inputs), tuple(outputs))


def _check(what: str, name: object, dtype: object, shape: Shape) -> None:
    """Raise ModelError or ShapeError unless these are a name, a dtype and a shape."""
    if not isinstance(name, str) or not isinstance(dtype, DType):
        got = f"{shown(name)} of {shown(dtype)}"
        raise ModelError(f"an {what} of a plan needs a name and a DType, got {got}")
    if not isinstance(shape, tuple) or not all(map(_size, shape)):
        raise ShapeError(f"{what} {name!r} needs a shape of sizes, got {shown(shape)}")


def _size(value: object) -> bool:
    return isinstance(value, (SizeIndex, SymInt)) or (type(value) is int and value >= 0)


@dataclass(frozen=True)
class Symbol:
    """An open dimension: the size of an axis of an input, or a number in it that decides sizes."""

    name: str
    input: str
    axis: int
    """The axis; the flat index of the number where `is_number`."""
    low: int
    """The least size that it may have."""
    high: int
    """The greatest size that it may have."""
    is_number: bool = False
    """True where it is a number in the input, not the size of an axis."""

    def __post_init__(self) -> None:
        numbers = self.axis, self.low, self.high
        texts = isinstance(self.name, str) and isinstance(self.input, str)
        has_types = texts and all(type(one) is int for one in numbers)
        if not has_types or min(numbers[: 1 if self.is_number else 3]) < 0:
            raise FormatError(f"there is no open dimension {self!r:.200}")


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of inputs that an executable is for, by which stored plans are found."""

    shapes: tuple[tuple[str, tuple[int | str, ...]], ...]
    """The name and shape of each input, sorted by name; an open dimension is its symbol's name."""
    symbols: tuple[Symbol, ...] = ()
    guards: tuple[Guard, ...] = ()

    def admits(self, shapes: Mapping[str, Shape]) -> bool:
        """Return True where `shapes` of all inputs fit, and the guards hold for them."""
        if sorted(shapes) != [name for name, _ in self.shapes]:
            return False
        sizes: dict[str, int] = {}
        for name, dims in self.shapes:
            if len(dims) != len(shapes[name]):
                return False
            for dim, size in zip(dims, shapes[name], strict=True):
                expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
                if expected != size:
                    return False
        for one in self.symbols:  # a symbol of a single size is a number in `self.shapes`
            shape = shapes.get(one.input, ())
            if one.axis < len(shape):
                sizes.setdefault(one.name, shape[one.axis])
        within = all(one.low <= sizes.get(one.name, -1) <= one.high for one in self.symbols)
        return within and all(one.holds(sizes) for one in self.guards)

    def includes(self, narrower: ShapeRange) -> bool:
        """Return True where it admits all shapes that `narrower` admits."""
        if (self.shapes, self.guards) != (narrower.shapes, narrower.guards):
            return False
        unbounded = [
            tuple(replace(symbol, low=0, high=0) for symbol in shape_range.symbols)
            for shape_range in (self, narrower)
        ]
        if unbounded[0] != unbounded[1]:
            return False
        pairs = zip(self.symbols, narrower.symbols, strict=True)
        return all(a.low <= b.low and b.high <= a.high for a, b in pairs)

    def data(self) -> list[Any]:
        """Return it as data for JSON."""
        symbols = [[*vars(one).values()] for one in self.symbols]
        guards = [[*vars(one).values()] for one in self.guards]
        return [self.shapes, symbols, guards]

    @classmethod
    def from_data(cls, data: Any) -> ShapeRange:
        """Return the range that `data()` returned; any exception for other data."""
        shapes, symbols, guards = data
        return cls(
            tuple((str(name), tuple(dims)) for name, dims in shapes),
            tuple(Symbol(*one) for one in symbols),
            tuple(_guard(one) for one in guards),
        )


def _guard(data: Any) -> Guard:
    expr, relation, answer = data
    if relation not in ORDER:
        raise FormatError(f"there is no relation {relation!r:.80}")
    result = Guard(size_of(expr), relation, bool(answer))
    check(result.expr)
    return result


@dataclass(frozen=True)
class Block:
    """A block of device memory, which tensors of disjoint live ranges share."""

    words: tuple[Size, ...]
    """The ends of its tensors, in words of 32 bits: the greatest is its size in a binding."""
    kind: str
    """How the host accesses it: a key of MEMORIES."""
    own: bool
    """True where each BufferSet has memory of its own for it; False where all share one."""

    def __post_init__(self) -> None:
        fits = isinstance(self.words, tuple) and all(map(_size, self.words))
        if not fits or self.kind not in MEMORIES or type(self.own) is not bool:
            raise FormatError(f"there is no block {self!r:.200}")

    def size(self, numbers: Sequence[int]) -> int:
        """Return its words in a binding. Raises FormatError for an impossible size."""
        size = max([one if type(one) is int else numbers[one.index] for one in self.words])  # type: ignore[union-attr]
        if not 0 <= size < MOST_WORDS:
            raise FormatError(f"there is no block of {size} words")
        return size


@dataclass(frozen=True)
class TensorSlot:
    """A tensor's place in memory: its block, its offset there, shape, dtype and layout."""

    name: str
    shape: Shape
    dtype: DType
    layout: Layout
    words: Size
    """The words that it takes in the block."""
    block: int | None
    """The number of its block; None where it is in the host's memory."""
    memory: str
    """The name of its memory, which its views share."""
    offset: Size | None
    """The word of the block that it begins at; None where it has the whole block."""

    def __post_init__(self) -> None:
        sizes = *self.shape, self.words, 0 if self.offset is None else self.offset
        texts = isinstance(self.name, str) and isinstance(self.memory, str)
        if not texts or not all(map(_size, sizes)) or not isinstance(self.dtype, DType):
            raise FormatError(f"there is no tensor {self!r:.200}")


@dataclass(frozen=True)
class StateSlot:
    """A state of an executable."""

    name: str
    blocks: tuple[int, ...]
    """The block of its content and, where the state is double-buffered, that of the new content."""
    after: str | None
    """The tensor that is its content after a run; None where no run changes it."""


class HostStep(Protocol):
    """A step that the host performs: an operator by NumPy, or a branch or loop."""

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors that it reads and writes."""

    @property
    def sized(self) -> bool:
        """Return True where the step depends on symbolic sizes."""

    def bound(self, buffers: Any) -> Callable[[], None]:
        """Return the function that performs it on the tensors of `buffers`, a BufferSet, for the
        sizes that it is bound to.
        """


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled graph as plain data, for all sizes that `guards` admit."""

    name: str
    """The name of the graph."""
    backend: str
    """The backend whose kernels it runs."""
    symbols: tuple[Symbol, ...]
    expressions: tuple[Expr, ...]
    """The table of all sizes that depend on the symbols; a `SizeIndex` is an index in it."""
    guards: tuple[Guard, ...]
    """Comparisons of sizes whose results must be the same in every run."""
    blocks: tuple[Block, ...]
    weights: tuple[int, ...]
    """The words of each weight. Commands number the blocks first, then the weights."""
    commands: CommandBuffer
    io: IOSpec
    slots: Mapping[str, TensorSlot]
    """The memory of tensors, by name: at least of the inputs, and of the outputs that commands
    compute."""
    aliases: Mapping[str, str]
    """The tensor of each output whose name differs from that of its tensor."""
    nbytes: int
    """Peak bytes of device memory while it is prepared, for the sizes of its first run."""
    host: tuple[HostStep, ...] = ()
    released: tuple[tuple[str, ...], ...] = ()
    """Without a device, the tensors whose live range ends with each host step."""
    states: tuple[StateSlot, ...] = ()
    set_by_host: frozenset[str] = frozenset()
    """Tensors that host steps write by way of their stores; no command writes their memory. A view
    of one has a store of its own, which reads the device's memory."""
    array_program: ArrayProgram = NO_ARRAYS
    """Computes the tensors that follow from sizes, as a table of positions. A binding sets them,
    and no command writes them."""
    why_not_saved: str | None = None
    """The reason why it cannot be saved; None where it can."""

    def __post_init__(self) -> None:
        self.commands.check(len(self.blocks) + len(self.weights), len(self.expressions))
        if any(type(words) is not int or not 0 <= words < MOST_WORDS for words in self.weights):
            raise FormatError(f"there are no weights of {self.weights!r:.200} words")
        for name in self._io_names():
            if self.aliases.get(name, name) not in self.slots:
                raise FormatError(f"there is no tensor {name!r}")
        for slot in self.slots.values():
            if slot.block is not None and not 0 <= slot.block < len(self.blocks):
                raise FormatError(f"{slot.name!r} is in no block")
        for expr in (*self.expressions, *(one.expr for one in self.guards)):
            check(expr)
        self._check_sizes()
        self.array_program.check(len(self.expressions))
        if not self.array_program.results.keys() <= self.slots.keys():
            raise FormatError(f"there are no tensors {[*self.array_program.results]!r:.200}")
        host_steps = [command[1] for command in self.commands.commands if command[0] == "host"]
        if any(index >= len(self.host) for index in host_steps):
            raise FormatError("there is no such step of the host's")

    def _check_sizes(self) -> None:
        """Raise FormatError where the index of a size is out of the table's range."""
        sizes: list[object] = [one.words for one in self.blocks]
        for slot in self.slots.values():
            sizes += [slot.shape, slot.words, slot.offset]
        sizes += [(one.shape, one.table_sizes) for one in self.io.inputs]
        sizes += [one.shape for one in self.io.outputs]
        for index in size_indices(sizes):
            if type(index) is not int or not 0 <= index < len(self.expressions):
                raise FormatError(f"there is no expression {index!r:.80}")

    @property
    def steps(self) -> Sequence[str]:
        """The names of its steps."""
        if not self.commands.commands:
            return ["host"] * len(self.host)
        return [command[1] for command in self.commands.commands if command[0] == "step"]

    @cached_property
    def device_inputs(self) -> Mapping[str, int]:
        """The blocks of inputs that may be DeviceArrays: of floats, row major."""
        blocks = ((one.name, self._device_block(one.name)) for one in self.io.inputs)
        return {name: block for name, block in blocks if block is not None}

    @cached_property
    def device_outputs(self) -> Mapping[str, int]:
        """The blocks of outputs that may stay as DeviceArrays; no input, state or other output has
        the same block.
        """
        taken = {self.slots[one.name].block for one in self.io.inputs}
        taken.update(block for one in self.states for block in one.blocks)
        result: dict[str, int] = {}
        for one in self.io.outputs:
            tensor = self.aliases.get(one.name, one.name)
            if one.fixed or one.name in result or tensor in self.set_by_host:
                continue
            block = self._device_block(tensor)
            if block is not None and block not in taken:
                result[one.name] = block
                taken.add(block)
        return result

    def _device_block(self, tensor: str) -> int | None:
        """Return the block of a row-major tensor of floats; None for any other tensor."""
        slot = self.slots[tensor]
        fits = slot.dtype is DType.float32 and slot.layout == DENSE and slot.offset is None
        return slot.block if fits else None

    @cached_property
    def open_buffers(self) -> frozenset[str]:
        """The tensors on a device whose sizes or offsets depend on the symbols."""
        open_memories = {
            one.memory
            for one in self.slots.values()
            if one.block is not None and depends((*one.shape, one.words, one.offset))
        }
        return frozenset(n for n, one in self.slots.items() if one.memory in open_memories)

    @cached_property
    def open_layouts(self) -> frozenset[str]:
        """The tensors on a device whose layouts depend on the symbols."""
        hinted = Substitution(lambda one: one.hint)
        slots = self.slots.items()
        return frozenset(n for n, one in slots if hinted(one.layout) is not one.layout)

    @cached_property
    def open_steps(self) -> Sequence[int]:
        """The indices of the host's steps that are bound anew for other sizes."""
        names = self.open_buffers
        return [
            i for i, one in enumerate(self.host) if one.sized or not names.isdisjoint(one.tensors)
        ]

    @cached_property
    def _numbers(self) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
        """Evaluates the expressions; cached, as `admits` and a binding need them in each run."""
        return lru_cache(1)(compiled(self.expressions, [one.name for one in self.symbols]))

    @cached_property
    def _guard_values(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        """Evaluates the expressions of the guards."""
        return compiled([one.expr for one in self.guards], [one.name for one in self.symbols])

    def numbers(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Evaluate `expressions` for these sizes of the symbols. Raises FormatError."""
        try:
            return self._numbers(tuple(sizes))
        except ZeroDivisionError:
            raise FormatError(f"a size of {self.name} is divided by 0 for {sizes}") from None

    def sizes(self, feeds: Mapping[str, Feed]) -> tuple[int, ...]:
        """Return the sizes that the symbols have in the arrays `feeds`."""
        if not self.symbols:
            return ()
        return tuple(
            [
                int(np.asarray(feeds[one.input]).flat[one.axis])
                if one.is_number
                else feeds[one.input].shape[one.axis]
                for one in self.symbols
            ]
        )

    def holds(self, sizes: Sequence[int]) -> bool:
        """Return True where these sizes of the symbols are within bounds, and all guards hold."""
        pairs = zip(self.symbols, sizes, strict=True)
        if not all(one.low <= size <= one.high for one, size in pairs):
            return False
        try:
            values = self._guard_values(sizes)
        except ZeroDivisionError:  # all are evaluated at once, also where one excludes divisor 0
            return False
        return all(
            ORDER[one.relation](value) == one.answer
            for one, value in zip(self.guards, values, strict=True)
        )

    @property
    def range(self) -> ShapeRange:
        """The shapes of inputs that it is for."""

        def dim(size: Size) -> int | str:
            if isinstance(size, int):
                return size
            (((name,), factor),) = self.expressions[size.index]
            if factor != 1:
                raise FormatError(f"a dimension is {factor} times {name!r}")
            return str(name)

        shapes = ((one.name, tuple(map(dim, one.shape))) for one in self.io.inputs)
        return ShapeRange(tuple(sorted(shapes)), self.symbols, self.guards)

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where it can run `feeds`: the guards hold, and all shapes fit."""
        try:
            sizes = self.sizes(feeds)
        except IndexError:  # of fewer dimensions, or numbers
            return False
        if not self.holds(sizes):
            return False
        numbers = self.numbers(sizes)
        shapes = ((number(shape, numbers), names) for shape, names in self._inputs_by_shape)
        return all(feeds[name].shape == shape for shape, names in shapes for name in names)

    @cached_property
    def _inputs_by_shape(self) -> Sequence[tuple[Any, Sequence[str]]]:
        """The distinct shapes of inputs, as all caches have one, and the names of their inputs."""
        result: dict[Any, list[str]] = {}
        for one in self.io.inputs:
            result.setdefault(one.shape, []).append(one.name)
        return list(result.items())

    def data(self) -> dict[str, Any]:
        """Return all of it as data for JSON. Raises FormatError where it cannot be saved."""
        if self.why_not_saved is not None:
            raise FormatError(self.why_not_saved)
        names = {self.aliases.get(one, one) for one in self._io_names()}
        names |= self.array_program.results.keys()
        return {
            "name": self.name,
            "backend": self.backend,
            "symbols": [[*vars(one).values()] for one in self.symbols],
            "expressions": self.expressions,
            "guards": [[*vars(one).values()] for one in self.guards],
            "blocks": [[plain(one.words), one.kind, one.own] for one in self.blocks],
            "weights": self.weights,
            "commands": self.commands.to_json(),
            "inputs": [
                [one.name, one.dtype.value, plain(one.shape), one.device_dtype.value, one.small,
                 plain(one.table_sizes)]
                for one in self.io.inputs
            ],
            "outputs": [
                [one.name, one.dtype.value, plain(one.shape), one.fixed, [*one.replaces]]
                for one in self.io.outputs
            ],
            "slots": [
                [one.name, plain(one.shape), one.dtype.value, one.layout.name, plain(one.words),
                 one.block, one.memory, plain(one.offset)]
                for one in map(self.slots.__getitem__, sorted(names))
            ],
            "aliases": dict(self.aliases),
            "nbytes": self.nbytes,
            "sized": self.array_program.data(),
        }  # fmt: skip

    def _io_names(self) -> list[str]:
        """Return the names of the inputs, and of the outputs that commands compute."""
        computed = (one.name for one in self.io.outputs if not one.fixed)
        return [*(one.name for one in self.io.inputs), *computed]

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any], constants: Sequence[NDArray[np.uint32]] = ()
    ) -> Executable:
        """Return the executable that `data()` returned, from untrusted JSON. Raises FormatError.

        constants: the words of the constants of `array_program`.
        """
        try:
            inputs = tuple(
                Input(name, DType(dtype), size_of(shape), DType(on_device), small, size_of(tables))
                for name, dtype, shape, on_device, small, tables in data["inputs"]
            )
            outputs = tuple(
                Output(name, DType(dtype), size_of(shape), fixed, tuple(map(str, replaces)))
                for name, dtype, shape, fixed, replaces in data["outputs"]
            )
            slots = [_slot(one) for one in data["slots"]]
            result = cls(
                str(data["name"]),
                str(data["backend"]),
                tuple(Symbol(*one) for one in data["symbols"]),
                tuple(map(size_of, data["expressions"])),
                tuple(map(_guard, data["guards"])),
                tuple(Block(size_of(words), kind, own) for words, kind, own in data["blocks"]),
                tuple(data["weights"]),
                CommandBuffer.from_json(data["commands"]),
                IOSpec(inputs, outputs),
                {one.name: one for one in slots},
                {str(name): str(one) for name, one in data["aliases"].items()},
                int(data["nbytes"]),
                array_program=ArrayProgram.from_data(data["sized"], constants),
            )
            _ = result._numbers, result._guard_values  # compiling raises for wrong expressions
            if any(one.is_number is not False for one in result.symbols):
                raise FormatError("a size depends on the numbers of an input")
            return result
        except FormatError:
            raise
        except Exception as error:  # of the wrong types anywhere
            raise FormatError(f"no executable: {error}") from None


def _slot(data: Sequence[Any]) -> TensorSlot:
    """Return a slot from JSON. Raises FormatError where the tensor does not fit."""
    name, shape, dtype, layout, words, block, memory, offset = map(size_of, data)
    result = TensorSlot(name, shape, DType(dtype), parse(layout), words, block, memory, offset)
    if type(block) is not int or not result.dtype.on_gpu:
        raise FormatError(f"{name!r} is not in a device's memory")
    fixed_size = all(type(one) is int for one in (*shape, words))
    if fixed_size and result.layout.words(TensorType(shape, result.dtype)) > words:
        raise FormatError(f"{name!r} does not fit into {words} words")
    return result
