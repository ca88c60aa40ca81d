"""Products whose rows are normalised once they are complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, rank, shrink_size
from glnn.graph.operators.normalization import Normalize

LEAST_ROWS = 4
"""Rows that a workgroup of any kernel has at least, as a block whose tiles are counted."""
MOST_BLOCKS = 4096
MOST_ROWS = LEAST_ROWS * MOST_BLOCKS
"""Rows that a result may have."""
COUNTS = MOST_BLOCKS + 1
"""Numbers of `arrivals`."""


@dataclass(frozen=True)
class MatmulNormalize(HandwrittenOperator):
    """Layer normalisation of the rows of x weight^T + bias + residual, times scale, plus shift.

    The end of a block of an encoder (Vaswani et al. 2017, section 3.1; Ba et al. 2016). x: (m, k).
    weight: (n, k). residual: (m, n). bias, scale and shift: (n,). Result: (m, n).

    arrivals: (COUNTS,), all of them the same number: kernels count by their bits, from
    those of the last one on, which tiles of a block of rows are complete, and leave them as they
    were. Of operators that may run at once each has arrivals of its own.
    """

    name: ClassVar[str] = "matmul_normalize"
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("x", "residual")
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias", "scale", "shift", "arrivals")
    optional: ClassVar[tuple[str, ...]] = ("residual", "bias", "scale", "shift")
    nan_operands: ClassVar[tuple[str, ...]] = ("x", "residual")
    eps: float
    """Number that is added to the variance."""

    def __post_init__(self) -> None:
        if not 0 <= self.eps < float("inf"):
            raise ShapeError(f"{self.name}: eps must be a number of at least 0, got {self.eps!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        rank(self.name, "weight", weight, 2, "(n, k)")
        if x[1] != weight[1]:
            raise ShapeError(f"{self.name}: x {x} and weight {weight} must agree in k")
        if x[0] > MOST_ROWS:
            raise ShapeError(f"{self.name}: x must have {MOST_ROWS} rows at most, got {x}")
        self.check_shapes_of(shapes, self.operand_shapes(x[0], weight[0], x[1]))
        return x[0], weight[0]

    @staticmethod
    def operand_shapes(m: int, n: int, k: int) -> dict[str, Shape]:
        """Return the shapes of all operands for a result (m, n) of sums of k products."""
        rows = {"x": (m, k), "weight": (n, k), "residual": (m, n)}
        return {**rows, **dict.fromkeys(("bias", "scale", "shift"), (n,)), "arrivals": (COUNTS,)}

    def compute(self, operands: Mapping[str, Array]) -> Array:
        self.shape_of({name: array.shape for name, array in operands.items()})
        with np.errstate(all="ignore"):
            sums = operands["x"] @ operands["weight"].T
            for name in ("bias", "residual"):
                if name in operands:
                    sums = sums + operands[name]
        names = {"scale": "weight", "shift": "bias"}
        norms = {names[name]: operands[name] for name in names if name in operands}
        return Normalize(dims=1, eps=self.eps).compute({"x": sums, **norms})

    def flops(self, shapes: Shapes) -> int:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return m * n * (2 * k + 10)

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        return np.zeros_like(numbers) if name == "arrivals" else numbers

    def fixed_layouts(self) -> Mapping[str, str]:
        return dict.fromkeys(("bias", "scale", "shift", "arrivals"), "R")

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return {"m": m, "n": n, "k": k}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"NORMALIZED": 1, "ROW_LENGTH": shapes["weight"][0], "MOST_BLOCKS": MOST_BLOCKS}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        return shapes["x"][0], shapes["weight"][0]

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (m, k), n = shapes["x"], shapes["weight"][0]
        made = depth + (k - depth) % 4  # a whole quad or not, as before
        return {**shapes, "x": (m, made), "weight": (n, made)}

    def shrink(self, shapes: Shapes) -> Shapes:
        m, k = shapes["x"]
        few = shrink_size(m)
        result = {**shapes, "x": (few, k)}
        return result | ({"residual": (few, shapes["weight"][0])} if "residual" in shapes else {})
