"""Epilogues of many operations behind tiles, which take the sums from shared memory for them."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d
from glnn.kernels import kernels_for
from glnn.kernels.admit import why_not_device
from glnn.kernels.generate.epilogue import SHORT
from glnn.kernels.kernel import Kernel
from tests import oracle
from tests.backends.harness import TOLERANCE, run_kernel
from tests.backends.test_matmul_tiles import LAYOUTS, SETS, SIZES, SLICED, computed

# gelu(x + e1) + e2: every number depends on its channel and on its place.
GELU = Epilogue(call("add", call("gelu", call("add", Arg(0), Arg(1))), Arg(2)), ("channel", "full"))
TILES = [one for one in SETS if "tiled" in one[0]]


def gelu(plain: np.ndarray, bias: np.ndarray, residual: np.ndarray) -> np.ndarray:
    value = plain + bias.astype(np.float64).reshape(-1, *(1,) * (plain.ndim - 2))
    found = [0.5 * v * (1 + erf(v * 0.5**0.5)) for v in value.flat]
    return np.reshape(found, plain.shape) + residual


def test_it_is_long() -> None:
    assert GELU.expr.flops > SHORT


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize(("name", "parameters"), TILES)
def test_products(opened, rng, name, parameters, layouts) -> None:
    backend = opened("compute")
    for m, n, k in SIZES:
        operands = {"x": rng((m, k)), "weight": rng((n, k))}
        beside = {"e1": rng((n,)), "e2": rng((m, n))}
        got = computed(backend, operands | beside, name, parameters, layouts, GELU)
        expected = gelu(oracle.matmul(*operands.values()), *beside.values())
        assert oracle.error(got, expected) <= TOLERANCE, (m, n, k)


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("name", "parameters"), [TILES[0], TILES[2]])
def test_stacks(opened, rng, name, parameters) -> None:
    x, weight = rng((3 * 37, 29)), rng((3, 19, 29))
    beside = {"e1": rng((19,)), "e2": rng((3 * 37, 19))}
    plain = np.concatenate([oracle.matmul(a, b) for a, b in zip(x.reshape(3, 37, 29), weight)])
    operands = {"x": x, "weight": weight, **beside}
    got = computed(opened("compute"), operands, name, parameters, {}, GELU)
    assert oracle.error(got, gelu(plain, *beside.values())) <= TOLERANCE


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(
    "parameters", [SLICED | {"AHEAD": 0}, {"WG_X": 8, "TM": 8, "TN": 8}], ids=str
)
@pytest.mark.parametrize("groups", [1, 3])
def test_convolutions(opened, rng, parameters, groups) -> None:
    backend = opened("compute")
    x, weight = rng((2, 3 * 8, 7, 5)), rng((3 * 12, 3 * 8 // groups, 3, 3))
    operands = {"x": x, "weight": weight, "e1": rng((36,)), "e2": rng((2, 36, 5, 3))}
    (declared,) = (k for k in kernels_for("conv2d", "compute") if k.name == "implicit_tiled")
    kernel: Kernel = declared.with_parameters(**parameters)
    if reason := why_not_device(kernel, backend.device.capabilities):
        pytest.skip(reason)
    got = run_kernel(backend, Conv2d(groups=groups), operands, kernel, GELU)
    plain = oracle.conv2d(x, weight, groups=groups)
    assert oracle.error(got, gelu(plain, operands["e1"], operands["e2"])) <= TOLERANCE
