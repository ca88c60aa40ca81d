"""Epilogues of many operations behind tiles, which take the sums from shared memory for them."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels.codegen.expression import is_long, reads_as
from tests import oracle
from tests.backends.epilogues import SUMMED
from tests.backends.harness import TOLERANCE, run_kernel
from tests.backends.test_matmul_tiles import (
    LAYOUTS,
    SETS,
    SIZES,
    SLICED,
    computed,
    kernel_of,
)
from tests.backends.test_prologue import SCALED

# gelu(x + e1) + e2: every number depends on its channel and on its place.
GELU = BIASED.then(Epilogue(call("gelu", Arg(0)))).then(SUMMED)
TILES = [one for one in SETS if "gemm_tiled" in one[0]]


def gelu(plain: np.ndarray, bias: np.ndarray, residual: np.ndarray) -> np.ndarray:
    value = plain + bias.astype(np.float64).reshape(-1, *(1,) * (plain.ndim - 2))
    found = [0.5 * v * (1 + erf(v * 0.5**0.5)) for v in value.flat]
    return np.reshape(found, plain.shape) + residual


def test_a_program_is_another_by_what_is_long(monkeypatch) -> None:
    assert is_long(GELU)
    before = reads_as(GELU), reads_as(SUMMED)
    monkeypatch.setattr("glnn.kernels.codegen.expression.SHORT", GELU.expr.flops)
    assert not is_long(GELU)
    assert reads_as(GELU) != before[0] and reads_as(SUMMED) == before[1]


def test_numbers_that_are_given_are_tested_for_nan() -> None:
    """ReLU6 as exporters write it has bounds that a compiler does not know: it tests each."""
    for name in ("relu", "relu6", "hardswish"):
        assert not is_long(BIASED.then(Epilogue(call(name, Arg(0)))))
    clip = call("minimum", call("maximum", Arg(0), 0.0), 6.0)
    assert is_long(BIASED.then(Epilogue(clip))) and clip.flops == 2
    assert is_long(BIASED.then(Epilogue(call("clip", Arg(0), 0.0, 6.0))))


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
def test_behind_a_prologue_to_halves(opened, rng, name, parameters) -> None:
    x, weight, p1 = rng((6 * 5, 22)), rng((37, 22)), rng((2, 22))
    beside = {"e1": rng((37,)), "e2": rng((30, 37))}
    plain = oracle.matmul(x.astype(np.float64) * np.repeat(p1, 15, axis=0), weight)
    expected = gelu(plain, *beside.values())
    operands = {"x": x, "weight": weight, "p1": p1, **beside}
    backend = opened("compute")
    kernel = kernel_of(backend, "matmul", name, parameters)
    for rounded in (False, True):
        got = run_kernel(backend, Matmul(SCALED), operands, kernel, GELU, rounded=rounded)
        assert got.dtype == (np.float16 if rounded else np.float32)
        assert oracle.error(got, expected) <= (1e-3 if rounded else TOLERANCE)


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
    kernel = kernel_of(backend, "conv2d", "implicit_gemm_tiled", parameters)
    got = run_kernel(backend, Conv2d(groups=groups), operands, kernel, GELU)
    plain = oracle.conv2d(x, weight, groups=groups)
    assert oracle.error(got, gelu(plain, operands["e1"], operands["e2"])) <= TOLERANCE
