"""How far a result is from what was expected."""

from __future__ import annotations

import numpy as np

from glnn.types import Array

CHUNK = 1 << 20  # results compared at once


def relative_error(got: Array, expected: Array) -> float:
    """|got - expected| / |expected| over the finite elements; inf where the others differ."""
    got, expected = _subtracted(got), _subtracted(expected)
    with np.errstate(all="ignore"):
        away = np.subtract(got, expected).reshape(-1)
        square, most = float(np.vdot(away, away)), float(np.linalg.norm(expected))
    if np.isfinite(square) and np.isfinite(most):  # so are all elements
        distance = float(np.sqrt(square))
        return distance / most if most else distance
    finite = np.isfinite(expected)
    rest = ~finite
    if not np.array_equal(got[rest], expected[rest], equal_nan=True):
        return float("inf")
    distance = float(np.linalg.norm(got[finite].astype(np.float64) - expected[finite]))
    norm = float(np.linalg.norm(expected[finite].astype(np.float64)))
    if not np.isfinite(distance):
        return float("inf")
    return distance / norm if norm else distance


def repeated_error(got: Array, few: Array) -> float:
    """`relative_error` where `few` samples are expected over and over, in little memory."""
    few = _subtracted(few)
    special = ~np.isfinite(few)
    if special.any():
        there = np.resize(special, got.shape)
        if not np.array_equal(got[there], np.resize(few, got.shape)[there], equal_nan=True):
            return float("inf")
        got, few = np.where(there, 0, got), np.where(special, 0, few)
    step = len(few) * max(CHUNK // max(few.size, 1), 1)
    distance = norm = 0.0
    with np.errstate(all="ignore"):
        for first in range(0, len(got), step):
            part = got[first : first + step]
            expected = np.resize(few, part.shape)
            norm += float(np.vdot(expected, expected))
            expected -= part
            distance += float(np.vdot(expected, expected))
    if not np.isfinite(distance):
        return float("inf")
    return float(np.sqrt(distance / norm)) if norm else float(np.sqrt(distance))


def _subtracted(array: Array) -> Array:
    """As numbers whose differences and squares are right: bytes would wrap, bools have none."""
    return array.astype(np.float64) if array.dtype.kind in "biu" else array
