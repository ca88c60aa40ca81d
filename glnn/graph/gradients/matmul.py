"""Gradients of matrix products.

Reference: Giles 2008, Collected matrix derivative results for forward and reverse mode algorithmic
differentiation, section 2.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Matmul, Transpose


def matmul(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of a matrix product: by x dy times the weight, by the weight dy
    transposed times x, for each matrix of a batch.

    The products have the shapes of x and of the weight as they lie, so that no result is turned.
    What is turned instead kernels take as it lies, turned or not.
    """
    x, weight = back.operands["x"], back.operands["weight"]
    given = back.gradient
    by_x = back(Matmul(), given, _turned(back, weight)) if back.wants(x) else None
    by_weight = None
    if back.wants(weight):
        *stack, n, k = weight.type.shape
        m = given.type.shape[0] // max(prod(stack), 1)
        columns = _turned(back, back.reshape(given, (*stack, m, n)))
        columns = back.reshape(columns, (prod(stack) * n, m))
        product = back(Matmul(), columns, _turned(back, back.reshape(x, (*stack, m, k))))
        by_weight = back.reshape(product, weight.type.shape)
    return back.by_name(x=by_x, weight=by_weight)


def _turned(back: Backward, value: Value) -> Value:
    """A matrix, or each of a stack, with its rows as columns."""
    rank = len(value.type.dims)
    return back(Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


RULES: dict[type[Operator], Rule] = {Matmul: matmul}
"""The rule of each operator that has gradients."""
