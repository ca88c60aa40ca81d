"""Subsampling with a coefficient and a bias for each channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Subsample(Contraction):
    """weight mean + bias, the mean being that of each window of an image.

    x: (n, c, h, w). weight, bias: (c,), of each channel. Result: (n, c, h / kh, w / kw), rounded
    down: windows lie side by side. LeCun et al. 1998, Gradient-Based Learning Applied to Document
    Recognition, section II.B (there a sum), in the form of Rovder 2019 (a mean).
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "subsample"
    samples: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    kernel: Pair = (2, 2)

    def __post_init__(self) -> None:
        windows.check(self.name, kernel=(self.kernel, 2, 1))

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        for name in self.parameters:
            if shapes[name] != (c,):
                raise ShapeError(f"subsample: {name} must have shape {(c,)}, got {shapes[name]}")
        oh, ow = h // self.kernel[0], w // self.kernel[1]
        if oh < 1 or ow < 1:
            raise ShapeError(f"subsample: the window {self.kernel} is larger than x {shapes['x']}")
        return n, c, oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c, oh, ow = self.shape_of({name: array.shape for name, array in operands.items()})
        kh, kw = self.kernel
        inside = x[:, :, : oh * kh, : ow * kw]
        means = inside.reshape(n, c, oh, kh, ow, kw).mean(axis=(3, 5))
        weight, bias = (
            operands[name].astype(x.dtype, copy=False).reshape(1, c, 1, 1)
            for name in self.parameters
        )
        return np.asarray(means * weight + bias)

    def flops(self, shapes: Shapes) -> int:
        return prod(self.shape_of(shapes)) * (prod(self.kernel) + 2)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, oh, ow = self.shape_of(shapes)
        return {"n": n, "c": c, "h": shapes["x"][2], "w": shapes["x"][3], "oh": oh, "ow": ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"KERNEL_H": self.kernel[0], "KERNEL_W": self.kernel[1]}
