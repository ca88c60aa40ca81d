"""Matrix products of any ranks, and products and convolutions of integers, exact by float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from glnn.core.cached_property import cached_property
from glnn.core.types import Array, Dim, DType, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.node_adder import AddNode, constant, merge_dims, split_dim
from glnn.graph.compose.sliding_windows import Sizes, conv
from glnn.graph.expression import Expr, formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import (
    Expand,
    Matmul,
    Pointwise,
    Reduce,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from glnn.graph.operators.dequantize import Dequantize

Span = tuple[int, int]
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
    """Integers of 8 bits less a zero point: a factor of products that float32 sums up.

    A constant stays integers until a product reads it, so that a device may keep them so.
    """

    integers: Value
    zero: Value | None
    """The zero point, which broadcasts to the integers; None for 0."""
    along: tuple[int, ...]
    """The axes that products are summed along, first the one that may be split into parts."""

    def __post_init__(self) -> None:
        if self.integers.type.dtype not in (DType.uint8, DType.int8):
            what = f"got {self.integers.type}"
            raise UnsupportedOpError(f"products of integers are of uint8 and int8, {what}")

    @cached_property
    def most(self) -> int:
        """The greatest absolute value of a number."""
        low, high = _value_bounds(self.integers)
        least, most = (0, 0) if self.zero is None else _value_bounds(self.zero)
        return max(most - low, high - least)

    @cached_property
    def sizes(self) -> NDArray[np.int64] | None:
        """The sum of absolute values for each result and place of the axis that may be split, as
        (results, places); None where they are not known before a run.
        """
        numbers = _constant_array(self.integers)
        zero = np.zeros((), np.int8) if self.zero is None else _constant_array(self.zero)
        if numbers is None or zero is None:
            return None
        axis, *others = (i % numbers.ndim for i in self.along)
        sums = np.abs(numbers.astype(np.int32) - zero.astype(np.int32))
        sums = sums.sum(tuple(others), np.int64, keepdims=True)
        result: NDArray[np.int64] = np.moveaxis(sums, axis, -1).reshape(-1, numbers.shape[axis])
        return result

    def part(self, add: AddNode, first: int, last: int) -> Value:
        """Return the integers from the place `first` of the axis that may be split to before
        `last`.
        """
        axis = self.along[0] % len(self.integers.type.dims)
        if (first, last) == (0, self.integers.type.shape[axis]):
            return self.integers
        return add(Slice((first,), (last,), (axis,), (1,)), self.integers)

    def as_float(self, add: AddNode, integers: Value) -> Value:
        """Return `integers`, all of the tensor's or a part, less the zero point, as float32."""
        zero, shape = self.zero, () if self.zero is None else self.zero.type.shape
        axes = [i - len(shape) for i, size in enumerate(shape) if size != 1]
        fixed = zero is None or zero.kind is Kind.CONSTANT
        if self.integers.kind is Kind.CONSTANT and fixed and len(axes) < 2:
            flat = tuple(shape[i] for i in axes)
            if zero is not None and not zero.data.any():  # type: ignore[union-attr]
                zero, axes = None, []
            elif zero is not None and shape != flat:
                zero = add(Reshape(flat, True), zero)
            axis = len(integers.type.dims) + axes[0] if axes else 0
            operands = (integers, ONE) if zero is None else (integers, ONE, zero)
            return add(Dequantize(axis, 0), *operands)
        if zero is None:
            return add(Pointwise(formula("cast_float32(a)")), integers)
        return add(Pointwise(formula("cast_float32(a) - cast_float32(b)")), integers, zero)


ONE = constant(np.ones((), np.float32))
"""The scale of integers that stand for themselves."""


def _constant_array(x: Value) -> Array | None:
    return x.data if x.kind is Kind.CONSTANT else None  # type: ignore[return-value]


def _value_bounds(x: Value) -> tuple[int, int]:
    """The least and the largest number that x may have."""
    numbers = _constant_array(x)
    if numbers is not None and numbers.size:
        return int(numbers.min()), int(numbers.max())
    info = np.iinfo(x.type.dtype.numpy)
    return int(info.min), int(info.max)


def _exact_parts(a: IntegerTensor, b: IntegerTensor, depth: int, taps: int) -> list[Span]:
    """Split `depth` places into parts such that float32 holds each sum of products of a part.

    taps: the products of a place. Returns the first place of each part, and the one behind its
    last. Raises UnsupportedOpError where a single place may have more.
    """
    most = a.most * b.most * taps
    if most * depth <= MOST_EXACT:
        return [(0, depth)]
    length = MOST_EXACT // most
    for factor, other in ((a, b), (b, a)):
        if factor.sizes is not None:
            length = max(length, _longest_part(factor.sizes, MOST_EXACT // other.most))
    if length == 0:
        raise UnsupportedOpError(f"sums of {taps} products of integers in float32")
    result, first = [], 0
    while depth > first + length:
        result.append((first, first + length))
        first += length
    return [*result, (first, depth)]


def _longest_part(sizes: NDArray[np.int64], most: int) -> int:
    """Return the length of the fewest parts of the rows of `sizes`, as long as one another, whose
    sums are `most` or less; 0 where there is none.
    """
    depth: int = sizes.shape[1]
    for count in range(1, depth + 1):
        length = -(-depth // count)
        if np.add.reduceat(sizes, range(0, depth, length), 1).max(initial=0) <= most:
            return length
    return 0


def _add_parts(add: AddNode, parts: Iterable[Value]) -> Value:
    """Return the sum of whole numbers of float32, as int32."""
    first, *others = (add(Pointwise(TO_INT32), part) for part in parts)
    for other in others:
        first = add(Pointwise(formula("a + b")), first, other)
    return first


def integer_tensor_matmul(add: AddNode, a: IntegerTensor, b: IntegerTensor) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul: int32.

    Sums that may exceed float32's integers are those of parts of k, which int32 adds up.
    """
    first, second = a.integers.type.shape, b.integers.type.shape
    if not first or not second or first[-1] != second[max(len(second) - 2, 0)]:
        raise ShapeError(f"matmul: factors {first} and {second} do not fit")
    parts = _exact_parts(a, b, first[-1], 1)
    factors = ([one.as_float(add, one.part(add, *part)) for one in (a, b)] for part in parts)
    return _add_parts(add, (matmul(add, *pair) for pair in factors))


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

    Sums that may exceed float32's integers are those of parts of the channels, which int32 adds
    up. Raises UnsupportedOpError where a single channel's may.
    """
    (n, c, *sizes), (o, share, *kernel) = x.integers.type.shape, weight.integers.type.shape
    if c != share * groups or o % groups:
        raise ShapeError(f"conv: x {x.integers.type} and weight {weight.integers.type} do not fit")
    convolved = partial(conv, add, stride=stride, padding=padding, dilation=dilation, exact=True)

    def product(first: int, last: int) -> Value:
        channels = x.integers
        if (first, last) != (0, share):
            channels = add(Reshape((n, groups, share, *sizes), True), channels)
            channels = add(Slice((first,), (last,), (2,), (1,)), channels)
            channels = add(Reshape((n, groups * (last - first), *sizes), True), channels)
        some = weight.as_float(add, weight.part(add, first, last))
        return convolved(x.as_float(add, channels), some, groups=groups)

    parts = _exact_parts(x, weight, share, prod(kernel))
    return _add_parts(add, (product(*part) for part in parts))


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
            transposed = b.type.shape
            b = add(Reshape((*transposed[:-2], 1, *transposed[-2:]), True), b)
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
