"""The patch matrix of a convolution, a row for each window: im2row of Cronin 2018, 2.4.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import SampleSubset, Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Im2row(Contraction):
    """The elements of x that each window of a convolution meets, 0 outside of the image.

    x: (n, c, h, w). Result: (n * oh * ow, kh * kw * c), channels innermost. into: optional, where
    the result is written to, of its shape; what it held is overwritten.
    """

    name: ClassVar[str] = "im2row"
    inputs: ClassVar[tuple[str, ...]] = ("x", "into")
    optional: ClassVar[tuple[str, ...]] = ("into",)
    updates: ClassVar[str | None] = "into"
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            kernel=(self.kernel, 2, 1),
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    @property
    def _geometry(self) -> tuple[Pair, Pair, Sides, Pair]:
        return self.kernel, self.stride, self.padding, self.dilation

    def _windows(self, shapes: Shapes) -> Pair:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        _, _, h, w = shapes["x"]
        oh, ow = windows.outputs((h, w), *self._geometry)
        if oh < 1 or ow < 1:
            raise ShapeError(f"im2row: the kernel {self.kernel} is larger than x {shapes['x']}")
        return oh, ow

    def shape_of(self, shapes: Shapes) -> Shape:
        shape = shapes["x"][0] * prod(self._windows(shapes)), prod(self.kernel) * shapes["x"][1]
        if shapes.get("into", shape) != shape:
            raise ShapeError(f"im2row: into must have shape {shape}, got {shapes['into']}")
        return shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c = x.shape[:2]
        out = self._windows({"x": x.shape})
        rows = np.zeros((n, *out, *self.kernel, c), x.dtype)
        for (ky, kx), (ys, xs), met in windows.every_tap(x, out, *self._geometry):
            rows[:, ys, xs, ky, kx] = met.transpose(0, 2, 3, 1)
        return rows.reshape(n * prod(out), prod(self.kernel) * c)

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        some = {"x": (count, *shapes["x"][1:])}
        if "into" in shapes:
            some["into"] = self.shape_of(some)
        return SampleSubset(self, some, dict.fromkeys((*some, "out"), 1))

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = shapes["x"]
        oh, ow = self._windows(shapes)
        m, k = self.shape_of(shapes)
        return {"n": n, "c": c, "h": h, "w": w, "oh": oh, "ow": ow, "m": m, "k": k}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return windows.defines(*self._geometry)
