"""Gradients of scalar functions where they have corners, and of their results.

`tests/graph/test_functions.py` holds each one's derivative against differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from glnn.graph.expression import Arg, Expr, call
from glnn.graph.functions import FUNCTIONS
from glnn.graph.gradients.pointwise import (
    differentiate_by_result,
    differentiate_expression,
    multiply_derivative,
)

# The functions that are the same wherever they have a derivative.
FLAT = {
    *("sign", "ceil", "floor", "trunc", "round", "isnan", "isinf", "isfinite"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift", "right_shift"),
    *("cast_int32", "cast_int8", "cast_uint8", "cast_int64", "cast_bool"),
    "threefry_uniform",
}
# What PyTorch 2.13 gives at corners, ends and where things overflow: by the arguments that are
# tensors, for a gradient of 1.
CORNERS: list[tuple[str, tuple[float, ...], tuple[float, ...]]] = [
    ("abs", (0,), (0,)),
    ("sqrt", (0,), (inf,)),
    ("pow", (0, 0), (0, 0)),
    ("pow", (0, 1), (1, 0)),
    ("pow", (0, 2), (0, 0)),
    ("pow", (0, 0.5), (inf, 0)),
    ("maximum", (2, 2), (0.5, 0.5)),
    ("minimum", (2, 2), (0.5, 0.5)),
    ("clip", (1, 1, 2), (1, 0, 0)),
    ("clip", (2, 1, 2), (1, 0, 0)),
    ("clip", (0, 1, 1), (0, 0, 0)),
    ("clip", (0, 2, 1), (0, 0, 1)),
    ("atan2", (0, 0), (0, 0)),
    ("relu", (0,), (0,)),
    ("relu", (inf,), (1,)),
    ("leaky_relu", (0, 0.1), (0.1,)),
    ("relu6", (0,), (0,)),
    ("relu6", (6,), (0,)),
    ("hardtanh", (-1, -1, 1), (0,)),
    ("hardtanh", (1, -1, 1), (0,)),
    ("thresholded_relu", (0.5, 0.5), (0,)),
    ("elu", (0, 1.5), (1.5,)),
    ("elu", (1e30, 1.5), (1,)),
    ("elu", (-1e30, 1.5), (0,)),
    ("celu", (0, 1.5), (1,)),
    ("celu", (1e30, 1.5), (1,)),
    ("selu", (1e30,), (1.0507009873554805,)),
    ("gelu", (1e30,), (1,)),
    ("gelu", (-1e30,), (0,)),
    ("silu", (1e30,), (1,)),
    ("silu", (-1e30,), (0,)),
    ("mish", (1e30,), (1,)),
    ("mish", (-1e30,), (0,)),
    ("softplus", (1e30, 1, 20), (1,)),
    ("softplus", (89, 1, 20), (1,)),
    ("softplus", (-1e30, 1, 20), (0,)),
    ("softsign", (0,), (1,)),
    ("log_sigmoid", (1e30,), (0,)),
    ("log_sigmoid", (-1e30,), (1,)),
    ("log_sigmoid", (0,), (0.5,)),
    ("hardsigmoid", (-inf, 1 / 6, 0.5), (0,)),
    ("hardswish", (-3,), (0,)),
    ("hardswish", (3,), (1,)),
    ("hardswish", (inf,), (1,)),
    ("tanhshrink", (0,), (0,)),
    ("hardshrink", (0.5, 0.5), (0,)),
    ("softshrink", (0.5, 0.5), (0,)),
    ("softshrink", (-0.5, 0.5), (0,)),
    ("tanh", (1e30,), (0,)),
    ("sigmoid", (-1e30,), (0,)),
    ("sigmoid", (1e30,), (0,)),
]


def slopes(name: str, arguments: Sequence[float], index: int, tensors: int) -> list[float]:
    """The derivative in float32, and that of the result where there is one."""
    given = [Arg(i) if i < tensors else float(n) for i, n in enumerate(arguments)]
    expr, count = call(name, *given), len(arguments)
    arrays = [np.asarray(n, np.float32) for n in arguments]
    result, one = np.asarray(expr.evaluate(*arrays), np.float32), np.ones((), np.float32)
    found = [
        differentiate_expression(expr, index),
        differentiate_by_result(expr, index, Arg(count)),
    ]
    return [
        multiply_derivative(slope, Arg(count + 1)).evaluate(*arrays, result, one).item()
        for slope in found
        if slope is not None
    ]


@pytest.mark.parametrize(("name", "arguments", "expected"), CORNERS)
def test_corners_are_pytorchs(name, arguments, expected) -> None:
    for index, wanted in enumerate(expected):
        found = slopes(name, arguments, index, len(expected))
        assert found and all(np.isclose(one, wanted, 1e-5, 1e-7) for one in found), found


@pytest.mark.parametrize(("name", "arguments", "expected"), CORNERS)
def test_pytorch_has_these_corners(name, arguments, expected) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(float(n), requires_grad=True) for n in arguments[: len(expected)]]
    torch_of(torch, name)(*tensors, *arguments[len(expected) :]).backward()
    found = [tensor.grad.item() for tensor in tensors]
    assert np.allclose(found, expected, 1e-5, 1e-7), found


def torch_of(torch: Any, name: str) -> Callable[..., Any]:
    """PyTorch's function of the same arguments."""
    own: dict[str, Callable[..., Any]] = {
        "clip": torch.clamp,
        "thresholded_relu": lambda x, threshold: torch.nn.functional.threshold(x, threshold, 0.0),
        "log_sigmoid": torch.nn.functional.logsigmoid,
        "hardsigmoid": lambda x, slope, offset: torch.nn.functional.hardsigmoid(x),
    }
    return own.get(name) or getattr(torch.nn.functional, name, None) or getattr(torch, name)


