"""Activations: PyTorch's, whose formulae are written out here, and any row of FUNCTIONS."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from math import erf, exp, log, log1p, pi, sqrt, tanh
from typing import Any

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError, ShapeError
from glnn.graph.expression import Arg, call
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS
from glnn.graph.gradients.pointwise import differentiate_expression
from glnn.layers import (
    BY_NAME,
    CELU,
    ELU,
    GELU,
    SELU,
    Conv2d,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Layer,
    LeakyReLU,
    Linear,
    LogSigmoid,
    Mish,
    Pointwise,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from glnn.model import Model

X = np.array([-90, -21, -3.5, -1, -0.5, -0.25, -1e-3, 0, 1e-3, 0.25, 0.5, 1, 2.5, 6.5, 21, 80])
FORMULAE: list[tuple[Layer, Any]] = [
    (CELU(2.0), lambda x: max(x, 0) + min(2 * (exp(min(x, 0) / 2) - 1), 0)),
    (ELU(1.5), lambda x: x if x > 0 else 1.5 * (exp(x) - 1)),
    (GELU(), lambda x: x * 0.5 * (1 + erf(x / sqrt(2)))),
    (GELU("tanh"), lambda x: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))),
    (Hardshrink(0.25), lambda x: 0 if -0.25 <= x <= 0.25 else x),
    (Hardsigmoid(True), lambda x: min(max(x / 6 + 0.5, 0), 1)),
    (Hardswish(), lambda x: x * min(max(x + 3, 0), 6) / 6),
    (Hardtanh(-3, 2.0), lambda x: min(max(x, -3), 2)),
    (LeakyReLU(), lambda x: x if x > 0 else 0.01 * x),
    (LeakyReLU(0.2, inplace=True), lambda x: x if x > 0 else 0.2 * x),
    (LogSigmoid(), lambda x: -log1p(exp(-x)) if x > -50 else x),
    (Mish(), lambda x: x * tanh(log1p(exp(x)))),
    (ReLU(), lambda x: max(x, 0)),
    (ReLU6(), lambda x: min(max(x, 0), 6)),
    (
        SELU(),
        lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (exp(x) - 1)),
    ),
    (SiLU(), lambda x: x / (1 + exp(-x))),
    (Sigmoid(), lambda x: 1 / (1 + exp(-x))),
    (Softplus(), lambda x: x if x > 20 else log(1 + exp(x))),
    (Softplus(2.0, 10), lambda x: x if 2 * x > 10 else log1p(exp(2 * x)) / 2),
    (Softshrink(), lambda x: x - 0.5 if x > 0.5 else x + 0.5 if x < -0.5 else 0),
    (Softsign(), lambda x: x / (1 + abs(x))),
    (Tanh(), tanh),
    (Tanhshrink(), lambda x: x - tanh(x)),
    (Threshold(0.25, 20), lambda x: x if x > 0.25 else 20),
    (PReLU(), lambda x: x if x > 0 else 0.25 * x),
    (Pointwise("leaky_relu", [0.3]), lambda x: x if x > 0 else 0.3 * x),
    (Pointwise("clip", (-1, 2)), lambda x: min(max(x, -1), 2)),
]


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


def test_they_are_what_pytorch_documents(backend) -> None:
    x = X.astype(np.float32).reshape(2, 8)
    for layer, formula in FORMULAE:
        expected = np.array([formula(float(number)) for number in x.ravel()]).reshape(x.shape)
        got = layer(x, backend=backend.name)
        np.testing.assert_allclose(got, expected, rtol=3e-6, atol=3e-7, err_msg=str(layer))
        wrong = layer(np.array([np.nan], np.float32), backend=backend.name)
        assert np.isnan(wrong).all(), layer


@pytest.mark.parametrize("layer", [layer for layer, _ in FORMULAE], ids=str)
def test_they_come_through_files(layer: Layer) -> None:
    again = BY_NAME[type(layer).__name__](**json.loads(json.dumps(layer.config())))
    assert (again.op, again.config(), str(again)) == (layer.op, layer.config(), str(layer))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert (type(copied), copied.op) == (type(layer), layer.op)
    assert type(layer).__doc__ and str(layer).startswith(type(layer).__name__ + "(")


SIGNATURES = {
    CELU: "(alpha=1.0, inplace=False)",
    ELU: "(alpha=1.0, inplace=False)",
    GELU: "(approximate='none')",
    Hardshrink: "(lambd=0.5)",
    Hardsigmoid: "(inplace=False)",
    Hardswish: "(inplace=False)",
    Hardtanh: "(min_val=-1.0, max_val=1.0, inplace=False)",
    LeakyReLU: "(negative_slope=0.01, inplace=False)",
    LogSigmoid: "()",
    Mish: "(inplace=False)",
    PReLU: "(num_parameters=1, init=0.25, device=None, dtype=None)",
    ReLU: "(inplace=False)",
    ReLU6: "(inplace=False)",
    SELU: "(inplace=False)",
    SiLU: "(inplace=False)",
    Sigmoid: "()",
    Softplus: "(beta=1.0, threshold=20.0)",
    Softshrink: "(lambd=0.5)",
    Softsign: "()",
    Tanh: "()",
    Tanhshrink: "()",
    Threshold: "(threshold, value, inplace=False)",
}


def test_arguments_are_those_of_pytorch() -> None:
    for layer, expected in SIGNATURES.items():
        found = inspect.signature(layer)
        plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
        assert str(inspect.Signature(plain)) == expected, layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LeakyReLU("x"), "LeakyReLU negative_slope must be a number, got 'x'"),
        (lambda: LeakyReLU(1e39), "negative_slope must be a number that float32 holds"),
        (lambda: ELU(True), "ELU alpha must be a number, got True"),
        (lambda: GELU("erf"), "GELU approximate must be none or tanh, got 'erf'"),
        (lambda: PReLU(0), "PReLU num_parameters must be an integer of at least 1, got 0"),
        (lambda: PReLU(2)(np.ones((1, 3), np.float32), backend="cpu"), r"shape \(n, 2, \.\.\.\)"),
        (lambda: PReLU(2)(np.ones(2, np.float32), backend="cpu"), r"must have shape \(n, c,"),
        (lambda: Pointwise("gelo"), "function must be one of FUNCTIONS, got 'gelo'"),
        (lambda: Pointwise("elu", [1, 2]), "arguments must be at most 1 numbers for elu, got"),
        (lambda: Pointwise("elu", ["1"]), "Pointwise arguments must be a number, got '1'"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


def test_arguments_that_are_missing_or_too_many() -> None:
    with pytest.raises(TypeError, match=r"Threshold\(\) missing a required argument: 'value'"):
        Threshold(1.0)
    with pytest.raises(TypeError, match=r"Tanh\(\) too many positional arguments"):
        Tanh(1)


class Halved(ReLU):
    """A layer of somebody's own, of an activation of ours."""


