"""Fourier transforms by every kernel, against sums of sines and cosines in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import Fourier
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [
    (1, "real", 1, 1),
    (3, "real", 7, 4),
    (5, "real", 16, 9),
    (129, "real", 12, 12),
    (2, "real", 400, 201),
    (7, "complex", 5, 5),
    (3, "complex", 64, 10),
    (3, "inverse", 9, 9),
    (127, "inverse", 8, 8),
    (3, "real inverse", 8, 8),
    (2, "real inverse", 129, 129),
    (1, "real inverse", 1, 1),
    (2, "real inverse", 2, 2),
]


def transformed(x: np.ndarray, kind: str, size: int, bins: int) -> np.ndarray:
    """Each number of the result as a sum."""
    sign = -1 if kind in ("real", "complex") else 1
    wide = x.astype(np.float64)
    numbers = wide if kind == "real" else wide[:, ::2] + 1j * wide[:, 1::2]
    if kind == "real inverse":
        numbers[:, 0] = numbers[:, 0].real
        if size % 2 == 0:
            numbers[:, -1] = numbers[:, -1].real
        mirrored = [numbers[:, min(i, size - i)] for i in range(size)]
        numbers = np.stack([v if i <= size - i else v.conj() for i, v in enumerate(mirrored)], 1)
    turns = np.outer(np.arange(size), np.arange(bins)) % size / size  # whole turns round the angle
    result = numbers @ np.exp(sign * 2j * np.pi * turns) / (1 if sign < 0 else size)
    if kind == "real inverse":
        return result.real
    return np.stack([result.real, result.imag], -1).reshape(len(x), -1)


@pytest.mark.parametrize(("name", "kernel"), kernels("fourier"))
@pytest.mark.parametrize(("rows", "kind", "size", "bins"), CASES)
def test_any_transform(opened, rng, name, kernel, rows, kind, size, bins) -> None:
    op = Fourier(kind, size, bins)
    x = rng((rows, op.terms))
    got = run(opened(name), op, {"x": x, "factors": op.factors()}, kernel)
    assert oracle.error(got, transformed(x, kind, size, bins)) <= TOLERANCE


@pytest.mark.parametrize(("rows", "kind", "size", "bins"), CASES)
def test_the_reference(rng, rows, kind, size, bins) -> None:
    op = Fourier(kind, size, bins)
    x = rng((rows, op.terms)).astype(np.float64)
    expected = transformed(x, kind, size, bins)
    got = op.compute({"x": x, "factors": op.factors()})
    np.testing.assert_allclose(got, expected, 1e-12, 1e-12)
    product = x @ op.factors().T
    assert oracle.error(product, expected) <= 1e-6


def test_wrong_operands() -> None:
    with pytest.raises(ShapeError, match="bins from 1 to 8, got 'real' and 9"):
        Fourier("real", 8, 9)
    op = Fourier("complex", 8, 8)
    with pytest.raises(ShapeError, match=r"x must be \(rows, 16\) and factors \(16, 16\), got"):
        op.shape_of({"x": (3, 8), "factors": (16, 16)})
