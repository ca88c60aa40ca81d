"""The array functions that programs of arrays call by name (`runtime/array_program.py`).

Each takes arrays, and behind them the attributes of its operator, which are plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from glnn import numeric
from glnn.errors import ShapeError
from glnn.resized_axis import Filter, ResizedAxis, nearest_places
from glnn.types import Array, Shape, to_float16

Ints = tuple[int, ...]


def array(numbers: Ints, shape: Shape, dtype: str) -> Array:
    """Return an array of `numbers`."""
    return np.array(numbers, dtype).reshape(shape)


def arange(count: int, dtype: str) -> Array:
    """Return 0, 1, 2 and so on."""
    return np.arange(count, dtype=dtype)


def cast(x: Array, dtype: str) -> Array:
    """Return `x` as `dtype`; see `numeric.cast`."""
    return x.astype(dtype) if dtype.startswith("float") else numeric.cast(dtype)(x)


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
    found = np.moveaxis(wide[..., :-1] if exclusive else wide[..., 1:], -1, axis)
    return np.ascontiguousarray(np.flip(found, axis) if reverse else found)


def halved(x: Array, name: str) -> Array:
    """Return the weight `name` as float16. Raises ShapeError where that does not hold a number."""
    rounded = to_float16(x)
    if (beyond := np.isinf(rounded) & np.isfinite(x)).any():
        worst = x[beyond][np.argmax(np.abs(x[beyond]))]
        raise ShapeError(f"{name} has the number {worst:g}, float16 holds up to 65504")
    return rounded


def nearest_table(resized: tuple[Any, ...], mode: str, nearest: str) -> Array:
    """Return the index of the place that is nearest to each of an axis that is resized, int32."""
    one = ResizedAxis(*resized)
    return nearest_places(one.places(mode), one.size, nearest)


def taps_table(
    resized: tuple[Any, ...], mode: str, filter: tuple[Any, ...], index: int | None = None
) -> Any:
    """Return of what each place is made: indices, int32, and weights, float32: (taps, places).

    index: which of the two; None for both.
    """
    one, made = ResizedAxis(*resized), Filter(*filter)
    both = made.taps(one.places(mode), one.size, one.scale, reach=one.reach(made))
    return both if index is None else both[index]


def inside_table(resized: tuple[Any, ...], mode: str, shape: Shape) -> Array:
    """Return whether each place lies within the tensor that is cropped, in a shape."""
    return ResizedAxis(*resized).inside(mode).reshape(shape)


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
    found = []
    for i, (size, out) in enumerate(zip(extents, outputs, strict=True)):
        at = np.arange(out) * stride[i] - before[i]
        first, last = (-before[i], size + after[i]) if counted else (0, size)
        # The taps before a place are as many as steps to it, rounded up.
        less, until = (np.clip(-((at - end) // dilation[i]), 0, kernel[i]) for end in (first, last))
        found.append(until - less)
    return np.asarray(reduce(np.multiply.outer, found), np.float32)


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
        *(numeric.div, numeric.power, numeric.rsqrt, numeric.erf, numeric.sigmoid, numeric.relu),
        *(np.reshape, np.transpose, np.broadcast_to, np.flip, np.tile, np.roll),
        *(array, arange, cast, reciprocal, concat, cut, pad, gather, cum_sum, halved),
        *(nearest_table, taps_table, inside_table, window_counts),
    )
}
"""The functions by their names, which files have."""
