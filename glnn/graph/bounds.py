"""Interval arithmetic on expressions: bounds of each part's value."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.interval import INT32, Interval
from glnn.types import DType

WIDE, NARROW = "cast_int64", "cast_int32"


def of_expression(expr: Expr, given: Sequence[Interval], dtypes: Sequence[DType]) -> list[Interval]:
    """Return the interval of each part of `expr.expanded`, the whole expression's last, for
    arguments that lie within `given`.

    dtypes: the arguments'.
    """
    whole = expr.expanded
    types = iter(whole.infer_parts(dtypes))

    def interval_of(part: Expr, arguments: tuple[Interval, ...]) -> Interval:
        dtype = next(types)
        if isinstance(part, Arg):
            return given[part.index]
        if isinstance(part, Call):
            if part.function == "sub" and dtype.kind == "int" and len(set(part.arguments)) == 1:
                return Interval(0, 0)
            return part.row.value_range(arguments, dtype)
        assert isinstance(part, Scalar | Constant)
        return Interval.of_number(part.value)

    return whole.fold(interval_of)


def narrow_expression(
    expr: Expr, given: Sequence[Interval], dtypes: Sequence[DType]
) -> Expr | None:
    """Return `expr` with int32 in the place of int64; None where an intermediate number may not fit
    int32.

    given, dtypes: of the arguments.
    """
    types = expr.expanded.infer_parts(dtypes)
    parts = of_expression(expr, given, dtypes)
    for dtype, lies in zip(types, parts, strict=True):
        if dtype is DType.float64 or (dtype.kind == "int" and not lies.within(INT32)):
            return None
    return expr.fold(_narrow)[-1]


def _narrow(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
    if not isinstance(part, Call):
        return part
    return Call(NARROW if part.function == WIDE else part.function, arguments)
