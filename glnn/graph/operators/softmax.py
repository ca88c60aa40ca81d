"""Softmax along one axis."""

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
class Softmax(Contraction):
    """exp(x) over its sum along `axis`, which may be any but the first. x: (n, ...)."""

    name: ClassVar[str] = "softmax"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x",)
    axis: int = -1

    def __post_init__(self) -> None:
        if not isinstance(self.axis, int) or self.axis == 0:
            raise ShapeError(f"softmax: axis must be an integer, not 0 (the batch): {self.axis!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if not 1 <= self._axis(x) < len(x):
            raise ShapeError(f"softmax: x {x} has no axis {self.axis} besides the batch")
        return x

    def _axis(self, shape: Shape) -> int:
        return self.axis + len(shape) if self.axis < 0 else self.axis

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({"x": x.shape})
        if x.size == 0:
            return np.array(x)
        # inf - inf is NaN, as it should be; a difference that overflows has the power 0.
        with np.errstate(invalid="ignore", over="ignore"):
            powers = np.exp(x - x.max(axis=self.axis, keepdims=True))
            return np.asarray(powers / powers.sum(axis=self.axis, keepdims=True))

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][self._axis(shapes["x"])]

    def flops(self, shapes: Shapes) -> int:
        return 5 * prod(shapes["x"])  # maximum, difference, exponential, sum, quotient

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = self.shape_of(shapes)
        axis = self._axis(x)
        return {
            "n": x[0],
            "outer": prod(x[1:axis]),
            "extent": x[axis],
            "inner": prod(x[axis + 1 :]),
        }
