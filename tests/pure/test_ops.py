"""Shape rules, costs and NumPy references, against loops in float64."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.ops import Activation, Bias, Conv2d, Flatten, Matmul, Pool2d, Softmax
from glnn.ops import conv2d as conv2d_function
from glnn.ops.op import Op
from tests import oracle

DTYPES = {np.float32: 1e-6, np.float64: 1e-14}


def both(op: Op, expected: np.ndarray, **operands: np.ndarray) -> None:
    """The reference in float32 and float64, whose dtype it keeps."""
    for dtype, tolerance in DTYPES.items():
        got = op.reference({k: v.astype(dtype) for k, v in operands.items()})
        assert got.dtype == dtype
        assert got.shape == op.infer({k: v.shape for k, v in operands.items()})
        assert oracle.error(got, expected) <= tolerance


@pytest.mark.parametrize("function", ["identity", "sigmoid", "relu", "tanh"])
def test_matmul(rng, function) -> None:
    x, weight, bias, c = rng((7, 5)), rng((3, 5)), rng((3,)), rng((7, 3))
    expected = oracle.matmul(x, weight, bias, function=function)
    both(Matmul(activation=function), expected, x=x, weight=weight, bias=bias)
    expected = oracle.matmul(x, weight, None, c, 0.5, -2, function)
    both(Matmul(0.5, -2, function), expected, x=x, weight=weight, c=c)


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((2, 3, 7, 5), (4, 3, 3, 3), {"padding": (1, 0, 2, 1)}),
        ((1, 4, 9, 8), (6, 2, 2, 3), {"groups": 2, "stride": (2, 3), "dilation": (3, 1)}),
        ((3, 5, 4, 4), (5, 1, 3, 3), {"groups": 5, "padding": (3, 3, 3, 3)}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ],
)
def test_conv2d(rng, monkeypatch, shape, weight, attributes) -> None:
    x, w, b = rng(shape), rng(weight), rng((weight[0],))
    expected = oracle.conv2d(x, w, b, **attributes)
    both(Conv2d(**attributes), expected, x=x, weight=w, bias=b)
    monkeypatch.setattr(sys.modules["glnn.ops.conv2d"], "COLUMN_BYTES", 1)  # one image at a time
    both(Conv2d(**attributes), expected, x=x, weight=w, bias=b)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0)),
        ((3, 2), (2, 1), (1, 1, 1, 0)),
        ((4, 3), (3, 2), (2, 1, 1, 1)),
    ],
)
def test_pool2d(rng, mode, ceil_mode, count_include_pad, kernel, stride, padding) -> None:
    x = rng((2, 3, 8, 7))
    how = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    expected = oracle.pool2d(x, mode, kernel, stride, padding, **how)
    both(Pool2d(mode, kernel, stride, padding, **how), expected, x=x)


def test_the_rest(rng) -> None:
    x, bias = rng((2, 3, 4, 5)), rng((3,))
    both(Bias(), oracle.bias(x, bias), x=x, bias=bias)
    for axis in (1, 2, 3, -1):
        both(Softmax(axis), oracle.softmax(x, axis), x=x)
    for function in ("sigmoid", "relu", "tanh"):
        both(Activation(function), oracle.activation(x, function), x=x)
    both(Flatten(), x.reshape(2, 60), x=x)


def test_costs_count_a_multiply_add_as_two() -> None:
    linear = Matmul().cost({"x": (100, 400), "weight": (120, 400), "bias": (120,)})
    assert linear.flops == 100 * 120 * (2 * 400 + 1)
    assert linear.bytes == 4 * (100 * 400 + 120 * 400 + 120 + 100 * 120)
    conv = Conv2d(padding=(2, 2, 2, 2)).cost({"x": (1, 1, 28, 28), "weight": (6, 1, 5, 5)})
    assert conv.flops == 6 * 28 * 28 * 2 * 25


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (Matmul(), {"x": (2, 3), "weight": (4, 5)}, "must agree in their last dimension"),
        (Matmul(), {"x": (2,), "weight": (4, 2)}, "x must have shape"),
        (Matmul(), {"x": (2, 3), "weight": (4, 3), "bias": (3,)}, "bias must have shape"),
        (Conv2d(), {"x": (1, 3, 5, 5), "weight": (2, 4, 3, 3)}, "do not fit 1 groups"),
        (Conv2d(), {"x": (1, 3, 2, 2), "weight": (2, 3, 3, 3)}, "larger than the padded x"),
        (Pool2d(kernel=(9, 9)), {"x": (1, 1, 4, 4)}, "larger than x"),
        (Bias(), {"x": (1, 3), "bias": (4,)}, "bias must have shape"),
        (Softmax(2), {"x": (1, 3)}, "no axis 2"),
        (Flatten(), {"x": (3,)}, "x must have shape"),
    ],
)
def test_shapes_that_do_not_fit(op, shapes, says) -> None:
    with pytest.raises(ShapeError, match=says):
        op.infer(shapes)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Matmul(activation="gelu"), "activation must be one of"),
        (lambda: Conv2d(stride=(0, 1)), "stride must be 2 integers of at least 1"),
        (lambda: Conv2d(padding=(1, 1)), "padding must be 4 integers"),  # type: ignore[arg-type]
        (lambda: Pool2d("median"), "mode must be max or average"),
        (lambda: Pool2d(padding=(2, 0, 0, 0)), "at most half the kernel"),
        (lambda: Pool2d("average", dilation=(2, 1)), "an average takes no dilation"),
        (lambda: Softmax(0), "not 0"),
    ],
)
def test_attributes_that_make_no_sense(make, says) -> None:
    with pytest.raises(ShapeError, match=says):
        make()


def test_operands_are_named() -> None:
    with pytest.raises(ShapeError, match="expected operands"):
        Matmul().check_operands({"x": (1, 1)})
    with pytest.raises(ShapeError, match="expected operands"):
        Flatten().check_operands({"x": (1, 1), "weight": (1, 1)})


def test_conv2d_function_refuses_other_dtypes() -> None:
    with pytest.raises(ShapeError, match="x must be a float32 NumPy array, got float64"):
        conv2d_function(np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 1, 1), np.float32))
