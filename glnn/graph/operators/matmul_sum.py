"""The second half of a product whose sums are cut into parts: Cronin 2018, section 3.7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators.matmul_parts import COLUMNS, ORDERS, ROWS
from glnn.types import Array, Shape


@dataclass(frozen=True)
class MatmulSum(Contraction):
    """The sum over the parts of what MatmulParts gives.

    x: (parts m, n), (1, n, m, parts) or (1, n, parts, m), as `order` says there. Result: (m, n).
    """

    name: ClassVar[str] = "matmul_sum"
    parts: int
    order: str = ROWS

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ShapeError(f"matmul_sum: order must be one of {ORDERS}, got {self.order!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if self.order == ROWS:
            rank(self.name, "x", x, 2, "(parts m, n)")
            parts, m, n = self.parts, x[0] // self.parts, x[1]
            fits = x[0] == parts * m
        else:
            rank(self.name, "x", x, 4, "(1, n, m, parts) or (1, n, parts, m)")
            one, n, m, parts = x if self.order == COLUMNS else (x[0], x[1], x[3], x[2])
            fits = one == 1 and parts == self.parts
        if not fits:
            raise ShapeError(f"matmul_sum: x {x} has not {self.parts} parts, {self.order}")
        return m, n

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        m, n = self.shape_of({"x": x.shape})
        if self.order == ROWS:
            return np.asarray(x.reshape(self.parts, m, n).sum(0))
        return np.asarray(x[0].sum(2 if self.order == COLUMNS else 1).T)

    def depth(self, shapes: Shapes) -> int:
        return self.parts

    def flops(self, shapes: Shapes) -> int:
        m, n = self.shape_of(shapes)
        return m * n * self.parts

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """The steps are the floats from one row, column and part to the next in row major x."""
        m, n = self.shape_of(shapes)
        quads = -(-n // 4) * 4
        steps = {
            ROWS: (quads, 1, m * quads),
            COLUMNS: (self.parts, m * self.parts, 1),
        }.get(self.order, (1, m * self.parts, m))
        names = ("row_step", "column_step", "part_step")
        return {"m": m, "n": n, "parts": self.parts, **dict(zip(names, steps, strict=True))}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"ORDER": ORDERS.index(self.order)}
