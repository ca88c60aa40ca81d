"""The luminance of colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.backends import Backend
from glnn.errors import ShapeError
from glnn.filters.filter import HALF_UP, Filter, Sketch
from glnn.filters.taps import apply_taps
from glnn.graph.graph import Value
from glnn.graph.operators import Squeeze
from glnn.types import Array, DType, Shape

LUMA = (0.299, 0.587, 0.114)
"""The weights of red, green and blue: ITU-R BT.601."""
LUMA_OF_BYTES = (9798 / 32768, 19235 / 32768, 3735 / 32768)
"""The same as OpenCV rounds them, so that sums of bytes are exact."""


@dataclass(frozen=True)
class Grey(Filter):
    """A weighted sum of three channels."""

    name: ClassVar[str] = "grey"

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape = x.type.shape
        if len(shape) < 3 or shape[-1] not in (3, 4):
            raise ShapeError(
                f"grey: image must be H x W x 3 or 4, or a batch of such, got shape {shape}"
            )
        luma = LUMA_OF_BYTES if x.type.dtype is DType.uint8 else LUMA
        taps = np.arange(3, dtype=np.int32)[:, None], np.array(luma, np.float32)[:, None]
        axis = len(shape) - 1
        sums = sketch.add(Squeeze((axis,)), apply_taps(sketch, sketch.floats(x), axis, taps))
        return (sketch.like(x, sums, HALF_UP),)

    def split_axis(self, shape: Shape) -> int | None:
        """Return the axis of images or rows: a pixel needs all of its channels."""
        axis = 0 if len(shape) == 3 or shape[0] > 1 else 1
        return axis if shape[axis] > 1 else None


def grey(image: Array, backend: str | Backend = "auto") -> Array:
    """The grey values of a picture of red, green, blue and perhaps alpha, which does not count.

    image: uint8 or float32, H x W x C or N x H x W x C with C 3 or 4; the result is like it
    without its last dimension: 0.299 R + 0.587 G + 0.114 B. OpenCV's `cvtColor` with
    `COLOR_RGB2GRAY`, exactly for uint8. Raises ShapeError for another image.
    """
    return Grey()(image, backend)[0]
