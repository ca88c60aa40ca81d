"""Evaluation of expressions by NumPy, block by block, compiled or packed, and by interval
arithmetic.

A packed program is of expressions that are evaluated over and over: alike calls of neighbouring
operands are one call. Steps of recurrent layers are of few numbers, so that each call of NumPy
takes longer than its arithmetic. The gates of a unit are alike: their sums lie side by side, so the
sum of all gates and inputs is one call, and the sigmoid of three gates another one. This is the
superword-level parallelism of compilers (Larsen and Amarasinghe 2000), of arrays instead of
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from glnn.core.array_functions import clip, writes_to
from glnn.core.types import Array, DType, Shape
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call
from glnn.graph.function import Function, Number
from glnn.graph.interval import INT32, Interval

ExpressionStep = Callable[[list[Any]], Any]
BLOCK_SIZE = 1 << 16
"""Numbers of a block: some blocks of float32, 256 KiB each, are what a core's cache holds."""


class CompiledExpression:
    """The value of `expr` for arguments of the types `dtypes`.

    What types of numbers and which functions they are is found once, where `Expr.evaluate` finds it
    for each array. Called with an array of each type, which broadcast; within `np.errstate`.
    """

    def __init__(self, expr: Expr, dtypes: Sequence[np.dtype[Any]]) -> None:
        whole = expr.expanded
        if all(dtype.kind == "f" for dtype in dtypes):
            whole = _with_quotients(_with_clips(whole))
        empty: list[Any] = []  # each part of arrays without numbers, which tells its type
        self._fixed, self._steps = list[Any](), list[ExpressionStep]()
        self._calls: list[tuple[Any, list[int], np.dtype[Any] | None]] = []
        parts = list(enumerate(whole._part_list))
        with np.errstate(all="ignore"):
            for _, (part, operands) in parts:
                if isinstance(part, Arg):
                    empty.append(np.zeros(0, dtypes[part.index]))
                elif isinstance(part, Scalar | Constant):
                    empty.append(part.value)
                else:
                    assert isinstance(part, Call)
                    empty.append(part.row.evaluate(*(empty[place] for place in operands)))
        numbers = [i for i, one in enumerate(empty) if not isinstance(one, np.ndarray)]
        calls = [i for i, (part, _) in parts if isinstance(part, Call) and i not in numbers]
        uses = [(i, place) for i in calls for place in whole._part_list[i][1] if place in numbers]
        slots: dict[object, int] = {}
        for use in uses:  # a number takes the type of what it is used with
            slots[use] = len(dtypes) + len(self._fixed)
            self._fixed.append(_typed_number(whole, empty, *use))
        first = len(dtypes) + len(self._fixed)
        slot_of = {i: first + n for n, i in enumerate(calls)}
        slot_of |= {i: part.index for i, (part, _) in parts if isinstance(part, Arg)}
        for i in calls:
            part, operands = whole._part_list[i]
            assert isinstance(part, Call)
            places = [slots.get((i, place), slot_of.get(place, 0)) for place in operands]
            function, writes = _function(part, [empty[place] for place in operands])
            self._steps.append(_call_of(function, places))
            self._calls.append((function, places, empty[i].dtype if writes else None))
        root = len(empty) - 1
        self.dtype = np.asarray(empty[root]).dtype
        """The type of the value."""
        self.fresh = root in calls
        """True where the value is a new array, and not an argument or a number."""
        self._root = None if root in numbers else slot_of[root]
        self._number = empty[root] if root in numbers else None
        self._rooms = self._assign_rooms(first)

    def _assign_rooms(self, first: int) -> list[int | None]:
        """Return the number of the scratch block that each call writes to: one that no later call
        reads, so that few of them stay in a cache. None for a call that makes an array itself.

        first: the place of the first call's value among the values.
        """
        last = {place: i for i, (_, places, _) in enumerate(self._calls) for place in places}
        rooms: list[int | None] = []
        dtypes: list[np.dtype[Any]] = []
        free: list[int] = []
        for i, (_, places, dtype) in enumerate(self._calls):
            for place in {*places}:  # what is read here for the last time may be written to
                room = rooms[place - first] if place >= first else None
                if room is not None and last[place] == i:
                    free.append(room)
            if dtype is None:
                rooms.append(None)
                continue
            room = next((one for one in free if dtypes[one] == dtype), None)
            if room is None:
                room = len(dtypes)
                dtypes.append(dtype)
            else:
                free.remove(room)
            rooms.append(room)
        self._room_types = dtypes
        return rooms

    @staticmethod
    @lru_cache(maxsize=1024)
    def cached(expr: Expr, dtypes: tuple[np.dtype[Any], ...]) -> CompiledExpression:
        """Return the one for `expr` and `dtypes`, which any number of threads may call."""
        return CompiledExpression(expr, dtypes)

    def __call__(self, *arrays: Array) -> Any:
        if self._root is None:
            return self._number
        values: list[Any] = [*arrays, *self._fixed]
        for step in self._steps:
            values.append(step(values))
        return values[self._root]

    def scratch(self, count: int) -> list[Array]:
        """Return blocks of `count` numbers for the calls of `fill`, which overwrites them."""
        return [np.empty(count, dtype) for dtype in self._room_types]

    def full_calls(self, shape: Shape, shapes: Sequence[Shape]) -> list[bool]:
        """Return of each call whether its result is of `shape` where arguments are of `shapes`;
        those of others are smaller, and broadcast.
        """
        numbers = [(1,) * len(shape)] * len(self._fixed)
        known = [*((*(1,) * (len(shape) - len(one)), *one) for one in shapes), *numbers]
        first = len(known)
        for _, places, _ in self._calls:
            known.append(tuple(map(max, zip(*(known[place] for place in places), strict=True))))
        return [one == shape for one in known[first:]]

    def fill(
        self,
        out: Array,
        arrays: Sequence[Array],
        scratch: Sequence[Array],
        full: Sequence[bool],
    ) -> None:
        """Write the value for `arrays` to `out`, which may be one of them.

        scratch: of `scratch`, each of out's shape. full: of `full_calls`.
        """
        if self._root is None:
            out[...] = self._number
            return
        values: list[Any] = [*arrays, *self._fixed]
        end = len(values) + len(self._calls) - 1
        calls = zip(self._calls, self._rooms, full, strict=True)
        for (function, places, dtype), room, fills in calls:
            operands = [values[place] for place in places]
            if room is None or not fills:  # in a whole block it would be computed over and over
                values.append(function(*operands))
            else:
                last = len(values) == end and dtype == out.dtype
                values.append(function(*operands, out=out if last else scratch[room]))
        if (value := values[self._root]) is not out:
            out[...] = value


