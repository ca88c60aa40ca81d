"""Integer products, computed exactly in float32 where sums stay within 2^24."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.add import Add
from glnn.graph.compose.conv import conv
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.window import Sizes
from glnn.graph.expression import Expr, formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Expand, Pad, Pointwise, Reduce, Reshape, Transpose
from glnn.types import Array, DType

EXACT = 1 << 24
"""Greatest integer up to which float32 holds every integer."""
MOST_PRODUCTS = 1 << 26
"""Most products of int32 that are held at once."""
WHOLE = formula("cast_int32(a)")


@dataclass(frozen=True)
class Whole:
    """A tensor of integers, held as float32."""

    value: Value
    """The integers as float32."""
    most: int
    """Greatest absolute value of a number."""
    total: int | None = None
    """Greatest sum of the absolute values of one result's numbers, where it is known."""

    def exact(self, other: Whole, depth: int) -> bool:
        """Return True where float32 holds all sums of `depth` products with numbers of `other`
        exactly.
        """
        sums = [self.most * other.most * depth]
        sums += [a.total * b.most for a, b in ((self, other), (other, self)) if a.total is not None]
        return min(sums) <= EXACT


def whole(add: Add, x: Value, zero: Value | None = None, along: tuple[int, ...] = ()) -> Whole:
    """Return x, of uint8 or int8, less its zero point, which broadcasts to it.

    along: the axes whose numbers are of one result, if any.
    """
    if x.type.dtype not in (DType.uint8, DType.int8):
        raise UnsupportedOpError(f"products of integers are of uint8 and int8, got {x.type}")
    low, high = _reach(x)
    least, most = (0, 0) if zero is None else _reach(zero)
    total = None
    numbers, less = _numbers(x), np.zeros((), np.int8) if zero is None else _numbers(zero)
    if along and numbers is not None and less is not None:
        sizes = np.abs(numbers.astype(np.int32) - less.astype(np.int32))
        total = int(sizes.sum(axis=along, dtype=np.int64).max(initial=0))
    text = "cast_float32(a)" if zero is None else "cast_float32(a) - cast_float32(b)"
    value = add(Pointwise(formula(text)), *((x,) if zero is None else (x, zero)))
    return Whole(value, max(most - low, high - least), total)


def _numbers(x: Value) -> Array | None:
    return x.data if x.kind is Kind.CONSTANT else None  # type: ignore[return-value]


def _reach(x: Value) -> tuple[int, int]:
    """The least and the largest number that x may have."""
    numbers = _numbers(x)
    if numbers is not None and numbers.size:
        return int(numbers.min()), int(numbers.max())
    info = np.iinfo(x.type.dtype.numpy)
    return int(info.min), int(info.max)


