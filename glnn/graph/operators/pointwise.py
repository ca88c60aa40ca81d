"""An expression of the numbers at the same index of operands that broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.symint import is_symbolic
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.expression import Call, Expr
from glnn.graph.expression_evaluation import (
    compile_expression,
    evaluate_blockwise,
    narrow_expression,
    value_ranges_of,
)
from glnn.graph.interval import Interval
from glnn.graph.operator import (
    Constants,
    Cost,
    Intervals,
    Operator,
    Reference,
    Shapes,
    Types,
    shrink_size,
)

MOST_DIMS = 8
MOST_BROADCAST = 32
"""Most arrays that `np.broadcast` takes."""


@dataclass(frozen=True)
class Pointwise(Operator):
    """`expr` of operands x0, x1, ..., which broadcast as NumPy's arrays do.

    The result's dtype is that of the expression. ONNX: all elementwise operators.
    """

    expr: Expr
    """Expression of Arg(0), Arg(1), ..., one for each operand."""

    name: ClassVar[str] = "pointwise"
    variadic: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    any_sizes: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = tuple(f"x{i}" for i in range(64))

    @property
    def label(self) -> str:
        return self.expr.function if isinstance(self.expr, Call) else self.name

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        if len(operands) != len(types) or not operands or len(operands) < self.expr.arity:
            raise ShapeError(
                f"pointwise: {self.expr.text()} needs {max(self.expr.arity, 1)} operands, "
                f"got {len(operands)}"
            )
        for name, type in operands.items():
            if len(type.dims) > MOST_DIMS:
                raise ShapeError(f"pointwise: {name} has more than {MOST_DIMS} dimensions: {type}")
        shape = broadcast({name: type.shape for name, type in operands.items()})
        return (TensorType(shape, self.expr.infer([type.dtype for type in operands.values()])),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        present = [array for array in arrays if array is not None]
        if any(is_symbolic(array) for array in present):
            return (self.expr.evaluate(*present),)
        dtype = self.result_dtype([DType.from_array(array) for array in present])
        shape = np.broadcast_shapes(*(array.shape for array in present))
        return (evaluate_blockwise(self.expr, present, shape, dtype.numpy),)

    def specialize(self, types: Types) -> Reference:
        present = [type for type in types if type is not None]
        dtype = self.infer(types)[0].dtype.numpy  # NumPy's own would differ for numbers alone
        if len(present) < len(types) or len(present) > MOST_BROADCAST:
            return self.reference
        compute = compile_expression(self.expr, [type.dtype.numpy for type in present], dtype)

        def perform(*arrays: Any) -> tuple[Array, ...]:
            return (compute(np.broadcast(*arrays).shape, *arrays),)

        return perform

    def result_dtype(self, dtypes: list[DType]) -> DType:
        """Return the result's type; float32 operands may be float64, for a precise reference."""
        try:
            return self.expr.infer(dtypes)
        except ShapeError:  # such a float64 meets a cast to float32
            declared = [DType.float32 if dtype is DType.float64 else dtype for dtype in dtypes]
            inferred = self.expr.infer(declared)
            return DType.float64 if inferred is DType.float32 else inferred

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (value_ranges_of(self.expr, *_present(intervals, types))[-1],)

    def narrow(self, intervals: Intervals, types: Types) -> Pointwise | None:
        narrow = narrow_expression(self.expr, *_present(intervals, types))
        return None if narrow is None else Pointwise(narrow)

    def cost(self, types: Types) -> Cost:
        present = [one for one in types if one is not None]
        count = prod(broadcast(self.named([one.shape for one in present])))
        words = sum(one.dtype.words(prod(one.shape)) for one in present)
        return Cost(self.expr.flops * count, 4 * (count + words))

    def shape_of(self, shapes: Shapes) -> Shape:
        return broadcast(shapes)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(broadcast(shapes))}

    def shrink(self, shapes: Shapes) -> Shapes:
        return {name: tuple(map(shrink_size, shape)) for name, shape in shapes.items()}

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        output = broadcast(shapes)
        return tuple(
            name
            for name, shape in shapes.items()
            if len(shape) == len(output) and shape and shape[0] == output[0]
        )


def _present(intervals: Intervals, types: Types) -> tuple[list[Interval], list[DType]]:
    """Return the intervals and dtypes of the operands that are not left out."""
    return [one for one in intervals if one], [one.dtype for one in types if one]


def broadcast(shapes: Shapes) -> Shape:
    """The shape that operands of `shapes` have together. Raises ShapeError where they have none."""
    first, *others = shapes.values() or ((),)
    if not any(shape is not first for shape in others):
        return first
    rank = max(map(len, shapes.values()))
    sizes = [1] * rank
    for name, shape in shapes.items():
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[i] not in (1, size):
                raise ShapeError(
                    f"pointwise: {name} of shape {shape} does not broadcast with {tuple(sizes)}"
                )
            sizes[i] = size if size != 1 else sizes[i]
    return tuple(sizes)
