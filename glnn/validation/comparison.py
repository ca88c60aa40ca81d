"""Comparison of results with expected ones: errors relative to results, and to their terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from zlib import crc32

import numpy as np

from glnn.core.types import Array

ULP = 2.0**-23
"""The relative distance of neighbouring float32 numbers."""
DRAWS = 2  # of random perturbations, each with both signs
TINY = 2.0**-40  # of an operand: a perturbation for slopes in float64, which crosses few steps
FAR = 8 * ULP  # of an operand: a perturbation larger than the rounding to float32
SHARE = 2.0**-8  # of the change by FAR: TINY changes a step as much, other results by 2**-20 of it
WILD = 16  # times the change that slopes explain, or the usual magnitude of terms
ROUNDED = 2.0**-10  # of the greatest number: the largest rounding error of float32
Compute = Callable[[Mapping[str, Array]], Array]
"""Returns an operator's result for operands by name, computed in their precision."""


def relative_error(got: Array, expected: Array) -> float:
    """Return |got - expected| / |expected| over the finite elements; inf where others differ."""
    return quotient(*squares(got, expected))


def squares(got: Array, expected: Array) -> tuple[float, float]:
    """Return |got - expected|^2 and |expected|^2 over the finite elements; inf where others differ.

    The sums over parts of a result may be added: see `quotient`.
    """
    got, expected = _subtracted(got), _subtracted(expected)
    with np.errstate(all="ignore"):
        error = np.subtract(got, expected).reshape(-1)
        distance, norm = float(np.vdot(error, error)), float(np.vdot(expected, expected))
    if np.isfinite(distance) and np.isfinite(norm):  # then all elements are finite
        return distance, norm
    finite = np.isfinite(expected)
    if not finite.all():
        if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
            return float("inf"), 0.0
        return squares(np.where(finite, got, 0), np.where(finite, expected, 0))
    wide = expected.astype(np.float64)
    error = got.astype(np.float64) - wide
    distance = float(np.vdot(error, error))
    return distance if np.isfinite(distance) else float("inf"), float(np.vdot(wide, wide))


def quotient(distance: float, norm: float) -> float:
    """Return the relative error of a result with these `squares`."""
    return float(np.sqrt(distance / norm if norm else distance))


def _subtracted(array: Array) -> Array:
    """Convert integers and bools to float64: bytes would wrap around, bools have no differences."""
    return array.astype(np.float64) if array.dtype.kind in "biu" else array


def nudged(array: Array, draw: int, name: str) -> Array:
    """Return `array`, as float32 at least, with each float off by up to two ulps.

    draw, name: the seed. Equal numbers are off alike; with an empty `name` also those of different
    operands.
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


def term_error(compute: Compute, operands: Mapping[str, Array], got: Array) -> float:
    """Return |got - expected| over |expected|, or over the norm of the terms where that is greater.

    operands, got: in float64. The magnitude of a term is the slope by the operands, or the rounding
    error of float32, in ulps. A change that does not shrink with the perturbation of the operands
    is a step (of Floor, Mod, a comparison) and no term. A result at a step must be right, unless
    NumPy in float32 differs near some step. Such results, and those within some ulps of a step or a
    kink, may have any value between the perturbed results in float64.
    """
    with np.errstate(all="ignore"):
        expected = compute(operands)
        error = relative_error(got, expected)
        if expected.dtype.kind != "f" or not np.isfinite(error):
            return error
        rounding = np.abs(_finite(compute(_single(operands)) - expected))
        least, most, tiny, far = (np.zeros(expected.shape) for _ in range(4))
        for draw, side in product(range(DRAWS), (1, -1)):
            by_tiny, by_far = (
                _finite(compute(_perturb(operands, draw, side * scale)) - expected)
                for scale in (TINY, FAR)
            )
            least = np.minimum(least, np.minimum(by_tiny, by_far))
            most = np.maximum(most, np.maximum(by_tiny, by_far))
            tiny, far = np.maximum(tiny, np.abs(by_tiny)), np.maximum(far, np.abs(by_far))
        sizes, slopes = np.abs(_finite(expected)), np.minimum(tiny / TINY, far / FAR)
        at_step = tiny > SHARE * np.maximum(np.maximum(far, rounding), ULP * sizes)
        near_step = ~at_step & (far > WILD * FAR * np.maximum(slopes, sizes))
        smooth = ~(at_step | near_step)
        unsure = near_step
        if (rounding > SHARE * far)[~smooth].any():  # float32 itself crosses steps
            unsure = ~smooth
        distance = _finite(got - expected)
        distance -= np.where(unsure, np.clip(distance, least, most), 0.0)
        greatest = max(float(np.abs(_finite(one)).max(initial=0.0)) for one in operands.values())
        greatest = max(greatest, float(sizes.max(initial=0.0)))
        noise = np.where(rounding <= ROUNDED * greatest, rounding / ULP, 0.0)
        terms = np.where(smooth, np.maximum(slopes, noise), 0.0)
        usual = float(np.median(terms[smooth])) if smooth.any() else 0.0
        usual = max(usual, float(sizes.max(initial=0.0)))
        terms[terms > WILD * np.maximum(slopes, usual)] = 0.0  # a step that only float32 crosses
        norm = max(float(np.linalg.norm(sizes)), float(np.linalg.norm(terms)))
        return float(np.linalg.norm(distance)) / (norm or 1.0)


def _perturb(operands: Mapping[str, Array], draw: int, scale: float) -> dict[str, Array]:
    """Return `operands`, each float off by `scale` of it, with a random sign; equal ones alike."""
    result = dict(operands)
    for name, array in operands.items():
        if array.dtype.kind == "f":
            result[name] = array * (
                1 + scale * np.sign((nudged(array, draw, name) - array) * array)
            )
    return result


def _single(operands: Mapping[str, Array]) -> dict[str, Array]:
    """Return `operands` with floats as float32."""
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in operands.items()}


def _finite(array: Array) -> Array:
    """Return `array` with zeros in the place of NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
