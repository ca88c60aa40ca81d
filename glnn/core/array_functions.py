"""NumPy functions that programs of arrays call by name (`runtime/array_program.py`), and those that
NumPy lacks.

Each takes arrays, and behind them the attributes of its operator, which are plain data.
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

# erf(x) = x P(x^2) / Q(x^2) up to ERF_END, from where float32 has 1. The greatest relative error is
# 4.9e-8, found by weighted least squares in float64, and at most 8 ulp with float32's rounding.
# Highest powers first.
ERF_ABOVE = (
    *(2.0148016365e-8, -1.9630533137e-6, 1.4057083977e-4, 3.6311989083e-3),
    *(5.0341531646e-2, 1.9815754252e-1, 1.1283791124),
)
ERF_BELOW = (9.4031080531e-4, 1.4205683389e-2, 1.1427056849e-1, 5.0894429916e-1, 1.0)
ERF_END = 3.9
SMALL_ARRAY = 1 << 10
"""The array size below which the overhead of a NumPy call exceeds its computation."""
ONES = {np.dtype(kind): np.ones((), kind) for kind in (np.float32, np.float64)}
"""The number 1 as an array, which NumPy handles faster than a Python number."""
_exact_erf = np.frompyfunc(math.erf, 1, 1)
_exact_normal_cdf = np.frompyfunc(lambda x: math.erfc(-x * 0.5**0.5) / 2, 1, 1)


def overlaps_itself(array: Array) -> bool:
    """Return True where elements of `array` share memory, as those of a window view do."""
    if array.flags.c_contiguous or array.flags.f_contiguous or not array.size:
        return False
    reach = array.itemsize
    sizes = zip(map(abs, array.strides), array.shape, strict=True)
    for stride, size in sorted((stride, size) for stride, size in sizes if size > 1):
        if stride < reach:  # then only the places of all elements tell
            grid = np.ogrid[tuple(map(slice, array.shape))]
            places = sum(i * step for i, step in zip(grid, array.strides, strict=True))
            return bool(np.diff(np.sort(np.ravel(places))).min() < array.itemsize)
        reach += (size - 1) * stride
    return False


def sigmoid(x: Array, out: Array | None = None) -> Array:
    """1 / (1 + exp(-x)), written to `out` where that is given."""
    result = np.asarray(np.negative(x, out))
    np.exp(result, result)
    one = ONES.get(result.dtype, 1)
    np.add(result, one, result)
    return np.asarray(np.divide(one, result, result))


def softmax(x: Array) -> Array:
    """exp(x) of the last axis, divided by its sum there."""
    exps = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(exps / exps.sum(-1, keepdims=True))


def relu(x: Array, out: Array | None = None) -> Array:
    """The greater of x and 0, written to `out` where that is given.

    `np.maximum` takes three times as long of many numbers where one operand is a number, but less
    of few.
    """
    if x.size <= SMALL_ARRAY:
        return np.asarray(np.maximum(x, np.zeros((), x.dtype), out=out))
    most = np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max
    return clip(x, 0, most, out)


def clip(x: Array, low: Any, high: Any, out: Array | None = None) -> Array:
    """The smaller of high and the greater of low and x, written to `out` where that is given.

    `np.clip` does the same, but takes longer of few numbers than their arithmetic.
    """
    if x.size <= SMALL_ARRAY:
        return np.asarray(np.minimum(np.maximum(x, low, out=out), high, out=out))
    return np.asarray(x.clip(low, high, out))


def writes_to(function: Callable[..., object]) -> bool:
    """Return True where `function` writes its result to an array called `out`."""
    return isinstance(function, np.ufunc) or function in (sigmoid, relu, clip)


def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return np.asarray(1 / np.sqrt(x))


def erf(x: Array) -> Array:
    """Compute the error function."""
    if x.dtype.itemsize > 4:
        return np.asarray(_exact_erf(x), x.dtype)
    near = np.asarray(np.clip(x.astype(np.float32, copy=False), -ERF_END, ERF_END))
    square = np.square(near)
    near *= _polynomial(ERF_ABOVE, square)
    near /= _polynomial(ERF_BELOW, square)
    return np.asarray(np.clip(near, -1, 1, out=near), x.dtype)


def normal_cdf(x: Array) -> Array:
    """Return the standard normal distribution's cumulative function, (1 + erf(x / sqrt(2))) / 2."""
    if x.dtype.itemsize > 4:
        return np.asarray(_exact_normal_cdf(x), x.dtype)
    result = erf(x.astype(np.float32, copy=False) * np.float32(0.5**0.5))
    result += np.float32(1)
    result *= np.float32(0.5)
    return result.astype(x.dtype, copy=False)


