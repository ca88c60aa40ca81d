"""Derivatives of expressions, which are expressions themselves."""

from __future__ import annotations

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call, formula

ZERO, ONE = Constant(0.0), Constant(1.0)


def gradient(expr: Expr, index: int) -> Expr | None:
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
            return part, _of_body(part, slopes)
        return part, _in(formula(part.row.gradient), values, slopes)

    found = expr.fold(derived)[-1][1]
    return None if found == ZERO else found


def gradient_of_result(expr: Expr, index: int, result: Expr) -> Expr | None:
    """The same of what `expr` comes to, where its last call has a derivative of that; else None.

    The other arguments of that call must be numbers above 0.
    """
    if not isinstance(expr, Call) or expr.row.by_result is None:
        return None
    first, *others = expr.arguments
    slope = gradient(first, index)
    if slope is None or not all(isinstance(o, Scalar) and o.value > 0 for o in others):
        return None
    values = (result, *others)
    return _in(formula(expr.row.by_result), values, (slope, *(ZERO for _ in others)))


def times(slope: Expr, by: Expr) -> Expr:
    """Multiply `slope` by `by`; a choice between numbers is not multiplied, so that 0 stays 0."""
    if isinstance(slope, Call) and slope.function == "where":
        condition, *either = slope.arguments
        if any(one in (ZERO, ONE) for one in either):
            return Call("where", (condition, *(times(one, by) for one in either)))
    return by if slope == ONE else _simple("mul", slope, by)


def _of_body(part: Call, slopes: tuple[Expr, ...]) -> Expr:
    """The derivative of a call whose function has a body: the sum of those by its arguments."""
    assert part.row.body is not None
    total: Expr = ZERO
    for index, slope in enumerate(slopes):
        if slope != ZERO and (by := gradient(formula(part.row.body), index)) is not None:
            total = _simple("add", total, _simple("mul", by(*part.arguments), slope))
    return total


def _in(rule: Expr, values: tuple[Expr, ...], slopes: tuple[Expr, ...]) -> Expr:
    """The formula `rule` of these arguments and derivatives, without what comes to nothing."""

    def put(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
        if isinstance(part, Arg):
            return values[part.index] if part.index < 4 else slopes[part.index - 4]
        return _simple(part.function, *arguments) if isinstance(part, Call) else part

    return rule.fold(put)[-1]


def _simple(function: str, *arguments: Expr) -> Expr:
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
            return _simple("neg", last)
    if function == "where" and arguments[1] == arguments[2] and isinstance(last, Constant):
        return last
    if function == "mul" and first == ONE:
        return last
    if function in ("mul", "div") and last == ONE:
        return first
    return call(function, *arguments)
