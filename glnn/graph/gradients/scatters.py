"""Gradients of scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Gather,
    GatherElements,
    GatherND,
    Reshape,
    ScatterElements,
    ScatterND,
)
from glnn.graph.operators.scatter import Put, Reduction, ScatterSorted
from glnn.types import DType

Taken = Callable[[Value], Value]
"""The number at the place of each update."""
Placed = Callable[[Reduction, Value, Value], Value]
"""A tensor like x with updates that are reduced so."""


def scatter(back: Backward) -> Sequence[Value | None]:
    """Updates have the gradient at their place: of those at one place only the last, where they are
    put; all of them where they are added; those that are the extreme share it evenly; of a product
    each has that of the others.
    """
    given = back.operands
    x, index, updates = given["x"], given["index"], given["updates"]
    operator = back.node.operator
    assert isinstance(operator, Put)
    if not prod(updates.type.shape):
        return (back.gradient, None, back.zeros(updates.type.shape))
    taken, placed = _ways(back, index, updates)
    by_x, by_updates = _BY[operator.reduction](back, x, updates, taken, placed)
    return back.by_name(x=by_x, updates=by_updates)


Pair = tuple[Value, Value]


def _put(back: Backward, x: Value, updates: Value, taken: Taken, placed: Placed) -> Pair:
    shape = updates.type.shape
    by_x = placed("none", back.gradient, back.zeros(shape))
    numbers = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    own = back.constant(numbers, DType.int32)
    nobody = back.constant(np.zeros(x.type.shape, np.int32), DType.int32)
    last = taken(placed("none", nobody, own))
    chosen = back.pointwise("where(equal(a, b), c, 0.0)", last, own, taken(back.gradient))
    return by_x, chosen


def _added(back: Backward, x: Value, updates: Value, taken: Taken, placed: Placed) -> Pair:
    return back.gradient, taken(back.gradient)


def _multiplied(back: Backward, x: Value, updates: Value, taken: Taken, placed: Placed) -> Pair:
    """The product of all but zeros, where there is no other zero."""
    first, each = (back.pointwise("where(equal(a, 0.0), 1.0, a)", one) for one in (x, updates))
    product = placed("mul", first, each)
    none, zero = (back.pointwise("where(equal(a, 0.0), 1.0, 0.0)", one) for one in (x, updates))
    zeros = placed("add", none, zero)
    scaled = back.pointwise("a * b", product, back.gradient)

    def by(value: Value, scaled: Value, zeros: Value) -> Value:
        share = (
            "where(equal(a, 0.0), where(equal(c, 1.0), b, 0.0), where(equal(c, 0.0), b / a, 0.0))"
        )
        return back.pointwise(share, value, scaled, zeros)

    return by(x, scaled, zeros), by(updates, taken(scaled), taken(zeros))


def _extreme(back: Backward, x: Value, updates: Value, taken: Taken, placed: Placed) -> Pair:
    """Return the gradients of a maximum or minimum: equal extremes share dy evenly, as in
    torch.scatter_reduce.
    """
    one = "where(equal(a, b), 1.0, 0.0)"
    own = back.pointwise(one, x, back.output)
    theirs = back.pointwise(one, updates, taken(back.output))
    share = back.pointwise("a / maximum(b, 1.0)", back.gradient, placed("add", own, theirs))
    return back.pointwise("a * b", own, share), back.pointwise("a * b", theirs, taken(share))


_BY = {"none": _put, "add": _added, "mul": _multiplied, "max": _extreme, "min": _extreme}


def _ways(back: Backward, index: Value, updates: Value) -> tuple[Taken, Placed]:
    """Return functions that gather at the operator's indices, and that scatter updates to them."""
    operator = back.node.operator
    match operator:
        case ScatterElements(axis=axis):
            return (
                lambda value: back(GatherElements(axis), value, index),
                lambda how, x, new: back(ScatterElements(axis, how), x, index, new),
            )
        case ScatterND():
            return (
                lambda value: back(GatherND(), value, index),
                lambda how, x, new: back(ScatterND(how), x, index, new),
            )
    assert isinstance(operator, ScatterSorted)
    leading, shape = operator.leading, back.operands["x"].type.shape
    count = prod(shape[:leading])
    if not isinstance(index.data, np.ndarray):
        raise back.refuse("index must be a constant")
    starts, order = index.data[: count + 1], index.data[count + 1 :]
    places = np.empty(order.size, np.int32)
    places[order] = np.repeat(np.arange(count, dtype=np.int32), np.diff(starts))
    ids = back.constant(places, DType.int32)

    def taken(value: Value) -> Value:
        rows = back(Reshape((count, *shape[leading:]), True), value)
        return back.reshape(back(Gather(0), rows, ids), updates.type.shape)

    return taken, lambda how, x, new: back(ScatterSorted(leading, how), x, index, new)


RULES: dict[type[Operator], Rule] = dict.fromkeys(
    (ScatterElements, ScatterND, ScatterSorted), scatter
)
