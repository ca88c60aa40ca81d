"""The weights of a session on a backend: each packed and uploaded once, for all plans."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend
from glnn.backends.gl import GlBackend
from glnn.core.array_functions import FUNCTIONS, round_to_float16
from glnn.core.layout import Layout
from glnn.core.process import memory_limit, process_lock, processors
from glnn.core.size_table import SizeTable
from glnn.core.symint import Substitution, SymInt, hint, is_symbolic, same
from glnn.core.trace_spans import Spans
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import UnsupportedOpError
from glnn.gl import Buffer, DataTexture
from glnn.gl.command_buffer import TextureView
from glnn.gl.transfer import pack_words
from glnn.graph.compose.decompositions import DerivedParameter
from glnn.graph.constant import (
    ConstantExpression,
    Leaf,
    OperatorResult,
    computed,
    depends_on_sizes,
    evaluated,
    leaves,
    substitute_sizes,
    without_operands,
)
from glnn.graph.expression import Arg, Call, Expr, Scalar
from glnn.graph.expression import Constant as Number
from glnn.graph.function import NUMBERS, kind_of
from glnn.graph.graph import ASSIGNMENTS, Graph, Kind, Value, Variable
from glnn.graph.operators import Concat, Identity, Pointwise, Reshape
from glnn.graph.operators.views import View
from glnn.runtime.array_program import ArrayCall, ArrayProgram
from glnn.runtime.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self

Name = TypeVar("Name")
Result = TypeVar("Result")
LEAST = 4 << 20  # bytes of all weights: for fewer, a thread takes longer than it saves
MOST = 512 << 20  # the most bytes of results that are computed ahead
SHARE = 8  # these bytes are at most the process's memory divided by this
MOST_THREADS = 4
LOG = logging.getLogger(__name__)
WIDE = np.dtype(np.float64)
MOVES = "reshape", "transpose", "broadcast_to", "flip", "tile", "roll", "cut", "gather"
"""Functions that move numbers: they are applied before a cast to WIDE, which would copy a table."""


@dataclass
class _Item(Generic[Result]):
    """A result that a thread computes ahead."""

    nbytes: int
    """The bytes of the result."""
    started: bool = False
    """True once a thread computes it, or the caller does."""
    done: bool = False
    """True once it is computed or failed, or the caller computes it."""
    result: Result | None = None
    """The result; None where it failed, or was taken."""


class Ahead(Generic[Name, Result]):
    """Prefetcher: threads compute `make` for keys in order while the context manager is entered.

    Results and errors are the same as without it: where `take` returns None, the caller calls
    `make` itself.
    """

    def __init__(
        self,
        sized_keys: Sequence[tuple[Name, int]],
        make: Callable[[Name], Result],
        threads: int | None,
    ) -> None:
        """sized_keys: the keys in order, each with the bytes of its result. threads: how many; None
        to choose by the number of processors and bytes.
        """
        self._items: dict[Name, _Item[Result]] = {key: _Item(nbytes) for key, nbytes in sized_keys}
        self._make, self._changed = make, threading.Condition()
        self._most = min(MOST, memory_limit() // SHARE)
        self._held, self._ended = 0, False
        """The bytes of results that are being computed or not yet released; True at the end."""
        self._last: _Item[Result] | None = None
        """The item that was taken last, whose result the caller still uses."""
        if threads is None:
            worth_it = sum(item.nbytes for item in self._items.values()) >= LEAST
            threads = min(processors() - 1, MOST_THREADS) if worth_it else 0
        count = min(threads, len(self._items))
        work = self._work
        self._threads = [
            threading.Thread(target=work, name="glnn packs", daemon=True) for _ in range(count)
        ]

    def take(self, key: Name) -> Result | None:
        """Return the result for `key`, waiting for the thread that computes it.

        None where no thread has started, or it failed.
        """
        item = self._items.get(key)
        if item is None:
            return None
        with self._changed:
            self._release()
            if not item.started:
                item.started = item.done = True  # the caller computes it
                return None
            while not item.done:
                self._changed.wait()
            result, item.result, self._last = item.result, None, item
        return result

    def _release(self) -> None:
        """Release the memory of the result that was taken last."""
        if self._last is not None:
            self._held -= self._last.nbytes
            self._last = None
            self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            key, item = task
            result: Result | None = None
            with suppress(Exception):  # the caller computes it again, and meets the same error
                result = self._make(key)
            with self._changed:
                item.done, item.result = True, result
                if result is None:
                    self._held -= item.nbytes
                self._changed.notify_all()
            del result, task, item  # else they live until the next result

    def _next(self) -> tuple[Name, _Item[Result]] | None:
        """Return the next key to compute and its item, waiting until its result fits into `_most`
        bytes; None at the end.
        """
        with self._changed:
            while not self._ended:
                waiting = ((key, one) for key, one in self._items.items() if not one.started)
                task = next(waiting, None)
                if task is None:
                    break
                _, item = task
                if not self._held or self._held + item.nbytes <= self._most:
                    self._held += item.nbytes
                    item.started = True
                    return task
                self._changed.wait()
            return None

    def __enter__(self) -> Self:
        for i, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads
                del self._threads[i:]
                break
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._items.clear()


@dataclass(frozen=True)
class Weight:
    """A constant as a kernel reads it: of the type `type`, which has as many elements.

    Floats are rounded to float16 where that is the type.
    """

    constant: ConstantExpression
    type: TensorType
    for_one_run: bool = field(default=False, compare=False)
    """True where it is for the sizes of one run: the plans that use it free it."""

    @classmethod
    def from_array(cls, array: Array) -> Weight:
        """Return the weight of `array`, which never changes."""
        value = Value("constant", TensorType.from_array(array), Kind.CONSTANT, array)
        return cls(Leaf(value), value.type)

    @classmethod
    def from_expression(cls, constant: ConstantExpression) -> Weight:
        """Return the weight of `constant`, of the type of its value."""
        return cls(constant, TensorType.from_array(evaluated(constant)))

    def derive(self, derived: DerivedParameter) -> Weight:
        """Return the weight that `derived` computes from this one."""
        type = TensorType(derived.shape, self.type.dtype)
        source = OperatorResult(Reshape(self.shape), (self.constant,), None, (), 0)
        result = OperatorResult(derived.operator, (source,), None, (), 0, self.name, (type,))
        return Weight(result, type)

    @property
    def sized(self) -> bool:
        """Return True where the weight depends on symbolic sizes."""
        return Substitution(hint)(self.type) is not self.type or depends_on_sizes(self.constant)

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.type.shape

    def read(self) -> Array:
        """Return its current array. Raises ShapeError where a number overflows float16."""
        return self.rounded(evaluated(self.constant, self.type.dtype).reshape(self.shape))

    def rounded(self, array: Array) -> Array:
        """Return `array` as it is stored. Raises ShapeError where a number overflows float16."""
        if array.dtype.kind != "f":
            return array
        if self.type.dtype is not DType.float16:
            return np.asarray(array, self.type.dtype.numpy)
        return round_to_float16(array, self.name)

    @property
    def name(self) -> str:
        """Return the weight's name: the variables and constants that it is computed from."""
        return ", ".join(dict.fromkeys(leaf.value.name for leaf in leaves(self.constant)))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Return the variables that the weight is computed from, which may be assigned anew."""
        values = (leaf.value for leaf in leaves(self.constant))
        return tuple(v.data for v in values if v.kind is Kind.VARIABLE)  # type: ignore[misc]


@dataclass(eq=False)
class DeviceWeight:
    """A weight on the device, with the variables that it is computed from."""

    weight: Weight
    store: Store
    variables: tuple[Variable, ...]
    revisions: list[int]
    """The variables' revisions at the last upload."""
    first: list[int]
    """The variables' revisions at the first upload."""
    backend: Backend
    packed_words: NDArray[np.uint32] | None = None
    """The packed words, held for the next call of `words`; None where that packs them."""

    def words(self) -> NDArray[np.uint32]:
        """Return the weight's packed words, without zeros at the end; packed anew unless held."""
        result, self.packed_words = self.packed_words, None
        if result is not None:
            return result
        assert isinstance(self.store, Buffer)
        result = pack_words(self.store.layout, np.asarray(self.weight.read(), order="C"))
        return np.zeros(0, np.uint32) if result is None else result

    def current(self) -> bool:
        """Return True where no variable was assigned since the first upload."""
        return self.first == [variable.revision for variable in self.variables]

    def buffer(self) -> Any:
        """Return its buffer. Only inside `perform`."""
        assert isinstance(self.store, Buffer) and self.backend.device is not None
        return self.store.push(self.backend.device)

    def texture(self, view: TextureView) -> DataTexture:
        """Return the texture of its buffer for `view`, which all kernels share."""
        assert isinstance(self.store, Buffer) and isinstance(self.backend, GlBackend)
        return self.backend.texture(self.store, view)

    def renew(self, backend: Backend) -> None:
        """Upload it again where a variable was assigned since the last upload."""
        revisions = [variable.revision for variable in self.variables]
        if revisions != self.revisions:
            array = np.asarray(self.weight.read(), order="C")
            backend.renew(self.store, array)
            LOG.debug("uploaded %s anew, %d bytes", self.weight.name, array.nbytes)
            self.revisions = revisions  # last: after an error in `read`, the next run tries again


