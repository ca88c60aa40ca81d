"""The first half of a product whose sums are cut into parts: Cronin 2018, section 3.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.types import Array, Shape

ROWS, COLUMNS, TRANSPOSED = "rows", "columns", "transposed"
ORDERS = (ROWS, COLUMNS, TRANSPOSED)


@dataclass(frozen=True)
class MatmulParts(Contraction):
    """x weight^T with the sum over k cut into `parts`, which MatmulSum adds up.

    x: (m, k). weight: (n, k). The result depends on `order`:
    "rows": (parts m, n), the products of one part below those of the one before; a part takes as
        many quads of k as every other, the last ones perhaps fewer or none.
    "columns": (1, n, m, parts), Cronin's: column after column, the parts of a row together.
    "transposed": (1, n, parts, m), Cronin's where x is stored transposed.
    In Cronin's orders `parts` divides k.
    """

    name: ClassVar[str] = "matmul_parts"
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    halves: ClassVar[tuple[str, ...]] = ("x", "weight")
    parts: int
    order: str = ROWS

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ShapeError(f"matmul_parts: order must be one of {ORDERS}, got {self.order!r}")
        if self.parts < 1:
            raise ShapeError(f"matmul_parts: expected at least one part, got {self.parts}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        rank(self.name, "weight", weight, 2, "(n, k)")
        if x[1] != weight[1]:
            raise ShapeError(
                f"matmul_parts: x {x} and weight {weight} must agree in their last dimension"
            )
        if self.order != ROWS and x[1] % self.parts:
            raise ShapeError(f"matmul_parts: {self.parts} parts do not divide k of x {x}")
        m, n = x[0], weight[0]
        if self.order == ROWS:
            return self.parts * m, n
        return (1, n, m, self.parts) if self.order == COLUMNS else (1, n, self.parts, m)

    def _width(self, k: int) -> int:
        """Return the share of k that a part takes."""
        return 4 * -(-k // (4 * self.parts)) if self.order == ROWS else k // self.parts

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, weight = operands["x"], operands["weight"]
        k, width = x.shape[1], self._width(x.shape[1])
        missing = ((0, 0), (0, width * self.parts - k))
        shares = (-1, self.parts, width)
        a = np.pad(x, missing).reshape(shares)
        b = np.pad(weight.astype(x.dtype, copy=False), missing).reshape(shares)
        order = {ROWS: "pij", COLUMNS: "jip", TRANSPOSED: "jpi"}[self.order]
        result: Array = np.einsum(f"ipk,jpk->{order}", a, b)
        return result.reshape(self.shape_of({"x": x.shape, "weight": weight.shape}))

    def depth(self, shapes: Shapes) -> int:
        return self._width(shapes["x"][1])

    def flops(self, shapes: Shapes) -> int:
        return 2 * shapes["x"][0] * shapes["weight"][0] * shapes["x"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return {"m": m, "n": n, "k": k, "parts": self.parts, "width": self._width(k)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        width = 4 if self.order == ROWS else self._width(shapes["x"][1])
        return {"ORDER": ORDERS.index(self.order), "WIDTH": width}
