"""Helpers that add operators to a graph, and `NodeAdder`, which they are called with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from glnn.core.process import check_memory
from glnn.core.symint import SymInt, greatest, integers, is_symbolic
from glnn.core.types import Array, Dim, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, Expr, Scalar, formula
from glnn.graph.graph import FOLDED, Kind, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Arange, Flatten, Pointwise, Reshape, Slice, Unflatten, Unsqueeze


class AddNode(Protocol):
    """Adds a node of one result to a graph that is being built."""

    def __call__(self, operator: Operator, *inputs: Value) -> Value:
        """Add a node that applies `operator` to `inputs`, and return its result."""


def merge_dims(add: AddNode, x: Value, start: int, count: int) -> Value:
    """Reshape x so that `count` dimensions from `start` on are one: a new one of size 1 where it is
    0.
    """
    if count == 0:
        return add(Unsqueeze((start,)), x)
    return x if count == 1 else add(Flatten(start, start + count - 1), x)


def split_dim(add: AddNode, x: Value, axis: int, *dims: Dim) -> Value:
    """Reshape x so that its dimension `axis` becomes several, of which one may be a symbol.

    Raises ShapeError for more symbols.
    """
    sizes = tuple(-1 if isinstance(dim, str) else dim for dim in dims)
    if sizes.count(-1) > 1:
        raise ShapeError(f"only one of the sizes {dims} may be unknown")
    return x if len(dims) == 1 else add(Unflatten(axis, sizes), x)


PointwiseOperand = Value | float | int
"""A tensor, or a constant number."""


def bind_expression(
    expression: str | Expr, *operands: PointwiseOperand
) -> tuple[Expr, list[Value]]:
    """Return `expression` with the numbers among `operands` substituted, and the distinct values
    that are its remaining arguments.
    """
    expr = formula(expression) if isinstance(expression, str) else expression
    values: list[Value] = []
    arguments: list[Expr] = []
    for operand in operands:
        if isinstance(operand, Value):
            if operand not in values:
                values.append(operand)
            arguments.append(Arg(values.index(operand)))
        else:
            arguments.append(Scalar(operand))
    return expr(*arguments), values


@dataclass(frozen=True)
class NodeAdder:
    """Adds operators to a graph, where all sizes of the operands are known.

    It can be called as `compose.Add` is.
    """

    builder: Builder
    """The builder of the graph of operators."""
    name: str
    """Name of the nodes, and of the operator in error messages."""

    def __call__(self, operator: Operator, *inputs: Value | None) -> Value:
        """Add `operator`, and return its first result."""
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
        return tuple(
            constant(a if a.dtype.hasobject else a.astype(dtype.numpy, copy=False), dtype)
            for a, dtype in zip(arrays, types, strict=True)
        )

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """Return a constant."""
        converted = integers(array, dtype)
        return constant(converted, DType.from_array(np.empty(0, dtype or np.int64)))

    def keeps(self, count: int, dtype: DType) -> bool:
        """Return True where `count` computed numbers are few enough to be a constant of the graph.

        More are computed by operators, in each run where they are too many to fold.
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

        They are a constant where they are few (`keeps`), else the result of Arange; for an open
        count, a slice of a constant of the greatest count.
        """
        if isinstance(count, SymInt) and self.keeps(greatest(count), dtype):
            most = self.constant(np.arange(greatest(count)), dtype.numpy)
            return self(Reshape(shape), self(Slice((0,), (count,), (0,), (1,)), most))
        if self.keeps(count, dtype):
            return self.constant(np.arange(count).reshape(shape), dtype.numpy)
        return self(Reshape(shape), self(Arange(count, dtype)))

    def pointwise(self, expression: str | Expr, *operands: Value | float | int | bool) -> Value:
        """Add an expression, or a formula, of values that broadcast and of numbers; return its
        result.

        In a formula a is the first operand, b the second one and so on.
        """
        expr = formula(expression) if isinstance(expression, str) else expression
        values: list[Value] = []
        arguments: list[Expr] = []
        for operand in operands:
            if isinstance(operand, Value):
                arguments.append(Arg(len(values)))
                values.append(operand)
            elif operand is None:  # as a model may have it
                raise ShapeError(f"{self.name}: an operand that must be there is left out")
            else:
                arguments.append(Scalar(operand))
        return self(Pointwise(expr(*arguments)), *values)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Cast `value` to `dtype`."""
        return (
            value if value.type.dtype is dtype else self.pointwise(f"cast_{dtype.value}(a)", value)
        )

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Reshape `value` to `shape`, which has as many numbers; a 0 in it is a size."""
        return value if value.type.dims == shape else self(Reshape(shape, True), value)


def constant(array: Array, dtype: DType | None = None) -> Value:
    """Return a constant; small equal arrays give the same Value, so that plans share it.

    dtype: of an array of SymInts, or of a slice of one, which may have no SymInt left.
    """
    if dtype not in (None, DType.object) and array.dtype.hasobject and not is_symbolic(array):
        assert dtype is not None
        array = array.astype(dtype.numpy)
    if array.nbytes > 1024 or array.dtype.hasobject:
        type = TensorType.from_array(array)
        if dtype is not None and is_symbolic(array):
            type = TensorType(type.dims, dtype)
        return Value("constant", type, Kind.CONSTANT, array)
    return _cached_constant(DType.from_array(array), array.shape, array.tobytes())


@lru_cache(4096)
def _cached_constant(dtype: DType, shape: Shape, content: bytes) -> Value:
    array = np.frombuffer(content, dtype.numpy).reshape(shape)
    return Value("constant", TensorType(shape, dtype), Kind.CONSTANT, array)
