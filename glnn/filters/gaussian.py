"""The weights of Gaussian blurs."""

from __future__ import annotations

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.filters.image import check_sizes, is_number
from glnn.types import Array

SMALL: dict[int, tuple[float, ...]] = {
    1: (1.0,),
    3: (0.25, 0.5, 0.25),
    5: (0.0625, 0.25, 0.375, 0.25, 0.0625),
    7: (0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125),
    9: tuple(n / 256 for n in (4, 13, 30, 51, 60, 51, 30, 13, 4)),
}
"""OpenCV's kernels by their size, where no sigma is given."""
UNITS = 256
"""Into how many parts the weights for uint8 are rounded, which makes all sums exact."""


def kernel(size: int, sigma: float | None) -> Array:
    """The weights of `size` pixels, float64, which add up to 1.

    sigma: the standard deviation in pixels; None takes OpenCV's for the size.
    """
    if sigma is None:
        if size in SMALL:
            return np.array(SMALL[size])
        sigma = 0.15 * size + 0.35
    at = np.arange(size) - (size - 1) / 2
    with np.errstate(over="ignore"):  # beside the middle one they are 0 then
        weights: Array = np.exp(-0.5 * (at / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def in_units(weights: Array) -> Array:
    """`weights`, an odd number of them, rounded to parts of UNITS, which still add up to 1.

    What one loses by it is added to the next, from the ends to the middle, which takes what is
    left: so OpenCV has the weights for images of bytes.
    """
    half = len(weights) // 2
    rounded, rest = np.zeros(len(weights)), 0.0
    for i in range(half):
        wanted = weights[i] * UNITS + rest
        rounded[i] = rounded[-1 - i] = np.rint(wanted)
        rest = wanted - rounded[i]
    rounded[half] = UNITS - rounded.sum()
    return np.asarray(rounded / UNITS)


def parameters(
    kernel_size: object, sigma: object, of_bytes: bool
) -> tuple[tuple[int, float | None], tuple[int, float | None]]:
    """The size and sigma of the kernels along rows and along columns.

    A size of None follows from sigma: it spans 3 sigma to each side for bytes, else 4, as
    OpenCV's. Raises ShapeError where neither is given, or one is wrong.
    """
    spread = _sigmas(sigma)
    if kernel_size is not None:
        sizes = check_sizes("gaussian_blur", "kernel_size", kernel_size, odd=True)
        return (sizes[0], spread[0]), (sizes[1], spread[1])
    if spread[0] is None or spread[1] is None:
        raise ShapeError("gaussian_blur: kernel_size or sigma must be given, got neither")
    reach = 3 if of_bytes else 4
    needed = tuple(int(np.rint(2 * reach * s + 1)) | 1 for s in spread if s is not None)
    across, down = check_sizes("gaussian_blur", "kernel_size, by sigma,", needed, odd=True)
    return (across, spread[0]), (down, spread[1])


def _sigmas(sigma: object) -> tuple[float | None, float | None]:
    if sigma is None:
        return None, None
    found = tuple(sigma) if isinstance(sigma, (tuple, list)) else (sigma, sigma)
    if len(found) != 2 or not all(is_number(s) and s > 0 for s in found):
        raise ShapeError(
            "gaussian_blur: sigma must be one or two numbers above 0, that of the width first, "
            f"got {shown(sigma)}"
        )
    return float(found[0]), float(found[1])
