"""Resizing of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from glnn.backends import Backend
from glnn.errors import ShapeError, shown
from glnn.filters.filter import Filter, Sketch
from glnn.filters.image import axes, check_sizes
from glnn.filters.taps import Taps, apply_taps, area, cubic, linear, nearest
from glnn.graph.compose.resample import picked
from glnn.graph.graph import Value
from glnn.types import Array

WEIGHED: dict[str, Callable[[int, int], Taps]] = {"linear": linear, "cubic": cubic, "area": area}
INTERPOLATIONS = ("nearest", *WEIGHED)
LARGEST = 1 << 20
"""The most pixels of a side."""


@dataclass(frozen=True)
class Resize(Filter):
    """An image of `width` x `height` pixels."""

    name: ClassVar[str] = "resize"
    width: int
    height: int
    interpolation: str
    """A name of INTERPOLATIONS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape = x.type.shape
        wanted = dict(zip(axes(shape), (self.width, self.height), strict=True))
        if self.interpolation == "nearest":
            return (picked(sketch.add, x, {a: nearest(shape[a], n) for a, n in wanted.items()}),)
        y = sketch.floats(x)
        for axis, count in wanted.items():
            y = apply_taps(sketch, y, axis, WEIGHED[self.interpolation](shape[axis], count))
        return (sketch.like(x, y),)


def resize(
    image: Array,
    size: int | tuple[int, int],
    interpolation: str = "linear",
    backend: str | Backend = "auto",
) -> Array:
    """`image` in another size: OpenCV's `resize`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result is like it, of uint8
    rounded to the nearest and saturated. size: (width, height) in pixels, or one for both.
    interpolation: "nearest"; "linear" or "cubic" between the middles of pixels, without smoothing
    where it shrinks, as OpenCV and PyTorch have it; or "area", the mean of what a pixel covers,
    for smaller pictures. Raises ShapeError for other arguments.
    """
    width, height = check_sizes("resize", "size", size, most=LARGEST)
    if not isinstance(interpolation, str) or interpolation not in INTERPOLATIONS:
        expected = f"one of {INTERPOLATIONS}"
        raise ShapeError(f"resize: interpolation must be {expected}, got {shown(interpolation)}")
    return Resize(width, height, interpolation)(image, backend)[0]
