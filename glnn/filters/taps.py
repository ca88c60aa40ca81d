"""Filter taps along an axis: the pixels that are added up, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from glnn.filters.filter import Sketch
from glnn.graph.builder import constant
from glnn.graph.graph import Value
from glnn.graph.operators import Resample
from glnn.types import Array

Taps = tuple[Array, Array]
"""Places, int32, and their weights, float32, both (taps, places of the result)."""
KEYS = -0.75
"""The coefficient of Keys 1981's cubic that OpenCV and PyTorch take."""


def apply_taps(sketch: Sketch, x: Value, axis: int, taps: Taps) -> Value:
    """Return x, of float32, resampled along `axis` by the weighted sums of `taps`."""
    index, weight = taps
    size = x.type.shape[axis]
    if len(index) == 1 and np.array_equal(index[0], np.arange(size)) and (weight == 1).all():
        return x
    return sketch.add(Resample(axis), x, constant(index), constant(weight))


def window(size: int, weights: Sequence[float], border: str) -> Taps:
    """Return the taps of a correlation by `weights`, whose middle one is at each place.

    border: one of BORDERS, for what lies beyond the `size` places.
    """
    at = np.arange(size) + (np.arange(len(weights)) - len(weights) // 2)[:, None]
    outside = (at < 0) | (at >= size)
    if border == "reflect":
        period = max(1, 2 * (size - 1))
        at = np.minimum(at % period, -at % period)
    spread = np.broadcast_to(np.array(weights, np.float32)[:, None], at.shape)
    if border == "constant":
        spread = np.where(outside, np.float32(0), spread)
    return _drop_zero_taps(np.clip(at, 0, size - 1), spread)


def _drop_zero_taps(index: Array, weight: Array) -> Taps:
    """Remove the taps whose weights are all 0; one is left in any case."""
    needed = np.asarray(weight.any(axis=1))
    needed[0] |= not needed.any()
    return index[needed].astype(np.int32), weight[needed].astype(np.float32)


def nearest(size: int, count: int) -> Array:
    """Return the place of `size` that each of `count` begins in, int32, as OpenCV rounds it."""
    at = np.floor(np.arange(count) * (1 / (count / size)))
    return np.asarray(np.minimum(at, size - 1), np.int32)


def linear(size: int, count: int) -> Taps:
    """Return the taps of linear interpolation of `size` pixels at `count` places."""
    return _around(size, count, 1, lambda x: np.clip(1 - x, 0, 1))


def cubic(size: int, count: int) -> Taps:
    """Return the taps of cubic interpolation of `size` pixels at `count` places (Keys 1981)."""

    def weight(x: Array) -> Array:
        near = ((KEYS + 2) * x - (KEYS + 3)) * x * x + 1
        far = ((KEYS * x - 5 * KEYS) * x + 8 * KEYS) * x - 4 * KEYS
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))

    return _around(size, count, 2, weight)


def area(size: int, count: int) -> Taps:
    """Return the taps of averaging `size` pixels over the area of each of `count` places."""
    ends = np.arange(count + 1) * (size / count)
    first, last = ends[:-1], ends[1:]
    most = ceil(size / count) + 1  # places that one may touch
    index = np.floor(first).astype(np.int64) + np.arange(most)[:, None]
    covered = np.clip(np.minimum(index + 1, last) - np.maximum(index, first), 0, None)
    covered = np.where(index < size, covered, 0.0)
    return _drop_zero_taps(np.clip(index, 0, size - 1), covered / covered.sum(axis=0))


def _around(size: int, count: int, reach: int, weight: Callable[[Array], Array]) -> Taps:
    """Return the taps within `reach` places of each, with the `weight` of their distance."""
    at = (np.arange(count) + 0.5) * (size / count) - 0.5
    index = np.floor(at).astype(np.int64) + np.arange(1 - reach, 1 + reach)[:, None]
    return _drop_zero_taps(np.clip(index, 0, size - 1), weight(np.abs(index - at)))
