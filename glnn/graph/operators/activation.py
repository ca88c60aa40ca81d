"""A function of every element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.graph.operator import Contraction, Shapes
from glnn.graph.operators import epilogue
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Activation(Contraction):
    """function(x) for every element of x, of any shape; see `epilogue.FUNCTIONS`."""

    name: ClassVar[str] = "activation"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x",)
    function: str

    def __post_init__(self) -> None:
        epilogue.check(self.name, self.function)

    def shape_of(self, shapes: Shapes) -> Shape:
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return epilogue.apply(self.function, operands["x"])

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(shapes["x"])}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"ACTIVATION": epilogue.code(self.function)}