def _polynomial(factors: tuple[float, ...], x: Array) -> Array:
    """The polynomial of float32 by Horner's rule, highest powers first."""
    first, second, *rest = (np.float32(factor) for factor in factors)
    result: Array = x * first
    result += second
    for factor in rest:
        result *= x
        result += factor
    return result


def div(a: Array, b: Array) -> Array:
    """a / b; of integers towards 0, and 0 where b is, as `numpy.floor_divide` has it."""
    if is_symbolic(a) or is_symbolic(b):
        return np.asarray(np.frompyfunc(_quotient, 2, 1)(a, b), object)
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    floor = np.floor_divide(a, b)
    return np.asarray(floor + ((floor < 0) & (floor * b != a)), floor.dtype)


def _quotient(a: Any, b: Any) -> Any:
    """Return the quotient as `div` does, of numbers that may be SymInts."""
    if not is_integer(a) or not is_integer(b):
        return a / b
    if b == 0:
        return 0
    result = abs(a) // abs(b)
    return -result if (a < 0) != (b < 0) else result


def power(a: Array, b: Array) -> Array:
    """a to the b; of integers what is left in their width, 0 for fractions."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.power(a, b))
    result = np.power(a, np.maximum(b, 0))
    return np.asarray(
        np.where(b >= 0, result, np.where(np.abs(a) == 1, a ** (b & 1), 0)), result.dtype
    )


def make_cast(dtype: str | np.dtype[Any]) -> Callable[[Array], Array]:
    """To `dtype`: floats to integers towards 0 and to the nearest that there is, NaN to 0.

    Integers to narrower ones keep their low bits.
    """

    def to(x: Array) -> Array:
        target = np.dtype(dtype)
        if x.dtype.kind != "f" or target.kind not in "iu":
            with np.errstate(over="ignore"):
                return np.asarray(x.astype(target))
        limits = np.iinfo(target)
        whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        least, over = float(limits.min), whole >= limits.max
        inside = np.where(over, 0, np.maximum(whole, least)).astype(target)
        return np.asarray(np.where(over, limits.max, inside), target)

    return to


MIN_BLOCK = 64
"""Boxes that are compared with one another at once, at least."""


def suppress_overlaps(
    corners: Array, limit: float | np.floating, most: int, classes: Array | None = None
) -> NDArray[np.int64]:
    """Return the first `most` places, the best box first, that no better one of them overlaps.

    Args:
        corners: (5, count), the best box first: the least of both axes, the greatest, the area.
        limit: The intersection over union beyond which the lesser box goes.
        most: How many places there are at most.
        classes: (count,), where boxes of different classes do not suppress each other.
    """
    kept = np.zeros(0, np.int64)
    count = corners.shape[1]
    step = max(MIN_BLOCK, min(most + most // 4, 4 * MIN_BLOCK))
    for start in range(0, count, step):
        places = np.arange(start, min(start + step, count))
        if len(kept):
            places = places[~_overlaps(corners, kept, places, limit, classes).any(0)]
        pairs = np.triu(_overlaps(corners, places, places, limit, classes), 1)
        alive = np.ones(len(places), bool)
        for i in np.flatnonzero(pairs.any(1)).tolist():
            if alive[i]:
                alive &= ~pairs[i]
        kept = np.concatenate((kept, places[alive]))
        if len(kept) >= most:
            break
    return kept[:most]


def _overlaps(
    corners: Array, a: Array, b: Array, limit: float | np.floating, classes: Array | None
) -> Array:
    """Return which boxes overlap by more than `limit`: (places of a, places of b)."""
    first, second = corners[:, a, None], corners[:, None, b]
    height = np.minimum(first[2], second[2])
    height -= np.maximum(first[0], second[0])
    width = np.minimum(first[3], second[3])
    width -= np.maximum(first[1], second[1])
    np.maximum(height, 0, out=height)
    np.maximum(width, 0, out=width)
    shared = np.multiply(height, width, out=height)
    union = np.add(first[4], second[4], out=width)
    union -= shared
    with np.errstate(all="ignore"):  # of boxes without an area nothing is shared
        result: Array = np.divide(shared, union, out=shared) > limit
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


def concat(*given: Any) -> Array:
    """Return arrays behind one another along the axis that comes last."""
    return np.concatenate(given[:-1], given[-1])


def cut(x: Array, starts: Ints, ends: Ints, axes: Ints, steps: Ints) -> Array:
    """Return x from `starts` on to before `ends` in `steps`, along `axes`."""
    cuts = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = slice(*bounds)
    return x[tuple(cuts)]


def pad(x: Array, before: Ints, after: Ints, edge: str, fill: float) -> Array:
    """Return x with more places around it, or less where a number is negative."""
    if not x.ndim:  # np.pad takes no list of nothing
        return x
    sides = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if edge == "constant":
        x = np.pad(x, sides, constant_values=np.asarray(fill).astype(x.dtype))
    else:
        x = np.pad(x, sides, mode=edge)  # type: ignore[call-overload]
    cuts = zip(before, after, strict=True)
    return x[tuple(slice(max(-b, 0), min(a, 0) or None) for b, a in cuts)]


def gather(x: Array, index: Array, axis: int) -> Array:
    """Return the slices of x along `axis` at `index`; out of range the nearest is taken."""
    size = x.shape[axis]
    if not index.size:
        return np.take(x, np.zeros(index.shape, np.intp), axis, mode="clip")
    return np.take(x, np.clip(np.where(index < 0, index + size, index), 0, size - 1), axis)


def cum_sum(x: Array, axis: int, exclusive: bool, reverse: bool, multiply: bool) -> Array:
    """Return the sum, or product, of x's numbers from the first to each one along `axis`."""
    x = np.moveaxis(np.flip(x, axis) if reverse else x, axis, -1)
    wide = np.full((*x.shape[:-1], x.shape[-1] + 1), int(multiply), x.dtype)
    accumulate = np.cumprod if multiply else np.cumsum
    with np.errstate(all="ignore"):
        accumulate(x, -1, dtype=x.dtype, out=wide[..., 1:])
    sums = np.moveaxis(wide[..., :-1] if exclusive else wide[..., 1:], -1, axis)
    return np.ascontiguousarray(np.flip(sums, axis) if reverse else sums)