def _with_clips(expr: Expr) -> Expr:
    """Return `expr` of floats with `clip` where it takes the greater or smaller of something and a
    number: NumPy does both in one call, and is several times as fast as its `maximum` of these.
    """

    def visit(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if not isinstance(part, Call):
            return part
        if part.function in ("maximum", "minimum"):
            numbers = [one for one in arguments if _is_float_number(one)]
            others = [one for one in arguments if not _is_float_number(one)]
            if numbers and others:
                (x,), (bound,) = others, numbers
                if part.function == "maximum":
                    return Call("clip", (x, bound, Scalar(np.inf)))
                if (
                    isinstance(x, Call)
                    and x.function == "clip"
                    and x.arguments[2] == Scalar(np.inf)
                ):
                    return Call("clip", (*x.arguments[:2], bound))
                return Call("clip", (x, Scalar(-np.inf), bound))
        return Call(part.function, arguments)

    return expr.fold(visit)[-1]


def _with_quotients(expr: Expr) -> Expr:
    """Return `expr` of floats with -x / (-1 - exp(-x)) for x sigmoid(x): fewer passes over a block,
    of which the one for -x is that for the sum that x is.
    """

    def visit(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if not isinstance(part, Call):
            return part
        if part.function == "mul":
            for x, factor in (arguments, arguments[::-1]):
                if factor == Call("sigmoid", (x,)):
                    is_sum = isinstance(x, Call) and x.function == "add"
                    opposite = (
                        call("sub", call("neg", x.arguments[1]), x.arguments[0])
                        if is_sum
                        else call("neg", x)
                    )
                    return call("quotient", opposite, call("sub", -1.0, call("exp", opposite)))
        return Call(part.function, arguments)

    return expr.fold(visit)[-1]


def _is_float_number(expr: Expr) -> bool:
    return isinstance(expr, Scalar | Constant) and isinstance(expr.value, float)


def _typed_number(whole: Expr, empty: Sequence[Any], call: int, place: int) -> Any:
    """The number at `place` as the function called at `call` is given it."""
    part, operands = whole._part_list[call]
    assert isinstance(part, Call)
    rest = [empty[one] for one in operands[part.row.condition :]]
    dtypes = {one.dtype for one in rest if isinstance(one, np.ndarray)}
    if len(dtypes) != 1 or place not in operands[part.row.condition :]:
        return empty[place]
    return np.asarray(empty[place], next(iter(dtypes)))


def _function(part: Call, empty: Sequence[Any]) -> tuple[Any, bool]:
    """Return the function that computes `part` without looking at types again, and whether it
    writes to an array called `out`.

    empty: each operand without numbers.
    """
    rest = empty[part.row.condition :]
    dtypes = {one.dtype for one in rest if isinstance(one, np.ndarray)}
    if len(dtypes) != 1:
        return part.row.evaluate, False
    assert part.row.numpy is not None
    function = clip if part.row.numpy is np.clip else part.row.numpy
    return function, writes_to(function)


def _call_of(function: Any, places: Sequence[int]) -> ExpressionStep:
    """Return the call of `function` for what `places` of a list hold."""
    if len(places) == 1:
        (a,) = places
        return lambda values: function(values[a])
    if len(places) == 2:
        a, b = places
        return lambda values: function(values[a], values[b])
    return lambda values: function(*[values[place] for place in places])


def evaluate_blockwise(
    expr: Expr,
    arrays: Sequence[Array],
    shape: Shape,
    dtype: np.dtype[Any],
    out: Array | None = None,
) -> Array:
    """Return `expr` of `arrays`, which broadcast to `shape`, as a new array. Never warns.

    out: of that shape and dtype, where the result is to lie; it may be one of `arrays`, but may not
    share memory with others.
    """
    value = CompiledExpression.cached(expr, tuple(array.dtype for array in arrays))
    with np.errstate(all="ignore"):
        return _evaluate(value, arrays, _new_array(shape, dtype, arrays) if out is None else out)


MANY_PIXELS = 1 << 13
"""Numbers of an image with channels innermost, from which it is computed in long rows; of others
it is `BLOCK_SIZE`: fewer are faster in one go."""


def _new_array(shape: Shape, dtype: np.dtype[Any], arrays: Sequence[Array]) -> Array:
    """Return an array that lies in memory as the first of `arrays` with that shape does."""
    like = next((one for one in arrays if one.shape == shape), None)
    return np.empty(shape, dtype) if like is None else np.empty_like(like, dtype)


def compile_expression(
    expr: Expr, dtypes: Sequence[np.dtype[Any]], dtype: np.dtype[Any]
) -> Callable[..., Array]:
    """Return what evaluates `expr` of arrays of `dtypes`, as a new array of `dtype`.

    It is called with the shape that these broadcast to, and them, within `np.errstate`. `out`, of
    that shape and `dtype`, may be written to in the place of a new array: one of the arrays that
    nobody needs any more, or another one. Who calls takes what is returned.
    """
    value = CompiledExpression.cached(expr, tuple(dtypes))
    fresh = value.fresh and value.dtype == dtype

    def compute(shape: Shape, *arrays: Array, out: Array | None = None) -> Array:
        count = prod(shape)
        if count > MANY_PIXELS and (count > BLOCK_SIZE or not arrays[0].flags.c_contiguous):
            out = _new_array(shape, dtype, arrays) if out is None else out
            return _evaluate(value, arrays, out)
        result = value(*arrays)
        return (
            result
            if fresh and shape and result.shape == shape
            else _broadcast_copy(result, shape, dtype)
        )

    return compute


def _evaluate(value: CompiledExpression, arrays: Sequence[Array], out: Array) -> Array:
    """Write `value` for `arrays` to `out`, block by block, and return it."""
    if not out.size:
        return out
    result, order = out, _memory_order(out)
    if order is not None:
        out, rank = out.transpose(order), out.ndim
        wide = (one.reshape((1,) * (rank - one.ndim) + one.shape) for one in arrays)
        arrays = [one.transpose(order) for one in wide]
    shape, shapes = out.shape, tuple([one.shape for one in arrays])
    if out.flags.c_contiguous and all(one.flags.c_contiguous for one in arrays):
        shape, shapes = _merge_axes(shape, shapes)
        if len(shape) == 2 and shape[1] < SHORT_ROW:
            shape, shapes, arrays = _repeat_rows(shape, shapes, arrays)
    whole = out.reshape(shape)
    views = [one.reshape(merged) for one, merged in zip(arrays, shapes, strict=True)]
    scratch, rooms = value.scratch(min(BLOCK_SIZE, out.size)), list[Array]()
    full = value.full_calls(shape, shapes)
    room_shape: Shape | None = None
    for place, indices in _index_blocks(shape, shapes):
        block = whole[place]
        if room_shape != block.shape:
            if scratch and block.size > scratch[0].size:  # a row that is longer than a block
                scratch = value.scratch(block.size)
            rooms = [room[: block.size].reshape(block.shape) for room in scratch]
            room_shape = block.shape
        operands = [one[i] for one, i in zip(views, indices, strict=True)]
        value.fill(block, operands, rooms, full)
    return result


def _memory_order(array: Array) -> list[int] | None:
    """Return the axes of `array` as they lie in memory, outermost first; None where that is so."""
    if array.flags.c_contiguous:
        return None
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return order if array.transpose(order).flags.c_contiguous else None


SHORT_ROW = 1 << 9
"""Numbers of a row below which NumPy takes longer to begin with it than to compute it."""
LONG_ROW = 1 << 12
"""Numbers of rows that are joined, at the most."""


def _repeat_rows(
    shape: Shape, shapes: tuple[Shape, ...], arrays: Sequence[Array]
) -> tuple[Shape, tuple[Shape, ...], list[Array]]:
    """Return the same with some of the short rows of a result as one, for which rows that all have
    in common are repeated: NumPy begins anew for each row.
    """
    count, size = shape
    most = min(count, LONG_ROW // size)
    times = next((n for n in range(most, 0, -1) if count % n == 0), 1)
    seen, repeated = [], []
    for one, array in zip(shapes, arrays, strict=True):
        if one == (1, size):
            array = np.tile(array.reshape(size), times)
            one = 1, times * size
        elif one == shape:
            one = count // times, times * size
        elif one != (1, 1):
            return shape, shapes, list(arrays)
        seen.append(one)
        repeated.append(array)
    return (count // times, times * size), tuple(seen), repeated


@lru_cache(maxsize=64)
def _merge_axes(shape: Shape, shapes: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """Return the fewest axes of a result of `shape`, and of operands of `shapes` that broadcast to
    it: neighbouring axes are one where each operand has both or neither. All are row major.
    """
    padded = [(*(1,) * (len(shape) - len(one)), *one) for one in shapes]
    merged: list[int] = []
    having: list[tuple[bool, ...]] = []
    for axis, size in enumerate(shape):
        has = tuple(one[axis] == size for one in padded)
        if size > 1 and having and having[-1] == has:
            merged[-1] *= size
        elif size > 1:
            merged.append(size)
            having.append(has)
    if not merged:
        return (1,), ((1,),) * len(shapes)
    operands = [
        tuple(size if has[i] else 1 for size, has in zip(merged, having, strict=True))
        for i in range(len(shapes))
    ]
    return tuple(merged), tuple(operands)


BlockIndex = tuple[tuple[slice, ...], list[tuple[slice, ...]]]
"""The index of a block of a result, and the index into each operand."""
MOST_INDEXED = 64
"""Blocks of a result whose indices are kept for the next one of that shape."""


def _index_blocks(shape: Shape, shapes: tuple[Shape, ...]) -> Iterable[BlockIndex]:
    """Return the indices of each block of a result of `shape`, of operands of `shapes` that
    broadcast to it.
    """
    if prod(shape) <= MOST_INDEXED * BLOCK_SIZE:
        return _kept_indices(shape, shapes, BLOCK_SIZE)
    return _block_indices(shape, shapes)


@lru_cache(maxsize=16)
def _kept_indices(shape: Shape, shapes: tuple[Shape, ...], size: int) -> tuple[BlockIndex, ...]:
    """Return the same for blocks of `size` numbers."""
    return tuple(_block_indices(shape, shapes))


def _block_indices(shape: Shape, shapes: tuple[Shape, ...]) -> Iterator[BlockIndex]:
    for place in blocks(shape):
        yield place, [_index_of_block(one, place, len(shape)) for one in shapes]


def _broadcast_copy(value: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return `value` broadcast to `shape`, as a new array."""
    out = np.empty(shape, dtype)
    out[...] = value
    return out


def blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each block of an array of `shape`: BLOCK_SIZE numbers, or a longer row.

    All have a slice for each of the first axes, the same number of them.
    """
    inner = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    last = next((axis for axis, size in enumerate(inner) if size <= BLOCK_SIZE), len(shape) - 1)
    steps = [*(1 for _ in range(last)), max(BLOCK_SIZE // max(inner[last], 1), 1)]
    sizes = zip(shape, steps, strict=False)
    yield from product(
        *([slice(i, i + step) for i in range(0, size, step)] for size, step in sizes)
    )


def runs(count: int, each: int) -> Iterator[slice]:
    """Return slices of blocks of `count` things of `each` numbers: of BLOCK_SIZE, or of one thing
    where that is more.
    """
    step = max(BLOCK_SIZE // max(each, 1), 1)
    return (slice(i, i + step) for i in range(0, count, step))


def _index_of_block(
    shape_of_array: Shape, place: tuple[slice, ...], rank: int
) -> tuple[slice, ...]:
    """Return the index into an array of shape `shape_of_array` that broadcasts to the block at
    `place` of an array of `rank` dimensions.
    """
    missing = rank - len(shape_of_array)
    pairs = zip(shape_of_array, place[missing:], strict=False)
    return tuple(slice(None) if size == 1 else part for size, part in pairs)


CAST_INT64, CAST_INT32 = "cast_int64", "cast_int32"


def value_ranges_of(
    expr: Expr, intervals: Sequence[Interval], dtypes: Sequence[DType]
) -> list[Interval]:
    """Return the interval of each part of `expr.expanded`, the whole expression's last, for
    arguments that lie within `intervals`.

    dtypes: the arguments'.
    """
    whole = expr.expanded
    types = iter(whole.infer_parts(dtypes))

    def interval_of(part: Expr, arguments: tuple[Interval, ...]) -> Interval:
        dtype = next(types)
        if isinstance(part, Arg):
            return intervals[part.index]
        if isinstance(part, Call):
            if part.function == "sub" and dtype.kind == "int" and len(set(part.arguments)) == 1:
                return Interval(0, 0)
            return part.row.value_range(arguments, dtype)
        assert isinstance(part, Scalar | Constant)
        return Interval.of_number(part.value)

    return whole.fold(interval_of)


def narrow_expression(
    expr: Expr, intervals: Sequence[Interval], dtypes: Sequence[DType]
) -> Expr | None:
    """Return `expr` with int32 in the place of int64; None where an intermediate number may not fit
    int32.

    intervals, dtypes: of the arguments.
    """
    types = expr.expanded.infer_parts(dtypes)
    parts = value_ranges_of(expr, intervals, dtypes)
    for dtype, interval in zip(types, parts, strict=True):
        if dtype is DType.float64 or (dtype.kind == "int" and not interval.within(INT32)):
            return None
    return expr.fold(_narrow_part)[-1]


def _narrow_part(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
    if not isinstance(part, Call):
        return part
    return Call(CAST_INT32 if part.function == CAST_INT64 else part.function, arguments)


BoundCall = Callable[[], object]


@dataclass(frozen=True)
class _BankSlice:
    """Entries `start` to before `stop` of a bank, an array of equally shaped ones."""

    bank: int
    start: int
    stop: int


Operand = _BankSlice | Number


@dataclass(frozen=True)
class _Instruction:
    """A call of `row` on packs of entries; its result is a bank of its own."""

    row: Function
    operands: tuple[Operand, ...]
    count: int
    dtype: np.dtype[Any]
    plain: bool
    """True where all operands that are arrays have one type, so that nothing is cast in between."""


@dataclass(frozen=True)
class PackedProgram:
    """Instructions for some expressions, whose arguments lie in banks, one behind the other.

    banks: the number of arguments in each of the banks that are given. results: of each expression,
    where its value lies.
    """

    banks: tuple[int, ...]
    instructions: tuple[_Instruction, ...]
    results: tuple[Operand, ...]
    dtype: np.dtype[Any]

    def bind(self, banks: Sequence[Array], out: Array) -> list[BoundCall]:
        """Return calls that, in order, compute all expressions from `banks` into `out`.

        banks: each (arguments, *shape). out: (expressions, *shape), which shares no memory with
        these. All are of the program's type. The calls may be repeated when the banks change.
        """
        rooms, shape = list(banks), out.shape[1:]
        into = {p.bank: i for i, p in enumerate(self.results) if isinstance(p, _BankSlice)}
        done: set[int] = set()
        work: list[BoundCall] = []

        def fetch(operand: Operand, dtype: np.dtype[Any] | None) -> Any:
            if isinstance(operand, _BankSlice):
                return rooms[operand.bank][operand.start : operand.stop]
            return operand if dtype is None else np.asarray(operand, dtype)

        for number, one in enumerate(self.instructions, len(self.banks)):
            last = into.get(number)
            if last is not None and one.count == 1 and one.dtype == out.dtype:
                room = out[last : last + 1]
                done.add(last)
            else:
                room = np.empty((one.count, *shape), one.dtype)
            rooms.append(room)
            first = one.row.condition
            dtype = self._dtype(one) if one.plain else None
            operands = [fetch(o, dtype if i >= first else None) for i, o in enumerate(one.operands)]
            work.append(_bind_call(one, operands, room))
        for i, place in enumerate(self.results):
            if i not in done:
                work.append(_bind_copy(out[i : i + 1], fetch(place, out.dtype)))
        return work

    def _dtype(self, one: _Instruction) -> np.dtype[Any]:
        """The type of the arrays among the operands of `one`, and of numbers beside them."""
        argument_banks = self.banks
        for operand in one.operands[one.row.condition :]:
            if isinstance(operand, _BankSlice):
                inner = operand.bank - len(argument_banks)
                return self.dtype if inner < 0 else self.instructions[inner].dtype
        return self.dtype


def _bind_call(one: _Instruction, operands: Sequence[Any], room: Array) -> BoundCall:
    """The call that `one` is."""
    function = one.row.numpy
    assert function is not None
    if one.plain and writes_to(function):
        return lambda: function(*operands, out=room)
    compute = function if one.plain else one.row.evaluate
    return lambda: np.copyto(room, compute(*operands), casting="unsafe")


def _bind_copy(target: Array, source: Any) -> BoundCall:
    return lambda: np.copyto(target, source, casting="unsafe")


@lru_cache(maxsize=256)
def packed_program(
    exprs: tuple[Expr, ...], banks: tuple[int, ...], dtype: np.dtype[Any]
) -> PackedProgram:
    """Return the program of `exprs`, whose arguments fill `banks`, all of them of type `dtype`.

    Arg(0) is the first of the first bank. There are no more arguments than the banks have places.
    """
    return _Packing(banks, dtype).program(exprs)


class _Packing:
    """The making of a program."""

    def __init__(self, banks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._banks, self._dtype = banks, dtype
        self._operand_of: dict[int, Operand] = {}  # by what a part is numbered
        self._types: dict[int, Any] = {}  # an array without numbers, or a number
        self._calls: dict[int, tuple[Function, tuple[int, ...]]] = {}
        self._numbered: dict[Any, int] = {}
        self._instructions: list[_Instruction] = []

    def program(self, exprs: Sequence[Expr]) -> PackedProgram:
        """The program of `exprs`."""
        last = [self._numbers(expr.expanded) for expr in exprs]
        waiting = dict(self._calls)
        while waiting:
            ready = {
                n: one for n, one in waiting.items() if all(o in self._operand_of for o in one[1])
            }
            for run in self._runs(ready):
                self._add(run)
            waiting = {n: one for n, one in waiting.items() if n not in ready}
        results = tuple(self._operand_of[number] for number in last)
        return PackedProgram(self._banks, tuple(self._instructions), results, self._dtype)

    def _numbers(self, expr: Expr) -> int:
        """Number all parts of `expr`, equal ones of other expressions alike; return its own."""

        def visit(part: Expr, places: tuple[int, ...]) -> int:
            key = part.value if isinstance(part, Scalar | Constant) else part._identity
            number = self._numbered.setdefault(
                (type(part).__name__, repr(key), places), len(self._numbered)
            )
            if number in self._types:
                return number
            if isinstance(part, Arg):
                self._operand_of[number] = self._argument(part.index)
                self._types[number] = np.zeros(0, self._dtype)
            elif isinstance(part, Scalar | Constant):
                self._operand_of[number] = self._types[number] = part.value
            else:
                assert isinstance(part, Call)
                self._types[number] = part.row.evaluate(*(self._types[n] for n in places))
                if isinstance(self._types[number], np.ndarray):
                    self._calls[number] = part.row, places
                else:  # of numbers alone
                    self._operand_of[number] = self._types[number]
            return number

        return expr.fold(visit)[-1]

    def _argument(self, index: int) -> _BankSlice:
        for bank, count in enumerate(self._banks):
            if index < count:
                return _BankSlice(bank, index, index + 1)
            index -= count
        raise IndexError(f"argument {index} is beyond the banks {self._banks}")

    def _runs(self, ready: dict[int, tuple[Function, tuple[int, ...]]]) -> list[list[int]]:
        """The calls that are `ready`, those together that can be one."""

        def order(number: int) -> tuple[Any, ...]:
            row, operands = ready[number]
            places = [self._operand_of[n] for n in operands]
            return row.name, [
                (0, p.bank, p.start) if isinstance(p, _BankSlice) else (1, repr(p), 0)
                for p in places
            ]

        runs: list[list[int]] = []
        for number in sorted(ready, key=order):
            if runs and self._follows(ready[runs[-1][-1]], ready[number]):
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def _follows(
        self, first: tuple[Function, tuple[int, ...]], second: tuple[Function, tuple[int, ...]]
    ) -> bool:
        """Return True where each operand of `second` lies behind that of `first`, or is it."""
        if first[0] is not second[0]:
            return False
        for before, after in zip(first[1], second[1], strict=True):
            here, there = self._operand_of[before], self._operand_of[after]
            if isinstance(here, _BankSlice) and isinstance(there, _BankSlice):
                if (here.bank, here.stop) != (there.bank, there.start):
                    return False
            elif isinstance(here, _BankSlice) or before != after:
                return False
        return True

    def _add(self, run: Sequence[int]) -> None:
        """Make one instruction of the calls in `run`."""
        row, first = self._calls[run[0]]
        _, last = self._calls[run[-1]]
        operands: list[Operand] = []
        for start, stop in zip(first, last, strict=True):
            here, there = self._operand_of[start], self._operand_of[stop]
            if isinstance(here, _BankSlice) and isinstance(there, _BankSlice):
                operands.append(_BankSlice(here.bank, here.start, there.stop))
            else:
                operands.append(here)
        arrays = [self._types[n] for n in first[row.condition :]]
        dtypes = {array.dtype for array in arrays if isinstance(array, np.ndarray)}
        condition = not row.condition or isinstance(self._types[first[0]], np.ndarray)
        bank = len(self._banks) + len(self._instructions)
        self._instructions.append(
            _Instruction(
                row,
                tuple(operands),
                len(run),
                self._types[run[0]].dtype,
                len(dtypes) == 1 and condition,
            )
        )
        for i, number in enumerate(run):
            self._operand_of[number] = _BankSlice(bank, i, i + 1)
