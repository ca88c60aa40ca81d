"""Channels-last images as a matrix, and back: a 1 x 1 convolution becomes a GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.types import Array, Shape


class _View(Contraction):
    """An op that moves nothing."""

    view: ClassVar[bool] = True

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class Rows(_View):
    """Images x (n, c, h, w) as a matrix (n * h * w, c)."""

    name: ClassVar[str] = "rows"

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        return n * h * w, c

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(-1, x.shape[1])

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return "nhwC4c", "R4"


@dataclass(frozen=True)
class Images(_View):
    """A matrix (n * h * w, c) as images (n, c, h, w); with `transposed` it is (c, n * h * w)."""

    name: ClassVar[str] = "images"
    images: tuple[int, int, int]
    transposed: bool = False

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(n * h * w, c)")
        n, h, w = self.images
        rows, c = shapes["x"][::-1] if self.transposed else shapes["x"]
        if rows != n * h * w:
            raise ShapeError(f"images: {shapes['x']} is no matrix of {n} images of {h} x {w}")
        return n, c, h, w

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"].T if self.transposed else operands["x"]
        n, h, w = self.images
        return np.ascontiguousarray(x.reshape(n, h, w, x.shape[1]).transpose(0, 3, 1, 2))

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return ("C" if self.transposed else "R4"), "nhwC4c"
