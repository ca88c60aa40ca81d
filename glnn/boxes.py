"""Non-maximum suppression by NumPy: for ONNX's operator, and for the objects in pictures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glnn.types import Array

LEAST_BLOCK = 64
"""Boxes that are compared with one another at once, at least."""


def suppress_overlaps(
    corners: Array, limit: float | np.floating, most: int, classes: Array | None = None
) -> NDArray[np.int64]:
    """Return the first `most` places, the best box first, that no better one of them overlaps.

    Args:
        corners: (5, count), the best box first: the least of both axes, the greatest, the area.
        limit: The intersection over union beyond which the lesser box goes.
        most: How many places there are at most.
        classes: (count,), where boxes of different classes do not suppress each other.
    """
    kept = np.zeros(0, np.int64)
    count = corners.shape[1]
    step = max(LEAST_BLOCK, min(most + most // 4, 4 * LEAST_BLOCK))
    for start in range(0, count, step):
        places = np.arange(start, min(start + step, count))
        if len(kept):
            places = places[~_overlaps(corners, kept, places, limit, classes).any(0)]
        pairs = np.triu(_overlaps(corners, places, places, limit, classes), 1)
        alive = np.ones(len(places), bool)
        for i in np.flatnonzero(pairs.any(1)).tolist():
            if alive[i]:
                alive &= ~pairs[i]
        kept = np.concatenate((kept, places[alive]))
        if len(kept) >= most:
            break
    return kept[:most]


def _overlaps(
    corners: Array, one: Array, other: Array, limit: float | np.floating, classes: Array | None
) -> Array:
    """Return which boxes overlap by more than `limit`: (places of one, places of the other)."""
    a, b = corners[:, one, None], corners[:, None, other]
    height = np.minimum(a[2], b[2])
    height -= np.maximum(a[0], b[0])
    width = np.minimum(a[3], b[3])
    width -= np.maximum(a[1], b[1])
    np.maximum(height, 0, out=height)
    np.maximum(width, 0, out=width)
    shared = np.multiply(height, width, out=height)
    union = np.add(a[4], b[4], out=width)
    union -= shared
    with np.errstate(all="ignore"):  # of boxes without an area nothing is shared
        found: Array = np.divide(shared, union, out=shared) > limit
    if classes is not None:
        found &= classes[one, None] == classes[None, other]
    return found
