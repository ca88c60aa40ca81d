"""Derivatives of expressions, and gradients of pointwise operators and of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from glnn.core.types import DType
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call, formula
from glnn.graph.gradients.gradient_context import GradientContext, GradientRule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import CumSum, Pointwise, Reduce
from glnn.graph.operators.reductions import axes_of, reduced_dims

ZERO, ONE = Constant(0.0), Constant(1.0)


def differentiate_expression(expr: Expr, index: int) -> Expr | None:
    """The derivative of `expr` by Arg(index), an expression of the same arguments.

    By the chain rule over the functions' rows (`Function.gradient`), forward from the argument.
    None where it is 0 everywhere: nothing that has a derivative leads from the argument here.
    """

    def derived(part: Expr, arguments: tuple[tuple[Expr, Expr], ...]) -> tuple[Expr, Expr]:
        """Return `part` with its arguments' values, and its derivative."""
        if isinstance(part, Arg):
            return part, ONE if part.index == index else ZERO
        if not isinstance(part, Call):
            return part, ZERO
        values, slopes = zip(*arguments, strict=True)
        part = Call(part.function, values)
        if (part.row.gradient is None and part.row.body is None) or all(s == ZERO for s in slopes):
            return part, ZERO
        if part.row.gradient is None:
            return part, _body_derivative(part, slopes)
        return part, _apply_rule(formula(part.row.gradient), values, slopes)

    derivative = expr.fold(derived)[-1][1]
    return None if derivative == ZERO else derivative


def differentiate_by_result(expr: Expr, index: int, result: Expr) -> Expr | None:
    """The same of what `expr` comes to, where its last call has a derivative of that; else None.

    The other arguments of that call must be numbers above 0.
    """
    if not isinstance(expr, Call) or expr.row.by_result is None:
        return None
    first, *others = expr.arguments
    slope = differentiate_expression(first, index)
    if slope is None or not all(isinstance(o, Scalar) and o.value > 0 for o in others):
        return None
    values = (result, *others)
    return _apply_rule(formula(expr.row.by_result), values, (slope, *(ZERO for _ in others)))


def multiply_derivative(slope: Expr, by: Expr) -> Expr:
    """Multiply `slope` by `by`; a choice between numbers is not multiplied, so that 0 stays 0."""
    if isinstance(slope, Call) and slope.function == "where":
        condition, *either = slope.arguments
        if any(one in (ZERO, ONE) for one in either):
            return Call("where", (condition, *(multiply_derivative(one, by) for one in either)))
    return by if slope == ONE else _simplify_call("mul", slope, by)


def _body_derivative(part: Call, slopes: tuple[Expr, ...]) -> Expr:
    """The derivative of a call whose function has a body: the sum of those by its arguments."""
    assert part.row.body is not None
    total: Expr = ZERO
    for index, slope in enumerate(slopes):
        if (
            slope != ZERO
            and (by := differentiate_expression(formula(part.row.body), index)) is not None
        ):
            total = _simplify_call("add", total, _simplify_call("mul", by(*part.arguments), slope))
    return total


