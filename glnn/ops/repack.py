"""The same values in another layout: what a plan inserts between kernels that disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.layout import parse
from glnn.ops.op import Array, Op, Shape, Shapes, rank


@dataclass(frozen=True)
class Repack(Op):
    """x of shape (n, c, h, w), unchanged, from the layout `source` to the layout `target`."""

    name: ClassVar[str] = "repack"
    source: str
    target: str

    def __post_init__(self) -> None:
        parse(self.source), parse(self.target)

    def infer(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        return shapes["x"]

    def reference(self, operands: Mapping[str, Array]) -> Array:
        return operands["x"]

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return dict(zip("nchw", shapes["x"], strict=True), count=prod(shapes["x"]))
