"""Weights of int8, four in a word: every kernel that takes them against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import BACKENDS, TOLERANCE, run
from tests.backends.test_conv2d import _why_refused

SCALED = Epilogue(call("mul", Arg(0), Arg(1)), ("channel",))
"""Each result by the scale of its channel."""
SIZES = [(1, 1, 1), (2, 31, 33), (3, 7, 129), (5, 8, 257), (31, 129, 64), (33, 127, 7), (1, 257, 3)]
CONVOLUTIONS = [
    ((2, 5, 9, 7), (37, 5, 3, 3), {"stride": (2, 2), "padding": (1, 0, 1, 2)}),
    ((1, 7, 5, 3), (33, 7, 1, 1), {}),
    ((2, 5, 7, 11), (5, 1, 5, 5), {"groups": 5, "padding": (2, 2, 2, 2)}),
    ((1, 16, 5, 7), (64, 8, 3, 3), {"groups": 2, "dilation": (2, 1), "padding": (2, 1, 2, 1)}),
    ((1, 6, 4, 4), (9, 2, 2, 2), {"groups": 3}),
]


def of_bytes(op: str) -> list[tuple[str, str]]:
    """(backend, kernel) for every kernel of `op` that takes weights of int8."""
    return [(b, k.name) for b in BACKENDS for k in kernels_for(op, b) if k.int8_operands]


def made(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Weights of all that int8 has but -128, and scales that are far from each other, 0 among."""
    generator = np.random.default_rng(sum(shape))
    weight = generator.integers(-127, 128, shape).astype(np.int8)
    weight.reshape(-1)[:3] = 127
    weight.reshape(-1)[-1:] = -127
    scales = np.exp(generator.uniform(-9, 3, shape[0])).astype(np.float32)
    scales[1::5] = 0
    return weight, scales


@pytest.mark.parametrize(("name", "kernel"), of_bytes("matmul"))
def test_products(opened, rng, name, kernel) -> None:
    for m, n, k in SIZES:
        x, (weight, scales) = rng((m, k)), made((n, k))
        operands = {"x": x, "weight": weight, "e1": scales}
        got = run(opened(name), Matmul(), operands, kernel, SCALED)
        expected = x.astype(np.float64) @ weight.astype(np.float64).T * scales
        assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize(("name", "kernel"), of_bytes("conv2d"))
def test_convolutions(opened, rng, name, kernel) -> None:
    computed = 0
    for x_shape, w_shape, attributes in CONVOLUTIONS:
        op, x, (weight, scales) = Conv2d(**attributes), rng(x_shape), made(w_shape)
        operands = {"x": x, "weight": weight, "e1": scales}
        if _why_refused(opened(name), kernel, w_shape, op):
            with pytest.raises(UnsupportedOpError):
                run(opened(name), op, operands, kernel, SCALED)
            continue
        computed += 1
        got = run(opened(name), op, operands, kernel, SCALED)
        plain = oracle.conv2d(x.astype(np.float64), weight.astype(np.float64), **attributes)
        assert oracle.error(got, plain * scales.reshape(-1, 1, 1)) <= TOLERANCE
    assert computed


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
@pytest.mark.parametrize("name", BACKENDS)
def test_who_takes_none_says_so(opened, name, op) -> None:
    """Winograd's and the documents' kernels, and all of transform feedback."""
    backend = opened(name)
    of = {
        "matmul": (Matmul(), {"x": (3, 5), "weight": TensorType((7, 5), DType.int8)}),
        "conv2d": (
            Conv2d(padding=(1, 1, 1, 1)),
            {"x": (1, 8, 9, 9), "weight": TensorType((8, 8, 3, 3), DType.int8)},
        ),
    }
    spec = OpSpec.create(*of[op], {})
    without = [k.name for k in kernels_for(op, name) if not k.int8_operands and not k.generate]
    assert without
    reasons = [backend.why_not(spec, kernel) for kernel in without]
    assert None not in reasons
    assert any("it takes no int8 as weight" in str(reason) for reason in reasons)
