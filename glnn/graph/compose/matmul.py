"""Matrix products of any ranks, and products and convolutions of integers, exact by float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from glnn.core.types import Array, Dim, DType, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.node_adder import AddNode, merge_dims, split_dim
from glnn.graph.compose.sliding_windows import Sizes, conv
from glnn.graph.expression import Expr, formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import (
    Expand,
    Matmul,
    Pad,
    Pointwise,
    Reduce,
    Reshape,
    Squeeze,
    Transpose,
    Unsqueeze,
)

Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Product:
    """A NumPy matmul as the operator `Matmul`, x (rows, k) by weight (..., n, k)."""

    a: Dims
    """Broadcast shape of the first factor: (..., m, k)."""
    b: Dims
    """Broadcast shape of the second factor, transposed: (..., n, k)."""
    swapped: bool
    """True where b is x and a the weight: the result, (..., n, m), must then be transposed."""
    result: Dims
    """The result's dimensions: (..., m, n), without m where a is a vector, without n where b is."""

    @property
    def x(self) -> Dims:
        """Shape of the factor that becomes x, before its matrices are stacked into rows."""
        return self.b if self.swapped else self.a

    @property
    def weight(self) -> Dims:
        """Shape of the factor that becomes the weight, before its batch dimensions are flattened to
        one.
        """
        return self.a if self.swapped else self.b

    @classmethod
    def from_operands(cls, a: Dims, b: Dims) -> Product:
        """Return the product of a (..., m, k) and b (..., n, k), or vectors (k,), with broadcast
        batch dimensions.

        Raises ShapeError where they do not fit.
        """
        if not a or not b:
            raise ShapeError(f"matmul: factors must have at least one dimension, got {a} and {b}")
        wide, high = (one if len(one) > 1 else (1, *one) for one in (a, b))
        stack = _common_batch(wide[:-2], high[:-2])
        if wide[-1] != high[-1] or stack is None:
            theirs = (*b[:-2], *b[-1:], *b[-2:-1])  # as it is given, k before n
            raise ShapeError(f"matmul: op(a) {a} and op(b) {theirs} do not fit")
        ends = (*(wide[-2:-1] if len(a) > 1 else ()), *(high[-2:-1] if len(b) > 1 else ()))
        result = (*stack, *ends)
        if all(dim == 1 for dim in high[:-2]):
            return cls((*stack, *wide[-2:]), high[-2:], False, result)
        if all(dim == 1 for dim in wide[:-2]):
            return cls(wide[-2:], (*stack, *high[-2:]), True, result)
        return cls((*stack, *wide[-2:]), (*stack, *high[-2:]), False, result)


