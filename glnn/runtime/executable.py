"""Executable: a compiled graph as plain data, with its commands, memory, inputs and outputs.

Every size in it is a number, or an expression of the open dimensions of the inputs. Binding it to
the shapes of a run is to evaluate these: see `BufferSet.bind`.
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
    """An input: the array that a run is given, and its dtype on the device."""

    name: str
    dtype: DType
    """The dtype of the array that the caller passes."""
    shape: Shape
    """The shape of that array."""
    takes: DType
    """On the device: int32 for int64 that is narrowed, float32 for float16."""
    small: bool = False
    """Whether its int64 numbers must be small (`types.check_small`), as the plan was made for."""
    below: tuple[int, ...] = ()
    """Sizes of the tables that its numbers are indices of, which a run checks."""
    called: str = ""
    """Name in errors about its indices, where a part of a graph reads what another part passed on
    of the model's input; `input 'name'` if empty."""

    def __post_init__(self) -> None:
        _check("input", self.name, self.dtype, self.shape)
        if not isinstance(self.takes, DType):
            raise ModelError(f"input {self.name!r} takes a DType, got {shown(self.takes)}")
        if any(type(size) is int and size < 1 for size in self.below):
            raise ModelError(f"input {self.name!r} is below sizes of tables, got {self.below}")

    @property
    def narrowed(self) -> bool:
        """Return True where int64 numbers become int32, provided that all of them fit."""
        return self.dtype is DType.int64 and self.takes is DType.int32


