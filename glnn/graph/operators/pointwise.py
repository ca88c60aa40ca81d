"""An expression of the numbers at each place."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.operator import Cost, Known, Operator, Types
from glnn.types import Array, TensorType


@dataclass(frozen=True)
class Pointwise(Operator):
    """expr(x0, x1, ...), operands of any shapes that broadcast."""

    name: ClassVar[str] = "pointwise"
    variadic: ClassVar[bool] = True
    expr: Expr

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        given = self.named(types)
        try:
            shape = np.broadcast_shapes(*(one.shape for one in given.values()))
        except ValueError:
            got = ", ".join(str(one) for one in given.values())
            raise ShapeError(f"pointwise: operands of {got} do not broadcast") from None
        return (TensorType(shape, next(iter(given.values())).dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        given = [array for array in arrays if array is not None]
        return (np.asarray(self.expr.evaluate(*given)),)

    def cost(self, types: Types) -> Cost:
        (out,) = self.infer(types)
        count = prod(out.shape)
        moved = count + sum(prod(t.shape) for t in types if t is not None)
        return Cost(self.expr.calls * count, 4 * moved)
