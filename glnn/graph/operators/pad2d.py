"""Zeros around images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.graph.operator import Contraction, Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Sides
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Pad2d(Contraction):
    """x (n, c, h, w) with zeros at the top, left, bottom and right."""

    name: ClassVar[str] = "pad2d"
    samples: ClassVar[bool] = True
    padding: Sides = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        windows.check(self.name, padding=(self.padding, 4, 0))

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        top, left, bottom, right = self.padding
        return n, c, h + top + bottom, w + left + right

    def compute(self, operands: Mapping[str, Array]) -> Array:
        top, left, bottom, right = self.padding
        return np.pad(operands["x"], ((0, 0), (0, 0), (top, bottom), (left, right)))

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = shapes["x"]
        _, _, oh, ow = self.shape_of(shapes)
        return {"n": n, "c": c, "h": h, "w": w, "oh": oh, "ow": ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"PADDING_TOP": self.padding[0], "PADDING_LEFT": self.padding[1]}
