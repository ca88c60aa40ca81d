"""Depthwise convolutions by NumPy: products of BLAS, or sums over channels that lie last."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any, Protocol

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

Tap = tuple[int, slice, slice]
"""A tap's number along an axis, the results that it reaches, and the places of x that it meets."""


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
        window = x[2:], weight[2:], out, stride, padding, dilation
        self._form: _Form
        if weight[2] == 1:
            self._form = _FoldedRows(*window)
        elif not small_products_are_fast() and _channels_last_is_faster(
            self._channels, weight[2:], out, stride
        ):
            self._form = _ChannelsLast(*window)
        else:
            self._form = _BandsDown(*window)
        self._bytes: bytes | None = None  # of the weights that the bands are made of
        self._bands: Array

    def __call__(self, x: Array, weight: Array) -> Array | None:
        """Return the convolution of x (n, c, h, w) by weight (c, 1, kh, kw).

        None where a result is infinite or NaN: zeros of a band make such of numbers that no tap
        meets.
        """
        if (numbers := weight.tobytes()) != self._bytes:  # few, and those of the last run as a rule
            self._bands, self._bytes = self._form.bands(weight[:, 0]), numbers
        n, c = x.shape[:2]
        result: Array = np.empty((n, c, *self._out), x.dtype)
        if not result.size:
            return result
        step = self._channels
        for i, first in product(range(n), range(0, c, step)):
            channels = slice(first, first + step)
            block = result[i, channels]
            self._form.multiply(x[i, channels], self._bands[:, channels], block)
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


def _channels_last_is_faster(channels: int, kernel: Shape, out: Pair, stride: Pair) -> bool:
    """Return True where `_ChannelsLast` is expected to take less time than `_BandsDown`.

    Both are told as ns for a result and a column of the window, fitted to 25 convolutions on a core
    of an AMD EPYC, by AVX2; what counts is which is less. A pass over the channels of one pixel has
    a cost of its own beside that of each channel, and x and the results are transposed; a product
    of BLAS has a cost that few columns share, and strides have x copied.
    """
    last = kernel[0] * (13 / channels + 0.1) + 0.3 * (1 + math.prod(stride)) / kernel[1]
    return last < 0.35 + 12 / max(out[1], 1) + 0.2 * (math.prod(stride) - 1)


class _Form(Protocol):
    """Interface of convolutions of some channels, by weights that are made ready beforehand."""

    def bands(self, weight: Array) -> Array:
        """Return the weights, (taps, c, ...), of weight (c, kh, kw)."""

    def multiply(self, x: Array, bands: Array, out: Array) -> None:
        """Write the convolution of x (c, h, w) by `bands`, (taps, c, ...), to out (c, oh, ow)."""


class _ChannelsLast:
    """Sums over the taps, for all channels of a pixel at once, of x with its channels last."""

    def __init__(
        self,
        size: Sequence[int],
        kernel: Sequence[int],
        out: Pair,
        stride: Pair,
        padding: Sides,
        dilation: Pair,
    ) -> None:
        self._kernel, self._stride, self._dilation = tuple(kernel), stride, dilation
        self._padded = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(out, stride, kernel, dilation, strict=True)
        ]
        self._inside = [
            slice(before, max(before, min(before + length, padded)))
            for before, length, padded in zip(padding, size, self._padded, strict=False)
        ]

    def bands(self, weight: Array) -> Array:
        return np.ascontiguousarray(weight.reshape(len(weight), -1).T)

    def multiply(self, x: Array, bands: Array, out: Array) -> None:
        (c, *counts), (down, across) = out.shape, self._inside
        image = np.zeros((*self._padded, c), x.dtype)
        met = x[:, : down.stop - down.start, : across.stop - across.start]
        image[down, across] = met.transpose(1, 2, 0)
        steps = [
            step * one
            for by in (self._stride, self._dilation)
            for step, one in zip(image.strides, by, strict=False)
        ]
        windows: Array = np.ndarray(
            (*counts, *self._kernel, c), x.dtype, image, 0, (*steps, x.itemsize)
        )
        found = np.einsum("yxijc,ijc->yxc", windows, bands.reshape(*self._kernel, c))
        out[...] = found.transpose(2, 0, 1)


