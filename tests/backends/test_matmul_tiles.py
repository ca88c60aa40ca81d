"""Products by the sets of parameters that large GPUs take, in every way that the operands lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glnn.backends import programs
from glnn.errors import LimitError
from glnn.gl import Source
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.kernel import Kernel
from glnn.kernels.source import assemble
from tests import oracle
from tests.backends import harness
from tests.backends.harness import TOLERANCE, run_kernel

LARGE = {"WG_X": 16, "WG_Y": 8, "TM": 8, "TN": 4, "BK": 8, "SLICES": 1, "AHEAD": 2}
SLICED = {"WG_X": 8, "WG_Y": 4, "TM": 4, "TN": 8, "BK": 16, "SLICES": 4, "AHEAD": 2}
SMALL = {"WG_X": 8, "WG_Y": 4, "TM": 4, "TN": 4}
AMID = SMALL | {"TM": 8, "TN": 8, "BK": 8, "SLICES": 2, "AHEAD": 1}  # of four depths one goes first
ROWS = {"WG_X": 8, "WG_Y": 2, "TM": 2, "WG_K": 8, "UNROLL": 2}
SETS = [
    ("gemm_tiled", LARGE),
    ("gemm_tiled", SLICED),
    ("gemm_tiled", AMID),
    ("gemm_tiled", SMALL | {"BK": 8, "SLICES": 4, "AHEAD": 1}),  # of two depths none
    ("gemm_tiled", SMALL | {"BK": 8, "SLICES": 8, "AHEAD": 2}),  # a single depth
    ("gemm_tiled", SMALL | {"BK": 32, "SLICES": 4, "AHEAD": 2}),
    ("gemm_tiled", SMALL | {"WG_Y": 16, "BK": 8, "SLICES": 1, "AHEAD": 0}),
    ("gemm_tall", {"WG_X": 128, "BM": 64, "TM": 4, "LOADS": 2}),
    ("gemm_split_k16", ROWS),
    ("gemm_split_k_column_major", ROWS | {"WG_Y": 1, "TM": 4, "WG_K": 32}),
]
LAYOUTS: list[dict[str, str]] = [{}, {"x": "C"}, {"weight": "C"}, {"x": "C", "weight": "R4"}]
SIZES = [(1, 1, 1), (3, 7, 127), (129, 131, 37), (67, 33, 257), (31, 64, 64), (64, 129, 16)]


def kernel_of(backend, op, name, parameters) -> Kernel:
    """The kernel so called with these parameters, where the device admits it."""
    (declared,) = (k for k in kernels_for(op, "compute") if k.name == name)
    kernel = declared.with_parameters(**parameters)
    if reason := why_not_device(kernel, backend.device.capabilities):
        pytest.skip(reason)
    return kernel


def computed(backend, operands, name, parameters, layouts, epilogue=None) -> np.ndarray:
    kernel = kernel_of(backend, "matmul", name, parameters)
    try:
        return run_kernel(backend, Matmul(), operands, kernel, epilogue, layouts)
    except LimitError as refused:  # what the driver alone knows
        pytest.skip(str(refused))


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize(("name", "parameters"), SETS)
def test_sets_of_parameters(opened, rng, name, parameters, layouts) -> None:
    backend = opened("compute")
    for m, n, k in SIZES:
        operands = {"x": rng((m, k)), "weight": rng((n, k))}
        got = computed(backend, operands, name, parameters, layouts)
        assert oracle.error(got, oracle.matmul(*operands.values())) <= TOLERANCE, (m, n, k)


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize(("name", "parameters"), SETS)
def test_not_a_number_goes_where_numpy_sends_it(opened, rng, name, parameters, layouts) -> None:
    """In whole steps as well as in the ragged one, of either operand."""
    x, weight = rng((37, 67)), rng((41, 67))
    x[2, 3], x[5, 66], x[36, 33] = np.nan, np.inf, -np.inf
    weight[7, 64], weight[40, 1] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    got = computed(opened("compute"), {"x": x, "weight": weight}, name, parameters, layouts)
    assert oracle.error(got, expected) <= TOLERANCE


CHECKS = {  # of each index of a load; NaN is stored where one was outside, which no result shows
    "vec4 x_at(int i) {": "shared int outside; {} if (i < 0 || i >= x.length()) outside = 1;",
    "vec4 weight_at(int i) {": "{} if (i < 0 || i >= weight.length()) outside = 1;",
    "void main() {": "{} if (gl_LocalInvocationIndex == 0u) outside = 0; barrier();",
    "epilogue(sum, index, quad)": "(outside == 0 ? {} : vec4(uintBitsToFloat(0x7fc00000u)))",
}


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize(("name", "parameters"), [one for one in SETS if one[0] == "gemm_tiled"])
def test_nothing_outside_is_loaded(opened, rng, monkeypatch, name, parameters, layouts) -> None:
    """Not even what is multiplied by nothing: it may be where no memory is."""

    def checked(*given) -> Source:
        source = assemble(*given)
        text = source.text
        for found, instead in CHECKS.items():
            assert text.count(found) == 1, found
            text = text.replace(found, instead.replace("{}", found, 1))
        return replace(source, text=text)

    monkeypatch.setattr(programs, "assemble", checked)
    monkeypatch.setattr(harness, "GUARD", 0)
    backend = opened("compute")
    for m, n, k in (*SIZES, (5, 66, 22), (70, 5, 7), (9, 9, 32)):
        operands = {"x": rng((m, k)), "weight": rng((n, k))}
        got = computed(backend, operands, name, parameters, layouts)
        assert np.isfinite(got).all(), f"{m} x {k} by {n}"