Key = tuple[Weight, Layout, bool]
"""A weight, its layout on the device, and True for a kernel that copies it to a texture."""


@dataclass(frozen=True)
class Ready:
    """The array of a weight that is to be uploaded."""

    array: Array
    words: NDArray[np.uint32] | None
    """The array packed as on the device; None where the upload packs it, or it is empty."""
    revisions: list[int]
    """The revisions of the weight's variables before it was read."""

    @classmethod
    def read(cls, key: Key, pack: bool) -> Ready:
        """Read the array of `key`, and pack it if `pack`. Raises what `Weight.read` does."""
        weight, layout, _ = key
        revisions = [variable.revision for variable in weight.variables]
        array = weight.read()
        words = pack_words(layout, array) if pack else None  # takes arrays of any strides
        array = np.asarray(array, order="C") if words is None else array
        return cls(array, words, revisions)


class Weights:
    """The weights that the plans of a session share.

    A weight is uploaded once for each layout, and once more for kernels that copy it into a
    texture. Weights of the graph's own constants and variables are permanent; others, which are for
    the sizes of one plan, are freed with the plans that use them.
    """

    def __init__(self, backend: Backend, graph: Graph | None = None) -> None:
        """graph: the session's; None makes all weights permanent."""
        self._backend = backend
        self._device_weights: WeakValueDictionary[Key, DeviceWeight] = WeakValueDictionary()
        self._own = None if graph is None else {v for node in graph.nodes for v in node.reads}
        """The values that nodes of the graph read."""
        self._permanent: list[DeviceWeight] = []
        self._assigned: int | None = None
        """`ASSIGNMENTS.count` when all weights were up to date; None where some may not be."""
        self.uploaded = Spans()
        """The times of the first upload of each weight."""
        self._lock = process_lock()  # plans have locks of their own
        self._ahead: Ahead[Key, Ready] | None = None
        self._holdable = 0
        """The bytes of packed words that may still be held until they are written to disk."""

    @contextmanager
    def holding(self, nbytes: int) -> Iterator[None]:
        """While entered, hold up to `nbytes` of packed words: see `DeviceWeight.packed_words`."""
        self._holdable = nbytes
        try:
            yield
        except BaseException:
            self.release()
            raise
        finally:
            self._holdable = 0

    def release(self) -> None:
        """Release the packed words that are held: they will not be written to disk."""
        with self._lock:
            for weight in list(self._device_weights.values()):
                weight.packed_words = None

    @contextmanager
    def ahead(self, keys: Iterable[Key]) -> Iterator[None]:
        """While entered, have threads read and pack the weights `keys`, for `keep`."""
        if not self._backend.packs:
            yield
            return
        sized_keys = [
            (key, 4 * key[1].words(key[0].type)) for key in keys if key not in self._device_weights
        ]
        with Ahead(sized_keys, partial(Ready.read, pack=True), None) as self._ahead:
            try:
                yield
            finally:
                self._ahead = None

    def __contains__(self, key: Key) -> bool:
        return key in self._device_weights

    def keep(self, weight: Weight, layout: Layout, copied: bool) -> DeviceWeight:
        """Return `weight` on the device in `layout`, uploaded now unless it was.

        copied: True for a kernel that copies it to a texture. Users of its store must hold the
        result: this object references weights that are not permanent only weakly.
        """
        key = weight, layout, copied
        with self._lock:
            device_weight = self._device_weights.get(key)
            if device_weight is None:
                ready = None if self._ahead is None else self._ahead.take(key)
                ready = ready or Ready.read(key, pack=self._backend.packs)
                variables, revisions, array = weight.variables, ready.revisions, ready.array
                with self.uploaded.record(weight.name, array.nbytes):
                    store = self._backend.keep(array, layout, ready.words)
                LOG.debug("uploaded %s as %s, %d bytes", weight.name, layout.name, array.nbytes)
                device_weight = self._device_weights[key] = DeviceWeight(
                    weight, store, variables, revisions, revisions, self._backend
                )
                if ready.words is not None and ready.words.nbytes <= self._holdable:
                    device_weight.packed_words = ready.words
                    self._holdable -= ready.words.nbytes
                self._assigned = None  # its array may have been read before the last refresh
                if self._is_permanent(weight):
                    self._permanent.append(device_weight)
            return device_weight

    def _is_permanent(self, weight: Weight) -> bool:
        """Return True where the weight is made of the graph's own values, for any sizes.

        One with another number of elements than each of these, as a part of a table, may be for the
        sizes of one plan.
        """
        values = [leaf.value for leaf in leaves(weight.constant)]
        if weight.for_one_run:
            return False
        if self._own is None:
            return True
        if not self._own.issuperset(values):
            return False
        return prod(weight.shape) in [prod(value.type.shape) for value in values]

    def refresh(self) -> None:
        """Upload the weights whose variables were assigned since the last refresh."""
        if self._assigned == ASSIGNMENTS.count:
            return
        with self._lock:
            assigned = ASSIGNMENTS.count
            for weight in list(self._device_weights.values()):
                weight.renew(self._backend)
            self._assigned = assigned