class _BandsDown:
    """Bands along columns: a matrix for each column of the window by some rows of x.

    A matrix (rows of a tile, rows that these meet) serves all tiles of an image, which zeros pad
    for it; where there is one tile, it leaves out what lies beyond the image. Columns of x are
    copied by what their number leaves over the stride, so that those that windows side by side meet
    are neighbours.
    """

    def __init__(
        self,
        size: Sequence[int],
        kernel: Sequence[int],
        out: Pair,
        stride: Pair,
        padding: Sides,
        dilation: Pair,
    ) -> None:
        (h, w), (kh, kw), (top, left, *_) = size, kernel, padding
        tiles = (rows for rows in TILE_ROWS if out[0] % rows == 0)
        self._rows = min(out[0], next(tiles, TILE_ROWS[0]))
        self._tiles = -(-out[0] // self._rows)
        self._step, self._across = self._rows * stride[0], stride[1]
        if self._tiles == 1:
            self._met, above = h, top
            self._inside = slice(0, h)
        else:
            self._met, above = self._step - stride[0] + (kh - 1) * dilation[0] + 1, 0
            last = (self._tiles - 1) * self._step + self._met
            self._inside = slice(top, max(top, min(top + h, last)))
        self._down = _taps(self._met, kh, self._rows, stride[0], above, dilation[0])
        self._taps = _taps(w, kw, out[1], stride[1], left, dilation[1])
        self._phases = sorted({met.start % stride[1] for _, _, met in self._taps})
        self._padded = (self._tiles - 1) * self._step + self._met, -(-w // stride[1])

    def bands(self, weight: Array) -> Array:
        c, _, kw = weight.shape
        made = np.zeros((kw, c, 1, self._rows, self._met), weight.dtype)
        for ky, rows, met in self._down:
            row, column = np.arange(rows.start, rows.stop), np.arange(met.start, met.stop, met.step)
            made[:, :, 0, row, column] = weight[:, ky].T[..., None]
        return made

    def multiply(self, x: Array, bands: Array, out: Array) -> None:
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
            met = x[:, : inside.stop - inside.start, phase :: self._across]
            image[:, inside, : met.shape[2]] = met
        size, lines = x.itemsize, (c, self._tiles, self._met)
        steps = high * wide * size, self._step * wide * size, wide * size, size

        def multiply(tap: Tap, target: Array) -> None:
            kx, columns, met = tap
            shape = *lines, columns.stop - columns.start
            first, phase = divmod(met.start, self._across)
            rows: Array = np.ndarray(shape, x.dtype, images[phase], first * size, steps)
            np.matmul(bands[kx], rows, out=target[..., columns])

        whole = self._tiles * self._rows == oh
        room = out if whole else np.empty((c, self._tiles * self._rows, ow), x.dtype)
        _add_up(self._taps, multiply, room.reshape(c, self._tiles, self._rows, ow))
        if not whole:
            np.copyto(out, room[:, :oh])


class _FoldedRows:
    """Windows of one row, side by side: rows of x, folded into lines of a tile, by a matrix for the
    line in which a window begins, and by another one for the line behind it.
    """

    def __init__(
        self,
        size: Sequence[int],
        kernel: Sequence[int],
        out: Pair,
        stride: Pair,
        padding: Sides,
        dilation: Pair,
    ) -> None:
        self._across, self._left = dilation[1], padding[1]
        reach = (kernel[1] - 1) * dilation[1]
        self._tile = max(min(FOLD, out[1]), reach)
        self._lines = -(-out[1] // self._tile)
        self._taps = _taps(size[0], 1, out[0], stride[0], padding[0], dilation[0])
        last = min(self._left + size[1], (self._lines + 1) * self._tile)
        self._inside = slice(self._left, max(self._left, last))

    def bands(self, weight: Array) -> Array:
        (c, _, kw), tile = weight.shape, self._tile
        made = np.zeros((2, c, 1, tile, tile), weight.dtype)
        columns = np.arange(tile)
        for kx in range(kw):
            line, met = np.divmod(columns + kx * self._across, tile)
            made[line, :, 0, met, columns] = weight[:, 0, kx]
        return made

    def multiply(self, x: Array, bands: Array, out: Array) -> None:
        (c, _, ow), inside = out.shape, self._inside
        for _, rows, met in self._taps:
            count = rows.stop - rows.start
            folded = np.zeros((c, count, self._lines + 1, self._tile), x.dtype)
            flat = folded.reshape(c, count, -1)
            flat[..., inside] = x[:, met, : inside.stop - inside.start]
            made = np.matmul(folded[:, :, :-1], bands[0])
            made += np.matmul(folded[:, :, 1:], bands[1])
            out[:, : rows.start] = 0
            out[:, rows] = made.reshape(c, count, -1)[..., :ow]
            out[:, rows.stop :] = 0
        if not self._taps:
            out[...] = 0


def _taps(size: int, kernel: int, out: int, stride: int, before: int, dilation: int) -> list[Tap]:
    """Return the taps along an axis of x of `size` that meet x, the one of most results first.

    before: zeros before x. out: results along the axis.
    """
    taps = ((k, *windows.rows(size, out, k * dilation - before, stride)) for k in range(kernel))
    there = [tap for tap in taps if tap[1].stop > tap[1].start]
    return sorted(there, key=lambda tap: tap[1].start - tap[1].stop)


def _add_up(taps: Sequence[Tap], multiply: Callable[[Tap, Array], None], out: Array) -> None:
    """Write the sum of the products of all taps across to `out`.

    multiply: writes the products of a tap to the columns of an array of out's shape that the tap
    reaches; others are zero.
    """
    room = out
    for number, tap in enumerate(taps):
        if number == 1:
            room = np.empty(out.shape, out.dtype)
        _, reached, _ = tap
        if reached.start:
            room[..., : reached.start] = 0
        if reached.stop < out.shape[-1]:
            room[..., reached.stop :] = 0
        multiply(tap, room)
        if number:
            np.add(out, room, out=out)
    if not taps:
        out[...] = 0
