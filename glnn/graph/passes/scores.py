"""The scores of attention: products of queries and keys, scaled and masked, under a softmax."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.graph import Node, Value
from glnn.graph.operators import Matmul, Pointwise, Softmax
from glnn.graph.operators.reshape import View
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import DType, Shape


@dataclass(frozen=True)
class Scores:
    """What the softmax is of that weights values."""

    product: Node
    """That of queries and keys."""
    scale: float
    """What it is multiplied by."""
    mask: Value | None
    """What is added then."""
    shape: Shape
    """What the mask broadcasts to."""
    zeros: bool
    """Whether rows without a softmax become zeros."""


def scores_of(rewriting: Rewriting, weighted: Node) -> Scores | None:
    """What the first factor of the product `weighted` is made of, all for it alone."""
    value, scale, zeros, soft = weighted.inputs[0], 1.0, False, False
    mask: tuple[Value, Shape] | None = None
    while (node := rewriting.computed(value)) is not None and rewriting.alone(value):
        operator, shape = node.operator, rewriting.shape(node.outputs[0])
        if node.epilogue is not None or not shape or shape[-1] == 0:
            return None
        if isinstance(operator, Matmul):
            whole = (node.outputs[0], shape) if mask is None else mask
            added = None if mask is None else mask[0]
            return Scores(node, scale, added, whole[1], zeros) if soft else None
        if isinstance(operator, Softmax):
            if soft or operator.log or operator.axis not in (-1, len(shape) - 1):
                return None
            soft = True
        elif isinstance(operator, Pointwise) and not soft:
            if zeros or not _is_sound(operator.expr) or len(node.inputs) != 1:
                return None
            zeros = True
        elif isinstance(operator, Pointwise):
            found = _affine(rewriting, node)
            if found is None or (found[2] is not None and (mask is not None or scale != 1.0)):
                return None
            value, scale = found[0], scale * found[1]
            mask = mask if found[2] is None else (found[2], shape)
            continue
        elif not isinstance(operator, View) or not _rows_stay(rewriting, node):
            return None
        value = node.inputs[0]
    return None


def _is_sound(expr: Expr) -> bool:
    """Whether `expr` has 0 where its argument is NaN, as PyTorch's rows without a softmax."""
    if not isinstance(expr, Call) or expr.function != "where":
        return False
    test, instead, otherwise = expr.arguments
    unsure = test == Call("isnan", (Arg(0),)) and otherwise == Arg(0)
    return unsure and isinstance(instead, Scalar | Constant) and float(instead.value) == 0.0


def _rows_stay(rewriting: Rewriting, node: Node) -> bool:
    """Whether the view `node` leaves the last dimension as it is."""
    (before,), (after,) = node.inputs, node.outputs
    return before is not None and rewriting.shape(before)[-1:] == rewriting.shape(after)[-1:]


def _affine(rewriting: Rewriting, node: Node) -> tuple[Value, float, Value | None] | None:
    """x, s and m where `node` is x s + m, m perhaps left out, and x as large as the result."""
    assert isinstance(node.operator, Pointwise)
    shape = rewriting.shape(node.outputs[0])
    for i, x in enumerate(node.inputs):
        if x is None or rewriting.shape(x) != shape or node.inputs.count(x) != 1:
            continue
        found = _multiple(node.operator.expr, i)
        if found is None or not rewriting.alone(x) or not _of_product(rewriting, x):
            continue
        scale, other = found
        mask = None if other is None else node.inputs[other]
        if mask is None or rewriting.types[mask].dtype is DType.float32:
            return x, scale, mask
    return None


def _of_product(rewriting: Rewriting, value: Value | None) -> bool:
    """Whether `value` is a product, or made of one by views and pointwise work."""
    while (node := rewriting.computed(value)) is not None:
        if not isinstance(node.operator, View | Pointwise):
            return isinstance(node.operator, Matmul)
        if len(node.inputs) > 1:
            return any(_of_product(rewriting, one) for one in node.inputs)
        value = node.inputs[0]
    return False


def _multiple(expr: Expr, place: int) -> tuple[float, int | None] | None:
    """s and j where `expr` is argument `place` by s, and argument j added to that."""
    if expr == Arg(place):
        return 1.0, None
    if not isinstance(expr, Call) or len(expr.arguments) != 2:
        return None
    for one, other in (expr.arguments, expr.arguments[::-1]):
        found = _multiple(one, place)
        if found is None:
            continue
        scale, added = found
        if expr.function == "add" and added is None and isinstance(other, Arg):
            return None if other.index == place else (scale, other.index)
        number = float(other.value) if isinstance(other, Scalar | Constant) else 0.0
        if expr.function == "mul" and added is None and number:
            return scale * number, None
        if expr.function == "div" and added is None and number and one is expr.arguments[0]:
            return scale / number, None
    return None
