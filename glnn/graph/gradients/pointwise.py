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
    """Return the derivative of `expr` by Arg(index), an expression of the same arguments; None
    where it is 0 everywhere.

    It applies the chain rule forward from the argument, with the derivatives of the functions' rows
    (`Function.gradient`).
    """

    def visit(part: Expr, arguments: tuple[tuple[Expr, Expr], ...]) -> tuple[Expr, Expr]:
        """Return `part` and its derivative. arguments: the same of the part's arguments."""
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

    derivative = expr.fold(visit)[-1][1]
    return None if derivative == ZERO else derivative


def differentiate_by_result(expr: Expr, index: int, result: Expr) -> Expr | None:
    """Return the derivative of `expr` by Arg(index) as an expression of its result, `result`; None
    unless the outermost function's row has one (`Function.by_result`), and that call's further
    arguments are numbers above 0.
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
        condition, *branches = slope.arguments
        if any(branch in (ZERO, ONE) for branch in branches):
            products = (multiply_derivative(branch, by) for branch in branches)
            return Call("where", (condition, *products))
    return by if slope == ONE else _simplify_call("mul", slope, by)


def _body_derivative(part: Call, slopes: tuple[Expr, ...]) -> Expr:
    """Return the derivative of a call whose function has a body: the sum over its arguments of the
    derivative of the body by the argument, times the argument's in `slopes`.
    """
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
    """Return the formula `rule` of arguments and their derivatives, simplified."""

    def substitute(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if isinstance(part, Arg):
            return values[part.index] if part.index < 4 else slopes[part.index - 4]
        return _simplify_call(part.function, *arguments) if isinstance(part, Call) else part

    return rule.fold(substitute)[-1]


def _simplify_call(function: str, *arguments: Expr) -> Expr:
    """Return a call, simplified where arguments are 0 or 1; 0 times anything is 0."""
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

    Where possible the derivative is computed from the result (`Function.by_result`): the operand is
    then not read again, so that the node may be fused into the operand's producer.
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
        gradient = ctx.expression(
            multiply_derivative(slope, Arg(count + 1)), *operands, ctx.output, ctx.gradient
        )
        result.append(ctx.sum_to(gradient, value.type.shape))
    return result


REDUCED = Arg(0)


def reduce_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradients of Reduce by each operand, by the chain rule over `finish`, the
    reduction and `prologue`.

    All numbers of a sum or a mean have the same gradient. Equal extremes share it evenly, as in
    torch.amax. Each number of a product has the product of the others.
    """
    operator = ctx.node.operator
    assert isinstance(operator, Reduce)
    if operator.parts:
        raise ctx.no_gradient_error("a reduction in parts is made only where a plan is made")
    operands = [value for value in ctx.node.inputs if value is not None]
    shape = operands[0].type.shape
    axes = axes_of("reduce", operator.axes, len(shape))
    dims = reduced_dims(shape, axes, True)
    reduction = replace(operator, axes=axes, keepdims=True, finish=REDUCED)
    dy = ctx.reshape(ctx.gradient, tuple(n for n in dims if isinstance(n, int)))
    if operator.finish != REDUCED:
        slope = differentiate_expression(operator.finish, 0)
        if slope is None:
            return (None,) * len(operands)
        result = ctx(reduction, *operands)
        dy = ctx.expression(multiply_derivative(slope, Arg(1)), result, dy)
    seed, seed_operands = REDUCTION_GRADIENTS[operator.kind](ctx, reduction, operands, dy)
    results: list[Value | None] = []
    for i, value in enumerate(operands):
        slope = differentiate_expression(operator.prologue, i) if ctx.requires_grad(value) else None
        if slope is None:
            results.append(None)
            continue
        gradient = ctx.expression(multiply_derivative(slope, seed), *operands, *seed_operands)
        results.append(ctx.sum_to(ctx.expand(gradient, shape), value.type.shape))
    return results


