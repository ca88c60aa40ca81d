"""Gradients of sums, means, products and extremes along axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from glnn.graph.expression import Arg, Constant, Expr, call, formula
from glnn.graph.gradient import gradient, times
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import CumSum, Reduce
from glnn.graph.operators.reductions import axes_of, reduced
from glnn.types import DType

X = Arg(0)


def reduce(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of Reduce by each operand: the chain of `finish`, the reduction at each
    place and `prologue`.

    A sum, or a mean, gives all numbers the same. Of an extreme those that are as extreme share the
    gradient evenly, as in torch.amax. A product gives each number the product of the others.
    """
    operator = back.node.operator
    assert isinstance(operator, Reduce)
    if operator.parts:
        raise back.refuse("a reduction in parts is made only where a plan is made")
    given = [value for value in back.node.inputs if value is not None]
    shape = given[0].type.shape
    axes = axes_of("reduce", operator.axes, len(shape))
    kept = reduced(shape, axes, True)
    whole = replace(operator, axes=axes, keepdims=True, finish=X)
    by_whole = back.reshape(back.gradient, tuple(n for n in kept if isinstance(n, int)))
    if operator.finish != X:
        slope = gradient(operator.finish, 0)
        if slope is None:
            return (None,) * len(given)
        found = back(whole, *given)
        by_whole = back.expression(times(slope, Arg(1)), found, by_whole)
    seed, more = _AT[operator.kind](back, whole, given, by_whole)
    results: list[Value | None] = []
    for i, value in enumerate(given):
        slope = gradient(operator.prologue, i) if back.wants(value) else None
        if slope is None:
            results.append(None)
            continue
        spread = back.expanded(back.expression(times(slope, seed), *given, *more), shape)
        results.append(back.summed(spread, value.type.shape))
    return results


Seed = tuple[Expr, tuple[Value, ...]]
"""The gradient by what is reduced at one place, of the operands and of more values."""


def _sum(back: Backward, whole: Reduce, given: Sequence[Value], by_whole: Value) -> Seed:
    return Arg(len(given)), (by_whole,)


def _mean(back: Backward, whole: Reduce, given: Sequence[Value], by_whole: Value) -> Seed:
    shape = given[0].type.shape
    count = whole.count or prod(shape[axis] for axis in whole.axes)
    return call("mul", Arg(len(given)), 1 / max(count, 1)), (by_whole,)


def _extreme(back: Backward, whole: Reduce, given: Sequence[Value], by_whole: Value) -> Seed:
    """Return the gradient of a maximum or minimum: equal extremes share dy evenly, as in
    torch.amax.
    """
    found = back(whole, *given)
    place = len(given)
    extreme = call("equal", whole.prologue, Arg(place))
    one = call("cast_float32", extreme)
    if len(given) > 1:
        one_each = back.expanded(back.expression(one, *given, found), given[0].type.shape)
        count = back(Reduce("sum", whole.axes, True), one_each)
    else:
        count = back(replace(whole, kind="sum", prologue=one), *given, found)
    share = call("where", extreme, call("div", Arg(place + 1), Arg(place + 2)), Constant(0.0))
    return share, (found, by_whole, count)


def _product(back: Backward, whole: Reduce, given: Sequence[Value], by_whole: Value) -> Seed:
    """Return the gradient of a product: the product of all other numbers, without zeros where there
    is no other zero.
    """
    zero = call("equal", whole.prologue, Constant(0.0))
    others = call("where", zero, Constant(1.0), whole.prologue)
    product = back(replace(whole, prologue=others), *given)
    ones = call("cast_float32", zero)
    zeros = back(replace(whole, kind="sum", prologue=ones), *given)
    place = len(given)
    scaled = call("mul", Arg(place), Arg(place + 2))
    none, one = (call("equal", Arg(place + 1), Constant(count)) for count in (0.0, 1.0))
    by_zero = call("where", one, scaled, Constant(0.0))
    by_other = call("where", none, call("div", scaled, others), Constant(0.0))
    return call("where", zero, by_zero, by_other), (product, zeros, by_whole)


_AT = {"sum": _sum, "mean": _mean, "max": _extreme, "min": _extreme, "prod": _product}


def cum_sum(back: Backward) -> Sequence[Value | None]:
    """The sum from the other end; of products, each number's sum over those that it is in."""
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, CumSum)
    if not operator.multiply:
        return (back(replace(operator, reverse=not operator.reverse), back.gradient),)
    shape = x.type.shape
    axis = operator.axis % len(shape)
    size, rest = shape[axis], (1,) * (len(shape) - axis - 1)
    # Along the first of two axes the number that is left out of the products along the second.
    added = replace(operator, axis=-1, multiply=False)
    (within,) = added.reference(np.eye(size, dtype=np.float32))
    left_out = back.constant(np.eye(size, dtype=bool).reshape(size, size, *rest), DType.bool)
    masks = back.constant(within.reshape(size, size, *rest), DType.float32)
    row = (*shape[:axis], 1, *shape[axis:])
    others = back.pointwise("where(b, 1.0, a)", back.reshape(x, row), left_out)
    products = back(replace(operator, axis=axis + 1), others)
    given = back.reshape(back.gradient, row)
    total = Reduce("sum", (axis + 1,), False, formula("a * b * c"))
    return (back(total, products, masks, given),)


RULES: dict[type[Operator], Rule] = {Reduce: reduce, CumSum: cum_sum}
