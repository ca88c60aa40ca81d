"""Numbers to put in order, and their order by Python's own sort."""

from __future__ import annotations

import math

import numpy as np


def in_order(row: list[float], places: list[int], largest: bool) -> list[int]:
    """`places`, of the greatest number first or of the least; of equal ones the least place."""

    def key(place: int) -> tuple[float, ...]:
        number = row[place]
        if math.isnan(number):
            return (-1 if largest else 1, 0, place)
        return (0, -number if largest else number, place)

    return sorted(places, key=key)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers of many kinds: few different ones, in order, or random, of floats or integers."""
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    x = [
        rng.standard_normal(size),
        rng.integers(-3, 4, size),
        np.arange(size),
        -np.arange(size),
        np.zeros(size),
    ][seed % 5].reshape(shape)
    if seed % 2:
        return x.astype(np.int32)
    x = x.astype(np.float32)
    flat = x.reshape(-1)
    for special in (np.nan, np.inf, -np.inf, -0.0, 1e-40, -np.nan):
        flat[rng.integers(size, size=1 + size // 50)] = special
    return x
