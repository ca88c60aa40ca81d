from __future__ import annotations

import numpy as np
import pytest

from glnn import ops
from glnn.errors import ShapeError
from glnn.ops import Conv2d
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

# (x, weight, attributes)
CASES = [
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 3, 7, 5), (4, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 1, 28, 28), (6, 1, 5, 5), {"padding": (2, 2, 2, 2)}),
    ((3, 6, 14, 14), (16, 6, 5, 5), {}),
    ((1, 5, 9, 11), (7, 5, 3, 2), {"stride": (2, 1), "padding": (0, 1, 1, 0)}),
    ((2, 4, 13, 7), (3, 4, 1, 1), {"stride": (3, 2)}),
    ((1, 3, 17, 19), (5, 3, 7, 7), {"padding": (3, 3, 3, 3), "stride": (2, 2)}),
    ((1, 2, 23, 12), (2, 2, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 2, 3)}),
    ((1, 1, 31, 31), (2, 1, 11, 11), {"stride": (3, 3)}),
    ((1, 17, 5, 5), (13, 17, 2, 2), {}),
    ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    ((2, 5, 6, 7), (5, 1, 3, 3), {"groups": 5, "padding": (1, 1, 1, 1)}),
    ((1, 4, 5, 5), (8, 1, 3, 1), {"groups": 4}),
    ((1, 3, 2, 2), (2, 3, 3, 3), {"padding": (2, 2, 2, 2), "stride": (2, 3)}),
    # windows far apart, or wide: a row's segment would not fit into registers
    ((1, 2, 3, 150), (5, 2, 2, 3), {"stride": (1, 40)}),
    ((1, 2, 3, 150), (5, 2, 2, 3), {"dilation": (1, 50), "padding": (0, 9, 0, 9)}),
    ((1, 1, 1, 198005), (1, 1, 1, 3), {"stride": (1, 66000)}),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CASES)
def test_any_shape(opened, rng, name, kernel, x_shape, w_shape, attributes) -> None:
    backend, op = opened(name), Conv2d(**attributes)
    x, weight, bias = rng(x_shape), rng(w_shape), rng((w_shape[0],))
    shapes = {"x": x_shape, "weight": w_shape}
    reason = backend.why_not(op, shapes, kernel)
    if op.groups > 1 and kernel in ("direct", "feedback"):
        assert reason is not None and f"GROUPS is {op.groups}, it needs 1" in reason
        return
    assert reason is None
    for operands in ({"x": x, "weight": weight}, {"x": x, "weight": weight, "bias": bias}):
        got = run(backend, op, operands, kernel)
        expected = oracle.conv2d(x, weight, operands.get("bias"), **attributes)
        assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue(opened, rng, name, kernel, function) -> None:
    x, weight, bias = rng((2, 3, 6, 5)), rng((5, 3, 3, 3)), rng((5,))
    operands = {"x": x, "weight": weight, "bias": bias}
    got = run(opened(name), Conv2d(activation=function), operands, kernel)
    assert oracle.error(got, oracle.conv2d(x, weight, bias, function=function)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("conv2d"))
def test_not_a_number_spoils_only_what_it_touches(opened, rng, name, kernel) -> None:
    x, weight = rng((2, 3, 6, 6)), rng((5, 3, 3, 3))
    x[0, 1, 2, 2], x[1, 2, 5, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = oracle.conv2d(x, weight)
    assert (
        oracle.error(run(opened(name), Conv2d(), {"x": x, "weight": weight}, kernel), expected)
        < 1e-5
    )


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_public_function(opened, rng, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    x, weight, bias = rng((2, 4, 7, 6)), rng((6, 2, 3, 2)), rng((6,))
    got = ops.conv2d(x, weight, bias, 1, "same", (1, 2), 2, backend=backend)
    expected = oracle.conv2d(x, weight, bias, (1, 1), (1, 1, 1, 1), (1, 2), 2)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"padding": "full"}, "padding must be .* got 'full'"),
        ({"stride": 0}, r"stride must be 2 integers of at least 1, got \(0, 0\)"),
        ({"stride": 2, "padding": "same"}, "padding 'same' needs stride 1"),
        ({"groups": 3}, "do not fit 3 groups"),
        ({"dilation": 9}, "larger than the padded x"),
    ],
)
def test_bad_arguments(arguments, says) -> None:
    x, weight = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)
    with pytest.raises(ShapeError, match=says):
        ops.conv2d(x, weight, backend="cpu", **arguments)
