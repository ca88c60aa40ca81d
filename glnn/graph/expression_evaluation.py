"""Evaluation of expressions by NumPy, block by block, compiled or packed, and by interval
arithmetic.

A packed program is for expressions that are evaluated over and over: it merges calls of the same
function on adjacent operands into one. The steps of recurrent layers are of few numbers, so that
each call of NumPy takes longer than its arithmetic. The gates of a unit are alike and adjacent in
memory, so the sum of all gates and inputs is one call, and the sigmoid of three gates another one.
This is the superword-level parallelism of compilers (Larsen and Amarasinghe 2000), of arrays
instead of numbers.
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
"""Numbers of a block: a core's cache holds several blocks of float32, 256 KiB each."""


class CompiledExpression:
    """The evaluation of `expr` for arguments of the types `dtypes`.

    Types of numbers and functions are resolved once, while `Expr.evaluate` resolves them on each
    call. It is called with an array of each type, which broadcast, within `np.errstate`.
    """

    def __init__(self, expr: Expr, dtypes: Sequence[np.dtype[Any]]) -> None:
        whole = expr.expanded
        if all(dtype.kind == "f" for dtype in dtypes):
            whole = _with_quotients(_with_clips(whole))
        empty: list[Any] = []  # the value of each part for empty arrays, which tells its type
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
                    empty.append(part.row.evaluate(*(empty[index] for index in operands)))
        numbers = [i for i, value in enumerate(empty) if not isinstance(value, np.ndarray)]
        calls = [i for i, (part, _) in parts if isinstance(part, Call) and i not in numbers]
        uses = [(i, index) for i in calls for index in whole._part_list[i][1] if index in numbers]
        number_slots: dict[object, int] = {}
        for use in uses:  # a number takes the type of the other operands of its call
            number_slots[use] = len(dtypes) + len(self._fixed)
            self._fixed.append(_typed_number(whole, empty, *use))
        first = len(dtypes) + len(self._fixed)
        slot_of = {i: first + n for n, i in enumerate(calls)}
        slot_of |= {i: part.index for i, (part, _) in parts if isinstance(part, Arg)}
        for i in calls:
            part, operands = whole._part_list[i]
            assert isinstance(part, Call)
            slots = [number_slots.get((i, index), slot_of.get(index, 0)) for index in operands]
            function, writes = _function(part, [empty[index] for index in operands])
            self._steps.append(_call_of(function, slots))
            self._calls.append((function, slots, empty[i].dtype if writes else None))
        root = len(empty) - 1
        self.dtype = np.asarray(empty[root]).dtype
        """The type of the value."""
        self.fresh = root in calls
        """True where the value is a new array, and not an argument or a number."""
        self._root = None if root in numbers else slot_of[root]
        self._number = empty[root] if root in numbers else None
        self._blocks = self._assign_blocks(first)

    def _assign_blocks(self, first: int) -> list[int | None]:
        """Return the index of the scratch block that each call writes to, and set their types. A
        block is reused after its last reader, so that they stay in a cache. None for a call that
        allocates its result.

        first: the slot of the first call's value.
        """
        last_reader = {slot: i for i, (_, slots, _) in enumerate(self._calls) for slot in slots}
        blocks: list[int | None] = []
        dtypes: list[np.dtype[Any]] = []
        free: list[int] = []
        for i, (_, slots, dtype) in enumerate(self._calls):
            for slot in {*slots}:  # a call may overwrite a value that it is the last to read
                block = blocks[slot - first] if slot >= first else None
                if block is not None and last_reader[slot] == i:
                    free.append(block)
            if dtype is None:
                blocks.append(None)
                continue
            block = next((index for index in free if dtypes[index] == dtype), None)
            if block is None:
                block = len(dtypes)
                dtypes.append(dtype)
            else:
                free.remove(block)
            blocks.append(block)
        self._block_types = dtypes
        return blocks

    @staticmethod
    @lru_cache(maxsize=1024)
    def cached(expr: Expr, dtypes: tuple[np.dtype[Any], ...]) -> CompiledExpression:
        """Return a shared instance for `expr` and `dtypes`, which any thread may call."""
        return CompiledExpression(expr, dtypes)

    def __call__(self, *arrays: Array) -> Any:
        if self._root is None:
            return self._number
        values: list[Any] = [*arrays, *self._fixed]
        for step in self._steps:
            values.append(step(values))
        return values[self._root]

    def scratch(self, count: int) -> list[Array]:
        """Return scratch blocks of `count` numbers for `fill`, which overwrites them."""
        return [np.empty(count, dtype) for dtype in self._block_types]

    def full_calls(self, shape: Shape, shapes: Sequence[Shape]) -> list[bool]:
        """Return for each call whether its result has `shape` for arguments of `shapes`; other
        results are smaller, and broadcast.
        """
        numbers = [(1,) * len(shape)] * len(self._fixed)
        slot_shapes = [*((*(1,) * (len(shape) - len(s)), *s) for s in shapes), *numbers]
        first = len(slot_shapes)
        for _, slots, _ in self._calls:
            operands = (slot_shapes[slot] for slot in slots)
            slot_shapes.append(tuple(map(max, zip(*operands, strict=True))))
        return [result == shape for result in slot_shapes[first:]]

    def fill(
        self,
        out: Array,
        arrays: Sequence[Array],
        scratch: Sequence[Array],
        full: Sequence[bool],
    ) -> None:
        """Write the value for `arrays` to `out`, which may be one of them.

        scratch: the blocks of `scratch`, reshaped to out's shape. full: as `full_calls` returns it.
        """
        if self._root is None:
            out[...] = self._number
            return
        values: list[Any] = [*arrays, *self._fixed]
        end = len(values) + len(self._calls) - 1
        calls = zip(self._calls, self._blocks, full, strict=True)
        for (function, slots, dtype), block, is_full in calls:
            operands = [values[slot] for slot in slots]
            if block is None or not is_full:  # a smaller result is computed before it broadcasts
                values.append(function(*operands))
            else:
                is_last = len(values) == end and dtype == out.dtype
                values.append(function(*operands, out=out if is_last else scratch[block]))
        if (value := values[self._root]) is not out:
            out[...] = value


