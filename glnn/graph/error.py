"""How far a result is from what was expected."""

from __future__ import annotations

import numpy as np

from glnn.types import Array


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
    rest = ~finite
    if not np.array_equal(got[rest], expected[rest], equal_nan=True):
        return float("inf"), 0.0
    wide = expected[finite].astype(np.float64)
    away = got[finite].astype(np.float64) - wide
    distance = float(np.vdot(away, away))
    return distance if np.isfinite(distance) else float("inf"), float(np.vdot(wide, wide))


def quotient(distance: float, norm: float) -> float:
    """The relative error of a result whose `squares` these are."""
    return float(np.sqrt(distance / norm if norm else distance))


def _subtracted(array: Array) -> Array:
    """As numbers whose differences and squares are right: bytes would wrap, bools have none."""
    return array.astype(np.float64) if array.dtype.kind in "biu" else array
