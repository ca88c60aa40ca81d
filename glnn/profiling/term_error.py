"""The error of one operator's result, relative to the magnitudes of the terms that it adds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from glnn.graph.error import ULP, nudged, relative_error
from glnn.types import Array

Compute = Callable[[Mapping[str, Array]], Array]
"""Returns an operator's result of operands by name, computed in the precision that they have."""

DRAWS = 2  # of moved operands, each of them the other way, too
TINY = 2.0**-40  # of an operand: a move that shows slopes in float64, and no step but at a step
FAR = 8 * ULP  # of an operand: a move beyond what float32 rounds it by
SHARE = 2.0**-8  # of the change by FAR: by TINY a step changes as much, all else 2**-20 of it
WILD = 16  # times what slopes explain, or what other results have
ROUNDED = 2.0**-10  # of the greatest number: what float32 is off by at most, where it is no fault


def term_error(compute: Compute, operands: Mapping[str, Array], got: Array) -> float:
    """Return |got - expected| over |expected|, or over the norm of the terms where that is more.

    operands, got: in float64. A term's magnitude is the slope by the operands, or what rounding in
    float32 adds, in ulps. A change that does not shrink with the move of the operands is a step
    (of Floor, Mod, a comparison) and no term. A result at a step must be right, unless NumPy in
    float32 has another one near some step; one there, or some ulps away from a step or a kink, may
    be anything between those that were seen in float64.
    """
    with np.errstate(all="ignore"):
        expected = compute(operands)
        error = relative_error(got, expected)
        if expected.dtype.kind != "f" or not np.isfinite(error):
            return error
        rounding = np.abs(_finite(compute(_single(operands)) - expected))
        least, most, tiny, far = (np.zeros(expected.shape) for _ in range(4))
        for draw, side in product(range(DRAWS), (1, -1)):
            change, more = (
                _finite(compute(_moved(operands, draw, side * scale)) - expected)
                for scale in (TINY, FAR)
            )
            least = np.minimum(least, np.minimum(change, more))
            most = np.maximum(most, np.maximum(change, more))
            tiny, far = np.maximum(tiny, np.abs(change)), np.maximum(far, np.abs(more))
        sizes, slopes = np.abs(_finite(expected)), np.minimum(tiny / TINY, far / FAR)
        at_step = tiny > SHARE * np.maximum(np.maximum(far, rounding), ULP * sizes)
        near_step = ~at_step & (far > WILD * FAR * np.maximum(slopes, sizes))
        smooth = ~(at_step | near_step)
        unsure = near_step
        if (rounding > SHARE * far)[~smooth].any():  # the places of steps are rounded themselves
            unsure = ~smooth
        away = _finite(got - expected)
        away -= np.where(unsure, np.clip(away, least, most), 0.0)
        greatest = max(float(np.abs(_finite(one)).max(initial=0.0)) for one in operands.values())
        greatest = max(greatest, float(sizes.max(initial=0.0)))
        noise = np.where(rounding <= ROUNDED * greatest, rounding / ULP, 0.0)
        terms = np.where(smooth, np.maximum(slopes, noise), 0.0)
        usual = float(np.median(terms[smooth])) if smooth.any() else 0.0
        usual = max(usual, float(sizes.max(initial=0.0)))
        terms[terms > WILD * np.maximum(slopes, usual)] = 0.0  # a step that only float32 crosses
        norm = max(float(np.linalg.norm(sizes)), float(np.linalg.norm(terms)))
        return float(np.linalg.norm(away)) / (norm or 1.0)


def _moved(operands: Mapping[str, Array], draw: int, scale: float) -> dict[str, Array]:
    """Return `operands`, each float off by `scale` of it, this way or that; equal ones alike."""
    found = dict(operands)
    for name, array in operands.items():
        if array.dtype.kind == "f":
            found[name] = array * (1 + scale * np.sign((nudged(array, draw, name) - array) * array))
    return found


def _single(operands: Mapping[str, Array]) -> dict[str, Array]:
    """Return `operands`, those of floats in float32."""
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in operands.items()}


def _finite(array: Array) -> Array:
    """Return `array` with zeros in the place of NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
