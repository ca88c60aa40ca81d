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
from glnn.graph.operator import Shapes, rank, shrink_size
from glnn.graph.operators.move import whole_numbers


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
    parts: int = 0
    """0, or into how many parts of as many each the pixels of all samples are divided: each has two
    rows of its own, in a result (parts, 2, row), which MergeChannelSums makes one."""

    def __post_init__(self) -> None:
        whole_numbers(self.name, "parts", (self.parts,), 0)

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"channel_sums: x must have shape (n, c, ...), got {x}")
        if "mean" in shapes and "dy" not in shapes:
            raise ShapeError("channel_sums: expected dy beside mean")
        self.check_shapes_of(shapes, {"dy": x, "mean": x[1:2]})
        if self.parts and pixels_of(x) % self.parts:
            parts = f"expected pixels in {self.parts} equal parts"
            raise ShapeError(f"channel_sums: {parts}, got {pixels_of(x)} of x {x}")
        rows = 2, aligned(x[1])
        return (self.parts, *rows) if self.parts else rows

    def compute(self, operands: Mapping[str, Array]) -> Array:
        shape = self.shape_of({name: array.shape for name, array in operands.items()})
        if not self.parts:
            return self._sums(operands, shape)
        result, x = np.zeros(shape, operands["x"].dtype), operands["x"]
        chunk = pixels_of(x.shape) // self.parts
        matrices = {  # of pixels by channels
            name: np.moveaxis(array, 1, -1).reshape(-1, x.shape[1])
            for name, array in operands.items()
            if name != "mean"
        }
        for part in range(self.parts):
            own = {n: a[part * chunk : (part + 1) * chunk] for n, a in matrices.items()}
            result[part] = self._sums({**operands, **own}, shape[1:])
        return result

    @staticmethod
    def _sums(operands: Mapping[str, Array], shape: Shape) -> Array:
        x = operands["x"]
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
        return pixels_of(shapes["x"]) // max(self.parts, 1)

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *pixels = shapes["x"]
        x = (n, shrink_size(c), *pixels)
        return {name: x[1:2] if name == "mean" else x for name in shapes}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *pixels = shapes["x"]
        inner, row = prod(pixels), self.shape_of(shapes)[-1]
        parts, chunk = max(self.parts, 1), self.depth(shapes)
        known = {"n": n, "c": c, "inner": inner, "pixels": n * inner, "row": row}
        return {**known, "parts": parts, "chunk": chunk, "depth": chunk}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return "matrix", 1 where x is one, of rows of channels, and "whole", 1 without parts."""
        return {"matrix": int(len(shapes["x"]) == 2), "whole": int(not self.parts)}


@dataclass(frozen=True)
class MergeChannelSums(HandwrittenOperator):
    """The rows of ChannelSums from those of its parts.

    x: (parts, 2, row), row being a multiple of 64 as there. moments: whether the rows are means and
    variances, else sums. Result: (2, row).
    """

    name: ClassVar[str] = "merge_channel_sums"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    moments: bool

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        rank(self.name, "x", x, 3, "(parts, 2, row)")
        if x[1] != 2 or x[2] % 64:
            raise ShapeError(f"{self.name}: x must have two rows of whole 64s a part, got {x}")
        return x[1:]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"].astype(np.float64)
        if self.moments:
            with np.errstate(invalid="ignore"):  # NaN stays
                mean = x[:, 0].mean(0)
                mean = np.where(np.isfinite(mean), mean, np.nan)
                variance = (x[:, 1] + np.square(x[:, 0] - mean)).mean(0)
            result = np.stack([mean, variance])
        else:
            result = x.sum(0)
        return result.astype(operands["x"].dtype)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][0]

    def flops(self, shapes: Shapes) -> int:
        return 4 * prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        parts, _, row = shapes["x"]
        return {"parts": parts, "row": row}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"MOMENTS": int(self.moments)}


def pixels_of(x: Shape) -> int:
    """Return how many numbers each channel of x, (n, c, ...), has."""
    return x[0] * prod(x[2:])
