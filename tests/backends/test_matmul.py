from __future__ import annotations

import numpy as np
import pytest

from glnn import ops
from glnn.errors import LimitError, ShapeError, UnsupportedOpError
from glnn.ops import Matmul
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

SIZES = [
    (1, 1, 1),
    (1, 7, 3),
    (3, 1, 129),
    (7, 3, 1),
    (5, 8, 4),
    (2, 31, 33),
    (127, 10, 7),
    (10, 129, 127),
    (64, 64, 64),
    (129, 127, 31),
    (8, 257, 2),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_any_size(opened, rng, name, kernel, m, n, k) -> None:
    x, weight, bias = rng((m, k)), rng((n, k)), rng((n,))
    for operands in ({"x": x, "weight": weight}, {"x": x, "weight": weight, "bias": bias}):
        got = run(opened(name), Matmul(), operands, kernel)
        assert oracle.error(got, oracle.matmul(x, weight, operands.get("bias"))) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_epilogue(opened, rng, name, kernel, function) -> None:
    x, weight, bias = rng((9, 13)), rng((11, 13)), rng((11,))
    operands = {"x": x, "weight": weight, "bias": bias}
    got = run(opened(name), Matmul(activation=function), operands, kernel)
    assert oracle.error(got, oracle.matmul(x, weight, bias, function=function)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
def test_alpha_and_beta(opened, rng, name, kernel) -> None:
    x, weight, c = rng((6, 17)), rng((9, 17)), rng((6, 9))
    got = run(
        opened(name), Matmul(alpha=-1.5, beta=0.25), {"x": x, "weight": weight, "c": c}, kernel
    )
    assert oracle.error(got, oracle.matmul(x, weight, None, c, -1.5, 0.25)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("matmul"))
def test_not_a_number_goes_where_numpy_sends_it(opened, rng, name, kernel) -> None:
    x, weight = rng((5, 6)), rng((7, 6))
    x[2, 3], x[4, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    assert (
        oracle.error(run(opened(name), Matmul(), {"x": x, "weight": weight}, kernel), expected)
        < 1e-5
    )


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_public_function(opened, rng, transpose_a, transpose_b, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    a, b, c = rng((5, 7)), rng((7, 3)), rng((5, 3))
    given_a = np.ascontiguousarray(a.T) if transpose_a else a
    given_b = np.ascontiguousarray(b.T) if transpose_b else b
    got = ops.matmul(given_a, given_b, c, 2.0, -0.5, transpose_a, transpose_b, backend=backend)
    assert oracle.error(got, oracle.matmul(a, b.T, None, c, 2.0, -0.5)) <= TOLERANCE
    assert got.dtype == np.float32


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
def test_empty_operands(opened, backend_name) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    empty = np.zeros((0, 3), np.float32)
    assert ops.matmul(empty, np.ones((3, 2), np.float32), backend=backend).shape == (0, 2)
    c = np.full((2, 4), 3, np.float32)
    narrow = np.zeros((2, 0), np.float32), np.zeros((0, 4), np.float32)
    np.testing.assert_array_equal(ops.matmul(*narrow, backend=backend), np.zeros((2, 4)))
    np.testing.assert_array_equal(ops.matmul(*narrow, c, 1, 0.5, backend=backend), c / 2)


def test_few_results_of_a_long_sum_are_split_along_k(opened) -> None:
    backend = opened("compute")
    small = backend.choose(Matmul(), {"x": (100, 400), "weight": (120, 400)}, {})
    large = backend.choose(Matmul(), {"x": (1000, 400), "weight": (1200, 400)}, {})
    assert small.name == "split_k"
    assert large.name in ("blocked", "tiled_small")  # as the device suits


def test_unknown_kernel_is_named(opened) -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"no kernel 'fastest' for matmul; it has .*blocked"
    ):
        ops.matmul(*np.ones((2, 2, 2), np.float32), backend=opened("compute"), kernel="fastest")


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (
            np.ones((2, 3), np.float32),
            np.ones((4, 2), np.float32),
            r"\(2, 3\) and op\(b\) \(4, 2\)",
        ),
        (np.ones(3, np.float32), np.ones((3, 2), np.float32), "a must be a matrix, got shape"),
        (
            np.ones((2, 3)),
            np.ones((3, 2), np.float32),
            "a must be a float32 NumPy array, got float64",
        ),
        ([[1.0]], np.ones((1, 2), np.float32), "a must be a float32 NumPy array, got list"),
    ],
)
def test_bad_operands(a, b, says) -> None:
    with pytest.raises(ShapeError, match=says):
        ops.matmul(a, b, backend="cpu")


def test_what_exceeds_a_storage_block_is_refused_before_gl_is_asked(opened) -> None:
    backend = opened("compute")
    most = backend.device.capabilities.max_shader_storage_block_size
    shapes = {"x": (most // 4 // 64 + 1, 64), "weight": (1, 64)}
    reason = backend.why_not(Matmul(), shapes)
    assert reason is not None and "a storage block has" in reason
    with pytest.raises(LimitError):
        backend.choose(Matmul(), shapes, {})
