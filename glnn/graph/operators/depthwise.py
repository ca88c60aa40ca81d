"""Depthwise convolutions by NumPy: products of BLAS, or sums over channels that lie last."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from glnn.core.types import Array, Shape
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides

BLOCK_BYTES = 1 << 19  # of the results of a block: with what they are made of, a core's cache
AVX512_CORES = ("skylakex", "cooperlake", "sapphirerapids")  # of OpenBLAS
ITEM_BYTES = 4  # of a result, as a rule
MOST_REACH = 128  # rows or columns of a window: a band of more is nearly all zeros
TILE_ROWS = (7, 8, 14, 6, 5, 10, 4, 9, 12, 11, 13, 16)  # rows of a tile, the fastest first
FOLD = 32  # columns of a tile of windows of one row


@dataclass(frozen=True)
class DepthwiseWindow:
    """The window of a convolution, and the images of a channel that it goes from and to."""

    size: Pair
    """Rows and columns of x."""
    kernel: Pair
    """Rows and columns of the window."""
    out: Pair
    """Rows and columns of the result."""
    stride: Pair
    padding: Sides
    """Zeros around x."""
    dilation: Pair


class _Tap(NamedTuple):
    """A tap of the window along one axis, as it lies for all results."""

    number: int
    """Its place in the window."""
    results: slice
    """The results for which it is inside x."""
    inputs: slice
    """The places of x that it is multiplied with for them."""


def is_supported(x: Shape, weight: Shape, stride: Pair, dilation: Pair, groups: int) -> bool:
    """Return True where `DepthwiseProducts` computes a convolution of arrays of these shapes."""
    kernel = weight[2], weight[3]
    near = all((k - 1) * d < MOST_REACH for k, d in zip(kernel, dilation, strict=True))
    rows = kernel[0] > 1 or stride[1] == 1
    return x[1] == weight[0] == groups and near and rows and kernel != (1, 1)


class DepthwiseProducts:
    """The depthwise convolution of arrays of one shape.

    Images of many pixels are multiplied by banded matrices: BLAS is ten times as fast as sums of
    NumPy's, so that most numbers of a matrix may be zeros. The taps along one axis are a banded
    matrix (Toeplitz), by which the pixels of a channel are multiplied; the products for the taps
    along the other axis are added. Where a channel has few pixels, such products are too small for
    most BLAS: there all channels of a pixel are multiplied and added at once. One thread may call
    it at a time.
    """

    def __init__(
        self,
        x: Shape,
        weight: Shape,
        out: Pair,
        stride: Pair,
        padding: Sides,
        dilation: Pair,
    ) -> None:
        self._out = out
        blocks = -(-x[1] * math.prod(out) * ITEM_BYTES // BLOCK_BYTES)
        self._channels = max(-(-x[1] // max(blocks, 1)), 1)  # of a block: all have about as many
        size, kernel = (x[2], x[3]), (weight[2], weight[3])
        window = DepthwiseWindow(size, kernel, out, stride, padding, dilation)
        self._method: _Method
        if weight[2] == 1:
            self._method = _ToeplitzRows(window)
        elif not small_products_are_fast() and _channels_last_is_faster(self._channels, window):
            self._method = _ChannelsLast(window)
        else:
            self._method = _ToeplitzColumns(window)
        self._bytes: bytes | None = None  # of the weights that were prepared
        self._prepared: Array

    def __call__(self, x: Array, weight: Array) -> Array | None:
        """Return the convolution of x (n, c, h, w) by weight (c, 1, kh, kw).

        None where a result is infinite or NaN: zeros beside a band make such of numbers that no
        tap is multiplied with.
        """
        if (numbers := weight.tobytes()) != self._bytes:  # few, and those of the last run as a rule
            self._prepared, self._bytes = self._method.prepare(weight[:, 0]), numbers
        n, c = x.shape[:2]
        result: Array = np.empty((n, c, *self._out), x.dtype)
        if not result.size:
            return result
        step = self._channels
        for i, first in product(range(n), range(0, c, step)):
            channels = slice(first, first + step)
            block = result[i, channels]
            self._method.multiply(x[i, channels], self._prepared[:, channels], block)
            flat = block.reshape(-1)
            if not math.isfinite(np.dot(flat, flat)):
                return None
        return result


@cache
def small_products_are_fast() -> bool:
    """Return True where OpenBLAS multiplies small matrices as they lie, without copies: by AVX-512.

    A product of 7 x 7 by 7 x 7 takes it 27 ns there and 77 by AVX2. The environment's
    OPENBLAS_CORETYPE is taken for what it says.
    """
    if core := os.environ.get("OPENBLAS_CORETYPE"):
        return core.lower() in AVX512_CORES
    try:
        known: Any = np.show_config(mode="dicts")
        found = known["SIMD Extensions"]["found"]
    except (KeyError, TypeError):  # NumPy before 1.26 only prints it
        return False
    return any(name.startswith(("AVX512", "X86_V4")) for name in found)


def _channels_last_is_faster(channels: int, window: DepthwiseWindow) -> bool:
    """Return True where `_ChannelsLast` is expected to take less time than `_ToeplitzColumns`.

    Both are told as ns for a result and a column of the window, fitted to 25 convolutions on a core
    of an AMD EPYC, by AVX2; what counts is which is less. A pass over the channels of one pixel has
    a cost of its own beside that of each channel, and x and the results are transposed; a product
    of BLAS has a cost that few columns share, and strides have x copied.
    """
    (high, wide), steps = window.kernel, math.prod(window.stride)
    last = high * (13 / channels + 0.1) + 0.3 * (1 + steps) / wide
    return last < 0.35 + 12 / max(window.out[1], 1) + 0.2 * (steps - 1)


class _Method(Protocol):
    """A method to convolve some channels by weights that were prepared for it."""

    def prepare(self, weight: Array) -> Array:
        """Return weight (c, kh, kw) as `multiply` takes it, (taps, c, ...)."""

    def multiply(self, x: Array, prepared: Array, out: Array) -> None:
        """Write the convolution of x (c, h, w) by weights of `prepare` to out (c, oh, ow)."""


class _ChannelsLast:
    """Sums over the taps, for all channels of a pixel at once, of x with its channels last."""

    def __init__(self, window: DepthwiseWindow) -> None:
        self._kernel, self._steps = window.kernel, (window.stride, window.dilation)
        along = zip(window.out, window.stride, window.kernel, window.dilation, strict=True)
        self._padded = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in along]
        self._inside = [
            slice(before, max(before, min(before + length, padded)))
            for before, length, padded in zip(
                window.padding, window.size, self._padded, strict=False
            )
        ]

    def prepare(self, weight: Array) -> Array:
        return np.ascontiguousarray(weight.reshape(len(weight), -1).T)

    def multiply(self, x: Array, prepared: Array, out: Array) -> None:
        (c, *counts), (down, across) = out.shape, self._inside
        image = np.zeros((*self._padded, c), x.dtype)
        inside = x[:, : down.stop - down.start, : across.stop - across.start]
        image[down, across] = inside.transpose(1, 2, 0)
        steps = [
            step * one for by in self._steps for step, one in zip(image.strides, by, strict=False)
        ]
        windows: Array = np.ndarray(
            (*counts, *self._kernel, c), x.dtype, image, 0, (*steps, x.itemsize)
        )
        found = np.einsum("yxijc,ijc->yxc", windows, prepared.reshape(*self._kernel, c))
        out[...] = found.transpose(2, 0, 1)


class _ToeplitzColumns:
    """Bands along columns: a matrix for each column of the window by some rows of x.

    A matrix (a tile's rows of results, the rows of x that they are made of) serves all tiles of an
    image, which zeros pad for it; where there is one tile, it leaves out what lies beyond the
    image. Columns of x are copied by phase, the remainder of their number by the stride, so that
    those of windows side by side are neighbours.
    """

    def __init__(self, window: DepthwiseWindow) -> None:
        (h, w), (kh, kw), (top, left, *_) = window.size, window.kernel, window.padding
        out, stride, dilation = window.out, window.stride, window.dilation
        tiles = (rows for rows in TILE_ROWS if out[0] % rows == 0)
        self._rows = min(out[0], next(tiles, TILE_ROWS[0]))
        self._tiles = -(-out[0] // self._rows)
        self._step, self._across = self._rows * stride[0], stride[1]
        if self._tiles == 1:
            self._input_rows, above = h, top  # of a tile
            self._inside = slice(0, h)
        else:
            self._input_rows, above = self._step - stride[0] + (kh - 1) * dilation[0] + 1, 0
            last = (self._tiles - 1) * self._step + self._input_rows
            self._inside = slice(top, max(top, min(top + h, last)))
        self._down = _taps(self._input_rows, kh, self._rows, stride[0], above, dilation[0])
        self._taps = _taps(w, kw, out[1], stride[1], left, dilation[1])
        self._phases = sorted({tap.inputs.start % stride[1] for tap in self._taps})
        self._padded = (self._tiles - 1) * self._step + self._input_rows, -(-w // stride[1])

    def prepare(self, weight: Array) -> Array:
        c, _, kw = weight.shape
        made = np.zeros((kw, c, 1, self._rows, self._input_rows), weight.dtype)
        for ky, rows, inputs in self._down:
            row = np.arange(rows.start, rows.stop)
            column = np.arange(inputs.start, inputs.stop, inputs.step)
            made[:, :, 0, row, column] = weight[:, ky].T[..., None]
        return made

    def multiply(self, x: Array, prepared: Array, out: Array) -> None:
        (c, oh, ow), (high, wide), inside = out.shape, self._padded, self._inside
        images = {}
        for phase in self._phases:
            if self._tiles == self._across == 1 and x.flags.c_contiguous:
                images[phase] = x
                continue
            image = images[phase] = np.empty((c, high, wide), x.dtype)
            if inside.start:
                image[:, : inside.start] = 0
            if inside.stop < high:
                image[:, inside.stop :] = 0
            columns = x[:, : inside.stop - inside.start, phase :: self._across]
            image[:, inside, : columns.shape[2]] = columns
        size, lines = x.itemsize, (c, self._tiles, self._input_rows)
        steps = high * wide * size, self._step * wide * size, wide * size, size

        def multiply(tap: _Tap, target: Array) -> None:
            shape = *lines, tap.results.stop - tap.results.start
            first, phase = divmod(tap.inputs.start, self._across)
            rows: Array = np.ndarray(shape, x.dtype, images[phase], first * size, steps)
            np.matmul(prepared[tap.number], rows, out=target[..., tap.results])

        whole = self._tiles * self._rows == oh
        room = out if whole else np.empty((c, self._tiles * self._rows, ow), x.dtype)
        _add_up(self._taps, multiply, room.reshape(c, self._tiles, self._rows, ow))
        if not whole:
            np.copyto(out, room[:, :oh])


class _ToeplitzRows:
    """Windows of one row, side by side: rows of x, folded into lines of a tile, by a matrix for the
    line in which a window begins, and by another one for the line behind it.
    """

    def __init__(self, window: DepthwiseWindow) -> None:
        (h, w), (oh, ow), (top, left, *_) = window.size, window.out, window.padding
        self._dilation = window.dilation[1]
        reach = (window.kernel[1] - 1) * self._dilation
        self._tile = max(min(FOLD, ow), reach)
        self._lines = -(-ow // self._tile)
        self._taps = _taps(h, 1, oh, window.stride[0], top, window.dilation[0])
        last = min(left + w, (self._lines + 1) * self._tile)
        self._inside = slice(left, max(left, last))

    def prepare(self, weight: Array) -> Array:
        (c, _, kw), tile = weight.shape, self._tile
        made = np.zeros((2, c, 1, tile, tile), weight.dtype)
        columns = np.arange(tile)
        for kx in range(kw):
            line, row = np.divmod(columns + kx * self._dilation, tile)
            made[line, :, 0, row, columns] = weight[:, 0, kx]
        return made

    def multiply(self, x: Array, prepared: Array, out: Array) -> None:
        (c, _, ow), inside = out.shape, self._inside
        for _, rows, inputs in self._taps:
            count = rows.stop - rows.start
            folded = np.zeros((c, count, self._lines + 1, self._tile), x.dtype)
            flat = folded.reshape(c, count, -1)
            flat[..., inside] = x[:, inputs, : inside.stop - inside.start]
            made = np.matmul(folded[:, :, :-1], prepared[0])
            made += np.matmul(folded[:, :, 1:], prepared[1])
            out[:, : rows.start] = 0
            out[:, rows] = made.reshape(c, count, -1)[..., :ow]
            out[:, rows.stop :] = 0
        if not self._taps:
            out[...] = 0


def _taps(size: int, kernel: int, out: int, stride: int, before: int, dilation: int) -> list[_Tap]:
    """Return the taps along an axis that are inside x for some result, that of most results first.

    size: of x along the axis. before: zeros before x. out: results along the axis.
    """
    places = (windows.rows(size, out, k * dilation - before, stride) for k in range(kernel))
    taps = [_Tap(k, results, inputs) for k, (results, inputs) in enumerate(places)]
    inside = [tap for tap in taps if tap.results.stop > tap.results.start]
    return sorted(inside, key=lambda tap: tap.results.start - tap.results.stop)


def _add_up(taps: Sequence[_Tap], multiply: Callable[[_Tap, Array], None], out: Array) -> None:
    """Write the sum of the products of all taps across to `out`.

    multiply: writes the products of a tap to its results in an array of out's shape; others are
    zero.
    """
    room = out
    for number, tap in enumerate(taps):
        if number == 1:
            room = np.empty(out.shape, out.dtype)
        if tap.results.start:
            room[..., : tap.results.start] = 0
        if tap.results.stop < out.shape[-1]:
            room[..., tap.results.stop :] = 0
        multiply(tap, room)
        if number:
            np.add(out, room, out=out)
    if not taps:
        out[...] = 0
