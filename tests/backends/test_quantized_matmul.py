"""Products with packed weights on the GPU against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import QuantizedMatmul
from glnn.graph.operators.quantized_matmul import GATES
from glnn.graph.quantization import FORMATS, GGML_FORMATS, IntegerBlocks
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import why_not_device
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run, run_kernel
from tests.quantized import INTEGERS, fitting, random_blocks, random_integers, unpacked

NORMED = "gemv_normed", "gemv_normed_long", "stages", "feedback_stages"
SKINNY = tuple(k.name for k in kernels_for("quantized_matmul", "compute") if "skinny" in k.name)
GATED = "gated_stages", "feedback_gated_stages"
GATED_NORMED = "gemv_gated_long"
EPS = 0.5
"""Of means of squares: a small one changes no result by more than what may be wrong."""
SHAPES = [(1, 1, 1), (1, 7, 33), (1, 129, 576), (3, 127, 96), (16, 5, 127), (67, 131, 288)]


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
@pytest.mark.parametrize("format", GGML_FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_any_product(opened, rng, name, kernel, format, m, n, k) -> None:
    if kernel in (*NORMED, *GATED, GATED_NORMED):
        pytest.skip("this kernel is for other products")
    k = fitting(format, k)
    blocks = random_blocks(format, n, k, seed=k)
    weight = FORMATS[format].pack(blocks, n, k)
    x = rng((m, k))
    got = run(opened(name), QuantizedMatmul(format, n, k), {"x": x, "weight": weight}, kernel)
    wide = unpacked(format, blocks, n, k).astype(np.float64)
    assert oracle.error(got, x.astype(np.float64) @ wide.T) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (2, 3, 257), (129, 1, 300)])
def test_integers(opened, rng, name, kernel, format, m, n, k) -> None:
    if kernel in (*NORMED, *GATED, GATED_NORMED):
        pytest.skip("this kernel is for other products")
    weight, wide = random_integers(format, n, k, seed=k)
    x = rng((m, k))
    got = run(opened(name), QuantizedMatmul(format, n, k), {"x": x, "weight": weight}, kernel)
    assert oracle.error(got, x.astype(np.float64) @ wide.T) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
def test_zero_points_are_subtracted_exactly(opened, name, kernel) -> None:
    """Sums of integers near their zero points, of x that is positive: nothing cancels."""
    if kernel in (*NORMED, *GATED, GATED_NORMED):
        pytest.skip("this kernel is for other products")
    m, n, k, generator = 5, 37, 257, np.random.default_rng(0)
    form = FORMATS["uint8_256"]
    values = generator.integers(249, 256, (n, k), np.int16)
    scales, zeros = np.full((n, 2), 1 / 3, np.float32), np.full((n, 2), 252, np.int16)
    weight = form.pack(IntegerBlocks(form, values, 0, 256, scales, zeros), n, k)
    x = generator.uniform(10, 11, (m, k)).astype(np.float32)
    operator = QuantizedMatmul("uint8_256", n, k)
    got = run(opened(name), operator, {"x": x, "weight": weight}, kernel)
    wide = float(np.float32(1 / 3)) * (values - 252.0)
    assert oracle.error(got, x.astype(np.float64) @ wide.T) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (2, 33, 1152)])
def test_rows_are_normalised_before(opened, rng, name, kernel, m, n, k) -> None:
    if kernel not in (*NORMED, *SKINNY):
        pytest.skip("this kernel takes rows as they are")
    k = fitting("q4_1", k)
    blocks = random_blocks("q4_1", n, k, seed=k)
    operands = {
        "x": 5 * rng((m, k)),
        "weight": FORMATS["q4_1"].pack(blocks, n, k),
        "norm": rng((k,)),
    }
    got = run(opened(name), QuantizedMatmul("q4_1", n, k, EPS), operands, kernel)
    x = operands["x"].astype(np.float64)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * operands["norm"]
    expected = x @ unpacked("q4_1", blocks, n, k).astype(np.float64).T
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 32), (1, 33, 576), (3, 130, 96), (20, 7, 32)])
def test_gates(opened, rng, name, kernel, gate, normed, m, n, k) -> None:
    able = {*SKINNY, *GATED, *({"gemv_normed", GATED_NORMED} if normed else {"gemv"})}
    if kernel not in able:
        pytest.skip("this kernel is for other products")
    blocks = random_blocks("q4_0", 2 * n, k, seed=k)
    operands = {"x": 3 * rng((m, k)), "weight": FORMATS["q4_0"].pack(blocks, 2 * n, k)}
    x, eps = operands["x"].astype(np.float64), EPS if normed else 0.0
    if normed:
        operands["norm"] = rng((k,))
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * operands["norm"]
    got = run(opened(name), QuantizedMatmul("q4_0", n, k, eps, gate), operands, kernel)
    first, second = np.split(x @ unpacked("q4_0", blocks, 2 * n, k).astype(np.float64).T, 2, 1)
    inner = np.sqrt(2 / np.pi) * (first + 0.044715 * first**3)
    silu, gelu = first / (1 + np.exp(-first)), 0.5 * first * (1 + np.tanh(inner))
    expected = {"silu": silu, "gelu_tanh": gelu}[gate] * second
    assert oracle.error(got, expected) <= TOLERANCE


(TILED,) = (k for k in kernels_for("quantized_matmul", "compute") if k.name == "gemm_tiled")
LARGE = [
    *((name, {"AHEAD": ahead}) for name in SKINNY for ahead in (0, 1)),
    ("gemm_skinny_4x16", {"LANES": 16, "ROW_GROUPS": 16, "ROWS": 4, "AHEAD": 1}),
    ("gemm_skinny_8x32", {"LANES": 8, "ROW_GROUPS": 32, "ROWS": 4}),
    ("gemm_skinny_8x32", {"ROWS": 8}),
    ("gemm_skinny_16x32", {"LANES": 8, "ROW_GROUPS": 4, "AHEAD": 1}),
    ("gemm_skinny_2x16", {"LANES": 4, "ROW_GROUPS": 32, "ROWS": 8}),
    ("gemv", {"STEPS": 4, "ROW_GROUPS": 8, "UNROLLED": 1}),
    ("gemv", {"STEPS": 2, "ROW_GROUPS": 16, "ROWS": 4}),
    ("gemv_normed", {"STEPS": 1, "LANES": 64, "ROW_GROUPS": 2, "ROWS": 4}),
    ("gemv_normed_long", {}),
    ("gemv_gated_long", {}),
    *(("gemm_tiled", {**row.defaults}) for row in TILED.rows_for("NVIDIA")),
]
"""Kernels, and values beside those that NVIDIA's GPUs take."""


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("format", ["q4_0", "q4_k", "q6_k", "q8_0", "f16", "uint8_16_float16"])
@pytest.mark.parametrize(("kernel", "values"), LARGE, ids=str)
def test_parameters_of_large_gpus(opened, rng, kernel, values, format) -> None:
    """Several workgroups each way, all formats' words on their way, norms and gates of some."""
    m, n, k = 19, 133, 1179 if format in INTEGERS else fitting(format, 1179)
    skinny, backend = kernel in SKINNY, opened("compute")
    gate = "silu" if (skinny and format == "q4_k") or kernel == "gemv_gated_long" else ""
    norm = kernel.startswith(("gemv_normed", "gemv_gated")) or (skinny and format == "q8_0")
    rows = 2 * n if gate else n
    declared = next(k for k in kernels_for("quantized_matmul", "compute") if k.name == kernel)
    choice = declared.for_architecture("NVIDIA").with_parameters(**values)
    if reason := why_not_device(choice, backend.device.capabilities):
        pytest.skip(reason)
    if format in INTEGERS:
        weight, wide = random_integers(format, rows, k, seed=k)
    else:
        blocks = random_blocks(format, rows, k, seed=k)
        weight, wide = FORMATS[format].pack(blocks, rows, k), unpacked(format, blocks, rows, k)
    operands = {"x": rng((m, k)), "weight": weight}
    x = operands["x"].astype(np.float64)
    if norm:
        operands["norm"] = rng((k,))
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPS) * operands["norm"]
    expected = x @ wide.astype(np.float64).T
    if gate:
        first, second = np.split(expected, 2, 1)
        expected = first / (1 + np.exp(-np.clip(first, -80, 80))) * second
    op = QuantizedMatmul(format, n, k, EPS if norm else 0.0, gate)
    got = run_kernel(backend, op, operands, choice)
    assert oracle.error(got, expected) <= TOLERANCE
