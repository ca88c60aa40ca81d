"""Array functions that NumPy lacks, and those that `runtime/array_program.py` calls by name.

Each takes arrays, followed by the attributes of its operator, which are plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.resampling import AxisResampling, InterpolationFilter, nearest_positions
from glnn.core.symint import is_integer, is_symbolic
from glnn.core.types import Array, Shape, to_float16
from glnn.errors import ShapeError

# erf(x) = x P(x^2) / Q(x^2) for x up to ERF_END, beyond which it is 1 in float32. The coefficients,
# highest powers first, are a weighted least-squares fit in float64. The greatest relative error is
# 4.9e-8, and at most 8 ulp with float32's rounding.
ERF_NUMERATOR = (
    *(2.0148016365e-8, -1.9630533137e-6, 1.4057083977e-4, 3.6311989083e-3),
    *(5.0341531646e-2, 1.9815754252e-1, 1.1283791124),
)
ERF_DENOMINATOR = (9.4031080531e-4, 1.4205683389e-2, 1.1427056849e-1, 5.0894429916e-1, 1.0)
ERF_END = 3.9
SMALL_ARRAY = 1 << 10
"""The array size up to which the overhead of a NumPy call exceeds its computation."""
ONES = {np.dtype(kind): np.ones((), kind) for kind in (np.float32, np.float64)}
"""1 as an array, which NumPy processes faster than a Python number."""
_exact_erf = np.frompyfunc(math.erf, 1, 1)
_exact_normal_cdf = np.frompyfunc(lambda x: math.erfc(-x * 0.5**0.5) / 2, 1, 1)


def overlaps_itself(array: Array) -> bool:
    """Return True where elements of `array` share memory, as in a view of sliding windows."""
    if array.flags.c_contiguous or array.flags.f_contiguous or not array.size:
        return False
    extent = array.itemsize  # bytes of the dimensions with smaller strides
    sizes = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in sizes if size > 1):
        if stride < extent:  # they may overlap: compare the offsets of all elements
            grid = np.ogrid[tuple(map(slice, array.shape))]
            offsets = sum(i * step for i, step in zip(grid, array.strides, strict=True))
            return bool(np.diff(np.sort(np.ravel(offsets))).min() < array.itemsize)
        extent += (size - 1) * stride
    return False


def sigmoid(x: Array, out: Array | None = None) -> Array:
    """Compute 1 / (1 + exp(-x)), in `out` unless that is None."""
    result = np.asarray(np.negative(x, out))
    np.exp(result, result)
    one = ONES.get(result.dtype, 1)
    np.add(result, one, result)
    return np.asarray(np.divide(one, result, result))


def softmax(x: Array) -> Array:
    """Compute softmax along the last axis."""
    exps = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(exps / exps.sum(-1, keepdims=True))


def relu(x: Array, out: Array | None = None) -> Array:
    """Compute max(x, 0), in `out` unless that is None.

    For large arrays, `np.maximum` of an array and a number takes three times as long as `clip`; for
    small ones it takes less time.
    """
    if x.size <= SMALL_ARRAY:
        return np.asarray(np.maximum(x, np.zeros((), x.dtype), out=out))
    most = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return clip(x, 0, most, out)


def clip(x: Array, low: Any, high: Any, out: Array | None = None) -> Array:
    """Compute min(max(x, low), high), in `out` unless that is None.

    `np.clip` does the same, but has more overhead than two calls for small arrays.
    """
    if x.size <= SMALL_ARRAY:
        return np.asarray(np.minimum(np.maximum(x, low, out=out), high, out=out))
    return np.asarray(x.clip(low, high, out))


def writes_to(function: Callable[..., object]) -> bool:
    """Return True where `function` takes an array `out` for its result."""
    return isinstance(function, np.ufunc) or function in (sigmoid, relu, clip)


def rsqrt(x: Array) -> Array:
    """Compute 1 / sqrt(x)."""
    return np.asarray(1 / np.sqrt(x))


def erf(x: Array) -> Array:
    """Compute the error function."""
    if x.dtype.itemsize > 4:
        return np.asarray(_exact_erf(x), x.dtype)
    near = np.asarray(np.clip(x.astype(np.float32, copy=False), -ERF_END, ERF_END))
    square = np.square(near)
    near *= _polynomial(ERF_NUMERATOR, square)
    near /= _polynomial(ERF_DENOMINATOR, square)
    return np.asarray(np.clip(near, -1, 1, out=near), x.dtype)


def normal_cdf(x: Array) -> Array:
    """Compute the normal distribution's cumulative function, (1 + erf(x / sqrt(2))) / 2."""
    if x.dtype.itemsize > 4:
        return np.asarray(_exact_normal_cdf(x), x.dtype)
    result = erf(x.astype(np.float32, copy=False) * np.float32(0.5**0.5))
    result += np.float32(1)
    result *= np.float32(0.5)
    return result.astype(x.dtype, copy=False)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Evaluate a polynomial in float32 by Horner's rule. coefficients: highest powers first."""
    first, second, *others = (np.float32(factor) for factor in coefficients)
    result: Array = x * first
    result += second
    for factor in others:
        result *= x
        result += factor
    return result


