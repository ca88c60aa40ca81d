"""Sobel's gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.backends import Backend
from glnn.core.array_functions import overlaps_itself
from glnn.core.types import Array, DType, as_one_of
from glnn.errors import ShapeError, UnsupportedOpError, shown
from glnn.filters.filter import Filter, Sketch
from glnn.graph.graph import Value
from glnn.graph.operators import Sobel

Gradients = tuple[Array, Array]


@dataclass(frozen=True)
class Edges(Filter):
    """Both gradients in one array."""

    name: ClassVar[str] = "sobel"
    kernel: str | None
    """The name of the operator's kernel; None to select one."""

    @property
    def kernels(self) -> Mapping[str, str]:
        return {} if self.kernel is None else {"sobel": self.kernel}

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        return (sketch.add(Sobel(), x),)


def sobel(
    image: Array,
    backend: str | Backend = "auto",
    kernel: str | None = None,
    out: Gradients | None = None,
) -> Gradients:
    """Return the gradients (dx, dy) of `image`, divided by 8 and rounded down: two int8 arrays.

    image: uint8 H x W; the results have its shape. dx is the right neighbours minus the left ones;
    dy is the row above minus the row below, so that it grows upwards. Sums have 16 bits, as in
    Gronqvist and Lokhmotov, section 1.3. The gradients of border pixels are 0. out: two int8 arrays
    H x W to write and return; their borders are not written. kernel: the name of a kernel of the
    operator `sobel`. Raises ShapeError for other arrays, UnsupportedOpError for an unknown kernel.
    """
    image = as_one_of("sobel: image", image, (DType.uint8,))
    if image.ndim != 2 or 0 in image.shape:
        raise ShapeError(f"sobel: image must be H x W, neither of them 0, got shape {image.shape}")
    if not isinstance(kernel, (str, type(None))):
        raise UnsupportedOpError(f"sobel: a kernel must be a name, got {shown(kernel)}")
    if out is not None:
        _check_out(out, image.shape)
    ((dx, dy),) = Edges(kernel)(image, backend)
    if out is None:
        return dx, dy
    for target, result in zip(out, (dx, dy), strict=True):
        target[1:-1, 1:-1] = result[1:-1, 1:-1]
    return out[0], out[1]


def _check_out(out: object, shape: tuple[int, ...]) -> None:
    """Raise ShapeError where the gradients of an image of `shape` cannot be written to `out`."""
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise ShapeError(f"sobel: out must be two arrays, for dx and dy, got {shown(out)}")
    for name, array in zip(("dx", "dy"), out, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != np.int8 or array.shape != shape:
            is_array = isinstance(array, np.ndarray)
            got = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
            raise ShapeError(f"sobel: out's {name} must be int8 {shape}, got {got}")
        if not array.flags.writeable:
            raise ShapeError(f"sobel: out's {name} must be writeable, got a read-only array")
        if overlaps_itself(array):
            raise ShapeError(f"sobel: out's {name} overlaps itself")
    if np.shares_memory(*out):
        raise ShapeError("sobel: out must be two arrays, got two that share memory")
