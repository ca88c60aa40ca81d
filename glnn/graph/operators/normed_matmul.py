"""Products of rows that are normalised as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, rank, shrink_size
from glnn.graph.operators.quantized_matmul import GATES, gated


@dataclass(frozen=True)
class NormedMatmul(HandwrittenOperator):
    """y weight^T of rows y = x / sqrt(mean of squares of a row of x + eps) * norm.

    The RMS normalisation (Zhang and Sennrich 2019) and the product of a decoder's block. With a
    `gate`, gate(y weight^T) * (y up^T) (Shazeer 2020). Where rows are `centred`, the mean of each
    is taken away before, as by layer normalisation (Ba et al. 2016), and there is no norm: the
    weight has it. x: (m, k). norm: (k,). weight and up: (n, k). Result: (m, n).
    """

    name: ClassVar[str] = "normed_matmul"
    samples: ClassVar[bool] = True
    has_epilogue: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight", "norm", "up")
    optional: ClassVar[tuple[str, ...]] = ("norm", "up")
    fp16_operands: ClassVar[tuple[str, ...]] = ("x", "weight", "up")
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    eps: float
    """Number that is added to the mean of squares."""
    gate: str = ""
    """Function of the products with `weight`, a name of `GATES`; empty where there is no `up`."""
    centred: bool = False
    """True where the mean of a row is subtracted."""

    def __post_init__(self) -> None:
        if self.gate and self.gate not in GATES:
            raise ShapeError(
                f"{self.name}: gate must be one of {GATES} or empty, got {self.gate!r:.60}"
            )
        if not 0 <= self.eps < float("inf"):
            raise ShapeError(f"{self.name}: eps must be a number of at least 0, got {self.eps!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        rank(self.name, "weight", weight, 2, "(n, k)")
        norm = shapes.get("norm")
        if x[1] != weight[1] or norm not in ((x[1],), None):
            raise ShapeError(f"{self.name}: x {x}, weight {weight} and norm {norm} must agree in k")
        if (norm is None) != self.centred:
            wanted = "be left out of centred rows" if self.centred else f"be {(x[1],)}"
            raise ShapeError(f"{self.name}: norm must {wanted}, got {norm}")
        if shapes.get("up") != (weight if self.gate else None):
            wanted = f"be {weight}, as weight" if self.gate else "be left out without a gate"
            raise ShapeError(f"{self.name}: up must {wanted}, got {shapes.get('up')}")
        return x[0], weight[0]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({name: array.shape for name, array in operands.items()})
        with np.errstate(all="ignore"):
            y = x - x.mean(axis=1, keepdims=True) if self.centred else x
            mean = (y * y).mean(axis=1, keepdims=True)
            y = y / np.sqrt(mean + x.dtype.type(self.eps)) * operands.get("norm", 1)
            result = y @ operands["weight"].T
            if self.gate:
                result = gated(self.gate).evaluate(result, y @ operands["up"].T)
        return np.asarray(result, x.dtype)

    def flops(self, shapes: Shapes) -> int:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return m * k * (4 + 2 * n * (2 if self.gate else 1))

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}

    def fixed_layouts(self) -> Mapping[str, str]:
        return {"norm": "R"}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return {"m": m, "n": n, "k": k}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        gate = GATES.index(self.gate) + 1 if self.gate else 0
        return {"GATE": gate, "CENTRED": int(self.centred)}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        return shapes["x"][0], shapes["weight"][0]

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (m, k), n = shapes["x"], shapes["weight"][0]
        made = depth + (k - depth) % 4  # a whole quad or not, as before
        result = {**shapes, "x": (m, made), "weight": (n, made)}
        result |= {} if self.centred else {"norm": (made,)}
        return {**result, "up": (n, made)} if self.gate else result

    def shrink(self, shapes: Shapes) -> Shapes:
        m, k = shapes["x"]
        return {**shapes, "x": (shrink_size(m), k)}
