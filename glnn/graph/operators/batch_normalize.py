"""Batch normalisation by the batch's own statistics, and its gradient, one launch each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, shrink_size


def _means(x: Array) -> Array:
    """Return the mean of each channel of x (n, c, ...), in float64, of a shape that broadcasts."""
    axes = (0, *range(2, x.ndim))
    count = np.float64(prod(x.shape[axis] for axis in axes))
    return np.asarray(x.sum(axes, np.float64, keepdims=True) / count)


class _ByChannel(HandwrittenOperator):
    """Base of operators that compute each channel of images (n, c, ...) by itself."""

    has_epilogue: ClassVar[bool] = True
    eps: float

    def depth(self, shapes: Shapes) -> int:
        x = shapes["x"]
        return prod(x[:1]) * prod(x[2:])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *pixels = shapes["x"]
        inner = prod(pixels)
        return {"n": n, "c": c, "inner": inner, "pixels": n * inner}

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}


@dataclass(frozen=True)
class BatchNormalize(_ByChannel):
    """(x - mean) / sqrt(variance + eps) by the mean and the variance of each of x's channels.

    x: (n, c, ...). The variance is that of the population; a channel that is not finite is NaN
    altogether. Ioffe and Szegedy 2015, Batch Normalization, algorithm 1; its weight and bias are
    an epilogue's, which does the rest.
    """

    name: ClassVar[str] = "batch_normalize"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    eps: float = 1e-5
    """Number that is added to the variance."""

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"batch_normalize: x must have shape (n, c, ...), got {x}")
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({"x": x.shape})
        with np.errstate(all="ignore"):  # 0 / 0 is NaN
            apart = x - _means(x)
            return (apart / np.sqrt(_means(np.square(apart)) + self.eps)).astype(x.dtype)

    def flops(self, shapes: Shapes) -> int:
        return 6 * prod(shapes["x"])

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *pixels = shapes["x"]
        return {"x": (n, shrink_size(c), *pixels)}


@dataclass(frozen=True)
class BatchNormalizeGradient(_ByChannel):
    """The gradient by x of `BatchNormalize`.

    dy: (n, c, ...), the gradient by its result. x: of that shape. mean, variance: (c,), of x's
    channels. With y for the normalised x: dy less its mean and less y times the mean of dy y, over
    the deviation. Ioffe and Szegedy 2015, Batch Normalization, section 3. An epilogue does the
    rest.
    """

    name: ClassVar[str] = "batch_normalize_gradient"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "mean", "variance")
    nan_operands: ClassVar[tuple[str, ...]] = ("dy", "x")
    eps: float = 1e-5
    """Number that is added to the variance."""

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"batch_normalize_gradient: x must have shape (n, c, ...), got {x}")
        self.check_shapes_of(shapes, {"dy": x, "mean": x[1:2], "variance": x[1:2]})
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy, x = operands["dy"], operands["x"]
        self.shape_of({name: array.shape for name, array in operands.items()})
        spread = (-1, *(1,) * (x.ndim - 2))
        mean, variance = (
            operands[name].astype(np.float64).reshape(spread) for name in ("mean", "variance")
        )
        with np.errstate(all="ignore"):  # 0 / 0 is NaN
            over = 1 / np.sqrt(variance + self.eps)
            y = (x - mean) * over
            return ((dy - _means(dy) - y * _means(dy * y)) * over).astype(x.dtype)

    def flops(self, shapes: Shapes) -> int:
        return 9 * prod(shapes["x"])  # sums 4, the result 5

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        return np.abs(numbers) if name == "variance" else numbers

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *pixels = shapes["x"]
        few = shrink_size(c)
        images = n, few, *pixels
        return {"dy": images, "x": images, "mean": (few,), "variance": (few,)}
