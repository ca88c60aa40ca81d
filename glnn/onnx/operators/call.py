"""A node of an ONNX graph that is put into a graph of glnn's operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, Expr, Scalar, formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise, Reshape
from glnn.types import Array, DType, Shape, TensorType

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """What converters are given: the node, and where to put operators.

    All sizes of the operands are known. It can be called as `compose.Add` is.
    """

    builder: Builder
    """Of the graph of operators."""
    name: str
    """The ONNX operator's name, for errors."""
    version: int
    """The version of its domain's operator set that the model asks for."""
    attributes: Mapping[str, Any]
    """By name: int, float, str, tuples of these, and arrays for tensors."""
    outputs: int = 1
    """How many results the node has."""
    wanted: tuple[bool, ...] = (True,)
    """Which of them anybody may read."""

    def __call__(self, operator: Operator, *inputs: Value | None) -> Value:
        """The first result of `operator`."""
        return self.all(operator, *inputs)[0]

    def all(self, operator: Operator, *inputs: Value | None) -> tuple[Value, ...]:
        """All results of `operator`: constants where all operands are small constants."""
        values = self.builder.add(operator, *inputs, name=self.name)
        arrays = self.builder.numbers(values)
        if arrays is None:
            return values
        return tuple(constant(array) for array in arrays)

    def get(self, attribute: str, default: T) -> T:
        """An attribute, `default` where the node has none."""
        return self.attributes.get(attribute, default)  # type: ignore[no-any-return]

    def need(self, attribute: str) -> Any:
        """An attribute that must be there. Raises ShapeError where it is not."""
        if attribute not in self.attributes:
            raise ShapeError(f"{self.name}: the attribute {attribute!r} is missing")
        return self.attributes[attribute]

    def array(self, value: Value, what: str = "operand") -> Array:
        """The numbers of a value that are known before a run. Raises ShapeError for others."""
        if value.kind is not Kind.CONSTANT:
            raise ShapeError(f"{self.name}: {what} must be known before a run")
        return value.data  # type: ignore[return-value]

    def integers(self, value: Value, what: str = "operand") -> tuple[int, ...]:
        """The same of integers, as a tuple."""
        return tuple(int(n) for n in self.array(value, what).ravel())

    def constant(self, array: Any, dtype: Any = None) -> Value:
        """A value that never changes."""
        return constant(np.asarray(array, dtype))

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
        """`value` as `dtype`."""
        return (
            value if value.type.dtype is dtype else self.pointwise(f"cast_{dtype.value}(a)", value)
        )

    def reshape(self, value: Value, shape: Shape) -> Value:
        """`value` in another shape of as many numbers; a 0 is a size."""
        return value if value.type.dims == shape else self(Reshape(shape, True), value)

    def axis(self, axis: int, value: Value, extra: int = 0) -> int:
        """`axis` from 0 on. Raises ShapeError where `value`, with `extra` more, has it not."""
        rank = len(value.type.dims) + extra
        if not -rank <= axis < max(rank, 1):
            raise ShapeError(f"{self.name}: axis must be from {-rank} to {rank - 1}, got {axis}")
        return axis % rank if rank else 0


def constant(array: Array) -> Value:
    """A value that never changes: the same one for the same few numbers, so that plans share it."""
    if array.nbytes > 1024 or array.dtype.hasobject:
        return Value("constant", TensorType.of(array), Kind.CONSTANT, array)
    return _small(DType.of(array), array.shape, array.tobytes())


@lru_cache(4096)
def _small(dtype: DType, shape: Shape, content: bytes) -> Value:
    array = np.frombuffer(content, dtype.numpy).reshape(shape)
    return Value("constant", TensorType(shape, dtype), Kind.CONSTANT, array)