def round_to_float16(x: Array, name: str) -> Array:
    """Return the weight `name` as float16. Raises ShapeError where that does not hold a number."""
    rounded = to_float16(x)
    if (beyond := np.isinf(rounded) & np.isfinite(x)).any():
        worst = x[beyond][np.argmax(np.abs(x[beyond]))]
        raise ShapeError(f"{name} has the number {worst:g}, float16 holds up to 65504")
    return rounded


def nearest_table(resized: tuple[Any, ...], mode: str, nearest: str) -> Array:
    """Return the index of the place that is nearest to each of an axis that is resized, int32."""
    one = AxisResampling(*resized)
    return nearest_positions(one.source_coordinates(mode), one.size, nearest)


def taps_table(
    resized: tuple[Any, ...], mode: str, filter: tuple[Any, ...], index: int | None = None
) -> Any:
    """Return of what each place is made: indices, int32, and weights, float32: (taps, places).

    index: which of the two; None for both.
    """
    one, made = AxisResampling(*resized), InterpolationFilter(*filter)
    both = made.taps(one.source_coordinates(mode), one.size, one.scale, reach=one.reach(made))
    return both if index is None else both[index]


def inside_table(resized: tuple[Any, ...], mode: str, shape: Shape) -> Array:
    """Return whether each place lies within the tensor that is cropped, in a shape."""
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
    """Return how many numbers the mean of each window is of; `counted`: in the padding, too."""
    counts = []
    for i, (size, out) in enumerate(zip(extents, outputs, strict=True)):
        at = np.arange(out) * stride[i] - before[i]
        first, last = (-before[i], size + after[i]) if counted else (0, size)
        # The taps before a place are as many as steps to it, rounded up.
        less, until = (np.clip(-((at - end) // dilation[i]), 0, kernel[i]) for end in (first, last))
        counts.append(until - less)
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
"""The functions by their names, which files have."""