def test_a_subclass_computes_the_same() -> None:
    layer = Halved(inplace=True)
    assert layer(np.array([-1, 2], np.float32), backend="cpu").tolist() == [0, 2]
    assert layer.config() == {"inplace": True}


def test_slopes_of_channels(backend, rng) -> None:
    layer, x = PReLU(3), rng((2, 3, 4, 5))
    layer.weight = np.array([0.5, -1, 2], np.float32)
    expected = np.where(x > 0, x, layer.weight.astype(np.float64).reshape(3, 1, 1) * x)
    np.testing.assert_allclose(layer(x, backend=backend.name), expected, rtol=1e-6)


def test_functions_of_several_inputs_and_other_types(backend) -> None:
    x, y = np.array([[1, 5], [3, 2]], np.int32), np.array([2, 4], np.int32)
    got = Pointwise("maximum")(x, y, backend=backend.name)
    assert got.dtype == np.int32 and got.tolist() == [[2, 5], [3, 4]]
    less = Pointwise("less", [3])(x, backend=backend.name)
    assert less.dtype == np.bool_ and less.tolist() == [[True, False], [False, True]]
    turned = Pointwise("logical_not")(less, backend=backend.name)
    assert turned.tolist() == [[False, True], [True, False]]


def test_a_new_function_is_one_row(monkeypatch, backend, rng) -> None:
    """As a layer, as epilogues of a product and a convolution, and with its gradient."""
    row = Function("bent", 2, lambda x, b: x * x / (b + np.abs(x)), "a * a / (b + magnitude(a))",
                   "sign", gradient="a * (2.0 * b + abs(a)) / square(b + abs(a)) * da")  # fmt: skip
    monkeypatch.setitem(FUNCTIONS, "bent", row)

    def bent(x: Any) -> Any:
        return x * x / (1.5 + np.abs(x))

    layer, x = Pointwise("bent", [1.5]), rng((3, 5))
    np.testing.assert_allclose(layer(x, backend=backend.name), bent(x.astype("f8")), rtol=2e-6)
    linear, conv = Linear(5, 7), Conv2d(1, 2, 3, padding=1)
    for first, shape in ((linear, (5,)), (conv, (1, 4, 5))):
        given = rng((3, *shape))
        model = Model.sequential([first, layer], shape)
        plan = Plan(model.graph, backend, {"input": given.shape})
        assert [s.op.name for s in plan.steps if s.op.name != "reorder"][-1] != "pointwise"
        plain = first(given, backend="cpu").astype(np.float64)
        (got,) = plan.run({"input": given}).values()
        np.testing.assert_allclose(got, bent(plain), rtol=1e-4, atol=1e-5)
    slope = differentiate_expression(call("bent", Arg(0), 1.5), 0)
    assert slope is not None
    step = 1e-6
    exact = x.astype("f8")
    near = (bent(exact + step) - bent(exact - step)) / (2 * step)
    np.testing.assert_allclose(slope.evaluate(exact), near, rtol=1e-6, atol=1e-8)