def div(a: Array, b: Array) -> Array:
    """Compute a / b, for integers rounded towards 0, and 0 where b is 0."""
    if is_symbolic(a) or is_symbolic(b):
        return np.asarray(np.frompyfunc(_quotient, 2, 1)(a, b), object)
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    floor = np.floor_divide(a, b)
    return np.asarray(floor + ((floor < 0) & (floor * b != a)), floor.dtype)


def _quotient(a: Any, b: Any) -> Any:
    """Return the quotient as `div` does, for numbers that may be SymInts."""
    if not is_integer(a) or not is_integer(b):
        return a / b
    if b == 0:
        return 0
    result = abs(a) // abs(b)
    return -result if (a < 0) != (b < 0) else result


def power(a: Array, b: Array) -> Array:
    """Compute a to the power of b. Integers wrap around; a fraction is 0."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    result = np.power(a, np.maximum(b, 0))
    return np.asarray(
        np.where(b >= 0, result, np.where(np.abs(a) == 1, a ** (b & 1), 0)), result.dtype
    )


def make_cast(dtype: str | np.dtype[Any]) -> Callable[[Array], Array]:
    """Return a function that converts arrays to `dtype`.

    Floats become integers by rounding towards 0 and saturation; NaN becomes 0. Integers converted
    to a narrower type keep their low bits.
    """

    def convert(x: Array) -> Array:
        target = np.dtype(dtype)
        if x.dtype.kind != "f" or target.kind not in "iu":
            with np.errstate(over="ignore"):
                return np.asarray(x.astype(target))
        limits = np.iinfo(target)
        rounded = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        is_above = rounded >= limits.max
        inside = np.where(is_above, 0, np.maximum(rounded, float(limits.min))).astype(target)
        return np.asarray(np.where(is_above, limits.max, inside), target)

    return convert


MIN_BLOCK = 64
"""The least number of boxes that are compared with each other at once."""


def suppress_overlaps(
    corners: Array, limit: float | np.floating, most: int, classes: Array | None = None
) -> NDArray[np.int64]:
    """Return the indices of the boxes that remain after non-maximum suppression, the best first.

    Args:
        corners: (5, count), the best box first: the minima along both axes, the maxima, the area.
        limit: The intersection over union above which the worse of two boxes is removed.
        most: The greatest number of indices returned.
        classes: (count,), the classes of boxes; those of different classes do not suppress each
            other.
    """
    selected = np.zeros(0, np.int64)
    count = corners.shape[1]
    step = max(MIN_BLOCK, min(most + most // 4, 4 * MIN_BLOCK))
    for start in range(0, count, step):
        block = np.arange(start, min(start + step, count))
        if len(selected):
            block = block[~_overlaps(corners, selected, block, limit, classes).any(0)]
        pairs = np.triu(_overlaps(corners, block, block, limit, classes), 1)
        remains = np.ones(len(block), bool)
        for i in np.flatnonzero(pairs.any(1)).tolist():
            if remains[i]:
                remains &= ~pairs[i]
        selected = np.concatenate((selected, block[remains]))
        if len(selected) >= most:
            break
    return selected[:most]


def _overlaps(
    corners: Array, a: Array, b: Array, limit: float | np.floating, classes: Array | None
) -> Array:
    """Return a mask (len(a), len(b)) of pairs of boxes that overlap by more than `limit`.

    a, b: indices of boxes.
    """
    first, second = corners[:, a, None], corners[:, None, b]
    height = np.minimum(first[2], second[2])
    height -= np.maximum(first[0], second[0])
    width = np.minimum(first[3], second[3])
    width -= np.maximum(first[1], second[1])
    np.maximum(height, 0, out=height)
    np.maximum(width, 0, out=width)
    intersection = np.multiply(height, width, out=height)
    union = np.add(first[4], second[4], out=width)
    union -= intersection
    with np.errstate(all="ignore"):  # 0 / 0 for boxes without an area, which do not overlap
        result: Array = np.divide(intersection, union, out=intersection) > limit
    if classes is not None:
        result &= classes[a, None] == classes[None, b]
    return result


Ints = tuple[int, ...]


def array(numbers: Ints, shape: Shape, dtype: str) -> Array:
    """Return an array of `numbers`."""
    return np.array(numbers, dtype).reshape(shape)


def arange(count: int, dtype: str) -> Array:
    """Return 0, 1, 2 and so on."""
    return np.arange(count, dtype=dtype)


def cast(x: Array, dtype: str) -> Array:
    """Return `x` as `dtype`; see `make_cast`."""
    return x.astype(dtype) if dtype.startswith("float") else make_cast(dtype)(x)


def reciprocal(x: Array) -> Array:
    """Return 1 / x."""
    return np.asarray(np.divide(1, x, dtype=x.dtype))


def concat(*operands: Any) -> Array:
    """Concatenate all but the last operand, arrays, along the axis that is the last operand."""
    return np.concatenate(operands[:-1], operands[-1])


def cut(x: Array, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> Array:
    """Return the slice of x from `starts` to `ends` (exclusive) in `steps`, along `axes`."""
    slices = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, starts, ends, steps, strict=True):
        slices[axis] = slice(*bounds)
    return x[tuple(slices)]


def pad(x: Array, before: Ints, after: Ints, edge: str, fill: float) -> Array:
    """Return x padded along each axis by `before` and `after`; negative numbers crop it."""
    if not x.ndim:  # np.pad refuses an empty list
        return x
    sides = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if edge == "constant":
        x = np.pad(x, sides, constant_values=np.asarray(fill).astype(x.dtype))
    else:
        x = np.pad(x, sides, mode=edge)  # type: ignore[call-overload]
    crops = zip(before, after, strict=True)
    return x[tuple(slice(max(-b, 0), min(a, 0) or None) for b, a in crops)]


def gather(x: Array, index: Array, axis: int) -> Array:
    """Return the slices of x along `axis` at `index`; indices out of range are clamped."""
    size = x.shape[axis]
    if not index.size:
        return np.take(x, np.zeros(index.shape, np.intp), axis, mode="clip")
    return np.take(x, np.clip(np.where(index < 0, index + size, index), 0, size - 1), axis)


def cum_sum(x: Array, axis: int, exclusive: bool, reverse: bool, multiply: bool) -> Array:
    """Return the cumulative sum, or product, of x along `axis`."""
    x = np.moveaxis(np.flip(x, axis) if reverse else x, axis, -1)
    wide = np.full((*x.shape[:-1], x.shape[-1] + 1), int(multiply), x.dtype)
    accumulate = np.cumprod if multiply else np.cumsum
    with np.errstate(all="ignore"):
        accumulate(x, -1, dtype=x.dtype, out=wide[..., 1:])
    sums = np.moveaxis(wide[..., :-1] if exclusive else wide[..., 1:], -1, axis)
    return np.ascontiguousarray(np.flip(sums, axis) if reverse else sums)


def round_to_float16(x: Array, name: str) -> Array:
    """Return the weight `name` as float16. Raises ShapeError for numbers beyond its range."""
    rounded = to_float16(x)
    if (beyond := np.isinf(rounded) & np.isfinite(x)).any():
        worst = x[beyond][np.argmax(np.abs(x[beyond]))]
        raise ShapeError(f"{name} has the number {worst:g}, float16 holds up to 65504")
    return rounded


def nearest_table(resized: tuple[Any, ...], mode: str, nearest: str) -> Array:
    """Return the index (int32) of the input position nearest to each position of a resized axis.

    resized: the fields of an AxisResampling, as in the functions below.
    """
    axis = AxisResampling(*resized)
    return nearest_positions(axis.source_coordinates(mode), axis.size, nearest)


def taps_table(
    resized: tuple[Any, ...], mode: str, filter: tuple[Any, ...], index: int | None = None
) -> Any:
    """Return the indices (int32) and weights (float32) of a resized axis: (taps, positions).

    filter: the fields of an InterpolationFilter. index: 0 for the indices, 1 for the weights; None
    for both.
    """
    axis, kernel = AxisResampling(*resized), InterpolationFilter(*filter)
    coordinates = axis.source_coordinates(mode)
    taps = kernel.taps(coordinates, axis.size, axis.scale, reach=axis.reach(kernel))
    return taps if index is None else taps[index]


def inside_table(resized: tuple[Any, ...], mode: str, shape: Shape) -> Array:
    """Return the mask of a resized axis's positions within the cropped input, in `shape`."""
    return AxisResampling(*resized).inside(mode).reshape(shape)


