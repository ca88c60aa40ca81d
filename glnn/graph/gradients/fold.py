"""Gradient of fold, which adds columns up at their windows' places."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.compose.fold import Fold, unfold
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator


def fold(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of fold: each number gets dy of the place that it was added to."""
    operator = back.node.operator
    assert isinstance(operator, Fold)
    return (unfold(back, back.gradient, operator.windows),)


RULES: dict[type[Operator], Rule] = {Fold: fold}
"""Gradient rules by kind of operator."""
