"""Sobel's gradients of an image."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Shapes, Types

WORD = 4  # pixels
ROW = 16  # pixels to which kernels have rows padded
FEW = 67  # rows that tell whether a kernel is right


@dataclass(frozen=True)
class Sobel(Operator):
    """The gradients dx and dy of an image by Sobel's masks, over 8 and rounded down.

    Gronqvist and Lokhmotov, section 1.3: sums in 16 bits, then an arithmetic shift by 3. dx is the
    right column of a pixel's neighbours less the left one, dy the row above less the row below, the
    middle of each counted twice. x: uint8 (h, w). One result, int8 (2, h, w): dx, then dy, as one
    kernel makes both. A pixel at the border, which has no neighbours on a side, has 0.
    """

    name: ClassVar[str] = "sobel"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if len(x.dims) != 2 or x.dtype is not DType.uint8:
            raise ShapeError(f"sobel: x must be uint8 (h, w), got {x}")
        return (TensorType((2, *x.dims), DType.int8),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        self.infer([TensorType.from_array(x)])
        gradients = np.zeros((2, *x.shape), np.int8)
        if min(x.shape) > 2:
            wide = x.astype(np.int16)
            across = wide[:, 2:] - wide[:, :-2]
            gradients[0, 1:-1, 1:-1] = (across[:-2] + 2 * across[1:-1] + across[2:]) >> 3
            along = wide[:, 2:] + 2 * wide[:, 1:-1] + wide[:, :-2]
            gradients[1, 1:-1, 1:-1] = (along[:-2] - along[2:]) >> 3
        return (gradients,)

    def cost(self, types: Types) -> Cost:
        pixels = prod(self.named(types)["x"].shape)
        return Cost(16 * pixels, 3 * pixels)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (Interval(-128, 127),)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        height, width = shapes["x"]
        return {
            "height": height,
            "width": width,
            "words": -(-width // ROW) * ROW // WORD,
            "pixels": WORD,
        }

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        height, width = shapes["x"]
        return {"x": (min(height, FEW), width)} if few else shapes

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return small numbers spread over the range of a byte."""
        return np.asarray(numbers * np.uint8(157), numbers.dtype)
