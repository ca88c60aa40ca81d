"""How far a result is from what was expected."""

from __future__ import annotations

import numpy as np

from glnn.types import Array


def relative_error(got: Array, expected: Array) -> float:
    """|got - expected| / |expected| over the finite elements; inf where the others differ."""
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