def _with_clips(expr: Expr) -> Expr:
    """Return `expr` of floats with `clip` in the place of maxima and minima with a number: NumPy
    does both in one call, several times as fast as its `maximum`.
    """

    def visit(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if not isinstance(part, Call):
            return part
        if part.function in ("maximum", "minimum"):
            numbers = [argument for argument in arguments if _is_float_number(argument)]
            others = [argument for argument in arguments if not _is_float_number(argument)]
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
    """Return `expr` of floats with -x / (-1 - exp(-x)) in the place of x sigmoid(x): fewer passes
    over a block. Where x is a sum, -x is computed in the pass of that sum.
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


def _typed_number(whole: Expr, empty: Sequence[Any], call: int, index: int) -> Any:
    """Return the number that part `index` is, in the type that part `call` needs as operand."""
    part, operands = whole._part_list[call]
    assert isinstance(part, Call)
    values = [empty[operand] for operand in operands[part.row.condition :]]
    dtypes = {value.dtype for value in values if isinstance(value, np.ndarray)}
    if len(dtypes) != 1 or index not in operands[part.row.condition :]:
        return empty[index]
    return np.asarray(empty[index], next(iter(dtypes)))


def _function(part: Call, empty: Sequence[Any]) -> tuple[Any, bool]:
    """Return the function that computes `part` without looking at types again, and whether it takes
    an argument `out`.

    empty: the operands, arrays without numbers.
    """
    values = empty[part.row.condition :]
    dtypes = {value.dtype for value in values if isinstance(value, np.ndarray)}
    if len(dtypes) != 1:
        return part.row.evaluate, False
    assert part.row.numpy is not None
    function = clip if part.row.numpy is np.clip else part.row.numpy
    return function, writes_to(function)


def _call_of(function: Any, slots: Sequence[int]) -> ExpressionStep:
    """Return a call of `function` for the values in `slots` of a list."""
    if len(slots) == 1:
        (a,) = slots
        return lambda values: function(values[a])
    if len(slots) == 2:
        a, b = slots
        return lambda values: function(values[a], values[b])
    return lambda values: function(*[values[slot] for slot in slots])


def evaluate_blockwise(
    expr: Expr,
    arrays: Sequence[Array],
    shape: Shape,
    dtype: np.dtype[Any],
    out: Array | None = None,
) -> Array:
    """Return `expr` of `arrays`, which broadcast to `shape`, as a new array. Never warns.

    out: an array of that shape and dtype that the result is written to; it may be one of `arrays`,
    but must not overlap with others.
    """
    value = CompiledExpression.cached(expr, tuple(array.dtype for array in arrays))
    with np.errstate(all="ignore"):
        return _evaluate(value, arrays, _new_array(shape, dtype, arrays) if out is None else out)


MANY_PIXELS = 1 << 13
"""Numbers of a result above which operands that are not row-major, as images with channels last,
are evaluated block by block; row-major ones are above `BLOCK_SIZE`. Fewer are faster at once."""


def _new_array(shape: Shape, dtype: np.dtype[Any], arrays: Sequence[Array]) -> Array:
    """Return an array with the memory order of the first of `arrays` that has `shape`."""
    like = next((array for array in arrays if array.shape == shape), None)
    return np.empty(shape, dtype) if like is None else np.empty_like(like, dtype)


def compile_expression(
    expr: Expr, dtypes: Sequence[np.dtype[Any]], dtype: np.dtype[Any]
) -> Callable[..., Array]:
    """Return a function that evaluates `expr` of arrays of `dtypes`, as a new array of `dtype`.

    It is called with the shape that the arrays broadcast to, and the arrays, within `np.errstate`.
    The function may write to `out`, an array of that shape and `dtype`, instead of a new one; `out`
    may be one of the arrays that is not needed any more. The caller must use the returned array.
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
        wide = (array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays)
        arrays = [array.transpose(order) for array in wide]
    shape, shapes = out.shape, tuple([array.shape for array in arrays])
    if out.flags.c_contiguous and all(array.flags.c_contiguous for array in arrays):
        shape, shapes = _merge_axes(shape, shapes)
        if len(shape) == 2 and shape[1] < SHORT_ROW:
            shape, shapes, arrays = _repeat_rows(shape, shapes, arrays)
    reshaped_out = out.reshape(shape)
    views = [array.reshape(merged) for array, merged in zip(arrays, shapes, strict=True)]
    scratch, scratch_views = value.scratch(min(BLOCK_SIZE, out.size)), list[Array]()
    full = value.full_calls(shape, shapes)
    view_shape: Shape | None = None
    for index, operand_indices in _index_blocks(shape, shapes):
        block = reshaped_out[index]
        if view_shape != block.shape:
            if scratch and block.size > scratch[0].size:  # a row that is longer than a block
                scratch = value.scratch(block.size)
            scratch_views = [array[: block.size].reshape(block.shape) for array in scratch]
            view_shape = block.shape
        operands = [view[i] for view, i in zip(views, operand_indices, strict=True)]
        value.fill(block, operands, scratch_views, full)
    return result


def _memory_order(array: Array) -> list[int] | None:
    """Return the axes of `array` in the order of memory, outermost first; None where it is
    row-major, or no order makes it contiguous.
    """
    if array.flags.c_contiguous:
        return None
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return order if array.transpose(order).flags.c_contiguous else None


SHORT_ROW = 1 << 9
"""Numbers of a row below which NumPy's overhead for each row is greater than its arithmetic."""
LONG_ROW = 1 << 12
"""Most numbers of a row that is joined from short ones."""


def _repeat_rows(
    shape: Shape, shapes: tuple[Shape, ...], arrays: Sequence[Array]
) -> tuple[Shape, tuple[Shape, ...], list[Array]]:
    """Join short rows of a result into longer ones, since NumPy has an overhead for each row.

    Operands that broadcast along rows are tiled. Return the result's shape, the operands' shapes
    and the operands; unchanged where another operand broadcasts otherwise.
    """
    count, size = shape
    most = min(count, LONG_ROW // size)
    times = next((n for n in range(most, 0, -1) if count % n == 0), 1)
    joined_shapes, operands = [], []
    for operand_shape, array in zip(shapes, arrays, strict=True):
        if operand_shape == (1, size):
            array = np.tile(array.reshape(size), times)
            operand_shape = 1, times * size
        elif operand_shape == shape:
            operand_shape = count // times, times * size
        elif operand_shape != (1, 1):
            return shape, shapes, list(arrays)
        joined_shapes.append(operand_shape)
        operands.append(array)
    return (count // times, times * size), tuple(joined_shapes), operands


@lru_cache(maxsize=64)
def _merge_axes(shape: Shape, shapes: tuple[Shape, ...]) -> tuple[Shape, tuple[Shape, ...]]:
    """Merge axes of a row-major result of `shape` and of row-major operands of `shapes` that
    broadcast to it: adjacent axes along both of which the same operands broadcast become one.
    """
    padded = [(*(1,) * (len(shape) - len(s)), *s) for s in shapes]
    merged: list[int] = []
    masks: list[tuple[bool, ...]] = []  # for each merged axis, the operands that have it
    for axis, size in enumerate(shape):
        mask = tuple(operand[axis] == size for operand in padded)
        if size > 1 and masks and masks[-1] == mask:
            merged[-1] *= size
        elif size > 1:
            merged.append(size)
            masks.append(mask)
    if not merged:
        return (1,), ((1,),) * len(shapes)
    operands = [
        tuple(size if mask[i] else 1 for size, mask in zip(merged, masks, strict=True))
        for i in range(len(shapes))
    ]
    return tuple(merged), tuple(operands)


BlockIndex = tuple[tuple[slice, ...], list[tuple[slice, ...]]]
"""The index of a block of a result, and the index into each operand."""
MOST_INDEXED = 64
"""Most blocks of a result whose indices are cached for the next result of its shape."""


def _index_blocks(shape: Shape, shapes: tuple[Shape, ...]) -> Iterable[BlockIndex]:
    """Return the indices of each block of a result of `shape`, and of operands of `shapes` that
    broadcast to it.
    """
    if prod(shape) <= MOST_INDEXED * BLOCK_SIZE:
        return _cached_indices(shape, shapes, BLOCK_SIZE)
    return _block_indices(shape, shapes)


@lru_cache(maxsize=16)
def _cached_indices(
    shape: Shape, shapes: tuple[Shape, ...], block_size: int
) -> tuple[BlockIndex, ...]:
    # block_size is in the key, since BLOCK_SIZE may be set to another value.
    return tuple(_block_indices(shape, shapes))


def _block_indices(shape: Shape, shapes: tuple[Shape, ...]) -> Iterator[BlockIndex]:
    for index in blocks(shape):
        yield index, [_index_of_block(operand, index, len(shape)) for operand in shapes]


def _broadcast_copy(value: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return `value` broadcast to `shape`, as a new array."""
    out = np.empty(shape, dtype)
    out[...] = value
    return out


def blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each block of an array of `shape`: BLOCK_SIZE numbers, or a longer row.

    An index is of slices, one for each of the first axes; all indices have the same number.
    """
    inner = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    last = next((axis for axis, size in enumerate(inner) if size <= BLOCK_SIZE), len(shape) - 1)
    steps = [*(1 for _ in range(last)), max(BLOCK_SIZE // max(inner[last], 1), 1)]
    sizes = zip(shape, steps, strict=False)
    yield from product(
        *([slice(i, i + step) for i in range(0, size, step)] for size, step in sizes)
    )


def runs(count: int, each: int) -> Iterator[slice]:
    """Return slices of `count` items of `each` numbers that have BLOCK_SIZE numbers or a single
    item, whichever is more.
    """
    step = max(BLOCK_SIZE // max(each, 1), 1)
    return (slice(i, i + step) for i in range(0, count, step))


def _index_of_block(operand: Shape, index: tuple[slice, ...], rank: int) -> tuple[slice, ...]:
    """Return the index into an operand of shape `operand` that broadcasts to the block `index` of a
    result of `rank` dimensions.
    """
    missing = rank - len(operand)
    pairs = zip(operand, index[missing:], strict=False)
    return tuple(slice(None) if size == 1 else part for size, part in pairs)


CAST_INT64, CAST_INT32 = "cast_int64", "cast_int32"


def value_ranges_of(
    expr: Expr, intervals: Sequence[Interval], dtypes: Sequence[DType]
) -> list[Interval]:
    """Return the interval of each part of `expr.expanded`, the whole expression last, for arguments
    within `intervals` and of `dtypes`.
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
    """Entries `start` to before `stop` of a bank: an array along whose first axis the arguments or
    results of calls are stacked.
    """

    bank: int
    start: int
    stop: int


Operand = _BankSlice | Number


@dataclass(frozen=True)
class _Instruction:
    """A call of the function `row` on slices of banks; its result is a bank of its own."""

    row: Function
    operands: tuple[Operand, ...]
    count: int
    dtype: np.dtype[Any]
    is_uniform: bool
    """True where all operands that are arrays have one type, so that nothing is cast in between."""


@dataclass(frozen=True)
class PackedProgram:
    """Instructions that evaluate several expressions of arguments in banks.

    banks: the number of arguments in each bank of arguments; the banks of the instructions' results
    follow them. results: the operand that each expression's value is.
    """

    banks: tuple[int, ...]
    instructions: tuple[_Instruction, ...]
    results: tuple[Operand, ...]
    dtype: np.dtype[Any]

    def bind(self, banks: Sequence[Array], out: Array) -> list[BoundCall]:
        """Return calls that, in order, compute all expressions from `banks` into `out`.

        banks: each (arguments, *shape). out: (expressions, *shape), which shares no memory with
        the banks. All are of the program's type. The calls may be repeated when the banks change.
        """
        arrays, shape = list(banks), out.shape[1:]
        result_of = {p.bank: i for i, p in enumerate(self.results) if isinstance(p, _BankSlice)}
        written: set[int] = set()  # results that an instruction writes to `out` itself
        calls: list[BoundCall] = []

        def fetch(operand: Operand, dtype: np.dtype[Any] | None) -> Any:
            if isinstance(operand, _BankSlice):
                return arrays[operand.bank][operand.start : operand.stop]
            return operand if dtype is None else np.asarray(operand, dtype)

        for bank, instruction in enumerate(self.instructions, len(self.banks)):
            result, count = result_of.get(bank), instruction.count
            if result is not None and count == 1 and instruction.dtype == out.dtype:
                array = out[result : result + 1]
                written.add(result)
            else:
                array = np.empty((count, *shape), instruction.dtype)
            arrays.append(array)
            first = instruction.row.condition
            dtype = self._operand_type(instruction) if instruction.is_uniform else None
            operands = [
                fetch(operand, dtype if i >= first else None)
                for i, operand in enumerate(instruction.operands)
            ]
            calls.append(_bind_call(instruction, operands, array))
        for i, operand in enumerate(self.results):
            if i not in written:
                calls.append(_bind_copy(out[i : i + 1], fetch(operand, out.dtype)))
        return calls

    def _operand_type(self, instruction: _Instruction) -> np.dtype[Any]:
        """Return the type of the arrays among the operands, which numbers take, too."""
        for operand in instruction.operands[instruction.row.condition :]:
            if isinstance(operand, _BankSlice):
                producer = operand.bank - len(self.banks)
                return self.dtype if producer < 0 else self.instructions[producer].dtype
        return self.dtype


def _bind_call(instruction: _Instruction, operands: Sequence[Any], out: Array) -> BoundCall:
    """Return the call that writes the result of `instruction` to `out`."""
    function = instruction.row.numpy
    assert function is not None
    if instruction.is_uniform and writes_to(function):
        return lambda: function(*operands, out=out)
    compute = function if instruction.is_uniform else instruction.row.evaluate
    return lambda: np.copyto(out, compute(*operands), casting="unsafe")


def _bind_copy(target: Array, source: Any) -> BoundCall:
    return lambda: np.copyto(target, source, casting="unsafe")


@lru_cache(maxsize=256)
def packed_program(
    exprs: tuple[Expr, ...], banks: tuple[int, ...], dtype: np.dtype[Any]
) -> PackedProgram:
    """Return the program of `exprs`, whose arguments are in `banks`, all of them of type `dtype`.

    Arg(0) is the first argument of the first bank. banks: the number of arguments in each.
    """
    return _ProgramBuilder(banks, dtype).program(exprs)


class _ProgramBuilder:
    """Builds a packed program: numbers all parts, then merges calls that are ready at once."""

    def __init__(self, banks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._banks, self._dtype = banks, dtype
        # All of these are by the number of a part.
        self._operand_of: dict[int, Operand] = {}
        self._types: dict[int, Any] = {}  # an empty array of the part's type, or its number
        self._calls: dict[int, tuple[Function, tuple[int, ...]]] = {}
        self._part_numbers: dict[Any, int] = {}
        self._instructions: list[_Instruction] = []

    def program(self, exprs: Sequence[Expr]) -> PackedProgram:
        """Return the program of `exprs`."""
        roots = [self._number_parts(expr.expanded) for expr in exprs]
        pending = dict(self._calls)
        while pending:
            ready = {
                number: (row, operands)
                for number, (row, operands) in pending.items()
                if all(operand in self._operand_of for operand in operands)
            }
            for run in self._runs(ready):
                self._add(run)
            pending = {n: call for n, call in pending.items() if n not in ready}
        results = tuple(self._operand_of[root] for root in roots)
        return PackedProgram(self._banks, tuple(self._instructions), results, self._dtype)

    def _number_parts(self, expr: Expr) -> int:
        """Number all parts of `expr`, equal parts of all expressions alike; return the number of
        `expr` itself.
        """

        def visit(part: Expr, operands: tuple[int, ...]) -> int:
            key = part.value if isinstance(part, Scalar | Constant) else part._identity
            number = self._part_numbers.setdefault(
                (type(part).__name__, repr(key), operands), len(self._part_numbers)
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
                self._types[number] = part.row.evaluate(*(self._types[n] for n in operands))
                if isinstance(self._types[number], np.ndarray):
                    self._calls[number] = part.row, operands
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
        """Return runs of `ready` calls; the calls of a run can be merged into one."""

        def sort_key(number: int) -> tuple[Any, ...]:
            row, numbers = ready[number]
            operands = [self._operand_of[n] for n in numbers]
            return row.name, [
                (0, o.bank, o.start) if isinstance(o, _BankSlice) else (1, repr(o), 0)
                for o in operands
            ]

        runs: list[list[int]] = []
        for number in sorted(ready, key=sort_key):
            if runs and self._is_adjacent(ready[runs[-1][-1]], ready[number]):
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def _is_adjacent(
        self, first: tuple[Function, tuple[int, ...]], second: tuple[Function, tuple[int, ...]]
    ) -> bool:
        """Return True where both call the same function, and each operand of `second` directly
        follows that of `first` in a bank, or is the same number.
        """
        if first[0] is not second[0]:
            return False
        for first_number, second_number in zip(first[1], second[1], strict=True):
            a, b = self._operand_of[first_number], self._operand_of[second_number]
            if isinstance(a, _BankSlice) and isinstance(b, _BankSlice):
                if (a.bank, a.stop) != (b.bank, b.start):
                    return False
            elif isinstance(a, _BankSlice) or first_number != second_number:
                return False
        return True

    def _add(self, run: Sequence[int]) -> None:
        """Add one instruction for the calls in `run`."""
        row, first = self._calls[run[0]]
        _, last = self._calls[run[-1]]
        operands: list[Operand] = []
        for first_number, last_number in zip(first, last, strict=True):
            start, end = self._operand_of[first_number], self._operand_of[last_number]
            if isinstance(start, _BankSlice) and isinstance(end, _BankSlice):
                operands.append(_BankSlice(start.bank, start.start, end.stop))
            else:
                operands.append(start)
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
