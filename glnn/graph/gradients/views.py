"""Gradients of views: the same numbers in the operand's shape."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Detached,
    Flatten,
    Identity,
    Images,
    Reorder,
    Reshape,
    Rows,
    Squeeze,
    Transpose,
    Unflatten,
    Unsqueeze,
    Within,
)


def reshape(back: Backward) -> Sequence[Value | None]:
    """The result's gradient in the operand's shape."""
    (x,) = back.node.inputs
    assert x is not None
    return (back.reshape(back.gradient, x.type.shape),)


def identity(back: Backward) -> Sequence[Value | None]:
    """The result's gradient itself."""
    return (back.gradient,)


def detached(back: Backward) -> Sequence[Value | None]:
    """Return no gradient: the operand counts as a constant."""
    return (None,)


def rows(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Rows: channels of each pixel back to images."""
    n, c, h, w = back.operands["x"].type.shape
    return (back(Transpose((0, 3, 1, 2)), back.reshape(back.gradient, (n, h, w, c))),)


def images(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of a view as images: a matrix of a row, or a column, for each pixel."""
    operator = back.node.operator
    assert isinstance(operator, Images)
    perm = (1, 0, 2, 3) if operator.transposed else (0, 2, 3, 1)
    turned = back(Transpose(perm), back.gradient)
    return (back.reshape(turned, back.operands["x"].type.shape),)


RULES: dict[type[Operator], Rule] = {
    **dict.fromkeys((Reshape, Flatten, Squeeze, Unflatten, Unsqueeze), reshape),
    **dict.fromkeys((Identity, Within, Reorder), identity),
    Detached: detached,
    Rows: rows,
    Images: images,
}
