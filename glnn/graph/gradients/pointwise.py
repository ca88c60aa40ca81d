"""Gradients of pointwise work."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.expression import Arg
from glnn.graph.gradient import gradient, gradient_of_result, times
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise


def pointwise(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of a pointwise expression: by each operand its derivative times dy,
    summed where the operand was broadcast.

    Of the result, where a function's derivative follows from that (`Function.by_result`): what it
    is of is then not read again, and may join what made it.
    """
    operator = back.node.operator
    assert isinstance(operator, Pointwise)
    given = [value for value in back.node.inputs if value is not None]
    count = len(given)
    found: list[Value | None] = []
    for i, value in enumerate(given):
        slope = None
        if back.wants(value):
            slope = gradient_of_result(operator.expr, i, Arg(count)) or gradient(operator.expr, i)
        if slope is None:
            found.append(None)
            continue
        by = back.expression(times(slope, Arg(count + 1)), *given, back.output, back.gradient)
        found.append(back.summed(by, value.type.shape))
    return found


RULES: dict[type[Operator], Rule] = {Pointwise: pointwise}
