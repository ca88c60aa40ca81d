"""Nodes of integers that only the host has, with results of Python's exact integers."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A node of one operator, and what its results must be."""

    operands: Sequence[Array | None]
    expected: Sequence[Any]
    """Arrays, or lists of arrays. None: what ONNX Runtime says."""
    attributes: dict[str, Any] = field(default_factory=dict)


Cases = Iterator[Case]
Types = dict[str, str]
"""By type constraint."""
SHAPES = (((2, 3), (2, 3)), ((2, 1, 4), (3, 1)), ((), (2,)), ((), ()), ((0, 3), (3,)))


def ends(dtype: Any) -> tuple[int, int]:
    found = ml_dtypes.iinfo(dtype)
    return int(found.min), int(found.max)


def wrapped(exact: Any, dtype: Any) -> Array:
    """Python's integers with the low bits that `dtype` keeps."""
    low, high = ends(dtype)
    found = np.asarray(exact, object)
    return np.asarray((found - low) % (high - low + 1) + low, object).astype(dtype)


def integers(dtype: Any, shape: tuple[int, ...], seed: int, *, zero: bool = True) -> Array:
    """Numbers of `dtype`, both ends, 0, 1 and small ones among them."""
    low, high = ends(dtype)
    rng = np.random.default_rng(seed)
    found = rng.integers(low, high, shape, dtype, endpoint=True)
    flat = found.reshape(-1)
    small = rng.integers(max(low, -5), 6, flat.shape)
    flat[::2] = small[::2].astype(dtype)
    for i, one in enumerate((high, low, 1, 0)):
        flat[(seed + 3 * i) % max(len(flat), 1) :][:1] = one
    if not zero:
        flat[flat == 0] = 1
    return found


def exact(array: Array) -> Array:
    return array.astype(object)


def each(function: Callable[..., Any], *arrays: Array) -> Array:
    """`function` of Python's integers, broadcast."""
    found = np.broadcast_arrays(*map(exact, arrays))
    result = np.empty(found[0].shape, object)
    for place in np.ndindex(result.shape):
        result[place] = function(*(one[place] for one in found))
    return result


def binary(
    function: Callable[[int, int], Any], *, zero: bool = True, bools: bool = False
) -> Callable[[int, Types], Cases]:
    def cases(version: int, types: Types) -> Cases:
        dtype = np.dtype(types["T"])
        for seed, (a, b) in enumerate(SHAPES):
            x, y = integers(dtype, a, seed), integers(dtype, b, seed + 7, zero=zero)
            found = each(function, x, y)
            yield Case([x, y], [found.astype(bool) if bools else wrapped(found, dtype)])

    return cases


def unary(function: Callable[[int], int]) -> Callable[[int, Types], Cases]:
    def cases(version: int, types: Types) -> Cases:
        for seed, (shape, _) in enumerate(SHAPES):
            x = integers(np.dtype(types["T"]), shape, seed)
            yield Case([x], [wrapped(each(function, x), x.dtype)])

    return cases


