"""Sobel's gradients."""

from __future__ import annotations

import numpy as np

from glnn.backends import Backend
from glnn.compile import evaluate
from glnn.errors import ShapeError, shown
from glnn.graph.operator import as_one_of
from glnn.graph.operators import Sobel
from glnn.types import Array, DType

Gradients = tuple[Array, Array]


def sobel(
    image: Array,
    backend: str | Backend = "auto",
    kernel: str | None = None,
    out: Gradients | None = None,
) -> Gradients:
    """The gradients (dx, dy) of `image`, over 8 and rounded down: two int8 arrays (h, w).

    image: uint8 (h, w). dx grows to the right; dy is the row above less the row below, so it grows
    upwards. Sums of 16 bits, as Gronqvist and Lokhmotov have them (section 1.3). Pixels at the
    border have 0. out: two int8 arrays (h, w), which are written and returned, but for their
    borders. kernel: one of the operator `sobel`, chosen where none is named. Raises ShapeError for
    other arrays, UnsupportedOpError where there is no such kernel.
    """
    if isinstance(image, np.ndarray) and (image.dtype != np.uint8 or image.ndim != 2):
        got = f"{image.dtype} {image.shape}"
        raise ShapeError(f"sobel: image must be uint8 (h, w), got {got}")
    x = as_one_of("sobel: image", image, (DType.uint8,))
    if out is not None:
        _check_out(out, x)
    dx, dy = evaluate(Sobel(), {"x": x}, backend, kernel)
    if out is None:
        return dx, dy
    for into, found in zip(out, (dx, dy), strict=True):
        into[1:-1, 1:-1] = found[1:-1, 1:-1]
    return out[0], out[1]


def _check_out(out: object, image: Array) -> None:
    """Raise ShapeError where `out` is no place for the gradients of `image`."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ShapeError(f"sobel: out must be two arrays, for dx and dy, got {shown(out)}")
    for name, array in zip(("dx", "dy"), out, strict=True):
        right = isinstance(array, np.ndarray) and array.dtype == np.int8
        if not right or array.shape != image.shape:
            array_like = isinstance(array, np.ndarray)
            got = f"{array.dtype} {array.shape}" if array_like else type(array).__name__
            raise ShapeError(f"sobel: out's {name} must be int8 {image.shape}, got {got}")
        if not array.flags.writeable:
            raise ShapeError(f"sobel: out's {name} must be writeable, got a read-only array")
    if np.may_share_memory(*out):
        raise ShapeError("sobel: out must be two arrays, got two that share memory")
