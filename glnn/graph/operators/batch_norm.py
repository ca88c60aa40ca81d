"""Batch normalisation as it is at inference: a scale and a shift for each channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Contraction, Shapes
from glnn.types import Array, Shape


@dataclass(frozen=True)
class BatchNorm(Contraction):
    """scale x + shift. x: (n, c, ...). scale, shift: (c,), of each channel.

    With mean, variance, weight and bias of a channel, as `scale_and_shift` gives them: Ioffe and
    Szegedy 2015, Batch Normalization, algorithm 2.
    """

    name: ClassVar[str] = "batch_norm"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x",)
    parameters: ClassVar[tuple[str, ...]] = ("scale", "shift")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"batch_norm: x must have shape (n, c, ...), got {x}")
        for name in self.parameters:
            if shapes[name] != (x[1],):
                raise ShapeError(
                    f"batch_norm: {name} must have shape {(x[1],)}, got {shapes[name]}"
                )
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        scale, shift = (
            operands[name].astype(x.dtype, copy=False).reshape(1, -1, *(1,) * (x.ndim - 2))
            for name in self.parameters
        )
        return np.asarray(scale * x + shift)

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"]) * 2

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *inner = self.shape_of(shapes)
        return {"n": n, "c": c, "inner": prod(inner)}


def scale_and_shift(
    weight: Array, bias: Array, mean: Array, variance: Array, eps: float
) -> tuple[Array, Array]:
    """What weight (x - mean) / sqrt(variance + eps) + bias multiplies x by and adds, in float64.

    All of shape (c,).
    """
    scale = weight.astype(np.float64) / np.sqrt(variance.astype(np.float64) + eps)
    return scale, bias.astype(np.float64) - mean.astype(np.float64) * scale