def _apply_rule(rule: Expr, values: tuple[Expr, ...], slopes: tuple[Expr, ...]) -> Expr:
    """The formula `rule` of these arguments and derivatives, without what comes to nothing."""

    def put(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if isinstance(part, Arg):
            return values[part.index] if part.index < 4 else slopes[part.index - 4]
        return _simplify_call(part.function, *arguments) if isinstance(part, Call) else part

    return rule.fold(put)[-1]


def _simplify_call(function: str, *arguments: Expr) -> Expr:
    """The call, or what it comes to where arguments are 0 or 1; 0 times anything is 0."""
    if all(isinstance(argument, Constant) for argument in arguments):
        return Constant(call(function, *arguments).evaluate().item())
    first, last = arguments[0], arguments[-1]
    match function, first == ZERO, last == ZERO:
        case "mul", True, _:
            return ZERO
        case "mul", _, True:
            return ZERO
        case "div", True, _:
            return ZERO
        case "add", True, _:
            return last
        case (("add" | "sub"), _, True):
            return first
        case "sub", True, _:
            return _simplify_call("neg", last)
    if function == "where" and arguments[1] == arguments[2] and isinstance(last, Constant):
        return last
    if function == "mul" and first == ONE:
        return last
    if function in ("mul", "div") and last == ONE:
        return first
    return call(function, *arguments)


def pointwise_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of a pointwise expression: by each operand its derivative times dy,
    summed where the operand was broadcast.

    Of the result, where a function's derivative follows from that (`Function.by_result`): what it
    is of is then not read again, and may join what made it.
    """
    operator = ctx.node.operator
    assert isinstance(operator, Pointwise)
    operands = [value for value in ctx.node.inputs if value is not None]
    count = len(operands)
    result: list[Value | None] = []
    for i, value in enumerate(operands):
        slope = None
        if ctx.requires_grad(value):
            slope = differentiate_by_result(
                operator.expr, i, Arg(count)
            ) or differentiate_expression(operator.expr, i)
        if slope is None:
            result.append(None)
            continue
        by = ctx.expression(
            multiply_derivative(slope, Arg(count + 1)), *operands, ctx.output, ctx.gradient
        )
        result.append(ctx.sum_to(by, value.type.shape))
    return result


REDUCED = Arg(0)


def reduce_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Reduce by each operand: the chain of `finish`, the reduction at each
    place and `prologue`.

    A sum, or a mean, gives all numbers the same. Of an extreme those that are as extreme share the
    gradient evenly, as in torch.amax. A product gives each number the product of the others.
    """
    operator = ctx.node.operator
    assert isinstance(operator, Reduce)
    if operator.parts:
        raise ctx.no_gradient_error("a reduction in parts is made only where a plan is made")
    operands = [value for value in ctx.node.inputs if value is not None]
    shape = operands[0].type.shape
    axes = axes_of("reduce", operator.axes, len(shape))
    kept = reduced_dims(shape, axes, True)
    whole = replace(operator, axes=axes, keepdims=True, finish=REDUCED)
    by_whole = ctx.reshape(ctx.gradient, tuple(n for n in kept if isinstance(n, int)))
    if operator.finish != REDUCED:
        slope = differentiate_expression(operator.finish, 0)
        if slope is None:
            return (None,) * len(operands)
        result = ctx(whole, *operands)
        by_whole = ctx.expression(multiply_derivative(slope, Arg(1)), result, by_whole)
    seed, more = REDUCTION_GRADIENTS[operator.kind](ctx, whole, operands, by_whole)
    results: list[Value | None] = []
    for i, value in enumerate(operands):
        slope = differentiate_expression(operator.prologue, i) if ctx.requires_grad(value) else None
        if slope is None:
            results.append(None)
            continue
        spread = ctx.expand(
            ctx.expression(multiply_derivative(slope, seed), *operands, *more), shape
        )
        results.append(ctx.sum_to(spread, value.type.shape))
    return results


Seed = tuple[Expr, tuple[Value, ...]]
"""The gradient by what is reduced at one place, of the operands and of more values."""


def _sum_gradient(
    ctx: GradientContext, whole: Reduce, operands: Sequence[Value], by_whole: Value
) -> Seed:
    return Arg(len(operands)), (by_whole,)


def _mean_gradient(
    ctx: GradientContext, whole: Reduce, operands: Sequence[Value], by_whole: Value
) -> Seed:
    shape = operands[0].type.shape
    count = whole.count or prod(shape[axis] for axis in whole.axes)
    return call("mul", Arg(len(operands)), 1 / max(count, 1)), (by_whole,)


def _extreme_gradient(
    ctx: GradientContext, whole: Reduce, operands: Sequence[Value], by_whole: Value
) -> Seed:
    """Return the gradient of a maximum or minimum: equal extremes share dy evenly, as in
    torch.amax.
    """
    result = ctx(whole, *operands)
    place = len(operands)
    extreme = call("equal", whole.prologue, Arg(place))
    one = call("cast_float32", extreme)
    if len(operands) > 1:
        one_each = ctx.expand(ctx.expression(one, *operands, result), operands[0].type.shape)
        count = ctx(Reduce("sum", whole.axes, True), one_each)
    else:
        count = ctx(replace(whole, kind="sum", prologue=one), *operands, result)
    share = call("where", extreme, call("div", Arg(place + 1), Arg(place + 2)), Constant(0.0))
    return share, (result, by_whole, count)


def _product_gradient(
    ctx: GradientContext, whole: Reduce, operands: Sequence[Value], by_whole: Value
) -> Seed:
    """Return the gradient of a product: the product of all other numbers, without zeros where there
    is no other zero.
    """
    zero = call("equal", whole.prologue, Constant(0.0))
    others = call("where", zero, Constant(1.0), whole.prologue)
    product = ctx(replace(whole, prologue=others), *operands)
    ones = call("cast_float32", zero)
    zeros = ctx(replace(whole, kind="sum", prologue=ones), *operands)
    place = len(operands)
    scaled = call("mul", Arg(place), Arg(place + 2))
    none, one = (call("equal", Arg(place + 1), Constant(count)) for count in (0.0, 1.0))
    by_zero = call("where", one, scaled, Constant(0.0))
    by_other = call("where", none, call("div", scaled, others), Constant(0.0))
    return call("where", zero, by_zero, by_other), (product, zeros, by_whole)


REDUCTION_GRADIENTS = {
    "sum": _sum_gradient,
    "mean": _mean_gradient,
    "max": _extreme_gradient,
    "min": _extreme_gradient,
    "prod": _product_gradient,
}


def cum_sum_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """The sum from the other end; of products, each number's sum over those that it is in."""
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, CumSum)
    if not operator.multiply:
        return (ctx(replace(operator, reverse=not operator.reverse), ctx.gradient),)
    shape = x.type.shape
    axis = operator.axis % len(shape)
    size, rest = shape[axis], (1,) * (len(shape) - axis - 1)
    # Along the first of two axes the number that is left out of the products along the second.
    added = replace(operator, axis=-1, multiply=False)
    (within,) = added.reference(np.eye(size, dtype=np.float32))
    left_out = ctx.constant(np.eye(size, dtype=bool).reshape(size, size, *rest), DType.bool)
    masks = ctx.constant(within.reshape(size, size, *rest), DType.float32)
    row = (*shape[:axis], 1, *shape[axis:])
    others = ctx.pointwise("where(b, 1.0, a)", ctx.reshape(x, row), left_out)
    products = ctx(replace(operator, axis=axis + 1), others)
    dy = ctx.reshape(ctx.gradient, row)
    total = Reduce("sum", (axis + 1,), False, formula("a * b * c"))
    return (ctx(total, products, masks, dy),)


RULES: dict[type[Operator], GradientRule] = {
    Pointwise: pointwise_backward,
    Reduce: reduce_backward,
    CumSum: cum_sum_backward,
}
"""Gradient rules by kind of operator."""
