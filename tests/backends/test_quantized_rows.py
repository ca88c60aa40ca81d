"""Rows of packed weights on the GPU against GGML's definitions."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import QuantizedRows
from glnn.graph.quantization import FORMATS
from tests.backends.harness import kernels, run
from tests.quantized import fitting, random_blocks, unpacked


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_rows"))
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 3, 1), (7, 129, 127), (2, 5, 288)])
def test_any_rows(opened, name, kernel, format, rows, n, k) -> None:
    k = fitting(format, k)
    blocks = random_blocks(format, n, k, seed=k)
    weight = FORMATS[format].pack(blocks, n, k)
    index = np.random.default_rng(n).integers(0, n, rows, np.int32)
    operands = {"index": index, "weight": weight}
    got = run(opened(name), QuantizedRows(format, n, k), operands, kernel)
    expected = unpacked(format, blocks, n, k)[index]
    assert np.abs(got - expected).max(initial=0) <= 1e-6 * np.abs(expected).max(initial=0)
