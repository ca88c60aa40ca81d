"""Gradients of pools."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pool2d, Pool2dGradient


def pool2d(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Pool2d: average pooling spreads dy over the window, maximum pooling
    adds it at the place of the maximum, for which x and the result are read.
    """
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, Pool2d)
    gradient = Pool2dGradient(operator, (x.type.shape[2], x.type.shape[3]))
    looked_at = (x, back.output) if operator.mode == "max" else ()
    return [back(gradient, back.gradient, *looked_at)]


RULES: dict[type[Operator], Rule] = {Pool2d: pool2d}
