"""Gradients of batch normalisation by the batch's own statistics."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.compose.batch_norm import BatchNorm, along, count
from glnn.graph.expression import formula
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Reduce


def batch_norm(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of batch normalisation: by x it is dy less its mean and less its
    projection on x, over the deviation.

    Reference: Ioffe and Szegedy 2015, Batch Normalization, section 3.
    """
    operator, given = back.node.operator, back.operands
    assert isinstance(operator, BatchNorm)
    by_y, *by_statistics = back.gradients
    if any(by_statistics) or by_y is None:
        raise back.refuse("of its means and variances")
    x, weight = given["x"], given.get("weight")
    axes, spread = along(x.type.shape)
    mean, variance = (back.reshape(one, spread) for one in back.node.outputs[1:])
    total = back(Reduce("sum", axes, True), by_y)
    inner = back(Reduce("sum", axes, True, formula("a * (b - c)")), by_y, x, mean)
    found: dict[str, Value | None] = {}
    channels = (x.type.shape[1],)
    if back.wants(given.get("bias")):
        found["bias"] = back.reshape(total, channels)
    if back.wants(weight):
        found["weight"] = back.reshape(
            back.pointwise("a * rsqrt(b + c)", inner, variance, operator.eps), channels
        )
    if back.wants(x):
        # da and db are the sums, dc one over the number of summands, dd the eps
        text = "(a - dc * da - dc * db * (b - c) / (d + dd)) * rsqrt(d + dd)"
        part = 1 / count(x.type.shape)
        by = back.pointwise(text, by_y, x, mean, variance, total, inner, part, operator.eps)
        if weight is not None:
            by = back.pointwise("a * b", by, back.reshape(weight, spread))
        found["x"] = by
    return back.by_name(**found)


RULES: dict[type[Operator], Rule] = {BatchNorm: batch_norm}
