"""Products whose rows are normalised by the workgroup that completes them, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import prepare
from glnn.errors import ShapeError
from glnn.graph.operators import MatmulNormalize
from glnn.graph.operators.matmul_normalize import COUNTS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

ALL = kernels("matmul_normalize")
OPTIONAL = "bias", "residual", "scale", "shift"
SIZES = [
    (1, 1, 1),
    (1, 7, 3),
    (67, 131, 37),
    (33, 384, 20),
    (130, 66, 132),
    (9, 770, 8),
    (5, 1030, 4),
]


def operands(rng, m: int, n: int, k: int, *left_out: str) -> dict[str, np.ndarray]:
    """Random ones, of rows whose means are larger than their deviations."""
    made = {"x": rng((m, k)) + 3, "weight": rng((n, k)), "bias": rng((n,))}
    made |= {"residual": rng((m, n)) + 20 * rng((m, 1)), "scale": 1 + rng((n,)) / 2}
    made |= {"shift": rng((n,)), "arrivals": np.full(COUNTS, 7, np.float32)}
    return {name: array for name, array in made.items() if name not in left_out}


def normalized(given: dict[str, np.ndarray], eps: float) -> np.ndarray:
    """What the operator gives, in float64."""
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    rows = wide["x"] @ wide["weight"].T + wide.get("bias", 0.0) + wide.get("residual", 0.0)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True) + eps)
    return rows * wide.get("scale", 1.0) + wide.get("shift", 0.0)


@pytest.mark.parametrize(("name", "kernel"), ALL)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_rows(opened, rng, name, kernel, m, n, k) -> None:
    given = operands(rng, m, n, k)
    got = run(opened(name), MatmulNormalize(1e-3), given, kernel)
    assert oracle.error(got, normalized(given, 1e-3)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), ALL)
@pytest.mark.parametrize("left_out", [*((one,) for one in OPTIONAL), OPTIONAL])
def test_operands_may_be_left_out(opened, rng, name, kernel, left_out) -> None:
    given = operands(rng, 37, 70, 24, *left_out)
    got = run(opened(name), MatmulNormalize(1e-5), given, kernel)
    assert oracle.error(got, normalized(given, 1e-5)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), ALL)
def test_counts_are_left_as_they_were(opened, rng, name, kernel) -> None:
    """Each further run finds the last tile of each block of rows again."""
    backend, given = opened(name), operands(rng, 300, 200, 16)
    expected = normalized(given, 1e-5)
    work, out = prepare(MatmulNormalize(1e-5), given, backend, kernel)
    for _ in range(5):
        work()
    assert oracle.error(out.pull(), expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), ALL)
def test_what_is_not_finite_stays_in_its_row(opened, rng, name, kernel) -> None:
    given = operands(rng, 9, 44, 20)
    given["x"][2, 5], given["residual"][4, 43], given["residual"][8, 0] = np.nan, np.inf, -np.inf
    got = run(opened(name), MatmulNormalize(1e-5), given, kernel)
    assert not np.isfinite(got[[2, 4, 8]]).any()
    ordinary = [0, 1, 3, 5, 6, 7]
    with np.errstate(invalid="ignore"):
        expected = normalized(given, 1e-5)[ordinary]
    assert oracle.error(got[ordinary], expected) <= TOLERANCE


def test_numpy(rng) -> None:
    given = operands(rng, 17, 21, 12)
    assert oracle.error(MatmulNormalize(1e-3).compute(given), normalized(given, 1e-3)) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("weight", (6, 5), r"x \(3, 4\) and weight \(6, 5\) must agree in k"),
        ("bias", (5,), r"bias must have shape \(6,\), got \(5,\)"),
        ("residual", (3, 5), r"residual must have shape \(3, 6\), got \(3, 5\)"),
        ("arrivals", (8,), r"arrivals must have shape \(4097,\), got \(8,\)"),
        ("x", (16385, 4), r"x must have 16384 rows at most, got \(16385, 4\)"),
        ("x", (3, 4, 1), r"x must have shape \(m, k\), got \(3, 4, 1\)"),
    ],
)
def test_shapes_that_do_not_fit(name, shape, message) -> None:
    shapes = {"x": (3, 4), "weight": (6, 4), "arrivals": (COUNTS,), name: shape}
    with pytest.raises(ShapeError, match=f"matmul_normalize: {message}"):
        MatmulNormalize(1e-5).shape_of(shapes)


@pytest.mark.parametrize("eps", [-1.0, float("inf"), float("nan")])
def test_eps(eps) -> None:
    with pytest.raises(ShapeError, match="eps must be a number of at least 0, got"):
        MatmulNormalize(eps)
