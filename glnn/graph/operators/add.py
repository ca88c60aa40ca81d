"""The sum of two arrays."""

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
class Add(Contraction):
    """x + y. x, y: of one shape, any."""

    name: ClassVar[str] = "add"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x", "y")
    inputs: ClassVar[tuple[str, ...]] = ("x", "y")

    def shape_of(self, shapes: Shapes) -> Shape:
        if shapes["y"] != shapes["x"]:
            raise ShapeError(f"add: y must have the shape of x, {shapes['x']}, got {shapes['y']}")
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        self.shape_of({name: array.shape for name, array in operands.items()})
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, as it should be
            return np.asarray(operands["x"] + operands["y"])

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(self.shape_of(shapes))}
