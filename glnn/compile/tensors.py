"""The tensors of a schedule, and copies of them in the layouts that kernels want."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from math import prod

from glnn.backends.backend import Backend
from glnn.compile.pays import device_reorders
from glnn.compile.task import Task
from glnn.compile.tensor import Tensor, reorder
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Identity, Reshape, Transpose
from glnn.graph.operators.move import Move
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reorder import Reorder, packing, repadding, unpacking
from glnn.graph.passes.factors import Chain
from glnn.layout import Layout, Morton, parse
from glnn.layout.bytes import PACKED_ROWS, PackedTiles
from glnn.layout.layout import (
    CHANNELS_LAST,
    DENSE,
    PACKED,
    PADDED,
    ROW_ALIGNMENT,
    Blocked,
    RowMajor,
)
from glnn.symint import divides, same
from glnn.types import DType, Shape, TensorType

COLUMNS = parse("C")


class Tensors(ABC):
    """Tensors by name, each in the layout that its kernel gave, and their reordered copies.

    reserved: names that copies must not have.
    """

    def __init__(self, backend: Backend, reserved: Iterable[str]) -> None:
        self.backend = backend
        self.tensors: dict[str, Tensor] = {}
        self._reserved = set(reserved)
        self._copies: dict[tuple[str, Layout], str] = {}
        self._padded: dict[str, Layout] = {}  # memories of what is copied to such rows, or was to
        self._moved_from: dict[str, tuple[str, Operator]] = {}  # what views and moves are made of
        self._waiting: dict[str, Callable[[], None]] = {}  # moves by the memories that they make

    def finish(self, wanted: Iterable[str]) -> None:
        """Have the tensors `wanted` be there, and leave out what nobody came to want."""
        for name in wanted:
            if name in self.tensors:
                self._there(name)
        gone = self._waiting.keys()
        self.tensors = {k: v for k, v in self.tensors.items() if v.memory not in gone}

    def _there(self, name: str) -> None:
        """Have the tensor `name` be there, which may have to be moved yet."""
        if (waiting := self._waiting.pop(self.tensors[name].memory, None)) is not None:
            waiting()

    def in_rows(self, name: str) -> str:
        """The name of the tensor `name` in row major: itself, or a reordered copy."""
        layer = self._layer(name)
        return self._in_layout(name, DENSE, Task(layer, Identity(), {}, {}, name, layer))

    def for_host(self, outputs: Iterable[Value], always: bool, gains: bool) -> dict[str, str]:
        """By the names of `outputs`, the tensors that the host takes them from: themselves, or
        copies in row major, `always`, or if that `gains` where a launch is sooner than NumPy.
        """
        tensors, found = self.tensors, {value.name: value.name for value in outputs}
        for name in found:
            if always or (gains and device_reorders(self.backend, tensors[name])):
                found[name] = self.in_rows(name)
        return found

    @abstractmethod
    def add(self, task: Task) -> None:
        """Append `task`, which makes a tensor."""

    @abstractmethod
    def _layer(self, name: str) -> str:
        """The layer whose step has made the tensor `name`; that name where none has."""

    @abstractmethod
    def _by_host(self, name: str, layout: Layout, task: Task) -> str:
        """The name of a copy of `name` in `layout`, where the host makes that."""

    def _turned(self, task: Task) -> bool:
        """Whether the result of `task` is its operand's memory, channels last seen as rows or rows
        as channels last: then it is there.
        """
        op = task.op
        if not isinstance(op, Transpose) or self.backend.device is None:
            return False
        x = self.tensors[task.operands["x"]]
        rank = len(x.shape)
        order = tuple(axis % rank for axis in op.perm)
        (type,) = op.results({"x": x.type})
        if order == (0, 2, 3, 1) and x.layout == parse(CHANNELS_LAST) and divides(4, x.shape[1]):
            layout: Layout = DENSE
        elif order == (0, 3, 1, 2) and x.layout == DENSE and divides(4, x.shape[3]):
            layout = parse(CHANNELS_LAST)
        else:
            return False
        if type.dtype is not DType.float32 or not prod(type.shape):
            return False
        self.tensors[task.output] = Tensor(type, layout, x.memory)
        return True

    def _in_layout(self, name: str, layout: Layout, task: Task) -> str:
        """The name of the tensor `name` in `layout`, which is there then: itself, or a reordered
        copy made once.
        """
        found = self._lying(name, layout, task)
        self._there(found)
        return found

    def _lying(self, name: str, layout: Layout, task: Task) -> str:
        """The same, which may have to be moved yet."""
        tensor = self.tensors[name]
        layout = layout.at(tensor.shape)
        if tensor.layout == layout or not prod(tensor.shape):
            return name
        if (name, layout) not in self._copies:
            there = name if tensor.layout.seen_as(layout, tensor.shape) else None
            if there is None and layout == COLUMNS:
                there = self._turned_rows(name)
            if there is None:
                found = self._copied(name, layout, task)
            else:
                found = self._seen(name, layout, there)
            self._copies[name, layout] = found
        return self._copies[name, layout]

    def lying(self, name: str) -> Layout:
        """The layout in which a tensor is there, or in which it can be had where it is not yet."""
        return COLUMNS if self._turned_rows(name) is not None else self.tensors[name].layout

    def _turned_rows(self, name: str) -> str | None:
        """What has as rows the columns of `name`, which is not there yet: it is that in columns.

        None where nothing has.
        """
        tensor = self.tensors[name]
        if tensor.memory not in self._waiting or len(tensor.shape) not in (2, 3):
            return None
        if tensor.type.dtype is not DType.float32:
            return None
        *stack, n, k = tensor.shape
        swapped = Transpose((*range(len(stack)), len(stack) + 1, len(stack)))
        for source, ops in self._made_from(name):
            rows = self.tensors[source]
            padded = rows.layout == PADDED and same(rows.shape, (k, n))
            if not padded and rows.layout != DENSE:
                continue
            whole = padded or (same(k, 1) and not stack) or divides(ROW_ALIGNMENT, n)
            if whole and _reshaped(_moved(rows.shape, (*ops, swapped)), (*stack, k, n)):
                return source
        return None

    def _made_from(self, name: str) -> Iterator[tuple[str, tuple[Operator, ...]]]:
        """What views and moves have made `name` of, the last first, and by which operators."""
        ops: tuple[Operator, ...] = ()
        while name in self._moved_from:
            name, op = self._moved_from[name]
            ops = (op, *ops)
            yield name, ops

    def _seen(self, name: str, layout: Layout, there: str) -> str:
        """The name of `name` in a layout in which it is the memory of the tensor `there`."""
        seen = self.free(f"{name} as {layout.name}")
        self.tensors[seen] = Tensor(self.tensors[name].type, layout, self.tensors[there].memory)
        return seen

    def _as_vector(self, name: str, task: Task) -> str:
        """The name of the tensor `name`, row major, as one of a single dimension."""
        source = self._in_layout(name, DENSE, task)
        tensor = self.tensors[source]
        if len(tensor.shape) == 1:
            return source
        seen = self.free(f"{name} as a vector")
        type = TensorType((prod(tensor.shape),), tensor.type.dtype)
        self.tensors[seen] = Tensor(type, DENSE, tensor.memory)
        return seen

    def _copied(self, name: str, layout: Layout, task: Task) -> str:
        """The name of a new copy of `name` in another layout."""
        tensor = self.tensors[name]
        if layout in (PACKED, PACKED_ROWS) or isinstance(tensor.layout, PackedTiles):
            return self._by_host(name, layout, task)
        if tensor.layout in (PACKED, PACKED_ROWS):
            return self._unpacked(name, layout, task)
        if isinstance(layout, RowMajor) and isinstance(tensor.layout, RowMajor):
            return self._repadded(name, tensor.layout, layout, task)
        floats = tensor.type.dtype is DType.float32
        if not floats or self.backend.why_not(reorder(tensor.type, tensor.layout, layout)):
            if isinstance(layout, Morton | Blocked):
                return self._packed(name, layout, task)
            if isinstance(tensor.layout, Morton | Blocked):
                return self._spread(name, tensor.layout, layout, task)
        op = Reorder(tensor.layout.name, layout.name)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(Task(label, op, {"x": name}, {}, copy, task.layer, via=task.via))
        return copy

    def _unpacked(self, name: str, layout: Layout, task: Task) -> str:
        """The name of a copy of `name`, which is packed, each number of which takes a word."""
        if layout != DENSE:
            self._padded |= {self.tensors[name].memory: layout} if layout == PADDED else {}
            return self._in_layout(self._in_layout(name, DENSE, task), layout, task)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(Task(label, Pointwise(Arg(0)), {"x0": name}, {}, copy, task.layer, via=task.via))
        return copy

    def _repadded(self, name: str, lies: RowMajor, layout: RowMajor, task: Task) -> str:
        """The name of a copy of `name`, which lies in `lies`, with rows padded as in `layout`."""
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PADDED else {}
        source, copy = self.free(f"{name} by rows"), self.free(f"{name} as {layout.name}")
        matrix, op = repadding(tensor.shape, lies, layout)
        self.tensors[source] = Tensor(TensorType(matrix, tensor.type.dtype), DENSE, tensor.memory)
        self.add(Task(label, op, {"x": source}, {}, copy, task.layer, via=task.via))
        self.tensors[copy] = Tensor(tensor.type, layout, self.tensors[copy].memory)
        return copy

    def _packed(self, name: str, layout: Morton | Blocked, task: Task) -> str:
        """The name of a copy of `name` in `layout` where no kernel makes one at once: by moves."""
        tensor, ops = self.tensors[name], packing(self.tensors[name].shape, layout)
        if isinstance(task.op, Move):  # by moves that may ask for the same: it would not end
            why: str | None = f"it is {tensor.type}"
            if tensor.type.dtype is DType.float32:
                why = self.backend.why_not(reorder(tensor.type, tensor.layout, layout))
            raise UnsupportedOpError(f"{task.name!r} needs {name!r} in {layout.name}: {why}")
        if (made := self._from_before(name, ops, layout, task)) is None:
            source = self._in_layout(name, DENSE, task)
            made = self._moved(name, source, ops, layout, task)
        self.tensors[made] = Tensor(tensor.type, layout, self.tensors[made].memory)
        return made

    def _from_before(
        self, name: str, ops: tuple[Operator, ...], layout: Layout, task: Task
    ) -> str | None:
        """The name of what `ops` make of `name` in one move of what that was moved from."""
        found: tuple[str, Operator] | None = None
        for source, behind in self._made_from(name):
            tensor = self.tensors[source]
            if not isinstance(tensor.layout, RowMajor) or tensor.layout == PACKED:
                continue
            operators = _moved(tensor.shape, (*behind, *ops))
            if len(operators) == 1:
                found = source, operators[0]
        if found is None:
            return None
        made = self.free(f"{name} as {layout.name}: move")
        label = f"{name} to {layout.name}"
        self.add(Task(label, found[1], {"x": found[0]}, {}, made, task.layer, via=task.via))
        return made

    def _spread(self, name: str, lies: Morton | Blocked, layout: Layout, task: Task) -> str:
        """The name of a copy of `name`, which lies in `lies`, in rows: by moves, too."""
        if layout != DENSE:
            return self._in_layout(self._in_layout(name, DENSE, task), layout, task)
        tensor, source = self.tensors[name], self.free(f"{name} as stored")
        shape, ops = unpacking(tensor.shape, lies)
        self.tensors[source] = Tensor(TensorType(shape, tensor.type.dtype), DENSE, tensor.memory)
        return self._moved(name, source, ops, layout, task)

    def _moved(
        self, name: str, made: str, ops: Iterable[Operator], layout: Layout, task: Task
    ) -> str:
        """The name of what `ops`, one after another, make of `made`, to have `name` in `layout`."""
        for op in ops:
            label, source = f"{name} to {layout.name}: {op.name}", made
            made = self.free(f"{name} as {layout.name}: {op.name}")
            self.add(Task(label, op, {"x": source}, {}, made, task.layer, via=task.via))
        return made

    def free(self, name: str) -> str:
        """`name`, marked where somebody else's tensor is called so."""
        while name in self._reserved or name in self.tensors:
            name += "'"
        return name


def _moved(shape: Shape, ops: Iterable[Operator]) -> tuple[Operator, ...]:
    """What does at once all that `ops` do with a tensor of `shape`; nothing where none can."""
    chain: Chain | None = Chain.of(shape) if 0 not in shape else None
    for op in ops:
        chain = None if chain is None else chain.then(op)
    return () if chain is None else chain.operators()


def _reshaped(ops: tuple[Operator, ...], shape: Shape) -> bool:
    """Whether `ops` do nothing but see a tensor as one of `shape`."""
    return len(ops) == 1 and isinstance(ops[0], Reshape) and same(ops[0].shape, shape)
