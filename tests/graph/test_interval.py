"""Intervals: every number that is computed lies in the one that was said before."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.expression_evaluation import narrow_expression, value_ranges_of
from glnn.graph.functions import FUNCTIONS
from glnn.graph.interval import INT32, Interval
from glnn.graph.operators import (
    ArgReduce,
    Concat,
    CumSum,
    Gather,
    Pad,
    Pointwise,
    Reduce,
    ScatterElements,
)

INTEGER = [
    name
    for name, row in FUNCTIONS.items()
    if "int" in row.forms and row.gives is None and not row.condition
]
SMALL = st.integers(-9, 9)
LARGE = st.one_of(SMALL, st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
ENDS = st.tuples(LARGE, LARGE).map(sorted)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> Expr:
    """Of two integers."""
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from([Arg(0), Arg(1)]))
    name = draw(st.sampled_from([*INTEGER, "where", "through floats"]))
    one, other = expressions(depth - 1), expressions(depth - 1)
    if name == "where":
        return call("where", call("less", draw(one), draw(other)), draw(one), draw(other))
    if name == "through floats":
        clipped = call("clip", call("cast_float32", draw(one)), -1e9, float(draw(SMALL)))
        return call("cast_int64", call("floor", clipped))
    last = FUNCTIONS[name].arity - 1
    return call(name, *(draw(one) if i < last or not i else draw(other) for i in range(last + 1)))


@settings(max_examples=300)
@given(expressions(), ENDS, ENDS, st.data())
def test_an_interval_has_every_value(expr: Expr, a, b, data) -> None:
    """Of every part, for int64, as NumPy computes it."""
    arrays = [
        np.array([*ends, *data.draw(st.lists(st.integers(*ends), max_size=5))]) for ends in (a, b)
    ]
    pairs = [np.array(one, np.int64) for one in zip(*product(*arrays), strict=True)]
    lies = value_ranges_of(expr, [Interval(*a), Interval(*b)], [DType.int64] * 2)[-1]
    found = expr.evaluate(*pairs)
    assert lies.low <= int(found.min()), expr.text()
    assert int(found.max()) <= lies.high, expr.text()


@settings(max_examples=200)
@given(expressions(), st.tuples(SMALL, SMALL).map(sorted), st.tuples(LARGE, LARGE).map(sorted))
def test_what_is_narrowed_is_the_same(expr: Expr, a, b) -> None:
    """int32 gives what int64 gives, wherever it is said to."""
    b = [min(max(end, INT32.low), INT32.high) for end in b]
    narrow = narrow_expression(expr, [Interval(*a), Interval(*b)], [DType.int64] * 2)
    if narrow is not None:
        pairs = [np.array(one, np.int64) for one in zip(*product(a, b), strict=True)]
        got = narrow.evaluate(*(one.astype(np.int32) for one in pairs))
        np.testing.assert_array_equal(got, expr.evaluate(*pairs))


@pytest.mark.parametrize(
    ("name", "ends", "expected"),
    [
        ("add", [(1, 2), (10, 20)], (11, 22)),
        ("sub", [(1, 2), (10, 20)], (-19, -8)),
        ("mul", [(-3, 2), (-5, 7)], (-21, 15)),
        ("div", [(-7, 9), (2, 3)], (-3, 4)),
        ("div", [(5, 9), (-1, 1)], (-9, 9)),
        ("remainder", [(-100, 100), (7, 7)], (0, 6)),
        ("fmod", [(-100, 100), (7, 7)], (-6, 6)),
        ("abs", [(-5, 3)], (0, 5)),
        ("bitwise_and", [(0, 5), (0, 9)], (0, 15)),
        ("clip", [(-100, 100), (0, 0), (9, 9)], (0, 9)),
        ("neg", [(-(2**63), 0)], (-(2**63), 2**63 - 1)),
        ("pow", [(2, 3), (2, 2)], (-(2**63), 2**63 - 1)),
    ],
)
def test_rules(name, ends, expected) -> None:
    row, given_ends = FUNCTIONS[name], [Interval(*one) for one in ends]
    assert row.value_range(given_ends, DType.int64) == Interval(*expected)


def test_floats_become_known_by_clip() -> None:
    """NaN is 0 as an integer, and a bound counts as float32 has it."""
    floats = [Interval.of_type(DType.float32)]

    def of(expr: Expr) -> Interval:
        return value_ranges_of(expr, floats, [DType.float32])[-1]

    assert of(call("cast_int64", Arg(0))) == Interval.of_type(DType.int64)
    assert of(call("cast_int64", call("clip", Arg(0), 3.0, 9.5))) == Interval(0, 9)
    assert not of(call("cast_int64", call("clip", Arg(0), 0.0, 2147483647.0))).within(INT32)


@pytest.mark.parametrize(
    ("operator", "operands", "lies", "expected"),
    [
        (Reduce("sum", (0,)), [(5, 2)], [(-3, 7)], (-15, 35)),
        (Reduce("prod", (0,)), [(3, 2)], [(-3, 2)], (-27, 27)),
        (Reduce("mean", (0,)), [(3, 2)], [(4, 7)], (0, 7)),
        (Reduce("max", (0,)), [(3, 2)], [(4, 7)], (4, 7)),
        (CumSum(0), [(4, 2)], [(2, 3)], (2, 12)),
        (CumSum(0, exclusive=True), [(4, 2)], [(-1, 3)], (-4, 12)),
        (ArgReduce("max", 0), [(9, 2)], [(-(2**63), 0)], (0, 8)),
        (Pad((1,), (1,), fill=-4), [(3,)], [(1, 2)], (-4, 2)),
        (Concat(0), [(3,), (2,)], [(1, 2), (8, 9)], (1, 9)),
        (Gather(0), [(3,), (2,)], [(1, 2), (0, 10**12)], (1, 2)),
        (ScatterElements(0, "add"), [(3,), (2,), (2,)], [(1, 2), (0, 2), (-5, 5)], (-15, 15)),
        (Pointwise(call("mul", Arg(0), 3)), [(3,)], [(1, 2)], (3, 6)),
    ],
)
def test_operators(operator, operands, lies, expected) -> None:
    types = [TensorType(shape, DType.int64) for shape in operands]
    assert operator.value_ranges([Interval(*one) for one in lies], types)[0] == Interval(*expected)


def test_an_interval_has_numbers() -> None:
    with pytest.raises(ShapeError, match="from low to high, got 2 to 1"):
        Interval(2, 1)
