"""Products of rows that are normalised as they are read, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED
from glnn.graph.operators import NormedMatmul
from glnn.kernels import kernels_for
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

GATES = {
    "silu": lambda a: a / (1 + np.exp(-a)),
    "gelu_tanh": lambda a: a / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (a + 0.044715 * a**3))),
}
SIZES = [(1, 1, 1), (1, 7, 3), (3, 129, 127), (4, 67, 96), (7, 5, 130)]
CENTRED = [pair for pair in kernels("normed_matmul") if pair[1] not in ("gemv", "gemv_gated")]
SQUARED = [pair for pair in kernels("normed_matmul") if pair not in CENTRED]


@pytest.mark.parametrize(("name", "kernel"), SQUARED)
@pytest.mark.parametrize("gate", ["", *GATES])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products(opened, rng, name, kernel, gate, m, n, k) -> None:
    if bool(gate) != ("gated" in kernel):
        pytest.skip("a kernel for the other kind of product")
    operands = {"x": 3 * rng((m, k)), "weight": rng((n, k)), "norm": 1 + rng((k,)) / 2}
    if gate:
        operands["up"] = rng((n, k))
    got = run(opened(name), NormedMatmul(1e-3, gate), operands, kernel)
    wide = {key: array.astype(np.float64) for key, array in operands.items()}
    x = wide["x"]
    y = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-3) * wide["norm"]
    expected = y @ wide["weight"].T
    if gate:
        expected = GATES[gate](expected) * (y @ wide["up"].T)
    assert oracle.error(got, expected) <= TOLERANCE


def centred(x: np.ndarray, eps: float) -> np.ndarray:
    """Rows less their mean over their deviation, in float64."""
    wide = x.astype(np.float64)
    wide -= wide.mean(axis=1, keepdims=True)
    return wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + eps)


@pytest.mark.parametrize(("name", "kernel"), CENTRED)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (67, 5, 16), (33, 70, 259)])
def test_centred_rows(opened, rng, name, kernel, biased, m, n, k) -> None:
    x = 3 * rng((m, k)) + 40 * rng((m, 1))  # means that are larger than the deviations
    operands = {"x": x, "weight": rng((n, k))} | ({"e1": rng((n,))} if biased else {})
    got = run(
        opened(name), NormedMatmul(1e-3, centred=True), operands, kernel, BIASED if biased else None
    )
    expected = centred(x, 1e-3) @ operands["weight"].T.astype(np.float64)
    assert oracle.error(got, expected + operands.get("e1", 0)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), CENTRED)
def test_centred_rows_of_odd_numbers(opened, rng, name, kernel) -> None:
    """Equal numbers are zeros, however large; what is not finite is NaN in its row alone."""
    x, weight = rng((9, 37)), np.abs(rng((6, 37))) + 1
    x[1], x[2], x[3] = 3.25, 1e30, 0.0
    x[5, 30], x[7, 36], x[8, 0] = np.nan, np.inf, -np.inf
    got = run(opened(name), NormedMatmul(0.0, centred=True), {"x": x, "weight": weight}, kernel)
    assert not np.isfinite(got[[5, 7, 8]]).any()
    ordinary = [0, 4, 6]
    expected = centred(x[ordinary], 0.0) @ weight.T.astype(np.float64)
    assert oracle.error(got[ordinary], expected) <= TOLERANCE
    got = run(opened(name), NormedMatmul(1e-5, centred=True), {"x": x, "weight": weight}, kernel)
    assert (got[[1, 2, 3]] == 0).all()


def test_rows_to_centre_are_not_halves() -> None:
    """What the layers of a transformer add up would be rounded in each."""
    found = {k.name: k.fp16_operands for k in kernels_for("normed_matmul", "compute")}
    assert all("x" not in found[kernel] and "weight" in found[kernel] for _, kernel in CENTRED)


def test_operands_that_do_not_fit() -> None:
    x, weight, norm = (2, 8), (3, 8), (8,)
    assert NormedMatmul(0.0).shape_of({"x": x, "weight": weight, "norm": norm}) == (2, 3)
    for gate, more, text in [
        ("", {"norm": (7,)}, r"norm \(7,\) must agree in k"),
        ("", {"weight": (3, 7)}, r"weight \(3, 7\) .* must agree in k"),
        ("", {"up": weight}, r"up must be left out without a gate, got \(3, 8\)"),
        ("silu", {}, r"up must be \(3, 8\), as weight, got None"),
        ("silu", {"up": (4, 8)}, r"up must be \(3, 8\), as weight, got \(4, 8\)"),
    ]:
        with pytest.raises(ShapeError, match=text):
            NormedMatmul(0.0, gate).shape_of({"x": x, "weight": weight, "norm": norm, **more})
    with pytest.raises(ShapeError, match=r"norm must be \(8,\), got None"):
        NormedMatmul(0.0).shape_of({"x": x, "weight": weight})
    with pytest.raises(ShapeError, match=r"norm must be left out of centred rows, got \(8,\)"):
        NormedMatmul(0.0, centred=True).shape_of({"x": x, "weight": weight, "norm": norm})
    with pytest.raises(ShapeError, match=r"gate must be one of .* or empty, got 'relu'"):
        NormedMatmul(0.0, "relu")
    with pytest.raises(ShapeError, match="eps must be a number of at least 0, got -1"):
        NormedMatmul(-1)
