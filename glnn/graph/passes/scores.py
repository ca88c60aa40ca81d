"""The scores of attention: products of queries and keys, scaled and masked, under a softmax."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.graph import Node, Value
from glnn.graph.operators import Matmul, Pointwise, Softmax
from glnn.graph.operators.views import View
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import DType, Shape


@dataclass(frozen=True)
class Scores:
    """The operand of an attention's softmax: scaled products of queries and keys, plus a mask."""

    product: Node
    """Product of queries and keys."""
    scale: float
    """Factor of the product."""
    mask: Value | None
    """Mask that is added to the scaled product."""
    shape: Shape
    """Shape that the mask broadcasts to; of no meaning without one."""
    zeros: bool
    """True where rows without a softmax become zeros."""


def scores_of(rewriting: Rewriting, weighted: Node) -> Scores | None:
    """Return the scores whose softmax is the first factor of the product `weighted`; None where
    they are not scores, or something else reads them.
    """
    soft = _softmax(rewriting, weighted)
    if soft is None:
        return None
    (value,), zeros = soft[0].inputs, soft[1]
    scale, mask = 1.0, None
    full: Shape = ()
    while (node := rewriting.computed(value)) is not None and rewriting.alone(value):
        operator, shape = node.operator, rewriting.shape(node.outputs[0])
        if node.epilogue is not None:
            return None
        if isinstance(operator, Matmul):
            return Scores(node, scale, mask, full, zeros)
        if isinstance(operator, Pointwise):
            found = _affine(rewriting, node)
            if found is None or (found[2] is not None and (mask is not None or scale != 1.0)):
                return None
            value, scale = found[0], scale * found[1]
            mask, full = (mask, full) if found[2] is None else (found[2], shape)
        elif isinstance(operator, View) and _rows_stay(rewriting, node):
            value = node.inputs[0]
        else:
            return None
    return None


def _softmax(rewriting: Rewriting, weighted: Node) -> tuple[Node, bool] | None:
    """The softmax along rows that is the first factor of `weighted`, and whether NaN of it became
    zeros.
    """
    value, zeros, own = weighted.inputs[0], False, False
    while (node := rewriting.computed(value)) is not None and node.epilogue is None:
        operator = node.operator
        if not own and not rewriting.alone(value):
            return None
        if isinstance(operator, Softmax):
            last = len(rewriting.shape(node.outputs[0])) - 1
            return (node, zeros) if operator.axis in (-1, last) and not operator.log else None
        if isinstance(operator, Pointwise) and not zeros:
            value, zeros, own = _guarded(rewriting, node), True, True
        elif isinstance(operator, View) and _rows_stay(rewriting, node):
            value, own = node.inputs[0], False
        else:
            return None
    return None


def _guarded(rewriting: Rewriting, node: Node) -> Value | None:
    """Return x where `node` is x with 0 for NaN, in one node or two, and reads x alone."""
    assert isinstance(node.operator, Pointwise)
    expr = node.operator.expr
    if not isinstance(expr, Call) or expr.function != "where":
        return None
    test, instead, x = expr.arguments
    if not isinstance(x, Arg) or not isinstance(instead, Scalar | Constant) or instead.value:
        return None
    value, readers = node.inputs[x.index], {node}
    if isinstance(test, Arg):
        maker = rewriting.computed(node.inputs[test.index])
        if maker is None or maker.inputs != (value,) or not rewriting.alone(maker.outputs[0]):
            return None
        readers.add(maker)
        test = maker.operator.expr if isinstance(maker.operator, Pointwise) else test
        x = Arg(0)
    if test != Call("isnan", (x,)) or value is None or rewriting.output(value):
        return None
    return value if set(rewriting.readers(value)) == readers else None


def _rows_stay(rewriting: Rewriting, node: Node) -> bool:
    """Return True where the view `node` leaves the last dimension as it is."""
    (before,), (after,) = node.inputs, node.outputs
    return before is not None and rewriting.shape(before)[-1:] == rewriting.shape(after)[-1:]


def _affine(rewriting: Rewriting, node: Node) -> tuple[Value, float, Value | None] | None:
    """Return x, s and m where `node` is x s + m, m perhaps left out, and x as large as the
    result.
    """
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
    """Return True where `value` is a product, or made of one by views and pointwise work."""
    while (node := rewriting.computed(value)) is not None:
        if not isinstance(node.operator, View | Pointwise):
            return isinstance(node.operator, Matmul)
        if len(node.inputs) > 1:
            return any(_of_product(rewriting, one) for one in node.inputs)
        value = node.inputs[0]
    return False


def _multiple(expr: Expr, place: int) -> tuple[float, int | None] | None:
    """Return s and j where `expr` is argument `place` times s, with argument j added."""
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