@dataclass(frozen=True)
class Output:
    """An output: the array that a run gives back. float16 is float32 on the device, and rounded."""

    name: str
    dtype: DType
    """The dtype of the array that is returned."""
    shape: Shape
    """The shape of that array."""
    fixed: bool = False
    """Whether it follows from weights and sizes, and no command computes it (`Runner.fixed`)."""
    replaces: tuple[str, ...] = ()
    """The inputs in whose memory it may be written: each element is read just before it is."""

    def __post_init__(self) -> None:
        _check("output", self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class IOSpec:
    """The inputs and outputs of a run. Raises ModelError where two inputs share a name."""

    inputs: tuple[Input, ...]
    """The inputs, in the order in which they are uploaded."""
    outputs: tuple[Output, ...]
    """Those that a run may be asked for; the same one may be there twice."""

    def __post_init__(self) -> None:
        names = [one.name for one in self.inputs]
        if len(set(names)) < len(names):
            raise ModelError(f"the inputs of a plan need names of their own, got {names}")

    def fixed(self) -> Iterable[str]:
        """Return the names of the outputs that no run changes."""
        return dict.fromkeys(one.name for one in self.outputs if one.fixed)

    def sized(self, table: SizeTable) -> IOSpec:
        """Return it with a SizeIndex in `table` in the place of each SymInt of its shapes."""
        inputs = [
            replace(one, shape=table.size(one.shape), below=table.size(one.below))
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
    """The axis; of a number its place among the input's."""
    low: int
    high: int
    """The least and the greatest size that it may have."""
    is_number: bool = False
    """True where it is a number in the input, and not the size of an axis."""

    def __post_init__(self) -> None:
        numbers = self.axis, self.low, self.high
        texts = isinstance(self.name, str) and isinstance(self.input, str)
        whole = texts and all(type(one) is int for one in numbers)
        if not whole or min(numbers[: 1 if self.is_number else 3]) < 0:
            raise FormatError(f"there is no open dimension {self!r:.200}")


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of inputs that an executable is for, as they are found by on disk."""

    shapes: tuple[tuple[str, tuple[int | str, ...]], ...]
    """Of each input, in the order of their names, with the names of open dimensions."""
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
                known = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
                if known != size:
                    return False
        for one in self.symbols:  # one of a single size is a number in the shapes
            dims_here = shapes.get(one.input, ())
            if one.axis < len(dims_here):
                sizes.setdefault(one.name, dims_here[one.axis])
        within = all(one.low <= sizes.get(one.name, -1) <= one.high for one in self.symbols)
        return within and all(one.holds(sizes) for one in self.guards)

    def includes(self, narrower: ShapeRange) -> bool:
        """Return True where it is for all that `narrower` is for."""
        if (self.shapes, self.guards) != (narrower.shapes, narrower.guards):
            return False
        bare = [
            tuple(replace(one, low=0, high=0) for one in each.symbols) for each in (self, narrower)
        ]
        pairs = zip(self.symbols, narrower.symbols, strict=False)
        return bare[0] == bare[1] and all(a.low <= b.low and b.high <= a.high for a, b in pairs)

    def data(self) -> list[Any]:
        """Return it as JSON has it."""
        domain = [[[*vars(one).values()] for one in some] for some in (self.symbols, self.guards)]
        return [self.shapes, *domain]

    @classmethod
    def from_data(cls, data: Any) -> ShapeRange:
        """Return what `data` gave; any exception where it is none."""
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
    """A block of device memory, which tensors share one after the other."""

    words: tuple[Size, ...]
    """The ends of its tensors, in words of 32 bits: the greatest is its size in a binding."""
    kind: str
    """The way in which the host accesses it: one of MEMORIES."""
    own: bool
    """True where each BufferSet has one of its own."""

    def __post_init__(self) -> None:
        fits = isinstance(self.words, tuple) and all(map(_size, self.words))
        if not fits or self.kind not in MEMORIES or type(self.own) is not bool:
            raise FormatError(f"there is no block {self!r:.200}")

    def size(self, numbers: Sequence[int]) -> int:
        """Return its words in a binding. Raises FormatError where there is no such memory."""
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
    """The words that it takes there."""
    block: int | None
    """The block that it is in; None where it is in the host's memory."""
    memory: str
    """The name of its memory, which views of it share."""
    offset: Size | None
    """The word of its block that it begins at; None where it has all of it."""

    def __post_init__(self) -> None:
        sizes = *self.shape, self.words, 0 if self.offset is None else self.offset
        texts = isinstance(self.name, str) and isinstance(self.memory, str)
        if not texts or not all(map(_size, sizes)) or not isinstance(self.dtype, DType):
            raise FormatError(f"there is no tensor {self!r:.200}")


@dataclass(frozen=True)
class StateSlot:
    """A state: the block of its content, and where there is one that of the new content."""

    name: str
    blocks: tuple[int, ...]
    after: str | None
    """The tensor of its content after a run; None where that stays as it is."""


class HostStep(Protocol):
    """A step that the host performs: NumPy's work, or a branch or loop."""

    @property
    def tensors(self) -> Sequence[str]:
        """The tensors that it reads and writes."""

    @property
    def sized(self) -> bool:
        """Return True where the step depends on symbolic sizes."""

    def bound(self, buffers: Any) -> Callable[[], None]:
        """Return what performs it with the tensors of `buffers`, a BufferSet, for their sizes."""


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled graph as plain data, for all sizes that `guards` admit."""

    name: str
    """The name of the graph."""
    backend: str
    """The backend whose kernels it runs."""
    symbols: tuple[Symbol, ...]
    expressions: tuple[Expr, ...]
    """All sizes that depend on the symbols, to which each `SizeIndex` points."""
    guards: tuple[Guard, ...]
    """Comparisons that have the same answers for all sizes that it is for."""
    blocks: tuple[Block, ...]
    weights: tuple[int, ...]
    """The words of each weight. Numbers of buffers in commands count the blocks, then these."""
    commands: CommandBuffer
    io: IOSpec
    slots: Mapping[str, TensorSlot]
    """Where tensors lie, by name: at least the inputs, and the outputs that runs change."""
    aliases: Mapping[str, str]
    """The tensor of each output that is called otherwise."""
    nbytes: int
    """Bytes of device memory that it takes at most while it is made ready, for the sizes at hand
    when it was made."""
    host: tuple[HostStep, ...] = ()
    released: tuple[tuple[str, ...], ...] = ()
    """Without a device, the tensors for each step of the host that nobody reads after it."""
    states: tuple[StateSlot, ...] = ()
    set_by_host: frozenset[str] = frozenset()
    """Tensors whose stores have the content themselves: host steps set them, and no command writes
    their memory. A view of one has a store of its own, which reads the device's memory."""
    sized: ArrayProgram = NO_ARRAYS
    """Makes the tensors that follow from sizes, as a table of positions: they are set in a binding,
    and no command writes them."""
    why_not_saved: str | None = None
    """Why it cannot be written to disk; None where it can."""

    def __post_init__(self) -> None:
        self.commands.check(len(self.blocks) + len(self.weights), len(self.expressions))
        if any(type(words) is not int or not 0 <= words < MOST_WORDS for words in self.weights):
            raise FormatError(f"there are no weights of {self.weights!r:.200} words")
        for name in self._ends():
            if self.aliases.get(name, name) not in self.slots:
                raise FormatError(f"there is no tensor {name!r}")
        for slot in self.slots.values():
            if slot.block is not None and not 0 <= slot.block < len(self.blocks):
                raise FormatError(f"{slot.name!r} is in no block")
        for expr in (*self.expressions, *(one.expr for one in self.guards)):
            check(expr)
        self._check_sizes()
        self.sized.check(len(self.expressions))
        if not self.sized.results.keys() <= self.slots.keys():
            raise FormatError(f"there are no tensors {[*self.sized.results]!r:.200}")
        hosts = [command[1] for command in self.commands.commands if command[0] == "host"]
        if any(place >= len(self.host) for place in hosts):
            raise FormatError("there is no such step of the host's")

    def _check_sizes(self) -> None:
        """Raise FormatError where a size is the place of no expression."""
        sizes: list[object] = [one.words for one in self.blocks]
        for slot in self.slots.values():
            sizes += [slot.shape, slot.words, slot.offset]
        sizes += [(one.shape, one.below) for one in self.io.inputs]
        sizes += [one.shape for one in self.io.outputs]
        for place in size_indices(sizes):
            if type(place) is not int or not 0 <= place < len(self.expressions):
                raise FormatError(f"there is no expression {place!r:.80}")

    @property
    def steps(self) -> Sequence[str]:
        """The names of its steps."""
        if not self.commands.commands:
            return ["host"] * len(self.host)
        return [command[1] for command in self.commands.commands if command[0] == "step"]

    @cached_property
    def device_inputs(self) -> Mapping[str, int]:
        """The block of each input that a DeviceArray may lie in: of floats, row major."""
        places = ((one.name, self._device_block(one.name)) for one in self.io.inputs)
        return {name: place for name, place in places if place is not None}

    @cached_property
    def device_outputs(self) -> Mapping[str, int]:
        """The block of each output that its DeviceArray may take: which nothing else lies in."""
        taken = {self.slots[one.name].block for one in self.io.inputs}
        taken.update(block for one in self.states for block in one.blocks)
        result: dict[str, int] = {}
        for one in self.io.outputs:
            tensor = self.aliases.get(one.name, one.name)
            if one.fixed or one.name in result or tensor in self.set_by_host:
                continue
            place = self._device_block(tensor)
            if place is not None and place not in taken:
                result[one.name] = place
                taken.add(place)
        return result

    def _device_block(self, tensor: str) -> int | None:
        """Return the block of a tensor of floats that lies row major; None for any other."""
        slot = self.slots[tensor]
        fits = slot.dtype is DType.float32 and slot.layout == DENSE and slot.offset is None
        return slot.block if fits else None

    @cached_property
    def open_buffers(self) -> frozenset[str]:
        """The tensors on a device whose sizes or places depend on the symbols."""
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
        """The places of the host's steps that are bound anew for other sizes."""
        names = self.open_buffers
        return [
            i for i, one in enumerate(self.host) if one.sized or not names.isdisjoint(one.tensors)
        ]

    @cached_property
    def _numbers(self) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
        """Evaluates the expressions; not twice for a run that is looked at, and then bound."""
        return lru_cache(1)(compiled(self.expressions, [one.name for one in self.symbols]))

    @cached_property
    def _guarded(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
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
            values = self._guarded(sizes)
        except ZeroDivisionError:  # all are computed at once: one says that the divisor is not 0
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
        """Return True where it can run `feeds`: their sizes hold, and their shapes fit."""
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
        """The shapes of inputs, and the names of those that have each, as caches have one."""
        result: dict[Any, list[str]] = {}
        for one in self.io.inputs:
            result.setdefault(one.shape, []).append(one.name)
        return list(result.items())

    def data(self) -> dict[str, Any]:
        """Return all of it as JSON has it. Raises FormatError where it cannot be saved."""
        if self.why_not_saved is not None:
            raise FormatError(self.why_not_saved)
        names = {self.aliases.get(one, one) for one in self._ends()} | self.sized.results.keys()
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
                [one.name, one.dtype.value, plain(one.shape), one.takes.value, one.small,
                 plain(one.below)]
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
            "sized": self.sized.data(),
        }  # fmt: skip

    def _ends(self) -> list[str]:
        """The names of the inputs, and of the outputs that runs change."""
        changing = (one.name for one in self.io.outputs if not one.fixed)
        return [*(one.name for one in self.io.inputs), *changing]

    @classmethod
    def from_data(
        cls, data: Mapping[str, Any], constants: Sequence[NDArray[np.uint32]] = ()
    ) -> Executable:
        """Return what `data` gave, from JSON of which nothing is known. Raises FormatError.

        constants: the words of those of `sized`.
        """
        try:
            inputs = tuple(
                Input(name, DType(dtype), size_of(shape), DType(takes), small, size_of(below))
                for name, dtype, shape, takes, small, below in data["inputs"]
            )
            outputs = tuple(
                Output(name, DType(dtype), size_of(shape), fixed, tuple(map(str, replaces)))
                for name, dtype, shape, fixed, replaces in data["outputs"]
            )
            slots = [_slot(one) for one in data["slots"]]
            made = cls(
                str(data["name"]),
                str(data["backend"]),
                tuple(Symbol(*one) for one in data["symbols"]),
                tuple(map(size_of, data["expressions"])),
                tuple(map(_guard, data["guards"])),
                tuple(
                    Block(size_of(words), kind, transferred)
                    for words, kind, transferred in data["blocks"]
                ),
                tuple(data["weights"]),
                CommandBuffer.from_json(data["commands"]),
                IOSpec(inputs, outputs),
                {one.name: one for one in slots},
                {str(name): str(one) for name, one in data["aliases"].items()},
                int(data["nbytes"]),
                sized=ArrayProgram.from_data(data["sized"], constants),
            )
            _ = made._numbers, made._guarded
            if any(one.is_number is not False for one in made.symbols):
                raise FormatError("a size depends on the numbers of an input")
            return made
        except FormatError:
            raise
        except Exception as error:  # of the wrong types anywhere
            raise FormatError(f"no executable: {error}") from None


def _slot(data: Sequence[Any]) -> TensorSlot:
    """Return a slot from JSON. Raises FormatError where the tensor does not fit."""
    name, shape, dtype, layout, words, block, memory, offset = map(size_of, data)
    made = TensorSlot(name, shape, DType(dtype), parse(layout), words, block, memory, offset)
    if type(block) is not int or not made.dtype.on_gpu:
        raise FormatError(f"{name!r} is not in a device's memory")
    known = all(type(one) is int for one in (*shape, words))
    if known and made.layout.words(TensorType(shape, made.dtype)) > words:
        raise FormatError(f"{name!r} does not fit into {words} words")
    return made
