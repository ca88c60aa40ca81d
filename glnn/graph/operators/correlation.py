"""Convolutions by NumPy: products of weights and columns of an image, block by block."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glnn.graph.gathering import FEW, Gathering
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides
from glnn.types import Array, Shape

COLUMN_BYTES = 64 << 20  # of the columns that a gradient has at once: samples are divided by it
BLOCK_BYTES = 1 << 20  # of the columns of a block: what a core's cache holds
LEAST_COLUMNS = 512  # of a block: below, a product reads the weights more than it computes


def correlated(
    x: Array,
    weight: Array,
    out: Pair,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
) -> Array:
    """The convolution of x (n, c, h, w) by weight (o, c / groups, kh, kw), (n, o, *out), in x's
    dtype. out: windows down and across.

    Where the window is one pixel, columns are x itself; else those of some rows of the result, of
    some groups or of some samples are copied at a time (im2col).
    """
    n, c, o, kernel = len(x), x.shape[1], len(weight), (weight.shape[2], weight.shape[3])
    share, own = c // groups, o // groups
    result = np.empty((n, o, *out), x.dtype)
    flat = weight.reshape(groups, own, share * prod(kernel))
    placed = result.reshape(n, groups, own, prod(out))
    if kernel == stride == (1, 1) and not any(padding):
        np.matmul(flat, x.reshape(n, groups, share, prod(out)), out=placed)
        return result
    met = _met(x, out, kernel, stride, padding, dilation).reshape(n, groups, share, *kernel, *out)
    samples, some, rows = _block((groups, *out), flat.shape[2], x.itemsize)
    room = np.empty(samples * some * flat.shape[2] * rows * out[1], x.dtype)
    starts = product(range(0, n, samples), range(0, groups, some), range(0, out[0], rows))
    for i, g, y in starts:
        part = met[i : i + samples, g : g + some, ..., y : y + rows, :]
        columns = room[: part.size].reshape(part.shape)
        np.copyto(columns, part)
        columns = columns.reshape(*part.shape[:2], flat.shape[2], part.shape[-2] * out[1])
        pixels = slice(y * out[1], (y + rows) * out[1])
        np.matmul(flat[g : g + some], columns, out=placed[i : i + samples, g : g + some, :, pixels])
    return result


def few_correlated(
    x: Shape,
    weight: Shape,
    out: Pair,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
    dtype: np.dtype[Any],
) -> Callable[[Array, Array], Array] | None:
    """Return what computes `correlated` of x and weight of these shapes, of few numbers.

    Where the numbers of the columns lie is found here. None where there are many of them.
    """
    n, share, own, kernel = x[0], weight[1], weight[0] // groups, (weight[2], weight[3])
    depth, pixels = share * prod(kernel), prod(out)
    if not 0 < n * groups * depth * pixels <= FEW:
        return None
    (o, *_), shape = weight, (n, groups, depth, pixels)

    def columns(places: Array) -> Array:
        return np.array(_met(places, out, kernel, stride, padding, dilation)).reshape(shape)

    # A tap that meets padding finds 0 there, as a place that is none of x.
    places = np.arange(1, prod(x) + 1, dtype=np.int64).reshape(x)
    gather = Gathering(x, columns(places) - 1, dtype)
    if n == groups == 1:
        return lambda x, weight: np.matmul(
            weight.reshape(o, depth), gather(x).reshape(depth, pixels)
        ).reshape(1, o, *out)
    flat = groups, own, depth
    return lambda x, weight: np.matmul(weight.reshape(flat), gather(x)).reshape(n, o, *out)


def _block(sizes: tuple[int, int, int], depth: int, itemsize: int) -> tuple[int, int, int]:
    """Samples, groups and rows of the result that a block is of: rows of one group, whole groups
    of one sample, or whole samples.

    sizes: groups, rows and columns of the result. depth: numbers of a column.
    """
    groups, high, wide = sizes
    columns = max(BLOCK_BYTES // max(depth * itemsize, 1), 1)
    plane = max(high * wide, 1)
    rows = max(columns, LEAST_COLUMNS) // max(wide, 1)
    if rows < high:
        return 1, 1, max(rows, 1)
    some = min(max(columns // plane, 1), max(groups, 1))
    return (1, some, high) if some < groups else (max(columns // plane // some, 1), some, high)


def _met(x: Array, out: Pair, kernel: Pair, stride: Pair, padding: Sides, dilation: Pair) -> Array:
    """Return the patches under each window, (n, c, *kernel, *out), zeros in the padding: a view."""
    (n, c, h, w), (top, left, bottom, right) = x.shape, padding
    shape = n, c, *kernel, *out
    if any(padding):
        high, wide = h + top + bottom, w + left + right
        if high * wide > prod(kernel) * prod(out):  # far apart: most of it nobody looks at
            columns = np.zeros(shape, x.dtype)
            taps = windows.every_tap(x, out, kernel, stride, padding, dilation)
            for (ky, kx), (ys, xs), part in taps:
                columns[:, :, ky, kx, ys, xs] = part
            return columns
        padded = np.zeros((n, c, high, wide), x.dtype)
        padded[:, :, top : top + h, left : left + w] = x
        x = padded
    sample, channel, down, across = x.strides
    steps = down * dilation[0], across * dilation[1], down * stride[0], across * stride[1]
    return as_strided(x, shape, (sample, channel, *steps), writeable=False)
