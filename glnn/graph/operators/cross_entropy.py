"""The gradient of cross-entropies by scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Constants, Shapes, Types, shrink_size
from glnn.graph.operators.normalization import RowSizes, Softmax


@dataclass(frozen=True)
class CrossEntropyGradient(RowSizes, HandwrittenOperator):
    """The gradient of cross-entropies by the scores of rows: (softmax(x) - onehot(target)) scale.

    x: (rows, n) float32; target: (rows,) int32. A row whose target is no class, from 0 to n - 1,
    is 0: it is ignored. Else one with NaN, with infinity or of nothing but minus infinity is
    NaN altogether.
    """

    name: ClassVar[str] = "cross_entropy_gradient"
    inputs: ClassVar[tuple[str, ...]] = ("x", "target")
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    scale: float = 1.0
    """Factor of all results: 1 / rows for the gradient of a mean."""
    normalized: bool = False
    """True where x is the softmax already."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, dtype in (("x", DType.float32), ("target", DType.int32)):
            if operands[name].dtype is not dtype:
                raise ShapeError(f"{self.name}: {name} must be {dtype.value}, got {operands[name]}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.compute(self.named(arrays)),)

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) != 2:
            raise ShapeError(f"{self.name}: x must have shape (rows, n), got {x}")
        self.check_shapes_of(shapes, {"target": x[:1]})
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, target = operands["x"], operands["target"]
        _, classes = self.shape_of({name: array.shape for name, array in operands.items()})
        result = np.array(x) if self.normalized else Softmax(1).compute({"x": x})
        (counted,) = np.nonzero((target >= 0) & (target < classes))
        result[counted, target[counted]] -= 1
        result[(target < 0) | (target >= classes)] = 0
        result *= result.dtype.type(self.scale)
        return result

    def flops(self, shapes: Shapes) -> int:
        return (2 if self.normalized else 7) * prod(shapes["x"])

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return super().sizes(shapes) | {"inner": 1}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        return super().derived_sizes(shapes) | {"in_rows": 1}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"LOG": 0, "TARGET": 1, "NORMALIZED": int(self.normalized)}

    def scalars(self) -> dict[str, float]:
        return {"scale": self.scale}

    def shrink(self, shapes: Shapes) -> Shapes:
        rows, extent = shapes["x"]
        rows = shrink_size(rows)
        return {"x": (rows, extent), "target": (rows,)}
