"""Move scalar factors of a product's or a convolution's operands behind it."""

from __future__ import annotations

from math import prod

from glnn.graph.expression import Arg, Call, Expr, Scalar, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Reshape
from glnn.graph.operators.move import Move, Pad
from glnn.graph.operators.views import View
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import DType, TensorType


def scaled_last(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with scalar factors of the operands of products and convolutions multiplied
    behind these.

    types: of every value; those of new ones are added. That joins the epilogue, and moves between
    come together: as where attention scales queries and keys before it multiplies them.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Matmul | Conv2d) and not rewriting.fixed(node.outputs[0]):
            found = [_unscaled(rewriting, value) for value in node.inputs[:2]]
            if factors := [factor for factor in found if factor is not None]:
                _scale(rewriting, node, factors)
    return rewriting.graph()


def _unscaled(rewriting: Rewriting, value: Value | None) -> Scalar | None:
    """The number that `value`, made for one reader, is multiplied by, which then is left out."""
    while (node := rewriting.computed(value)) is not None and rewriting.alone(value):
        operator = node.operator
        if isinstance(operator, Pointwise):
            number = _number(operator.expr)
            if number is None or rewriting.types[node.outputs[0]].dtype is not DType.float32:
                return None
            _without(rewriting, node)
            return number
        moves = isinstance(operator, Move) and not (isinstance(operator, Pad) and operator.value)
        if not moves and not isinstance(operator, View):
            return None
        value = node.inputs[0]
    return None


def _number(expr: Expr) -> Scalar | None:
    """Return the number s where `expr` is its argument times s; None for other expressions."""
    if not isinstance(expr, Call) or expr.function not in ("mul", "div"):
        return None
    one, other = expr.arguments
    if one == Arg(0) and isinstance(other, Scalar):
        if expr.function == "mul":
            return other
        return Scalar(1.0 / other.value) if other.value else None
    if expr.function == "mul" and other == Arg(0) and isinstance(one, Scalar):
        return one
    return None


def _without(rewriting: Rewriting, node: Node) -> None:
    """Replace the result of `node` by the operand that it scales."""
    value = node.outputs[0]
    rewriting.replace(node, Reshape(rewriting.shape(value), True), node.inputs[0])


def _scale(rewriting: Rewriting, node: Node, factors: list[Scalar]) -> None:
    """Multiply the result of `node` by all `factors`."""
    product = Scalar(prod(float(factor.value) for factor in factors))
    value = rewriting.add(node.name, node.operator, *node.inputs)
    rewriting.replace(node, Pointwise(call("mul", Arg(0), product)), value)
