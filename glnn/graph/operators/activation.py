"""A function of every element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operator import Contraction, Shapes
from glnn.types import Array, Shape

CODES = ("identity", "sigmoid", "relu", "tanh")
"""In the order of `shaders/activation/function.glsl`."""


@dataclass(frozen=True)
class Activation(Contraction):
    """function(x) for every element of x, of any shape; see CODES."""

    name: ClassVar[str] = "activation"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x",)
    function: str

    def __post_init__(self) -> None:
        if self.function not in CODES:
            raise ShapeError(f"activation: expected one of {', '.join(CODES)}, got {self.function}")

    def shape_of(self, shapes: Shapes) -> Shape:
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        if self.function == "identity":
            return x
        return np.asarray(FUNCTIONS[self.function].evaluate(x))

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(shapes["x"])}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"ACTIVATION": CODES.index(self.function)}
