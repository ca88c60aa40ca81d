"""The context that gradient rules receive: node, operands, results and the gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glnn.core.types import Array, DType, Shape
from glnn.errors import ShapeError
from glnn.graph.builder import constant
from glnn.graph.compose.node_adder import PointwiseOperand, bind_expression
from glnn.graph.expression import MOST_CALLS, Arg, Expr, replace_part
from glnn.graph.graph import Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Expand, Pointwise, Reduce, Reshape

AddAll = Callable[..., tuple[Value, ...]]
"""Function that adds an operator of operands to a graph, and returns all its results."""


@dataclass(frozen=True)
class GradientContext:
    """A node whose gradients are computed, and functions that add operators to the graph.

    All sizes are known. It can be called as `compose.Add` is.
    """

    node: Node
    """The node: its operator, operands and results."""
    gradients: tuple[Value | None, ...]
    """The gradient by each result, of its shape; None where nothing depends on the result."""
    targets: frozenset[Value]
    """The values whose gradients are needed; a rule may return None for other operands."""
    add: AddAll
    """Function that adds an operator of operands, and returns all its results."""

    def __call__(self, operator: Operator, *inputs: Value | None) -> Value:
        """Add `operator`, and return its first result."""
        return self.add(operator, *inputs)[0]

    @property
    def gradient(self) -> Value:
        """The gradient by the only result."""
        (result,) = self.gradients
        assert result is not None
        return result

    @property
    def operands(self) -> dict[str, Value]:
        """The operands by their names."""
        return self.node.operator.named(self.node.inputs)

    @property
    def output(self) -> Value:
        """The first result as the node computed it."""
        return self.node.outputs[0]

    def requires_grad(self, value: Value | None) -> bool:
        """Return True where the gradient with respect to `value` is needed."""
        return value in self.targets

    def in_input_order(self, **gradients: Value | None) -> tuple[Value | None, ...]:
        """Return the gradients in the order of the node's inputs, given by the operands' names."""
        all = self.node.operator.positional({k: v for k, v in gradients.items() if v})
        return tuple(all[: len(self.node.inputs)])

    def pointwise(self, expression: str | Expr, *operands: PointwiseOperand) -> Value:
        """Add an expression, or a formula, of values that broadcast and of numbers; return its
        result.

        In a formula a is the first operand, b the second one and so on.
        """
        expr, values = bind_expression(expression, *operands)
        return self(Pointwise(expr), *values)

    def expression(self, expr: Expr, *operands: Value) -> Value:
        """Add `expr` of `operands`, split into several nodes where it has too many calls; return
        its result.
        """
        expr, operands = self._split_large(expr, operands)
        if isinstance(expr, Arg):
            return operands[expr.index]
        return self(Pointwise(expr), *operands)

    def _split_large(self, expr: Expr, operands: Sequence[Value]) -> tuple[Expr, tuple[Value, ...]]:
        """Return an expression of at most MOST_CALLS calls that equals `expr`, and its operands;
        parts are added as nodes of their own, and operands that are not read are left out.
        """
        values = list(operands)
        while expr.calls > MOST_CALLS:
            part = next(part for part in expr.parts() if part.calls > MOST_CALLS // 2)
            values.append(self.expression(part, *values))
            expr = replace_part(expr, part, Arg(len(values) - 1))
        read = sorted({part.index for part in expr.parts() if isinstance(part, Arg)})
        renumbered = {index: Arg(i) for i, index in enumerate(read)}
        expr = expr.replace(lambda part: renumbered[part.index] if isinstance(part, Arg) else None)
        return expr, tuple(values[index] for index in read)

    def expand(self, value: Value, shape: Shape) -> Value:
        """Broadcast `value` to `shape`."""
        return value if value.type.dims == shape else self(Expand(shape), value)

    def zeros(self, shape: Shape) -> Value:
        """Return zeros, float32."""
        return self.expand(self.constant(np.zeros((1,) * len(shape)), DType.float32), shape)

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Reshape `value` to `shape`, which has as many numbers."""
        return value if value.type.dims == shape else self(Reshape(shape, True), value)

    def sum_to(self, value: Value, shape: Shape) -> Value:
        """Sum `value` to `shape`, which broadcasts to the shape of `value`: the adjoint of a
        broadcast.
        """
        sizes = value.type.shape
        if sizes == shape:
            return value
        leading = len(sizes) - len(shape)
        padded = (*(1,) * leading, *shape)
        axes = tuple(i for i, (n, size) in enumerate(zip(sizes, padded, strict=True)) if n != size)
        if axes:  # where only leading axes are summed, Reduce drops them
            value = self(Reduce("sum", axes, axes != tuple(range(leading))), value)
        return self.reshape(value, shape)

    def constant(self, array: Array | Sequence[float] | float, dtype: DType) -> Value:
        """Return a constant of type `dtype`."""
        return constant(np.asarray(array, dtype.numpy))

    def no_gradient_error(self, why: str) -> ShapeError:
        """Return the error for a missing gradient, with the reason `why`."""
        return ShapeError(f"{self.node.name!r}: no gradient of {self.node.operator.name}: {why}")


GradientRule = Callable[[GradientContext], Sequence[Value | None]]
"""Function that returns the gradient by each operand of a node; None where there is none, or it is
not needed.
"""
