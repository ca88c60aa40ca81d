"""What each filter should give, by its definition in float64: nothing of glnn is in it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, floor

import numpy as np
from numpy.typing import NDArray

Array = NDArray
MODES = {"reflect": "reflect", "replicate": "edge", "constant": "constant"}


def images(x: Array) -> Array:
    """x as (n, h, w, c), float64."""
    wide = x[..., None] if x.ndim == 2 else x
    return (wide if wide.ndim == 4 else wide[None]).astype(np.float64)


def correlate(x: Array, weights: Array, border: str) -> Array:
    """The sums of `weights` (height, width) times the pixels around each."""
    given = images(x)
    (kh, kw), (_, h, w, _) = weights.shape, given.shape
    sides = ((0, 0), (kh // 2, kh - 1 - kh // 2), (kw // 2, kw - 1 - kw // 2), (0, 0))
    padded = np.pad(given, sides, mode=MODES[border])
    total = np.zeros(given.shape)
    for i, j in np.ndindex(kh, kw):
        total += weights[i, j] * padded[:, i : i + h, j : j + w]
    return total.reshape(x.shape)


def median(x: Array, border: str) -> Array:
    given = images(x)
    h, w = given.shape[1:3]
    padded = np.pad(given, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=MODES[border])
    around = [padded[:, i : i + h, j : j + w] for i, j in np.ndindex(3, 3)]
    return np.sort(np.stack(around), axis=0)[4].reshape(x.shape)


def gaussian(size: int, sigma: float) -> Array:
    weights = np.array([exp(-((i - size // 2) ** 2) / (2 * sigma**2)) for i in range(size)])
    return weights / sum(weights)


def resize(x: Array, width: int, height: int, weight: Callable[[int, int], Array]) -> Array:
    """weight: of a size and a count, how much of each place each of `count` has: a matrix."""
    given = images(x)
    rows, columns = weight(given.shape[1], height), weight(given.shape[2], width)
    found = np.einsum("yh,xw,nhwc->nyxc", rows, columns, given)
    return found.reshape(*x.shape[: x.ndim == 4], height, width, *x.shape[2 + (x.ndim == 4) :])


def nearest(size: int, count: int) -> Array:
    found = np.zeros((count, size))
    for i in range(count):
        found[i, floor(i * (1 / (count / size)))] = 1
    return found


def linear(size: int, count: int) -> Array:
    found = np.zeros((count, size))
    for i in range(count):
        at = (i + 0.5) * size / count - 0.5
        part = at - floor(at)
        found[i, max(floor(at), 0)] += 1 - part
        found[i, min(floor(at) + 1, size - 1)] += part
    return found


def cubic(size: int, count: int) -> Array:
    """By OpenCV's interpolateCubic, A = -0.75."""
    found, a = np.zeros((count, size)), -0.75
    for i in range(count):
        at = (i + 0.5) * size / count - 0.5
        t = at - floor(at)
        before = ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a
        first = ((a + 2) * t - (a + 3)) * t * t + 1
        second = ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1
        four = (before, first, second, 1 - before - first - second)
        for k, share in enumerate(four):
            found[i, min(max(floor(at) - 1 + k, 0), size - 1)] += share
    return found


def area(size: int, count: int) -> Array:
    found = np.zeros((count, size))
    for i in range(count):
        first, last = i * size / count, (i + 1) * size / count
        for place in range(floor(first), min(ceil(last), size)):
            found[i, place] = max(0.0, min(place + 1, last) - max(place, first)) / (last - first)
    return found


def rounded(values: Array) -> Array:
    """As bytes: to the nearest, halves up, and saturated."""
    return np.clip(np.floor(values + 0.5), 0, 255).astype(np.uint8)
