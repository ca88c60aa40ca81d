"""Compare a result with what was expected: measures of the error."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from glnn.types import Array

ULP = 2.0**-23
"""The relative distance of neighbouring float32 numbers."""


def relative_error(got: Array, expected: Array) -> float:
    """|got - expected| / |expected| over the finite elements; inf where the others differ."""
    return quotient(*squares(got, expected))


def squares(got: Array, expected: Array) -> tuple[float, float]:
    """|got - expected|^2 and |expected|^2 over the finite elements; inf where the others differ.

    So that those of parts of a result may be added up: see `quotient`.
    """
    got, expected = _subtracted(got), _subtracted(expected)
    with np.errstate(all="ignore"):
        away = np.subtract(got, expected).reshape(-1)
        distance, norm = float(np.vdot(away, away)), float(np.vdot(expected, expected))
    if np.isfinite(distance) and np.isfinite(norm):  # so are all elements
        return distance, norm
    finite = np.isfinite(expected)
    if not finite.all():
        if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
            return float("inf"), 0.0
        return squares(np.where(finite, got, 0), np.where(finite, expected, 0))
    wide = expected.astype(np.float64)
    away = got.astype(np.float64) - wide
    distance = float(np.vdot(away, away))
    return distance if np.isfinite(distance) else float("inf"), float(np.vdot(wide, wide))


def quotient(distance: float, norm: float) -> float:
    """The relative error of a result whose `squares` these are."""
    return float(np.sqrt(distance / norm if norm else distance))


def _subtracted(array: Array) -> Array:
    """Convert to numbers whose differences and squares are right: bytes would wrap, bools have
    none.
    """
    return array.astype(np.float64) if array.dtype.kind in "biu" else array


def nudged(array: Array, draw: int, name: str) -> Array:
    """Return `array`, as float32 at least, with each float off by up to two ulps of that.

    draw, name: what the random numbers depend on. Equal ones are off alike, those of several
    operands where `name` is empty.
    """
    if array.dtype.kind != "f":
        return array
    mixed = array.astype(np.float32).view(np.uint32) ^ np.uint32(crc32(f"{draw} {name}".encode()))
    with np.errstate(over="ignore"):  # which NumPy warns of where an array is one number
        for factor in (0x7FEB352D, 0x846CA68B):
            mixed ^= mixed >> np.uint32(16)
            mixed *= np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    factors = 1 + (mixed.astype(np.float64) / 2**31 - 1) * (2 * ULP)
    with np.errstate(all="ignore"):
        return np.asarray(array * factors, np.promote_types(array.dtype, np.float32))