def matmul(add: AddNode, a: Value, b: Value, *, transposed: bool = False) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul, float32.

    transposed: b is (..., n, k). Both may be computed. Only the first size of all may be unknown.
    Raises ShapeError where they do not fit.
    """
    rank = len(b.type.dims)
    if rank > 1 and not transposed:
        b = add(Transpose((*range(rank - 2), rank - 1, rank - 2)), b)
    rows, columns = a.type.dims, b.type.dims
    product = Product.from_operands(rows, columns)
    a, b = _expand_to(add, a, product.a), _expand_to(add, b, product.b)
    x, weight = (b, a) if product.swapped else (a, b)
    x = merge_dims(add, x, 0, len(product.x) - 1)
    if len(product.weight) > 3:
        weight = merge_dims(add, weight, 0, len(product.weight) - 2)
    result = split_dim(add, add(Matmul(), x, weight), 0, *product.x[:-1])
    if product.swapped:
        rank = len(result.type.dims)
        result = add(Transpose((*range(rank - 2), rank - 1, rank - 2)), result)
    vectors = tuple(-i for i, factor in ((1, columns), (2, rows)) if len(factor) == 1)
    return add(Squeeze(vectors), result) if vectors else result


def _common_batch(first: Dims, second: Dims) -> Dims | None:
    """The dimensions that both have when they broadcast; None where they do not."""
    rank = max(len(first), len(second))
    batch: list[Dim] = []
    for n, m in zip(
        (1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True
    ):
        if 1 not in (n, m) and n != m:
            return None
        batch.append(m if n == 1 else n)
    return tuple(batch)


def _expand_to(add: AddNode, value: Value, dims: Dims) -> Value:
    """Broadcast `value` to `dims`; dimensions of size 1 before them are left out."""
    extra = len(dims) - len(value.type.dims)
    if extra > 0:
        value = add(Unsqueeze(tuple(range(extra))), value)
    elif extra < 0:
        value = add(Squeeze(tuple(range(-extra))), value)
    if value.type.dims == dims:
        return value
    return add(Expand(TensorType(dims).shape), value)


MOST_EXACT = 1 << 24
"""Greatest integer up to which float32 holds every integer."""
MOST_PRODUCTS = 1 << 26
"""Most products of int32 that are held at once."""
TO_INT32 = formula("cast_int32(a)")


@dataclass(frozen=True)
class IntegerTensor:
    """A tensor of integers, held as float32."""

    value: Value
    """The integers as float32."""
    most: int
    """Greatest absolute value of a number."""
    total: int | None = None
    """Greatest sum of the absolute values of one result's numbers, where it is known."""

    def exact(self, weight: IntegerTensor, depth: int) -> bool:
        """Return True where float32 holds all sums of `depth` products with numbers of `weight`
        exactly.
        """
        sums = [self.most * weight.most * depth]
        sums += [
            a.total * b.most for a, b in ((self, weight), (weight, self)) if a.total is not None
        ]
        return min(sums) <= MOST_EXACT


def as_integer_tensor(
    add: AddNode, x: Value, zero: Value | None = None, along: tuple[int, ...] = ()
) -> IntegerTensor:
    """Return x, of uint8 or int8, less its zero point, which broadcasts to it.

    along: the axes whose numbers are of one result, if any.
    """
    if x.type.dtype not in (DType.uint8, DType.int8):
        raise UnsupportedOpError(f"products of integers are of uint8 and int8, got {x.type}")
    low, high = _value_bounds(x)
    least, most = (0, 0) if zero is None else _value_bounds(zero)
    total = None
    numbers, less = (
        _constant_array(x),
        np.zeros((), np.int8) if zero is None else _constant_array(zero),
    )
    if along and numbers is not None and less is not None:
        sizes = np.abs(numbers.astype(np.int32) - less.astype(np.int32))
        total = int(sizes.sum(axis=along, dtype=np.int64).max(initial=0))
    text = "cast_float32(a)" if zero is None else "cast_float32(a) - cast_float32(b)"
    value = add(Pointwise(formula(text)), *((x,) if zero is None else (x, zero)))
    return IntegerTensor(value, max(most - low, high - least), total)


def _constant_array(x: Value) -> Array | None:
    return x.data if x.kind is Kind.CONSTANT else None  # type: ignore[return-value]


def _value_bounds(x: Value) -> tuple[int, int]:
    """The least and the largest number that x may have."""
    numbers = _constant_array(x)
    if numbers is not None and numbers.size:
        return int(numbers.min()), int(numbers.max())
    info = np.iinfo(x.type.dtype.numpy)
    return int(info.min), int(info.max)


