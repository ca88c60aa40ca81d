"""Build composites: add operators and constants to the graph of a composite."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, Expr, Scalar, formula
from glnn.graph.graph import FOLDED, Kind, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Arange, Pointwise, Reshape, Slice
from glnn.process import check_memory
from glnn.symint import SymInt, greatest, integers, is_symbolic
from glnn.types import Array, DType, Shape, TensorType


@dataclass(frozen=True)
class Maker:
    """Puts operators into a graph, where all sizes of the operands are known.

    It can be called as `compose.Add` is.
    """

    builder: Builder
    """The builder of the graph of operators."""
    name: str
    """Name of the nodes, and of the operator in error messages."""

    def __call__(self, operator: Operator, *inputs: Value | None) -> Value:
        """The first result of `operator`."""
        return self.all(operator, *inputs)[0]

    def all(self, operator: Operator, *inputs: Value | None) -> tuple[Value, ...]:
        """Add `operator` and return all its results: constants where all operands are small
        constants.
        """
        values = self.builder.add(operator, *inputs, name=self.name)
        arrays = self.builder.numbers(values)
        if arrays is None:
            return values
        types = (value.type.dtype for value in values)
        return tuple(constant(one, kind) for one, kind in zip(arrays, types, strict=True))

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A value that never changes."""
        found = integers(array, dtype)
        return constant(found, DType.of(np.empty(0, dtype or np.int64)))

    def keeps(self, count: int, dtype: DType) -> bool:
        """Return True where a graph keeps a constant of so many numbers that it makes itself.

        More of them are better made by operators, which a run does where they are too many.
        """
        return count * dtype.numpy.itemsize <= FOLDED

    def check_tables(self, count: int, nbytes: int) -> None:
        """Raise LimitError where the host has too little memory to compute constant tables.

        Args:
            count: The numbers of the tables.
            nbytes: The bytes for each of them, with those of temporary arrays.
        """
        check_memory(count * nbytes, lambda: f"{self.name}: to compute tables of {count} numbers")

    def count_up(self, count: int, dtype: DType, shape: Shape) -> Value:
        """Return 0, 1, 2, ... as `count` numbers of int32 or int64 in `shape`.

        They are a constant where a graph keeps that, else what a run computes; for an open count,
        the first ones of a constant that has as many as it may be.
        """
        if isinstance(count, SymInt) and self.keeps(greatest(count), dtype):
            most = self.constant(np.arange(greatest(count)), dtype.numpy)
            return self(Reshape(shape), self(Slice((0,), (count,), (0,), (1,)), most))
        if self.keeps(count, dtype):
            return self.constant(np.arange(count).reshape(shape), dtype.numpy)
        return self(Reshape(shape), self(Arange(count, dtype)))

    def pointwise(self, expression: str | Expr, *operands: Value | float | int | bool) -> Value:
        """An expression, or a formula, of values that broadcast and of numbers.

        In a formula a is the first operand, b the second one and so on.
        """
        expr = formula(expression) if isinstance(expression, str) else expression
        values: list[Value] = []
        arguments: list[Expr] = []
        for one in operands:
            if isinstance(one, Value):
                arguments.append(Arg(len(values)))
                values.append(one)
            else:
                arguments.append(Scalar(one))
        return self(Pointwise(expr(*arguments)), *values)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Cast `value` to `dtype`."""
        return (
            value if value.type.dtype is dtype else self.pointwise(f"cast_{dtype.value}(a)", value)
        )

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Reshape `value`, with as many numbers; a 0 is a size."""
        return value if value.type.dims == shape else self(Reshape(shape, True), value)


def constant(array: Array, dtype: DType | None = None) -> Value:
    """A value that never changes: the same one for the same few numbers, so that plans share it.

    dtype: of SymInts, which do not say it.
    """
    if array.nbytes > 1024 or array.dtype.hasobject:
        found = TensorType.of(array)
        if dtype is not None and is_symbolic(array):
            found = TensorType(found.dims, dtype)
        return Value("constant", found, Kind.CONSTANT, array)
    return _small(DType.of(array), array.shape, array.tobytes())


@lru_cache(4096)
def _small(dtype: DType, shape: Shape, content: bytes) -> Value:
    array = np.frombuffer(content, dtype.numpy).reshape(shape)
    return Value("constant", TensorType(shape, dtype), Kind.CONSTANT, array)
