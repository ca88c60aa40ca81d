"""Rows of packed weights on the GPU against GGML's definitions."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import QuantizedRows
from glnn.graph.quantization import GGML_FORMATS
from tests.backends.harness import kernels, run
from tests.quantized import INTEGERS, fitting, random_blocks, random_integers, unpacked


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_rows"))
@pytest.mark.parametrize("format", GGML_FORMATS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 3, 1), (7, 129, 127), (2, 5, 288)])
def test_any_rows(opened, name, kernel, format, rows, n, k) -> None:
    k = fitting(format, k)
    blocks = random_blocks(format, n, k, seed=k)
    weight = GGML_FORMATS[format].pack(blocks, n, k)
    index = np.random.default_rng(n).integers(0, n, rows, np.int32)
    operands = {"index": index, "weight": weight}
    got = run(opened(name), QuantizedRows(format, n, k), operands, kernel)
    expected = unpacked(format, blocks, n, k)[index]
    assert np.abs(got - expected).max(initial=0) <= 1e-6 * np.abs(expected).max(initial=0)


@pytest.mark.parametrize(("name", "kernel"), kernels("quantized_rows"))
@pytest.mark.parametrize("format", INTEGERS)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 3, 1), (7, 129, 127), (2, 5, 257)])
def test_rows_of_integers(opened, name, kernel, format, rows, n, k) -> None:
    """Negative indices count from the end, those that are out of range are the nearest."""
    weight, wide = random_integers(format, n, k, seed=k)
    index = np.random.default_rng(n).integers(-n, n, rows, np.int32)
    index[-1] = -n - 5 if n == 5 else 2 * n
    got = run(opened(name), QuantizedRows(format, n, k), {"index": index, "weight": weight}, kernel)
    expected = wide[np.clip(np.where(index < 0, index + n, index), 0, n - 1)]
    assert np.abs(got - expected).max(initial=0) <= 1e-6 * np.abs(expected).max(initial=0)