def window_counts(
    extents: Ints,
    outputs: Ints,
    kernel: Ints,
    stride: Ints,
    dilation: Ints,
    before: Ints,
    after: Ints,
    counted: bool,
) -> Array:
    """Return the number of elements that each window of an average pool averages.

    counted: whether elements of the padding count.
    """
    counts = []
    for i, (size, out) in enumerate(zip(extents, outputs, strict=True)):
        starts = np.arange(out) * stride[i] - before[i]
        first, last = (-before[i], size + after[i]) if counted else (0, size)
        # The taps before a position: the distance to it in units of the dilation, rounded up.
        skipped, end = (
            np.clip(-((starts - bound) // dilation[i]), 0, kernel[i]) for bound in (first, last)
        )
        counts.append(end - skipped)
    return np.asarray(reduce(np.multiply.outer, counts), np.float32)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(np.add, np.subtract, np.multiply, np.divide, np.fmod, np.remainder, np.negative),
        *(np.absolute, np.sign, np.square, np.sqrt, np.maximum, np.minimum, np.clip),
        *(np.ceil, np.floor, np.trunc, np.rint, np.exp, np.exp2, np.expm1, np.log, np.log2),
        *(np.log1p, np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan, np.arctan2),
        *(np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh),
        *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
        *(np.logical_and, np.logical_or, np.logical_xor, np.logical_not),
        *(np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert),
        *(np.left_shift, np.right_shift, np.isnan, np.isinf, np.isfinite, np.where),
        *(div, power, rsqrt, erf, normal_cdf, sigmoid, relu),
        *(np.reshape, np.transpose, np.broadcast_to, np.flip, np.tile, np.roll),
        *(array, arange, cast, reciprocal, concat, cut, pad, gather, cum_sum, round_to_float16),
        *(nearest_table, taps_table, inside_table, window_counts),
    )
}
"""The functions by name. Stored plans name them."""
