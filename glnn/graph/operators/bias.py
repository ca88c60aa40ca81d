"""Adding one number to each channel."""

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
class Bias(Contraction):
    """x + bias, the bias of a channel added to all of it. x: (n, c, ...). bias: (c,)."""

    name: ClassVar[str] = "bias"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x", "bias")
    parameters: ClassVar[tuple[str, ...]] = ("bias",)

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) < 2:
            raise ShapeError(f"bias: x must have shape (n, c, ...), got {x}")
        if shapes["bias"] != (x[1],):
            raise ShapeError(f"bias: bias must have shape {(x[1],)}, got {shapes['bias']}")
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        bias = operands["bias"].astype(x.dtype, copy=False)
        return np.asarray(x + bias.reshape(1, -1, *(1,) * (x.ndim - 2)))

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *inner = self.shape_of(shapes)
        return {"n": n, "c": c, "inner": prod(inner)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"MATRIX": int(len(shapes["x"]) == 2)}
