"""Expressions: their types, structure, values and derivatives."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.expression import MOST_CALLS, Arg, Call, Expr, Scalar, call, formula
from glnn.graph.expression_evaluation import CompiledExpression, evaluate_blockwise
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS
from glnn.graph.gradients.pointwise import differentiate_expression
from glnn.kernels.codegen.expression import fingerprint, function, function_fingerprint

FLOAT, INT, BOOL = DType.float32, DType.int32, DType.bool


def of(name: str) -> Call:
    return call(name, *(Arg(i) for i in range(FUNCTIONS[name].arity)))


def test_gradients_of_whole_expressions() -> None:
    assert differentiate_expression(formula("3.0 * a"), 0) == formula("3.0")
    assert differentiate_expression(formula("a + b"), 1) == formula("1.0")
    assert differentiate_expression(formula("a + 1.0"), 1) is None
    assert differentiate_expression(formula("where(a < 0.0, b, 1.0)"), 0) is None
    assert differentiate_expression(formula("floor(a)"), 0) is None
    x = np.linspace(-3, 100, 50)  # exp overflows where it is not chosen
    for text in (
        "elu(a, 1.0)",
        "selu(a)",
        "where(a > 0.0, a * a, exp(-a))",
        "softplus(a, 9.0, 20.0)",
    ):
        slope = differentiate_expression(formula(text), 0)
        assert slope is not None and np.isfinite(slope.evaluate((x * 10).astype(np.float32))).all()
    twice = differentiate_expression(
        differentiate_expression(formula("a * sin(b * a)"), 0) or Arg(0), 0
    )
    a, b = np.linspace(-2, 2, 9), np.full(9, 1.5)
    assert twice is not None
    expected = 2 * b * np.cos(a * b) - a * b * b * np.sin(a * b)
    assert np.allclose(twice.evaluate(a, b), expected)


@pytest.mark.parametrize(
    ("expr", "dtypes", "expected"),
    [
        (formula("a + b"), [FLOAT, FLOAT], FLOAT),
        (formula("a + b"), [DType.uint8, DType.uint8], DType.uint8),
        (formula("a * b"), [DType.float16, DType.float16], DType.float16),
        (call("add", Arg(0), 1), [INT], INT),
        (call("add", Arg(0), 1.0), [DType.float64], DType.float64),
        (call("less", Arg(0), 1.0), [FLOAT], BOOL),
        (call("where", call("less", Arg(0), 1), Arg(1), 0.5), [INT, FLOAT], FLOAT),
        (call("where", Arg(0), 1, 2), [BOOL], INT),
        (call("cast_float32", Arg(0)), [INT], FLOAT),
        (call("clip", Arg(0), 0, 6), [INT], INT),
        (call("exp", 1.0), [], FLOAT),
        (call("hardswish", call("cast_float32", Arg(0))), [BOOL], FLOAT),
    ],
)
def test_types(expr: Expr, dtypes, expected) -> None:
    assert expr.infer(dtypes) is expected


@pytest.mark.parametrize(
    ("expr", "dtypes", "message"),
    [
        (formula("a + b"), [FLOAT, INT], "add: .* one type, got float32 and int32"),
        (call("add", Arg(0), 1), [FLOAT], "add: .* got float32 and a number of int"),
        (formula("a + b"), [BOOL, BOOL], "add: expected arguments of float or int, got bool"),
        (formula("exp(a)"), [INT], "exp: expected arguments of float, got int32"),
        (formula("gelu(a)"), [INT], "normal_cdf: expected arguments of float, got int32"),
        (call("where", Arg(0), 1.0, 2.0), [FLOAT], "where: expected a bool first, got float32"),
        (formula("a + b"), [FLOAT], "2 arguments, got 1"),
    ],
)
def test_types_that_do_not_fit(expr: Expr, dtypes, message) -> None:
    with pytest.raises(ShapeError, match=message):
        expr.infer(dtypes)


def test_what_is_no_expression() -> None:
    with pytest.raises(ShapeError, match="unknown function 'nothing'"):
        call("nothing", Arg(0))
    with pytest.raises(ShapeError, match="add takes 2 arguments, got 1"):
        call("add", Arg(0))
    for text in ("a +", "a @ b", "x", "add(a, b=1)", "'a'"):
        with pytest.raises(ShapeError, match="no formula"):
            formula(text)
    with pytest.raises(ShapeError, match="numpy and glsl, or else a body"):
        Function("half", 1, np.sin)


def test_structure_leaves_values_out() -> None:
    def line(slope: float, offset: float) -> Expr:
        return call("add", call("mul", Arg(0), slope), offset)

    assert line(2.0, 3.0).structure == line(2.0, 2.0).structure == "add(mul(#0, f0), f1)"
    assert line(2.0, 3.0) == line(2.0, 3.0) != line(2.0, 2.0)
    assert hash(line(2.0, 3.0)) == hash(line(2.0, 3.0))
    assert Scalar(1) != Scalar(1.0) and Scalar(1) != Scalar(True)
    number = Scalar(2.0)
    shared = call("add", call("mul", Arg(0), number), number)
    assert shared.structure == "add(mul(#0, f0), f0)" and shared.scalars == (2.0,)
    square = call("exp", Arg(0))
    assert call("mul", square, call("exp", Arg(0))).structure == "t0 = exp(#0); mul(t0, t0)"
    assert pickle.loads(pickle.dumps(shared)) == shared
    assert of("relu")(line(2.0, 3.0)).structure == "relu(add(mul(#0, f0), f1))"


def test_deep_and_shared_expressions_take_their_time_once() -> None:
    whole: Expr = Arg(0)
    for _ in range(MOST_CALLS):
        whole = call("add", whole, whole)  # 2^64 calls, were they written out
    assert whole.calls == MOST_CALLS and whole.infer([FLOAT]) is FLOAT
    assert whole.evaluate(np.float64([1.0])).tolist() == [2.0**64]
    assert differentiate_expression(whole, 0) is not None
    assert function(whole, [FLOAT], "f").count("float t") == MOST_CALLS
    again = whole(call("neg", Arg(0)))
    assert again != whole and again(call("neg", Arg(0))) != whole and hash(again) != hash(whole)
    with pytest.raises(ShapeError, match=f"at most {MOST_CALLS} calls, got {MOST_CALLS + 1}"):
        again.infer([FLOAT])


def test_fingerprints(monkeypatch) -> None:
    """Another row or file of a function changes those of what uses it, and no others."""
    used, other = formula("mish(a)"), formula("gelu(a)")
    before = fingerprint(used), fingerprint(other), function_fingerprint("gelu")
    row = FUNCTIONS["log1p"]
    changed = Function("log1p", 1, row.numpy, "logarithm_plus_one(a) + 0.0", "log")
    monkeypatch.setitem(FUNCTIONS, "log1p", changed)
    assert fingerprint(used) != before[0]
    assert (fingerprint(other), function_fingerprint("gelu")) == before[1:]
    monkeypatch.setitem(FUNCTIONS, "new", Function("new", 1, np.sin, "sin(a)"))
    assert fingerprint(other) == before[1]
    twice = formula("a + a")
    assert fingerprint(twice, [DType.uint8]) != fingerprint(twice, [INT]) != fingerprint(twice)
    assert fingerprint(twice, [FLOAT]) == fingerprint(twice)
    assert fingerprint(formula("a * 1.0")) != fingerprint(formula("a * 2.0"))
    assert fingerprint(call("mul", Arg(0), 1.0)) == fingerprint(call("mul", Arg(0), 2.0))


def test_what_broadcasts_is_computed_once_for_a_block(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 900), np.float32)
    bias = rng.standard_normal((96, 1), np.float32)
    row = rng.standard_normal((1, 900), np.float32)
    sizes: list[int] = []

    def negative(x, out=None):
        sizes.append((x if out is None else out).size)
        return np.negative(x, out)

    compiled = CompiledExpression(formula("exp(-b - a)"), [x.dtype] * 2)
    compiled._calls = [
        (negative if function is np.negative else function, places, dtype)
        for function, places, dtype in compiled._calls
    ]
    with monkeypatch.context() as patch:
        patch.setattr(CompiledExpression, "cached", lambda expr, dtypes: compiled)
        found = evaluate_blockwise(formula("exp(-b - a)"), [x, bias], x.shape, x.dtype)
    assert_allclose(found, np.exp(-bias.astype(float) - x), rtol=1e-5)
    assert sum(sizes) == bias.size
    # No operand is as large as the result.
    expr = formula("sqrt(exp(a) + exp(b)) * 2.0")
    expected = np.sqrt(np.exp(bias.astype(float)) + np.exp(row.astype(float))) * 2
    for operands in ([bias, row], [row, bias]):
        assert_allclose(evaluate_blockwise(expr, operands, x.shape, x.dtype), expected, rtol=1e-5)


@pytest.mark.parametrize("count", [3, 1 << 10, (1 << 10) + 1])
def test_clips_of_few_and_of_many_numbers(count: int) -> None:
    x = np.resize(np.array([-np.inf, -3, -0.5, 0.25, 2, np.inf, np.nan], np.float32), count)
    found = evaluate_blockwise(formula("clip(a, -1.0, 1.0)"), [x], x.shape, x.dtype)
    expected = np.resize([-1, -1, -0.5, 0.25, 1, 1, np.nan], count)
    assert_array_equal(found, expected)


def test_casts_of_the_host() -> None:
    """int64 and float64 are NumPy's alone."""
    x = np.array([np.nan, np.inf, -np.inf, 1e19, -2.7, 9007199254740993.0])
    top, least = 2**63 - 1, -(2**63)
    assert of("cast_int64").evaluate(x).tolist() == [0, top, least, top, -2, 9007199254740992]
    assert of("cast_float64").evaluate(np.array([3], np.int32)).dtype == np.float64
    with pytest.raises(UnsupportedOpError, match="no GPU computes with int64"):
        function(of("cast_int64"), [FLOAT], "f")


def test_numbers_take_the_type_of_arrays() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        whole = call("mul", call("exp", 0.5), call("where", call("less", Arg(0), 0.5), 1.0, Arg(0)))
        assert whole.evaluate(np.ones((), dtype)).dtype == dtype
    assert call("add", Arg(0), 3).evaluate(np.array([255], np.uint8)).tolist() == [2]
