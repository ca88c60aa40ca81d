"""Shift and add: the second half of kn2row, which sums each tap's product at its place."""

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
from glnn.graph.operators.windows import Pair, Sides
from glnn.types import Array, Shape


@dataclass(frozen=True)
class ShiftAdd(Contraction):
    """A convolution of stride 1 from what every tap makes of every pixel: Cronin 2018, 2.4.5.

    images: n, h and w of what is convolved. x: (n * h * w, kh * kw * o), output channels innermost.
    Result: (n, o, oh, ow), the sums over the taps that lie inside of the image.
    """

    name: ClassVar[str] = "shift_add"
    images: tuple[int, int, int]
    kernel: Pair
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            images=(self.images, 3, 0),
            kernel=(self.kernel, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    @property
    def _geometry(self) -> tuple[Pair, Pair, Sides, Pair]:
        return self.kernel, (1, 1), self.padding, self.dilation

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(n * h * w, kh * kw * o)")
        (n, h, w), (rows, columns) = self.images, shapes["x"]
        if rows != n * h * w or columns % prod(self.kernel):
            raise ShapeError(
                f"shift_add: x must be ({n * h * w}, a multiple of {prod(self.kernel)}), "
                f"got {shapes['x']}"
            )
        oh, ow = windows.outputs((h, w), *self._geometry)
        if oh < 1 or ow < 1:
            raise ShapeError(f"shift_add: the kernel {self.kernel} is larger than {h} x {w}")
        return n, columns // prod(self.kernel), oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, o, oh, ow = self.shape_of({"x": x.shape})
        shares = x.reshape(*self.images, *self.kernel, o).transpose(3, 4, 0, 5, 1, 2)
        out = np.zeros((n, o, oh, ow), x.dtype)
        (top, left, _, _), (down, across) = self.padding, self.dilation
        for ky, kx in np.ndindex(*self.kernel):
            at = ky * down - top, kx * across - left
            (ys, xs), met = windows.taps(shares[ky, kx], at, (oh, ow), (1, 1))
            out[:, :, ys, xs] += met
        return out

    def depth(self, shapes: Shapes) -> int:
        return prod(self.kernel)

    def flops(self, shapes: Shapes) -> int:
        return prod(self.shape_of(shapes)) * prod(self.kernel)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, h, w = self.images
        return {"n": n, "o": o, "h": h, "w": w, "oh": oh, "ow": ow, "pixels": n * oh * ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return windows.defines(*self._geometry)
