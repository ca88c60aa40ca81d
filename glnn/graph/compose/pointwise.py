"""Pointwise expressions of values and of numbers."""

from __future__ import annotations

from glnn.graph.expression import Arg, Expr, Scalar, formula
from glnn.graph.graph import Value

Given = Value | float | int
"""A tensor, or a number that never changes."""


def joined(expression: str | Expr, *operands: Given) -> tuple[Expr, list[Value]]:
    """The expression of the values among `operands`, each once, with the numbers in it."""
    expr = formula(expression) if isinstance(expression, str) else expression
    values: list[Value] = []
    arguments: list[Expr] = []
    for one in operands:
        if isinstance(one, Value):
            if one not in values:
                values.append(one)
            arguments.append(Arg(values.index(one)))
        else:
            arguments.append(Scalar(one))
    return expr(*arguments), values
