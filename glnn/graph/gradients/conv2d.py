"""Gradients of convolutions.

Reference: Dumoulin and Visin 2016, A guide to convolution arithmetic, chapter 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Conv2dInputGradient, Conv2dWeightGradient


def conv2d(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of a convolution: by x the transposed convolution of dy by the weight;
    by the weight sums of products of dy and x.
    """
    operator, x, weight = back.node.operator, back.operands["x"], back.operands["weight"]
    assert isinstance(operator, Conv2d)
    size, kernel = x.type.shape[2:], weight.type.shape[2:]
    how = operator.stride, operator.padding, operator.dilation, operator.groups
    by_x = by_weight = None
    if back.wants(x):
        by_x = back(Conv2dInputGradient((size[0], size[1]), *how), back.gradient, weight)
    if back.wants(weight):
        gradient = Conv2dWeightGradient((kernel[0], kernel[1]), *how)
        by_weight = back(gradient, x, back.gradient)
    return back.by_name(x=by_x, weight=by_weight)


RULES: dict[type[Operator], Rule] = {Conv2d: conv2d}
