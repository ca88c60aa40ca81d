"""Packed weights larger than what a kernel reads, against GGML's definitions in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.backends.gl import GlBackend
from glnn.compiler import Executor
from glnn.compiler.memory_budget import Outline
from glnn.core.types import DType, TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import formula
from glnn.graph.graph import Graph
from glnn.graph.operators import Pointwise, QuantizedMatmul, QuantizedRows
from glnn.graph.quantization import FORMATS, GGML_FORMATS
from tests.backends.harness import BACKENDS
from tests.quantized import fitting, random_blocks, random_integers, unpacked

pytestmark = pytest.mark.usefixtures("poisoned")
Array = NDArray[Any]
LIMIT = {
    "compute": {"max_shader_storage_block_size": 7600},
    "feedback": {
        "max_texture_size": 1900,
        "max_array_texture_layers": 0,
        "max_texture_buffer_size": 0,
    },
}
"""Limits by which kernels read 7,600 bytes at once."""
EPS = 0.1


@pytest.fixture
def lowered(opened, backend, monkeypatch: pytest.MonkeyPatch) -> GlBackend:
    """A backend of a device whose kernels read 7,600 bytes at once."""
    device = backend.device
    limits = replace(device.capabilities, **LIMIT[backend.name])
    monkeypatch.setattr(device, "capabilities", limits)
    return BACKENDS[backend.name](device)  # which has chosen no kernel yet


def weight_of(format: str, n: int, k: int) -> tuple[Array, Array]:
    """A packed weight of n rows, and its numbers in float64."""
    if format not in GGML_FORMATS:
        return random_integers(format, n, k, seed=k)
    blocks = random_blocks(format, n, k, seed=k)
    return FORMATS[format].pack(blocks, n, k), unpacked(format, blocks, n, k).astype(np.float64)


def tied(format: str, n: int, k: int, packed: Array, gate: str) -> Graph:
    """Rows of a table, and their products with it, normalised where these are gated."""
    builder = Builder("tied")
    index = builder.input("index", TensorType(("T",), DType.int32))
    table = constant(packed)
    (rows,) = builder.add(QuantizedRows(format, n, k), index, table, name="rows")
    (scaled,) = builder.add(Pointwise(formula("a * 0.5")), rows, name="scaled")
    norm = [constant(np.linspace(0.5, 2, k, dtype=np.float32))] if gate else []
    product = QuantizedMatmul(format, n // 2 if gate else n, k, EPS if gate else 0.0, gate)
    (scores,) = builder.add(product, scaled, table, *norm, name="scores")
    return builder.graph([rows, scores])


def expected_of(index: Array, wide: Array, gate: str) -> tuple[Array, Array]:
    n = len(wide)
    at = np.clip(np.where(index < 0, index + n, index), 0, n - 1)
    rows = wide[at]
    x = 0.5 * rows
    if gate:
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + EPS) * np.linspace(0.5, 2, x.shape[1])
    scores = x @ wide.T
    if gate:
        first, second = scores[:, : n // 2], scores[:, n // 2 :]
        scores = first / (1 + np.exp(-np.clip(first, -700, 700))) * second
    return rows, scores


@pytest.mark.whole
@pytest.mark.parametrize("gate", ["", "silu"])
@pytest.mark.parametrize("format", ["f32", "f16", "q4_1", "q5_k", "q6_k", "uint4_16", "int8_64"])
def test_a_tied_table_larger_than_an_operand(lowered, format, gate) -> None:
    """The first and the last row of each part are looked up, and some beyond the table."""
    k = fitting(format, 127) if format in GGML_FORMATS else 127
    n = 302 if gate else 301
    packed, wide = weight_of(format, n, k)
    graph = tied(format, n, k, packed, gate)
    steps = Outline.create(graph, lowered, {"index": (3,)}).steps
    products = [step for step in steps if isinstance(step.op, QuantizedMatmul)]
    lookups = [step for step in steps if isinstance(step.op, QuantizedRows)]
    sizes = [step.op.n for step in lookups]
    assert len(sizes) > 2 and sum(sizes) == n
    weights = [4 * step.shapes["weight"][0] for step in (*lookups, *products)]
    assert max(weights) <= lowered.operand_bytes == 7600
    own = [step.nbytes[1] + step.fixed_copies for step in products]
    assert gate or not any(own)  # they read the lookups' parts
    last = np.cumsum(sizes)
    places = np.array([0, *last - 1, *last[:-1], -1, -n, -n - 3, n + 9], np.int32)
    executor = Executor(graph, lowered)
    for count in (1, 3):
        for first in range(0, len(places), count):
            index = places[first : first + count]
            found = executor.run({"index": index}, ["rows", "scores"])
            rows, scores = expected_of(index, wide, gate)
            np.testing.assert_allclose(found["rows"], rows, 1e-6, 1e-6 * np.abs(rows).max())
            assert found["scores"].shape == scores.shape
            assert np.linalg.norm(found["scores"] - scores) <= 1e-5 * np.linalg.norm(scores)


def test_products_of_many_rows(lowered) -> None:
    packed, wide = weight_of("q8_0", 301, 64)
    graph = tied("q8_0", 301, 64, packed, "")
    index = np.random.default_rng(0).integers(0, 301, 6, np.int32)
    for count in (6, 5, 2):
        found = Executor(graph, lowered).run({"index": index[:count]}, ["scores"])["scores"]
        _, scores = expected_of(index[:count], wide, "")
        assert np.linalg.norm(found - scores) <= 1e-5 * np.linalg.norm(scores)


def test_what_fits_is_whole(backend) -> None:
    packed, _ = weight_of("f32", 301, 128)
    steps = Outline.create(tied("f32", 301, 128, packed, ""), backend, {"index": (3,)}).steps
    assert sum(isinstance(step.op, QuantizedRows) for step in steps) == 1
    assert sum(isinstance(step.op, QuantizedMatmul) for step in steps) == 1
