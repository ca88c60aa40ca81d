"""Gradients of gathers and scatters.

All sums are in a fixed order: a lookup's gradient is a sum of few places, a product or a scatter,
and the kernels of all of these add up what they find in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.graph.compose.matmul import matmul
from glnn.graph.gradients.adjoint import Places, added_at
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Gather,
    GatherElements,
    GatherND,
    Resample,
    ScatterElements,
    ScatterND,
    Transpose,
)
from glnn.graph.operators.gather import clamped

MOST_ONES = 1 << 20  # numbers of a matrix that says which index is which place


def gather(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of Gather: each number of dy is added at the place that was looked up.

    Where no run changes the indices, it is known which places meet. Else it is the product of a
    matrix with a one for each index, while that has at most `MOST_ONES` numbers, and behind that a
    scatter. So rows of an embedding are added up in the order of their indices.
    """
    operator, x, index = back.node.operator, back.operands["x"], back.operands["index"]
    assert isinstance(operator, Gather)
    shape = x.type.shape
    axis = operator.axis % len(shape)
    before, size, behind = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    count = prod(index.type.shape)
    if not before * size * behind * count:
        return (back.zeros(shape), None)
    given = back.reshape(back.gradient, (before, count, behind))
    if isinstance(index.data, np.ndarray):
        places = Places.of(clamped(index.data, (size,)).reshape(1, -1))
        return (back.reshape(added_at(back, given, 1, places, size), shape), None)
    if before > 1:
        given = back(Transpose((1, 0, 2)), given)
    given = back.reshape(given, (count, before * behind))
    if size * count <= MOST_ONES:
        found = matmul(back, _ones(back, index, size), given)
    else:
        zeros = back.zeros((size, before * behind))
        found = back(ScatterND("add"), zeros, back.reshape(index, (count, 1)), given)
    if before > 1:
        found = back(Transpose((1, 0, 2)), back.reshape(found, (size, before, behind)))
    return (back.reshape(found, shape), None)


def _ones(back: Backward, index: Value, size: int) -> Value:
    """Return the one-hot matrix (size, indices): 1 where an index is that place, else 0."""
    flat = back.reshape(index, (prod(index.type.shape),))
    dtype = index.type.dtype
    places = back.constant(np.arange(size)[:, None], dtype)
    one = "where(equal(clip(where(a < 0, a + c, a), 0, d), b), 1.0, 0.0)"
    return back.pointwise(one, flat, places, size, size - 1)


def gather_elements(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of GatherElements: dy scattered and added up, in order."""
    operator, x, index = back.node.operator, back.operands["x"], back.operands["index"]
    assert isinstance(operator, GatherElements)
    scatter = ScatterElements(operator.axis, "add")
    return (back(scatter, back.zeros(x.type.shape), index, back.gradient), None)


def gather_nd(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of GatherND: slices of dy scattered and added up, in order."""
    operator, x, index = back.node.operator, back.operands["x"], back.operands["index"]
    assert isinstance(operator, GatherND)
    if operator.batch:
        index = _with_batch(back, index, operator.batch)
    return (back(ScatterND("add"), back.zeros(x.type.shape), index, back.gradient), None)


def _with_batch(back: Backward, index: Value, batch: int) -> Value:
    """Prepend the indices of the first `batch` dimensions to tuples of indices."""
    shape = index.type.shape
    own = np.indices(shape[:-1])[:batch]
    first = np.moveaxis(own, 0, -1).astype(index.type.dtype.numpy)
    if isinstance(index.data, np.ndarray):
        return back.constant(np.concatenate([first, index.data], -1), index.type.dtype)
    return back(Concat(len(shape) - 1), back.constant(first, index.type.dtype), index)


def resample(back: Backward) -> Sequence[Value | None]:
    """Sums of the places that a place was part of, times its weights there."""
    operator, given = back.node.operator, back.operands
    assert isinstance(operator, Resample)
    x, index, weight = given["x"], given["index"].data, given["weight"].data
    if back.wants(given["weight"]):
        raise back.refuse("weights are constants")
    if not isinstance(index, np.ndarray) or not isinstance(weight, np.ndarray):
        raise back.refuse("index and weight must be constants")
    axis = operator.axis % len(x.type.dims)
    size = x.type.shape[axis]
    places = Places.of(np.clip(index, 0, size - 1), weight)
    return (added_at(back, back.gradient, axis, places, size), None, None)


RULES: dict[type[Operator], Rule] = {
    Gather: gather,
    GatherElements: gather_elements,
    GatherND: gather_nd,
    Resample: resample,
}
