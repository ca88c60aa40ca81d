"""Sums over the samples and the pixels of each channel, two at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.layout.layout import aligned
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, shrink_size


@dataclass(frozen=True)
class ChannelSums(HandwrittenOperator):
    """Two numbers of each channel, as normalisations and their gradients need them.

    x: (n, c, ...). Result: (2, row), row being c made a multiple of 64, so that each row can be
    bound by itself: the means and the variances of x's channels, of the population, both NaN where
    x is not finite; or, with dy of x's shape, the sums of dy and of dy (x - mean), mean being of
    shape (c,), or 0 without it. Behind c numbers a row has zeros. Ioffe and Szegedy 2015, Batch
    Normalization, algorithm 1 and section 3; variances are joined as by Chan, Golub and LeVeque
    1979.
    """

    name: ClassVar[str] = "channel_sums"
    inputs: ClassVar[tuple[str, ...]] = ("x", "dy", "mean")
    optional: ClassVar[tuple[str, ...]] = ("dy", "mean")
    nan_operands: ClassVar[tuple[str, ...]] = ("x", "dy")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"channel_sums: x must have shape (n, c, ...), got {x}")
        if "mean" in shapes and "dy" not in shapes:
            raise ShapeError("channel_sums: expected dy beside mean")
        self.check_shapes_of(shapes, {"dy": x, "mean": x[1:2]})
        return 2, aligned(x[1])

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        shape = self.shape_of({name: array.shape for name, array in operands.items()})
        axes, spread = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
        result = np.zeros(shape, x.dtype)
        with np.errstate(all="ignore"):  # 0 / 0 is NaN
            if "dy" in operands:
                dy, apart = operands["dy"], x
                if "mean" in operands:
                    apart = x - operands["mean"].reshape(spread)
                sums = dy.sum(axes, np.float64), (dy * apart).sum(axes, np.float64)
            else:
                count = np.float64(prod(x.shape[axis] for axis in axes))
                mean = x.sum(axes, np.float64) / count
                mean = np.where(np.isfinite(mean), mean, np.nan)
                squares = np.square(x - mean.reshape(spread))
                sums = mean, squares.sum(axes, np.float64) / count
        result[:, : x.shape[1]] = sums
        return result

    def flops(self, shapes: Shapes) -> int:
        return 4 * prod(shapes["x"])

    def depth(self, shapes: Shapes) -> int:
        x = shapes["x"]
        return prod(x[:1]) * prod(x[2:])

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *pixels = shapes["x"]
        x = (n, shrink_size(c), *pixels)
        return {name: x[1:2] if name == "mean" else x for name in shapes}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *pixels = shapes["x"]
        _, row = self.shape_of(shapes)
        inner = prod(pixels)
        return {"n": n, "c": c, "inner": inner, "pixels": n * inner, "row": row}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return "matrix", 1 where x is one, of rows of channels."""
        return {"matrix": int(len(shapes["x"]) == 2)}