BY_RESULT = [name for name, row in FUNCTIONS.items() if row.by_result]


@pytest.mark.parametrize("name", BY_RESULT)
def test_the_derivative_of_a_result(name: str) -> None:
    """It is the derivative, also within an expression."""
    x = np.random.default_rng(1).uniform(0.1, 5, 300)
    if name not in ("sqrt", "rsqrt"):
        x = np.concatenate([x, -x, [7.0, -7.0]])
    numbers = [0.3] * (FUNCTIONS[name].arity - 1)
    for inner in (Arg(0), call("mul", 2.0, Arg(0))):
        expr: Expr = call(name, inner, *numbers)
        result = differentiate_by_result(expr, 0, Arg(1))
        slope = differentiate_expression(expr, 0)
        assert result is not None and slope is not None
        if inner == Arg(0):
            assert {p.index for p in result.parts() if isinstance(p, Arg)} <= {1}
        got = np.broadcast_to(result.evaluate(x, expr.evaluate(x)), x.shape)
        np.testing.assert_allclose(got, np.broadcast_to(slope.evaluate(x), x.shape), 1e-9, 1e-12)


def test_a_derivative_of_a_result_is_of_one_argument() -> None:
    assert differentiate_by_result(call("leaky_relu", Arg(0), -0.5), 0, Arg(1)) is None
    assert differentiate_by_result(call("leaky_relu", Arg(0), Arg(1)), 0, Arg(2)) is None
    assert differentiate_by_result(call("relu", Arg(0)), 1, Arg(2)) is None
    assert differentiate_by_result(call("sin", Arg(0)), 0, Arg(1)) is None


def test_what_is_chosen_is_not_multiplied() -> None:
    slope = differentiate_expression(call("relu", Arg(0)), 0)
    assert slope is not None
    assert (
        str(multiply_derivative(slope, Arg(1)).structure) == "where(less_equal(#0, 0.0), 0.0, #1)"
    )


def test_every_function_has_a_derivative_or_is_flat() -> None:
    rows = FUNCTIONS.values()
    assert {row.name for row in rows if row.gradient is None and row.body is None} == FLAT
