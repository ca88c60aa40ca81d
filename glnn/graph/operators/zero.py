"""A matrix of zeros: what Rovder 2019 clears before im2col (section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Zero(Contraction):
    """Zeros of `shape` in `layout`, the padding of which is zero too."""

    name: ClassVar[str] = "zero"
    inputs: ClassVar[tuple[str, ...]] = ()
    shape: Shape
    layout: str = "R"

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return np.zeros(self.shape, np.float32)

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(self.shape)}

    def fixed_layouts(self) -> dict[str, str]:
        return {"out": self.layout}
