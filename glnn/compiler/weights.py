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
LEAST = 4 << 20  # bytes in all: below, a thread takes longer than it saves
MOST = 512 << 20  # bytes that are ready or being made
SHARE = 8  # of the process's memory, where that is little
MOST_THREADS = 4
LOG = logging.getLogger(__name__)
WIDE = np.dtype(np.float64)
MOVES = "reshape", "transpose", "broadcast_to", "flip", "tile", "roll", "cut", "gather"
"""Functions that move numbers: of a large table they are given no wider copy."""


@dataclass
class _Item(Generic[Result]):
    """A result that a thread computes ahead, and how far it is."""

    nbytes: int
    """The bytes of the result."""
    begun: bool = False
    """True where a thread computes it, did, or need not any more."""
    over: bool = False
    """True where it is computed, or failed."""
    made: Result | None = None
    """The result; None where it failed, or was taken."""


class Ahead(Generic[Name, Result]):
    """Prefetcher: threads compute `make` for keys in order while the context manager is entered.

    Results are the same as without it: where `take` returns None the caller calls `make` itself,
    which raises what there is to raise.
    """

    def __init__(
        self,
        sized_keys: Sequence[tuple[Name, int]],
        make: Callable[[Name], Result],
        threads: int | None,
    ) -> None:
        """sized_keys: each key with the bytes of its result, in order. threads: how many; None for
        as many as suit the machine.
        """
        self._items: dict[Name, _Item[Result]] = {key: _Item(nbytes) for key, nbytes in sized_keys}
        self._make, self._changed = make, threading.Condition()
        self._most = min(MOST, memory_limit() // SHARE)
        self._held, self._ended = 0, False
        self._last: _Item[Result] | None = None
        if threads is None:
            enough = sum(item.nbytes for item in self._items.values()) >= LEAST
            threads = min(processors() - 1, MOST_THREADS) if enough else 0
        count = min(threads, len(self._items))
        work = self._work
        self._threads = [
            threading.Thread(target=work, name="glnn packs", daemon=True) for _ in range(count)
        ]

    def take(self, key: Name) -> Result | None:
        """Return the result for `key`, once the thread at it is done; None where none is."""
        item = self._items.get(key)
        if item is None:
            return None
        with self._changed:
            self._release()
            if not item.begun:
                item.begun = item.over = True  # whoever asks makes it
                return None
            while not item.over:
                self._changed.wait()
            made, item.made, self._last = item.made, None, item
        return made

    def _release(self) -> None:
        """Release the memory of the result that was taken last."""
        if self._last is not None:
            self._held -= self._last.nbytes
            self._last = None
            self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            key, item = task
            made: Result | None = None
            with suppress(Exception):  # whoever wants it meets the same one, where it would be
                made = self._make(key)
            with self._changed:
                item.over, item.made = True, made
                if made is None:
                    self._held -= item.nbytes
                self._changed.notify_all()
            del made, task, item  # else they live until the next one is made

    def _next(self) -> tuple[Name, _Item[Result]] | None:
        """Return the next key to compute, once there is room for its result; None at the end."""
        with self._changed:
            while not self._ended:
                waiting = ((key, one) for key, one in self._items.items() if not one.begun)
                result = next(waiting, None)
                if result is None:
                    break
                nbytes = result[1].nbytes
                if not self._held or self._held + nbytes <= self._most:
                    self._held += nbytes
                    result[1].begun = True
                    return result
                self._changed.wait()
            return None

    def __enter__(self) -> Self:
        for i, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError:  # there are no more to be had
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
    """A constant as a kernel is given it: of this type, which has as many numbers.

    Floats are rounded to float16 where that is the type.
    """

    constant: ConstantExpression
    type: TensorType
    passing: bool = field(default=False, compare=False)
    """Whether it is of one run's sizes, so that it goes with the plans that hold it."""

    @classmethod
    def from_array(cls, array: Array) -> Weight:
        """`array`, which never changes."""
        value = Value("constant", TensorType.from_array(array), Kind.CONSTANT, array)
        return cls(Leaf(value), value.type)

    @classmethod
    def made_of(cls, constant: ConstantExpression) -> Weight:
        """`constant`, of the type that it has."""
        return cls(constant, TensorType.from_array(evaluated(constant)))

    def made(self, derived: DerivedParameter) -> Weight:
        """Return the weight that `derived` computes from this one."""
        type = TensorType(derived.shape, self.type.dtype)
        source = OperatorResult(Reshape(self.shape), (self.constant,), None, (), 0)
        made = OperatorResult(derived.operator, (source,), None, (), 0, self.name, (type,))
        return Weight(made, type)

    @property
    def sized(self) -> bool:
        """Return True where the weight depends on symbolic sizes."""
        return Substitution(hint)(self.type) is not self.type or depends_on_sizes(self.constant)

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.type.shape

    def read(self) -> Array:
        """Its array as it is now. Raises ShapeError where float16 does not hold a number of it."""
        return self.rounded(evaluated(self.constant, self.type.dtype).reshape(self.shape))

    def rounded(self, array: Array) -> Array:
        """`array` as it is kept. Raises ShapeError where float16 does not hold a number of it."""
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
    """A weight on the device, the variables it is made of, and how often these were assigned."""

    weight: Weight
    store: Store
    variables: tuple[Variable, ...]
    revisions: list[int]
    first: list[int]
    """The variables' revisions at the first upload."""
    backend: Backend
    packed_words: NDArray[np.uint32] | None = None
    """What `words` gives next, where it need not be packed anew."""

    def words(self) -> NDArray[np.uint32]:
        """Return the weight's packed words but for zeros at its end; packed anew unless held."""
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
        """Return the buffer that has it. Only inside `perform`."""
        assert isinstance(self.store, Buffer) and self.backend.device is not None
        return self.store.push(self.backend.device)

    def texture(self, view: TextureView) -> DataTexture:
        """Return the texture that shows it, which all kernels share that fetch from it so."""
        assert isinstance(self.store, Buffer) and isinstance(self.backend, GlBackend)
        return self.backend.texture(self.store, view)

    def renew(self, backend: Backend) -> None:
        """Upload it where a variable was assigned since it was."""
        now = [variable.revision for variable in self.variables]
        if now != self.revisions:
            array = np.asarray(self.weight.read(), order="C")
            backend.renew(self.store, array)
            LOG.debug("uploaded %s anew, %d bytes", self.weight.name, array.nbytes)
            self.revisions = now  # only now: where it cannot be read, the next run asks again


Key = tuple[Weight, Layout, bool]
"""A weight, how it lies on the device, and whether for a kernel that copies it to a texture."""


@dataclass(frozen=True)
class Ready:
    """A weight to be uploaded."""

    array: Array
    """Its numbers."""
    words: NDArray[np.uint32] | None
    """As they lie on the device; None where that is yet to be done, or they are none."""
    revisions: list[int]
    """The revisions of its variables before it was read."""

    @classmethod
    def read(cls, key: Key, pack: bool) -> Ready:
        """Read the array of `key`, and pack its words if `pack`. Raises what `Weight.read` does."""
        weight, layout, _ = key
        revisions = [variable.revision for variable in weight.variables]
        array = weight.read()
        words = pack_words(layout, array) if pack else None  # from any order of memory, at once
        array = np.asarray(array, order="C") if words is None else array
        return cls(array, words, revisions)


class Weights:
    """The weights that the plans of a session share.

    A weight is another one for each layout, and for kernels that copy it into a texture. Those
    that are made of a graph's own constants and variables stay; others, which are of one plan's
    sizes, go with the plans that hold them.
    """

    def __init__(self, backend: Backend, graph: Graph | None = None) -> None:
        """graph: the session's; None keeps all."""
        self._backend = backend
        self._kept: WeakValueDictionary[Key, DeviceWeight] = WeakValueDictionary()
        self._own = None if graph is None else {v for node in graph.nodes for v in node.reads}
        self._staying: list[DeviceWeight] = []
        self._assigned: int | None = None
        """`ASSIGNMENTS.count` when all that is kept was up to date; None where it may not be."""
        self.uploaded = Spans()
        """When each of them was for the first time."""
        self._lock = process_lock()  # plans have locks of their own
        self._ahead: Ahead[Key, Ready] | None = None
        self._spare = 0  # bytes of packed words that may be held for whoever stores them

    @contextmanager
    def holding(self, nbytes: int) -> Iterator[None]:
        """While inside, hold the words that are packed, up to so many bytes: see
        `DeviceWeight.packed_words`.
        """
        self._spare = nbytes
        try:
            yield
        except BaseException:
            self.release()
            raise
        finally:
            self._spare = 0

    def release(self) -> None:
        """Hold no words any more: nobody stores them."""
        with self._lock:
            for kept in list(self._kept.values()):
                kept.packed_words = None

    @contextmanager
    def ahead(self, keys: Iterable[Key]) -> Iterator[None]:
        """While inside, have threads read and pack the weights that `keep` will be asked for."""
        if not self._backend.packs:
            yield
            return
        sized_keys = [(key, 4 * key[1].words(key[0].type)) for key in keys if key not in self._kept]
        with Ahead(sized_keys, partial(Ready.read, pack=True), None) as self._ahead:
            try:
                yield
            finally:
                self._ahead = None

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def keep(self, weight: Weight, layout: Layout, copied: bool) -> DeviceWeight:
        """`weight` on the device in `layout`; copied: for a kernel that reads a copy of it.

        Who uses its store holds what is given.
        """
        key = weight, layout, copied
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                ready = None if self._ahead is None else self._ahead.take(key)
                ready = ready or Ready.read(key, pack=self._backend.packs)
                variables, revisions, array = weight.variables, ready.revisions, ready.array
                with self.uploaded.record(weight.name, array.nbytes):
                    store = self._backend.keep(array, layout, ready.words)
                LOG.debug("uploaded %s as %s, %d bytes", weight.name, layout.name, array.nbytes)
                kept = self._kept[key] = DeviceWeight(
                    weight, store, variables, revisions, revisions, self._backend
                )
                if ready.words is not None and ready.words.nbytes <= self._spare:
                    kept.packed_words = ready.words
                    self._spare -= ready.words.nbytes
                self._assigned = None  # its array may have been read before the last refresh
                if self._is_permanent(weight):
                    self._staying.append(kept)
            return kept

    def _is_permanent(self, weight: Weight) -> bool:
        """Return True where it is of the graph's own values, and may be so for all sizes.

        One that has other numbers of elements than all of them, as a part of a table, may be of one
        plan's sizes: it goes with the plans that hold it.
        """
        values = [leaf.value for leaf in leaves(weight.constant)]
        if weight.passing:
            return False
        if self._own is None:
            return True
        if not self._own.issuperset(values):
            return False
        return prod(weight.shape) in [prod(value.type.shape) for value in values]

    def refresh(self) -> None:
        """Upload those whose variables were assigned since the last time, and only those."""
        if self._assigned == ASSIGNMENTS.count:
            return
        with self._lock:
            assigned = ASSIGNMENTS.count
            for kept in list(self._kept.values()):
                kept.renew(self._backend)
            self._assigned = assigned


@dataclass(frozen=True)
class Computed:
    """Call of an operator that is no array function, on arrays followed by sizes."""

    part: OperatorResult = field(compare=False)
    key: Hashable
    """What the part is but for its operands."""
    sizes: tuple[SymInt, ...]

    def __call__(self, *operands: Any) -> Array:
        *arrays, numbers = operands
        known = {one.expr: number for one, number in zip(self.sizes, numbers, strict=True)}
        part = substitute_sizes(self.part, Substitution(lambda one: known[one.expr]))
        return computed(part, range(len(arrays)), arrays)


class ArrayWriter:
    """Writes calls of array functions; what several weights have in common is called once.

    sizes: the table to which sizes are added. What NumPy computes is what
    `graph.constant.evaluated` computes for the sizes of a run.
    """

    def __init__(self, sizes: SizeTable) -> None:
        self._sizes = sizes
        self._constants: list[Array] = []
        self._numbers: dict[Hashable, int] = {}
        """The places of constants, by what they are."""
        self._calls: dict[Hashable, int] = {}
        self._written: list[ArrayCall] = []
        self._dtypes: list[np.dtype[Any]] = []
        """The dtypes of the results of calls."""
        self._widened: dict[int, int] = {}
        """By the place of a cast to WIDE that of the floats that it widens."""
        self._results: dict[str, int] = {}
        self._nbytes: Any = 0

    def add(self, name: str, weight: Weight, dtype: DType) -> None:
        """Write `weight` as the tensor `name`, of `dtype`."""
        of, shape = weight.constant, weight.shape
        place = self._constant_index(of)
        known = isinstance(of, OperatorResult) and of.types and same(of.types[of.index].dims, shape)
        if not known:
            place = self._call("reshape", (place,), (shape,))
        if self._dtype(place).kind == "f":
            floats = weight.type.dtype if weight.type.dtype.kind == "float" else DType.float32
            if floats is DType.float16:
                place = self._call("round_to_float16", (place,), (weight.name,), floats.numpy)
            place = self._cast(place, floats.numpy)
        self._results[name] = self._cast(place, dtype.numpy)
        self._nbytes += WIDE.itemsize * prod(shape)

    def written(self) -> ArrayProgram:
        """Return the program."""
        calls, nbytes = tuple(self._written), self._sizes.size(self._nbytes)
        return ArrayProgram(tuple(self._constants), calls, self._results, nbytes)

    def _dtype(self, place: int) -> np.dtype[Any]:
        return self._dtypes[place] if place >= 0 else self._constants[~place].dtype

    def _call(
        self,
        function: str | Callable[..., Array],
        reads: tuple[int, ...],
        attributes: tuple[Any, ...] = (),
        dtype: np.dtype[Any] | None = None,
    ) -> int:
        """Return the place of a call.

        dtype: of the result; None for that of what it reads first.
        """
        if function in MOVES and reads[0] in self._widened:
            narrow = self._call(function, (self._widened[reads[0]], *reads[1:]), attributes)
            return self._cast(narrow, WIDE)
        known = self._sizes.size(attributes)
        key = function, reads, repr(known)
        if key not in self._calls:
            self._calls[key] = len(self._written)
            self._written.append(ArrayCall(function, reads, known))
            self._dtypes.append(self._dtype(reads[0]) if dtype is None else np.dtype(dtype))
        return self._calls[key]

    def _cast(self, place: int, dtype: Any) -> int:
        if self._dtype(place) == dtype:
            return place
        result = self._call("cast", (place,), (np.dtype(dtype).name,), dtype)
        if dtype == WIDE and self._dtype(place).kind == "f":
            self._widened[result] = place
        return result

    def _constant(self, key: Hashable, array: Array) -> int:
        if key not in self._numbers:
            self._numbers[key] = ~len(self._constants)
            self._constants.append(array)
        return self._numbers[key]

    def _constant_index(self, constant: ConstantExpression) -> int:
        """Return the place of a constant, all parts of which are written."""
        parts = ((constant, ()),) if isinstance(constant, Leaf) else constant.parts
        indices: list[int] = []
        for part, at in parts:
            reads = tuple(indices[i] for i in at)
            place = self._leaf(part) if isinstance(part, Leaf) else self._made(part, reads)
            half = self._dtype(place) == np.float16
            indices.append(self._cast(place, WIDE) if half else place)
        return indices[-1]

    def _leaf(self, leaf: Leaf) -> int:
        array, dtype = leaf.value.data, leaf.value.type.dtype
        if isinstance(array, np.ndarray) and is_symbolic(array):  # integers that follow from sizes
            dtype = DType.int64 if dtype is DType.object else dtype
            attributes = tuple(array.reshape(-1).tolist()), array.shape, dtype.value
            return self._call("array", (), attributes, dtype.numpy)
        array = leaf.read()
        place = self._constant(leaf, array)
        return self._cast(place, WIDE) if DType.from_array(array).kind == "float" else place

    def _made(self, part: OperatorResult, reads: tuple[int, ...]) -> int:
        operator, types = part.operator, part.types
        if part.epilogue is None and None not in part.operands:
            if isinstance(operator, Identity):
                return reads[0]
            if isinstance(operator, Pointwise):
                place = self._pointwise(operator, reads)
                if place is not None:
                    return place
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
        """Return the place of an expression; None where not all operands are read by functions."""
        expr = operator.expr.expanded
        read = {part.index for part in expr.parts() if isinstance(part, Arg)}
        if not isinstance(expr, Call) or read != set(range(len(reads))):
            return None

        def index_of(part: Expr, operands: tuple[int | Expr, ...]) -> int | Expr:
            if isinstance(part, Arg):
                return reads[part.index]
            return self._function(part, operands) if isinstance(part, Call) else part

        place = expr.fold(index_of)[-1]
        assert isinstance(place, int)
        declared = operator.result_dtype([_declared(self._dtype(one)) for one in reads])
        return self._cast(place, declared.numpy)

    def _function(self, part: Call, operands: tuple[int | Expr, ...]) -> int | Expr:
        """Return the place of a function of places and numbers; a number where it is of these."""
        row = part.row
        if not any(isinstance(one, int) for one in operands):
            return Scalar(row.evaluate(*(_number(one) for one in operands)))
        rest = operands[row.condition :]
        dtypes = [self._dtype(one) for one in rest if isinstance(one, int)]
        if dtypes:
            dtype = max(dtypes, key=lambda one: one.itemsize)
        else:
            kind = kind_of(_number(rest[0]))
            dtype = WIDE if kind == "float" else NUMBERS[kind].numpy
        places = [self._typed(one, np.dtype(bool)) for one in operands[: row.condition]]
        places += [self._typed(one, np.dtype(dtype)) for one in rest]
        assert row.numpy is not None
        with np.errstate(all="ignore"):
            empty = row.numpy(*(np.zeros(0, self._dtype(one)) for one in places))
        if row.name.startswith("cast_"):
            return self._call("cast", tuple(places), (row.gives,), empty.dtype)
        name = getattr(row.numpy, "__name__", "")
        function = name if FUNCTIONS.get(name) is row.numpy else row.numpy
        return self._call(function, tuple(places), (), empty.dtype)

    def _typed(self, one: int | Expr, dtype: np.dtype[Any]) -> int:
        """Return the place of an array or a number as `dtype`."""
        if isinstance(one, int):
            return self._cast(one, dtype)
        number = _number(one)
        return self._constant((dtype, repr(number)), np.asarray(number, dtype))

    def _computed(self, part: OperatorResult, reads: tuple[int, ...]) -> int:
        """Return the place of what an operator that is no array function makes."""
        if not part.types:
            raise UnsupportedOpError(f"{part.operator.label} of open sizes is of an unknown type")
        sizes: dict[Any, SymInt] = {}

        def number(one: SymInt) -> int:
            return hint(sizes.setdefault(one.expr, one))

        Substitution(number)((part.operator, part.epilogue, part.types))
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