@dataclass(frozen=True)
class Computed:
    """Call of an operator that is no array function, on arrays followed by sizes."""

    part: OperatorResult = field(compare=False)
    key: Hashable
    """The part without its operands."""
    sizes: tuple[SymInt, ...]

    def __call__(self, *operands: Any) -> Array:
        *arrays, numbers = operands
        values = {one.expr: number for one, number in zip(self.sizes, numbers, strict=True)}
        part = substitute_sizes(self.part, Substitution(lambda one: values[one.expr]))
        return computed(part, range(len(arrays)), arrays)


class ArrayWriter:
    """Writes weights as an ArrayProgram; calls that several weights have in common occur once.

    The program computes the same numbers as `graph.constant.evaluated` for the sizes of a run. An
    index of an array is that of a call, or the complement (`~`) of that of a constant.

    sizes: the table to which sizes are added.
    """

    def __init__(self, sizes: SizeTable) -> None:
        self._sizes = sizes
        self._constants: list[Array] = []
        self._numbers: dict[Hashable, int] = {}
        """Indices of constants, by leaf, or by dtype and number."""
        self._calls: dict[Hashable, int] = {}
        """Indices of calls, by function, operands and attributes."""
        self._written: list[ArrayCall] = []
        self._dtypes: list[np.dtype[Any]] = []
        """The dtypes of the results of calls."""
        self._widened: dict[int, int] = {}
        """By the index of a cast to WIDE, the index of its operand."""
        self._results: dict[str, int] = {}
        self._nbytes: Any = 0

    def add(self, name: str, weight: Weight, dtype: DType) -> None:
        """Write `weight` as the tensor `name`, of `dtype`."""
        constant, shape = weight.constant, weight.shape
        index = self._expression_index(constant)
        has_shape = (
            isinstance(constant, OperatorResult)
            and constant.types
            and same(constant.types[constant.index].dims, shape)
        )
        if not has_shape:
            index = self._call("reshape", (index,), (shape,))
        if self._dtype(index).kind == "f":
            floats = weight.type.dtype if weight.type.dtype.kind == "float" else DType.float32
            if floats is DType.float16:
                index = self._call("round_to_float16", (index,), (weight.name,), floats.numpy)
            index = self._cast(index, floats.numpy)
        self._results[name] = self._cast(index, dtype.numpy)
        self._nbytes += WIDE.itemsize * prod(shape)

    def written(self) -> ArrayProgram:
        """Return the program."""
        calls, nbytes = tuple(self._written), self._sizes.size(self._nbytes)
        return ArrayProgram(tuple(self._constants), calls, self._results, nbytes)

    def _dtype(self, index: int) -> np.dtype[Any]:
        return self._dtypes[index] if index >= 0 else self._constants[~index].dtype

    def _call(
        self,
        function: str | Callable[..., Array],
        reads: tuple[int, ...],
        attributes: tuple[Any, ...] = (),
        dtype: np.dtype[Any] | None = None,
    ) -> int:
        """Return the index of a call.

        reads: indices of its operands. dtype: of the result; None for that of the first operand.
        """
        if function in MOVES and reads[0] in self._widened:
            narrow = self._call(function, (self._widened[reads[0]], *reads[1:]), attributes)
            return self._cast(narrow, WIDE)
        sized = self._sizes.size(attributes)
        key = function, reads, repr(sized)
        if key not in self._calls:
            self._calls[key] = len(self._written)
            self._written.append(ArrayCall(function, reads, sized))
            self._dtypes.append(self._dtype(reads[0]) if dtype is None else np.dtype(dtype))
        return self._calls[key]

    def _cast(self, index: int, dtype: Any) -> int:
        if self._dtype(index) == dtype:
            return index
        result = self._call("cast", (index,), (np.dtype(dtype).name,), dtype)
        if dtype == WIDE and self._dtype(index).kind == "f":
            self._widened[result] = index
        return result

    def _constant(self, key: Hashable, array: Array) -> int:
        if key not in self._numbers:
            self._numbers[key] = ~len(self._constants)
            self._constants.append(array)
        return self._numbers[key]

    def _expression_index(self, constant: ConstantExpression) -> int:
        """Write all parts of a constant expression, and return the index of its value."""
        parts = ((constant, ()),) if isinstance(constant, Leaf) else constant.parts
        indices: list[int] = []
        for part, operands in parts:
            reads = tuple(indices[i] for i in operands)
            index = self._leaf(part) if isinstance(part, Leaf) else self._operator(part, reads)
            half = self._dtype(index) == np.float16
            indices.append(self._cast(index, WIDE) if half else index)
        return indices[-1]

    def _leaf(self, leaf: Leaf) -> int:
        array, dtype = leaf.value.data, leaf.value.type.dtype
        if isinstance(array, np.ndarray) and is_symbolic(array):  # integers that depend on sizes
            dtype = DType.int64 if dtype is DType.object else dtype
            attributes = tuple(array.reshape(-1).tolist()), array.shape, dtype.value
            return self._call("array", (), attributes, dtype.numpy)
        array = leaf.read()
        index = self._constant(leaf, array)
        return self._cast(index, WIDE) if DType.from_array(array).kind == "float" else index

    def _operator(self, part: OperatorResult, reads: tuple[int, ...]) -> int:
        """Return the index of the result of an operator on the operands `reads`."""
        operator, types = part.operator, part.types
        if part.epilogue is None and None not in part.operands:
            if isinstance(operator, Identity):
                return reads[0]
            if isinstance(operator, Pointwise):
                index = self._pointwise(operator, reads)
                if index is not None:
                    return index
            if isinstance(operator, View) and types and not types[0].symbols:
                return self._call("reshape", reads, (types[0].shape,))
            if operator.array_function:
                if isinstance(operator, Concat):
                    widest = max(map(self._dtype, reads), key=lambda one: one.itemsize)
                    reads = tuple(self._cast(one, widest) for one in reads)
                results = () if reads else operator.infer(())
                dtype = results[part.index].dtype.numpy if results else None
                attributes = operator.array_attributes
                attributes += (part.index,) if len(results) > 1 else ()
                return self._call(operator.array_function, reads, attributes, dtype)
        return self._computed(part, reads)

    def _pointwise(self, operator: Pointwise, reads: tuple[int, ...]) -> int | None:
        """Return the index of an expression; None where it is no function, or reads not all of
        `reads`.
        """
        expr = operator.expr.expanded
        read = {part.index for part in expr.parts() if isinstance(part, Arg)}
        if not isinstance(expr, Call) or read != set(range(len(reads))):
            return None

        def index_of(part: Expr, operands: tuple[int | Expr, ...]) -> int | Expr:
            if isinstance(part, Arg):
                return reads[part.index]
            return self._function(part, operands) if isinstance(part, Call) else part

        index = expr.fold(index_of)[-1]
        assert isinstance(index, int)
        declared = operator.result_dtype([_declared(self._dtype(one)) for one in reads])
        return self._cast(index, declared.numpy)

    def _function(self, part: Call, operands: tuple[int | Expr, ...]) -> int | Expr:
        """Return the index of a function of arrays, by index, and numbers; of numbers alone, its
        value.
        """
        row = part.row
        if not any(isinstance(one, int) for one in operands):
            return Scalar(row.evaluate(*(_number(one) for one in operands)))
        conditions, values = operands[: row.condition], operands[row.condition :]
        dtypes = [self._dtype(one) for one in values if isinstance(one, int)]
        if dtypes:
            dtype = max(dtypes, key=lambda one: one.itemsize)
        else:
            kind = kind_of(_number(values[0]))
            dtype = WIDE if kind == "float" else NUMBERS[kind].numpy
        indices = [self._typed(one, np.dtype(bool)) for one in conditions]
        indices += [self._typed(one, np.dtype(dtype)) for one in values]
        assert row.numpy is not None
        with np.errstate(all="ignore"):
            empty = row.numpy(*(np.zeros(0, self._dtype(one)) for one in indices))
        if row.name.startswith("cast_"):
            return self._call("cast", tuple(indices), (row.gives,), empty.dtype)
        name = getattr(row.numpy, "__name__", "")
        function = name if FUNCTIONS.get(name) is row.numpy else row.numpy
        return self._call(function, tuple(indices), (), empty.dtype)

    def _typed(self, operand: int | Expr, dtype: np.dtype[Any]) -> int:
        """Return the index of an array, given by index, or a number as `dtype`."""
        if isinstance(operand, int):
            return self._cast(operand, dtype)
        number = _number(operand)
        return self._constant((dtype, repr(number)), np.asarray(number, dtype))

    def _computed(self, part: OperatorResult, reads: tuple[int, ...]) -> int:
        """Return the index of the result of an operator that is no array function."""
        if not part.types:
            raise UnsupportedOpError(f"{part.operator.label} of open sizes is of an unknown type")
        sizes: dict[Any, SymInt] = {}

        def collect(one: SymInt) -> int:
            return hint(sizes.setdefault(one.expr, one))

        Substitution(collect)((part.operator, part.epilogue, part.types))
        function = Computed(part, without_operands(part), tuple(sizes.values()))
        dtype = part.types[part.index].dtype
        wide = dtype.kind == "float" and any(self._dtype(one) == WIDE for one in reads)
        computed_dtype = WIDE if wide or dtype is DType.float16 else dtype.numpy
        return self._call(function, reads, (tuple(sizes.values()),), computed_dtype)


def _number(one: int | Expr) -> Any:
    assert isinstance(one, Scalar | Number)
    return one.value


def _declared(dtype: np.dtype[Any]) -> DType:
    return DType.from_array(np.zeros(0, dtype))
