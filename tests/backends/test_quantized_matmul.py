"""Products with packed weights on the GPU, and rows of them, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import QuantizedMatmul, QuantizedRows
from glnn.graph.quantization import FORMATS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.quantized import random_blocks, unpacked

SHAPES = [(1, 1, 1), (1, 7, 33), (1, 129, 576), (3, 127, 96), (16, 5, 127), (67, 131, 288)]


def _fitting(name: str, k: int) -> int:
    """The next number of terms of which rows have whole blocks."""
    block = FORMATS[name].block
    return -(-k // block) * block


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_matmul"))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_any_product(opened, rng, name, kernel, format, m, n, k) -> None:
    k = _fitting(format, k)
    blocks = random_blocks(format, n, k, seed=k)
    weight = FORMATS[format].pack(blocks, n, k)
    x = rng((m, k))
    got = run(opened(name), QuantizedMatmul(format, n, k), {"x": x, "weight": weight}, kernel)
    wide = unpacked(format, blocks, n, k).astype(np.float64)
    assert oracle.error(got, x.astype(np.float64) @ wide.T) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_rows"))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 3, 1), (7, 129, 127), (2, 5, 288)])
def test_any_rows(opened, name, kernel, format, rows, n, k) -> None:
    k = _fitting(format, k)
    blocks = random_blocks(format, n, k, seed=k)
    weight = FORMATS[format].pack(blocks, n, k)
    index = np.random.default_rng(n).integers(0, n, rows, np.int32)
    operands = {"index": index, "weight": weight}
    got = run(opened(name), QuantizedRows(format, n, k), operands, kernel)
    expected = unpacked(format, blocks, n, k)[index]
    assert np.abs(got - expected).max(initial=0) <= 1e-6 * np.abs(expected).max(initial=0)