def divided(a: int, b: int) -> int:
    """The quotient towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def mod(version: int, types: Types) -> Cases:
    for seed, (a, b) in enumerate(SHAPES):
        dtype = np.dtype(types["T"])
        x, y = integers(dtype, a, seed), integers(dtype, b, seed + 7, zero=False)
        yield Case([x, y], [wrapped(each(operator.mod, x, y), dtype)])
        rest = each(lambda m, n: m - n * divided(m, n), x, y)
        yield Case([x, y], [wrapped(rest, dtype)], {"fmod": 1})


def bit_shift(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    bits = dtype.itemsize * 8
    for seed, (a, b) in enumerate(SHAPES):
        x = integers(dtype, a, seed)
        y = np.random.default_rng(seed).integers(0, bits, b).astype(dtype)
        for direction, function in (("LEFT", operator.lshift), ("RIGHT", operator.rshift)):
            right = wrapped(each(function, x, y), dtype)
            yield Case([x, y], [right], {"direction": direction})


def power(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    for seed, (a, b) in enumerate(SHAPES):
        x = integers(dtype, a, seed)
        y = np.random.default_rng(seed).integers(0, 9, b).astype(types["T1"])
        yield Case([x, y], [wrapped(each(operator.pow, x, y), dtype)])


def clip(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    x = integers(dtype, (3, 5), 1)
    low, high = np.array(2, dtype), np.array(1000, dtype)
    for least, most in ((low, high), (low, None), (None, high), (high, low), (None, None)):
        lowest, highest = ends(dtype)
        lowest, highest = int(least or lowest), int(highest if most is None else most)
        found = each(lambda n, a=lowest, b=highest: min(max(n, a), b), x)
        yield Case([x, least, most], [found.astype(dtype)])
    yield Case([x[:0], low, high], [x[:0]])
    yield Case([x[0, 0], low, None], [np.maximum(x[0, 0], low)])


def several(function: Callable[..., int]) -> Callable[[int, Types], Cases]:
    def cases(version: int, types: Types) -> Cases:
        dtype = np.dtype(types["T"])
        for shapes in (((2, 3),), ((2, 3), (3,)), ((2, 1), (3,), ()), ((0,), (1,))):
            given = [integers(dtype, shape, i) for i, shape in enumerate(shapes)]
            right = each(lambda *n: function(n), *given).astype(dtype)
            yield Case(given, [right])

    return cases


def extreme(best: Callable[..., int]) -> Callable[[int, Types], Cases]:
    """ArgMax, ArgMin: of equal numbers the first, or the last where that is asked for."""

    def cases(version: int, types: Types) -> Cases:
        dtype = np.dtype(types["T"])
        x = integers(dtype, (3, 4, 2), 3)
        x[1] = x[0]
        lasts = ({}, {"select_last_index": 1}) if version >= 12 else ({},)
        for axis, keep, last in itertools.product((0, 1, 2, -1), (0, 1), lasts):
            if axis < 0 and version < 11:
                continue
            rows = np.moveaxis(exact(x), axis, -1)
            right = np.zeros(rows.shape[:-1], np.int64)
            for place in np.ndindex(right.shape):
                row = rows[place].tolist()
                at = [i for i, n in enumerate(row) if n == best(row)]
                right[place] = at[-1 if last else 0]
            right = np.expand_dims(right, axis) if keep else right
            yield Case([x], [right], {"axis": axis, "keepdims": keep, **last})
        yield Case([x[0, :, 0]], [np.array([x[0, :, 0].tolist().index(best(x[0, :, 0].tolist()))])])

    return cases


def reduced(function: Callable[[list[int]], int], since: int) -> Callable[[int, Types], Cases]:
    """since: the operator set from which on axes are an operand."""

    def over(x: Array, axes: Sequence[int], keep: bool) -> Array:
        axes = [axis % x.ndim for axis in axes]
        kept = [n for i, n in enumerate(x.shape) if i not in axes]
        order = [i for i in range(x.ndim) if i not in axes] + axes
        rows = exact(x).transpose(order).reshape(*kept, -1)
        found = np.empty(kept, object)
        for place in np.ndindex(found.shape):
            found[place] = function(rows[place].tolist())
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        return wrapped(found.reshape(shape) if keep else found, x.dtype)

    def cases(version: int, types: Types) -> Cases:
        x = integers(np.dtype(types["T"]), (2, 3, 4), 5)
        for axes, keep in itertools.product(([0], [1, 2], None, [2, 0], [-1]), (0, 1)):
            if axes and min(axes) < 0 and version < 11:
                continue
            right = over(x, range(3) if axes is None else axes, bool(keep))
            named = {"axes": axes} if axes and version < since else {}
            given = [np.array(axes, np.int64)] if axes and version >= since else []
            yield Case([x, *given], [right], {"keepdims": keep, **named})
        if version >= since:
            none = np.zeros(0, np.int64)
            yield Case([x, none], [over(x, range(3), True)])
            yield Case([x, none], [over(x, (), True)], {"noop_with_empty_axes": 1})

    return cases


def running(function: Callable[[int, int], int], first: int) -> Callable[[int, Types], Cases]:
    """CumSum, CumProd."""

    def cases(version: int, types: Types) -> Cases:
        x = integers(np.dtype(types["T"]), (3, 4), 2)
        for axis, exclusive, reverse in itertools.product((0, 1, -1), (0, 1), (0, 1)):
            rows = np.moveaxis(exact(x), axis, -1)
            right = np.empty(rows.shape, object)
            for number, row in enumerate(rows):
                given = row[::-1] if reverse else row
                sums = list(itertools.accumulate([first, *given.tolist()], function))
                sums = sums[:-1] if exclusive else sums[1:]
                right[number] = sums[::-1] if reverse else sums
            right = wrapped(np.moveaxis(right, -1, axis), x.dtype)
            attributes = {"exclusive": exclusive, "reverse": reverse}
            yield Case([x, np.array(axis, np.int64)], [right], attributes)
        yield Case([x[:, :0], np.array(1, np.int32)], [x[:, :0]])

    return cases


def matmul(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    for a, b in (((2, 3), (3, 4)), ((3,), (3,)), ((2, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))):
        x, y = integers(dtype, a, 1), integers(dtype, b, 2)
        yield Case([x, y], [wrapped(np.matmul(exact(x), exact(y)), dtype)])


def einsum(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    for equation, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
        ("ii->i", (3, 3)),
        ("ij->", (2, 3)),
        ("i,j", (2,), (3,)),
        ("...ij->...ji", (2, 3, 4)),
    ):
        given = [integers(dtype, shape, i) for i, shape in enumerate(shapes)]
        right = np.einsum(equation, *map(exact, given))
        yield Case(given, [wrapped(right, dtype)], {"equation": equation})


def range_(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    for numbers in ((0, 5, 1), (3, -7, -3), (0, 0, 1), (5, 1, 2), (-32768, 32767, 9000)):
        right = np.array(list(range(*numbers)), dtype)
        yield Case([np.array(one, dtype) for one in numbers], [right])


def prelu(version: int, types: Types) -> Cases:
    dtype = np.dtype(types["T"])
    for shape in ((3,), (2, 3), (1,), ()):
        x, slope = integers(dtype, (2, 3), 1), integers(dtype, shape, 2)
        right = wrapped(each(lambda a, b: a if a >= 0 else a * b, x, slope), dtype)
        yield Case([x, slope], [right])


def sign(n: int) -> int:
    return (n > 0) - (n < 0)


CASES: dict[tuple[str, str], Callable[[int, Types], Cases]] = {
    ("", "Abs"): unary(abs),
    ("", "Add"): binary(operator.add),
    ("", "ArgMax"): extreme(max),
    ("", "ArgMin"): extreme(min),
    ("", "BitShift"): bit_shift,
    ("", "BitwiseAnd"): binary(operator.and_),
    ("", "BitwiseNot"): unary(operator.invert),
    ("", "BitwiseOr"): binary(operator.or_),
    ("", "BitwiseXor"): binary(operator.xor),
    ("", "Clip"): clip,
    ("", "CumProd"): running(operator.mul, 1),
    ("", "CumSum"): running(operator.add, 0),
    ("", "Div"): binary(divided, zero=False),
    ("", "Einsum"): einsum,
    ("", "Equal"): binary(operator.eq, bools=True),
    ("", "Greater"): binary(operator.gt, bools=True),
    ("", "GreaterOrEqual"): binary(operator.ge, bools=True),
    ("", "Less"): binary(operator.lt, bools=True),
    ("", "LessOrEqual"): binary(operator.le, bools=True),
    ("", "MatMul"): matmul,
    ("", "Max"): several(max),
    ("", "Min"): several(min),
    ("", "Mod"): mod,
    ("", "Mul"): binary(operator.mul),
    ("", "Neg"): unary(operator.neg),
    ("", "PRelu"): prelu,
    ("", "Pow"): power,
    ("", "Range"): range_,
    ("", "ReduceL1"): reduced(sum, 18),
    ("", "ReduceMax"): reduced(max, 18),
    ("", "ReduceMin"): reduced(min, 18),
    ("", "ReduceProd"): reduced(math.prod, 18),
    ("", "ReduceSum"): reduced(sum, 13),
    ("", "Relu"): unary(lambda n: max(n, 0)),
    ("", "Sign"): unary(sign),
    ("", "Sub"): binary(operator.sub),
}
"""By domain and operator: cases of a version and of types."""
