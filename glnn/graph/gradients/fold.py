"""Gradient of what adds columns up where their windows lie."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.compose.fold import Fold, unfold
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator


def fold(back: Backward) -> Sequence[Value | None]:
    """Each number has the gradient of the place that it was added to."""
    operator = back.node.operator
    assert isinstance(operator, Fold)
    return (unfold(back, back.gradient, operator.windows),)


RULES: dict[type[Operator], Rule] = {Fold: fold}
"""By kind of operator."""