Seed = tuple[Expr, tuple[Value, ...]]
"""The gradient by the value of `prologue`, an expression of the operands and of further values, and
these values.
"""


def _sum_gradient(
    ctx: GradientContext, reduction: Reduce, operands: Sequence[Value], dy: Value
) -> Seed:
    return Arg(len(operands)), (dy,)


def _mean_gradient(
    ctx: GradientContext, reduction: Reduce, operands: Sequence[Value], dy: Value
) -> Seed:
    shape = operands[0].type.shape
    count = reduction.count or prod(shape[axis] for axis in reduction.axes)
    return call("mul", Arg(len(operands)), 1 / max(count, 1)), (dy,)


def _extreme_gradient(
    ctx: GradientContext, reduction: Reduce, operands: Sequence[Value], dy: Value
) -> Seed:
    """Return the gradient of a maximum or minimum: equal extremes share dy evenly, as in
    torch.amax.
    """
    result = ctx(reduction, *operands)
    first = len(operands)  # the index of the first further value
    is_extreme = call("equal", reduction.prologue, Arg(first))
    mask = call("cast_float32", is_extreme)
    if len(operands) > 1:
        masks = ctx.expand(ctx.expression(mask, *operands, result), operands[0].type.shape)
        count = ctx(Reduce("sum", reduction.axes, True), masks)
    else:
        count = ctx(replace(reduction, kind="sum", prologue=mask), *operands, result)
    share = call("where", is_extreme, call("div", Arg(first + 1), Arg(first + 2)), Constant(0.0))
    return share, (result, dy, count)


def _product_gradient(
    ctx: GradientContext, reduction: Reduce, operands: Sequence[Value], dy: Value
) -> Seed:
    """Return the gradient of a product: dy times the product of all other factors, computed from
    the product of all factors but zeros and the number of zeros.
    """
    is_zero = call("equal", reduction.prologue, Constant(0.0))
    nonzero = call("where", is_zero, Constant(1.0), reduction.prologue)
    product = ctx(replace(reduction, prologue=nonzero), *operands)
    mask = call("cast_float32", is_zero)
    zeros = ctx(replace(reduction, kind="sum", prologue=mask), *operands)
    first = len(operands)  # the index of the first further value
    scaled = call("mul", Arg(first), Arg(first + 2))
    has_none, has_one = (call("equal", Arg(first + 1), Constant(count)) for count in (0.0, 1.0))
    by_zero = call("where", has_one, scaled, Constant(0.0))
    by_other = call("where", has_none, call("div", scaled, nonzero), Constant(0.0))
    return call("where", is_zero, by_zero, by_other), (product, zeros, dy)


REDUCTION_GRADIENTS = {
    "sum": _sum_gradient,
    "mean": _mean_gradient,
    "max": _extreme_gradient,
    "min": _extreme_gradient,
    "prod": _product_gradient,
}


def cum_sum_backward(ctx: GradientContext) -> Sequence[Value | None]:
    """Return the gradient of CumSum: dy summed from the other end; of cumulative products, for each
    number the sum over the products that contain it.
    """
    operator, x = ctx.node.operator, ctx.operands["x"]
    assert isinstance(operator, CumSum)
    if not operator.multiply:
        return (ctx(replace(operator, reverse=not operator.reverse), ctx.gradient),)
    shape = x.type.shape
    axis = operator.axis % len(shape)
    size, inner = shape[axis], (1,) * (len(shape) - axis - 1)
    # `axis` becomes two: along the first is the factor that is left out of the products along the
    # second.
    cum_sum = replace(operator, axis=-1, multiply=False)
    (contains,) = cum_sum.reference(np.eye(size, dtype=np.float32))
    left_out = ctx.constant(np.eye(size, dtype=bool).reshape(size, size, *inner), DType.bool)
    masks = ctx.constant(contains.reshape(size, size, *inner), DType.float32)
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
