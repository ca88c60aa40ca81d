"""What windows of any number of dimensions should give, by definition: float64, a loop per place.

Independent of glnn on purpose. Sizes are tuples with a number for each dimension behind the
channels; x is (n, c, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, floor, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Sizes = Sequence[int]


def met(
    x: Array, outs: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes, before: Sizes
) -> Iterator[tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]]:
    """Each window's place, and for each tap that is inside of x, its place in the kernel and x."""
    for out in np.ndindex(*outs):
        found = []
        for tap in np.ndindex(*kernel):
            at = tuple(
                o * s + t * d - b
                for o, s, t, d, b in zip(out, stride, tap, dilation, before, strict=True)
            )
            if all(0 <= p < n for p, n in zip(at, x.shape[2:], strict=True)):
                found.append((tap, at))
        yield out, found


def count(
    size: int, kernel: int, stride: int, dilation: int, sides: int, *, hanging: bool, before: int
) -> int:
    """How many windows there are: the last may hang over where it starts before the end."""
    room = size + sides - dilation * (kernel - 1) - 1
    found = (ceil if hanging else floor)(room / stride) + 1
    return found - 1 if hanging and (found - 1) * stride >= size + before else found


def conv(
    x: Array,
    weight: Array,
    stride: Sizes,
    before: Sizes,
    after: Sizes,
    dilation: Sizes,
    groups: int,
) -> Array:
    """The cross-correlation of x with zeros around it."""
    kernel = weight.shape[2:]
    steps = zip(x.shape[2:], kernel, stride, dilation, before, after, strict=True)
    outs = [count(n, k, s, d, b + a, hanging=False, before=b) for n, k, s, d, b, a in steps]
    o, share = weight.shape[:2]
    result = np.zeros((len(x), o, *outs))
    for out, taps in met(x, outs, kernel, stride, dilation, before):
        for i in range(o):
            part = slice(i // (o // groups) * share, i // (o // groups) * share + share)
            for tap, at in taps:
                numbers = x[(slice(None), part, *at)].astype(np.float64)
                result[(slice(None), i, *out)] += numbers @ weight[(i, slice(None), *tap)]
    return result


def conv_transpose(
    x: Array,
    weight: Array,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Array:
    """Each number of x times the kernel, added where it falls."""
    share, kernel, sizes = weight.shape[1], weight.shape[2:], x.shape[2:]
    steps = zip(sizes, stride, dilation, kernel, output_padding, strict=True)
    whole = [(n - 1) * s + d * (k - 1) + 1 + o for n, s, d, k, o in steps]
    result = np.zeros((len(x), share * groups, *whole))
    for i, o in product(range(x.shape[1]), range(share)):
        to = i // (x.shape[1] // groups) * share + o
        for at, tap in product(np.ndindex(*sizes), np.ndindex(*kernel)):
            places = zip(at, stride, tap, dilation, strict=True)
            where = tuple(a * s + t * d for a, s, t, d in places)
            result[(slice(None), to, *where)] += x[(slice(None), i, *at)] * weight[(i, o, *tap)]
    cut = (slice(p, n - p) for p, n in zip(padding, whole, strict=True))
    return result[(slice(None), slice(None), *cut)]


def pool(
    x: Array,
    mode: str,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    *,
    hanging: bool = False,
    counted: bool = True,
    divisor: int | None = None,
) -> Array:
    """The largest number or the mean of each window. counted: whether the padding's zeros count."""
    sizes = x.shape[2:]
    steps = zip(sizes, kernel, stride, dilation, padding, strict=True)
    outs = [count(n, k, s, d, 2 * p, hanging=hanging, before=p) for n, k, s, d, p in steps]
    result = np.zeros((*x.shape[:2], *outs))
    for out, taps in met(x, outs, kernel, stride, dilation, padding):
        numbers = np.stack([x[(slice(None), slice(None), *at)] for _, at in taps])
        there = 1
        for o, n, k, s, p in zip(out, sizes, kernel, stride, padding, strict=True):
            there *= min(o * s - p + k, n + p) - (o * s - p)
        over = divisor or (there if counted else len(taps))
        found = numbers.max(0) if mode == "max" else numbers.astype(np.float64).sum(0) / over
        result[(slice(None), slice(None), *out)] = found
    return result


def adaptive(x: Array, mode: str, counts: Sequence[int | None]) -> Array:
    """The largest number or the mean of each of so many windows that share x."""
    sizes = x.shape[2:]
    outs = [n if c is None else c for c, n in zip(counts, sizes, strict=True)]
    result = np.zeros((*x.shape[:2], *outs))
    for out in np.ndindex(*outs):
        parts = (
            slice(floor(i * n / m), ceil((i + 1) * n / m))
            for i, n, m in zip(out, sizes, outs, strict=True)
        )
        numbers = x[(slice(None), slice(None), *parts)].reshape(*x.shape[:2], -1)
        found = numbers.max(-1) if mode == "max" else numbers.astype(np.float64).mean(-1)
        result[(slice(None), slice(None), *out)] = found
    return result


def columns(x: Array, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Array:
    """The numbers of each window of images, zeros outside: (n, c taps, windows)."""
    steps = zip(x.shape[2:], kernel, stride, dilation, padding, strict=True)
    outs = [count(n, k, s, d, 2 * p, hanging=False, before=p) for n, k, s, d, p in steps]
    result = np.zeros((*x.shape[:2], prod(kernel), prod(outs)))
    for out, taps in met(x, outs, kernel, stride, dilation, padding):
        for tap, at in taps:
            place = np.ravel_multi_index(tap, kernel), np.ravel_multi_index(out, outs)
            result[(slice(None), slice(None), *place)] = x[(slice(None), slice(None), *at)]
    return result.reshape(len(x), -1, prod(outs))


def image(
    x: Array, sizes: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Array:
    """The sum of what lies upon each place: what `columns` took apart, and more where they meet."""
    c = x.shape[1] // prod(kernel)
    result = np.zeros((len(x), c, *sizes))
    steps = zip(sizes, kernel, stride, dilation, padding, strict=True)
    outs = [count(n, k, s, d, 2 * p, hanging=False, before=p) for n, k, s, d, p in steps]
    given = x.reshape(len(x), c, *kernel, *outs)
    for out, taps in met(result, outs, kernel, stride, dilation, padding):
        for tap, at in taps:
            result[(slice(None), slice(None), *at)] += given[(slice(None), slice(None), *tap, *out)]
    return result