def integer_tensor_matmul(add: AddNode, a: IntegerTensor, b: IntegerTensor) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul: int32.

    Sums that may exceed float32's integers are those of parts of k, which int32 adds up.
    """
    first, second = a.value.type.shape, b.value.type.shape
    if not first or not second:
        raise ShapeError(f"matmul: factors must have dimensions, got {first} and {second}")
    depth = first[-1]
    if a.exact(b, depth):
        return add(Pointwise(TO_INT32), matmul(add, a.value, b.value))
    if len(first) == 1 or len(second) == 1:
        return _matmul_vectors(add, a, b)
    count = -(-depth // (MOST_EXACT // (a.most * b.most)))
    chunk = -(-depth // count)
    rank = max(len(first), len(second))
    wide = _stack_chunks(add, a.value, len(first) - 1, count, chunk, rank)
    high = _stack_chunks(add, b.value, len(second) - 2, count, chunk, rank)
    return _sum_chunks(add, matmul(add, wide, high), 0)


def _matmul_vectors(add: AddNode, a: IntegerTensor, b: IntegerTensor) -> Value:
    """A product of which a factor is a vector, as one of a matrix of one row or column."""
    first, second = a.value.type.shape, b.value.type.shape
    if len(first) == 1:
        a = replace(a, value=add(Reshape((1, *first), True), a.value))
    if len(second) == 1:
        b = replace(b, value=add(Reshape((*second, 1), True), b.value))
    product = integer_tensor_matmul(add, a, b)
    *stack, rows, columns = product.type.shape
    ends = ((rows,) if len(first) > 1 else ()) + ((columns,) if len(second) > 1 else ())
    return add(Reshape((*stack, *ends), True), product)


def _split_in_chunks(add: AddNode, x: Value, axis: int, count: int, chunk: int) -> Value:
    """Reshape x so that its dimension `axis` is (count, chunk), padded with zeros."""
    shape = x.type.shape
    if (more := count * chunk - shape[axis]) > 0:
        zeros = (0,) * len(shape)
        x = add(Pad(zeros, (*zeros[:axis], more, *zeros[axis + 1 :])), x)
    return add(Reshape((*shape[:axis], count, chunk, *shape[axis + 1 :]), True), x)


def _stack_chunks(add: AddNode, x: Value, axis: int, count: int, chunk: int, rank: int) -> Value:
    """Split x into parts along its dimension `axis`; they come first, before dimensions of size 1
    up to `rank`.
    """
    x = _split_in_chunks(add, x, axis, count, chunk)
    order = (axis, *(i for i in range(len(x.type.dims)) if i != axis))
    first, *others = (x.type.shape[i] for i in order)
    ones = (1,) * (rank - len(others))
    return add(Reshape((first, *ones, *others), True), add(Transpose(order), x))


def _sum_chunks(add: AddNode, parts: Value, axis: int) -> Value:
    """The sum of whole numbers along `axis`, in int32."""
    return add(Reduce("sum", (axis,), False, TO_INT32), parts)


def integer_tensor_conv(
    add: AddNode,
    x: IntegerTensor,
    weight: IntegerTensor,
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
        return add(Pointwise(TO_INT32), convolved(x.value, weight.value, groups=groups))
    chunk = MOST_EXACT // (x.most * weight.most * taps)
    if not chunk:
        raise UnsupportedOpError(f"conv: sums of {taps} products of integers in float32")
    count = -(-share // chunk)
    chunk = -(-share // count)
    apart = add(Reshape((n, groups, share, *sizes), True), x.value)
    apart = _split_in_chunks(add, apart, 2, count, chunk)
    apart = add(Reshape((n, groups * count * chunk, *sizes), True), apart)
    parts = add(Reshape((groups, o // groups, share, *kernel), True), weight.value)
    parts = _split_in_chunks(add, parts, 2, count, chunk)
    parts = add(Transpose((0, 2, 1, *range(3, len(parts.type.dims)))), parts)
    parts = add(Reshape((groups * count * (o // groups), chunk, *kernel), True), parts)
    y = convolved(apart, parts, groups=groups * count)
    outs = y.type.shape[2:]
    y = add(Reshape((n, groups, count, o // groups, *outs), True), y)
    return add(Reshape((n, o, *outs), True), _sum_chunks(add, y, 2))


def integer_matmul(add: AddNode, a: Value, b: Value) -> Value:
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
    shape = _broadcast_shapes(a.type.shape, b.type.shape)
    if prod(shape) > MOST_PRODUCTS:
        raise UnsupportedOpError(f"matmul: {prod(shape)} products of integers are too many")
    product: Expr = formula("a * b")
    return add(Reduce("sum", (-1,), False, product), add(Expand(shape), a), b)


def _broadcast_shapes(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(int, np.broadcast_shapes(tuple(first), tuple(second))))
    except ValueError:
        raise ShapeError(f"matmul: stacks of {first} and {second} do not broadcast") from None
