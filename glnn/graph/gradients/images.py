"""Gradients of subsampled images."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.expression import formula
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Expand, Pad, Pool2d, Reduce, Subsample


def subsample(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of Subsample: by each number of a window its share of dy, by the weight
    sums of dy times the means, by the bias sums of dy.
    """
    operator, given = back.node.operator, back.operands
    assert isinstance(operator, Subsample)
    x, weight = given["x"], given["weight"]
    kh, kw = operator.kernel
    n, c, h, w = x.type.shape
    g = back.gradient
    oh, ow = g.type.shape[2:]
    found: dict[str, Value | None] = {}
    if back.wants(x):
        scaled = back.pointwise("a * b * c", g, back.reshape(weight, (c, 1, 1)), 1 / (kh * kw))
        apart = back.reshape(scaled, (n, c, oh, 1, ow, 1))
        spread = back.reshape(back(Expand((n, c, oh, kh, ow, kw)), apart), (n, c, oh * kh, ow * kw))
        rest = (0, 0, h - oh * kh, w - ow * kw)
        found["x"] = back(Pad((0, 0, 0, 0), rest), spread) if any(rest) else spread
    if back.wants(weight):
        means = back(Pool2d("average", (kh, kw), (kh, kw)), x)
        found["weight"] = back(Reduce("sum", (0, 2, 3), False, formula("a * b")), g, means)
    if back.wants(given["bias"]):
        found["bias"] = back(Reduce("sum", (0, 2, 3)), g)
    return back.by_name(**found)


RULES: dict[type[Operator], Rule] = {Subsample: subsample}