def whole_matmul(add: Add, a: Whole, b: Whole) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul: int32.

    Sums that may exceed float32's integers are those of parts of k, which int32 adds up.
    """
    first, second = a.value.type.shape, b.value.type.shape
    if not first or not second:
        raise ShapeError(f"matmul: factors must have dimensions, got {first} and {second}")
    depth = first[-1]
    if a.exact(b, depth):
        return add(Pointwise(WHOLE), matmul(add, a.value, b.value))
    if len(first) == 1 or len(second) == 1:
        return _of_vectors(add, a, b)
    count = -(-depth // (EXACT // (a.most * b.most)))
    chunk = -(-depth // count)
    rank = max(len(first), len(second))
    wide = _stacked(add, a.value, len(first) - 1, count, chunk, rank)
    high = _stacked(add, b.value, len(second) - 2, count, chunk, rank)
    return _summed(add, matmul(add, wide, high), 0)


def _of_vectors(add: Add, a: Whole, b: Whole) -> Value:
    """A product of which a factor is a vector, as one of a matrix of one row or column."""
    first, second = a.value.type.shape, b.value.type.shape
    if len(first) == 1:
        a = replace(a, value=add(Reshape((1, *first), True), a.value))
    if len(second) == 1:
        b = replace(b, value=add(Reshape((*second, 1), True), b.value))
    found = whole_matmul(add, a, b)
    *stack, rows, columns = found.type.shape
    ends = ((rows,) if len(first) > 1 else ()) + ((columns,) if len(second) > 1 else ())
    return add(Reshape((*stack, *ends), True), found)


def _parted(add: Add, x: Value, axis: int, count: int, chunk: int) -> Value:
    """Reshape x so that its dimension `axis` is (count, chunk), padded with zeros."""
    shape = x.type.shape
    if (more := count * chunk - shape[axis]) > 0:
        zeros = (0,) * len(shape)
        x = add(Pad(zeros, (*zeros[:axis], more, *zeros[axis + 1 :])), x)
    return add(Reshape((*shape[:axis], count, chunk, *shape[axis + 1 :]), True), x)


def _stacked(add: Add, x: Value, axis: int, count: int, chunk: int, rank: int) -> Value:
    """Split x into parts along its dimension `axis`; they come first, before dimensions of size 1
    up to `rank`.
    """
    x = _parted(add, x, axis, count, chunk)
    order = (axis, *(i for i in range(len(x.type.dims)) if i != axis))
    first, *others = (x.type.shape[i] for i in order)
    ones = (1,) * (rank - len(others))
    return add(Reshape((first, *ones, *others), True), add(Transpose(order), x))


def _summed(add: Add, parts: Value, axis: int) -> Value:
    """The sum of whole numbers along `axis`, in int32."""
    return add(Reduce("sum", (axis,), False, WHOLE), parts)


def whole_conv(
    add: Add,
    x: Whole,
    weight: Whole,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
) -> Value:
    """The convolution of x (n, c, ...) by weight (o, c / groups, ...), as `conv` has it: int32.

    Where a sum may exceed float32's integers, parts of the channels are groups of their own, whose
    results int32 adds up. Raises UnsupportedOpError where a single channel's may.
    """
    (n, c, *sizes), (o, share, *kernel) = x.value.type.shape, weight.value.type.shape
    if c != share * groups or o % groups:
        raise ShapeError(f"conv: x {x.value.type} and weight {weight.value.type} do not fit")
    convolved = partial(conv, add, stride=stride, padding=padding, dilation=dilation, exact=True)
    taps = prod(kernel)
    if x.exact(weight, share * taps):
        return add(Pointwise(WHOLE), convolved(x.value, weight.value, groups=groups))
    chunk = EXACT // (x.most * weight.most * taps)
    if not chunk:
        raise UnsupportedOpError(f"conv: sums of {taps} products of integers in float32")
    count = -(-share // chunk)
    chunk = -(-share // count)
    apart = add(Reshape((n, groups, share, *sizes), True), x.value)
    apart = _parted(add, apart, 2, count, chunk)
    apart = add(Reshape((n, groups * count * chunk, *sizes), True), apart)
    parts = add(Reshape((groups, o // groups, share, *kernel), True), weight.value)
    parts = _parted(add, parts, 2, count, chunk)
    parts = add(Transpose((0, 2, 1, *range(3, len(parts.type.dims)))), parts)
    parts = add(Reshape((groups * count * (o // groups), chunk, *kernel), True), parts)
    y = convolved(apart, parts, groups=groups * count)
    outs = y.type.shape[2:]
    y = add(Reshape((n, groups, count, o // groups, *outs), True), y)
    return add(Reshape((n, o, *outs), True), _summed(add, y, 2))


def integer_matmul(add: Add, a: Value, b: Value) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul, in their type, which
    wraps.

    All products are made, so that these must not be too many: UnsupportedOpError.
    """
    first, second = a.type.shape, b.type.shape
    if not first or not second or first[-1] != second[max(len(second) - 2, 0)]:
        raise ShapeError(f"matmul: factors {first} and {second} do not fit")
    if len(second) > 1:
        b = add(Transpose((*range(len(second) - 2), len(second) - 1, len(second) - 2)), b)
        if len(first) > 1:
            a = add(Reshape((*first[:-1], 1, first[-1]), True), a)
            turned = b.type.shape
            b = add(Reshape((*turned[:-2], 1, *turned[-2:]), True), b)
    shape = _broadcast(a.type.shape, b.type.shape)
    if prod(shape) > MOST_PRODUCTS:
        raise UnsupportedOpError(f"matmul: {prod(shape)} products of integers are too many")
    product: Expr = formula("a * b")
    return add(Reduce("sum", (-1,), False, product), add(Expand(shape), a), b)


def _broadcast(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(int, np.broadcast_shapes(tuple(one), tuple(other))))
    except ValueError:
        raise ShapeError(f"matmul: stacks of {one} and {other} do not broadcast") from None
