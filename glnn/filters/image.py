"""Checks of images and of filters' arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.types import Array, DType, Shape, as_one_of

BORDERS = ("reflect", "replicate", "constant")
"""The pixels beyond an image: mirrored at the last pixel, the last pixel repeated, or 0."""
TAKEN = (DType.uint8, DType.float32)
RANKS = (2, 3, 4)
LONGEST = 1 << 15
"""The most pixels of a side of a kernel."""
GREATEST = float(np.finfo(np.float32).max)
Pair = tuple[int, int]
"""The numbers of the width and of the height."""


def as_image(name: str, image: object) -> Array:
    """Return `image` if it is uint8 or float32, H x W, H x W x C or N x H x W x C, and not empty.

    Raises ShapeError, which says that it is an argument of the filter `name`.
    """
    array = as_one_of(f"{name}: image", image, TAKEN)
    if array.ndim not in RANKS or 0 in array.shape:
        raise ShapeError(
            f"{name}: image must be H x W, H x W x C or N x H x W x C, none of them 0, "
            f"got shape {array.shape}"
        )
    return array


def axes(shape: Shape) -> Pair:
    """Return the axes of columns and of rows in an image of `shape`."""
    first = len(shape) == 4
    return 1 + first, 0 + first


def check_border(name: str, border: object) -> str:
    """Return `border` if it is one of BORDERS. Raises ShapeError."""
    if not isinstance(border, str) or border not in BORDERS:
        raise ShapeError(f"{name}: border must be one of {BORDERS}, got {shown(border)}")
    return border


def check_sizes(
    name: str, argument: str, value: object, *, most: int = LONGEST, odd: bool = False
) -> Pair:
    """Return `value` as (width, height): one integer from 1 to `most`, or two.

    Raises ShapeError.
    """
    what = "odd numbers" if odd else "numbers"
    found = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in found)
    fits = len(found) == 2 and whole and all(1 <= n <= most for n in found)
    if not fits or (odd and not all(n % 2 for n in found)):
        raise ShapeError(
            f"{name}: {argument} must be one or two whole {what} from 1 to {most}, width first, "
            f"got {shown(value)}"
        )
    return int(found[0]), int(found[1])


def check_numbers(name: str, argument: str, values: object) -> tuple[float, ...]:
    """Return `values` as floats that are finite as float32, at least one. Raises ShapeError."""
    given: Any = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(given, (list, tuple)) and given and all(is_number(n) for n in given):
        return tuple(map(float, given))
    raise ShapeError(f"{name}: {argument} must be a row of finite numbers, got {shown(values)}")


def is_number(value: object) -> bool:
    """Return True where `value` is a real number that is finite as float32."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return real and abs(value) <= GREATEST  # type: ignore[arg-type]
