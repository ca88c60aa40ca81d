"""Products: integers that wrap, Gemm's forms of old, every sort of equation of Einsum."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import glnn
from glnn.errors import GlnnError
from tests.onnx.single import BACKENDS, feeds, model, run

INT32, FLOAT = onnx.TensorProto.INT32, onnx.TensorProto.FLOAT


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 7), (7, 5)),
        ((2, 1, 3, 129), (5, 129, 1)),
        ((7,), (7,)),
        ((4, 7), (7,)),
        ((0, 3), (3, 2)),
    ],
)
def test_integers_wrap(backend: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**31), 2**31, s).astype(np.int32) for s in (first, second))
    proto = model("MatMul", [a, b], kinds=[INT32])
    (found,) = run(proto, feeds([a, b]), backend)
    np.testing.assert_array_equal(found, np.matmul(a, b))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gemm_of_old_and_of_integers(backend: str) -> None:
    rng = np.random.default_rng(1)
    a, b, c = floats(rng, 7, 3), floats(rng, 5, 7), floats(rng, 5)
    expected = 0.5 * (b @ a).T + 2 * c
    for opset in (1, 6, 7, 11, 13):
        old = {"broadcast": 1} if opset < 7 else {}
        how = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
        proto = model("Gemm", [a, b, c], opset=opset, **how, **old)
        (found,) = run(proto, feeds([a, b, c]), backend)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    whole = [(x * 1e5).astype(np.int32) for x in (a.T, b.T, c)]
    proto = model("Gemm", whole, beta=3.0, kinds=[INT32])
    (found,) = run(proto, feeds(whole), backend)
    np.testing.assert_array_equal(found, whole[0] @ whole[1] + 3 * whole[2])


EQUATIONS = [
    ("ij,jk->ik", (3, 7), (7, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 5, 4), (2, 3, 7, 4)),
    ("bqhd,bkhd->bhqk", (2, 5, 3, 4), (2, 7, 3, 4)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("i...,...i", (3, 5), (2, 5, 3)),
    ("ij,jk,kl->il", (3, 4), (4, 1), (1, 5)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("i,j->ij", (3,), (7,)),
    ("ij,i->ij", (3, 5), (3,)),
    ("ij,kl->j", (3, 5), (2, 7)),
    ("iij->ji", (4, 4, 3)),
    ("iiij,jk->ik", (3, 3, 3, 2), (2, 5)),
    ("ij->", (3, 5)),
    ("ba", (3, 5)),
    ("b i j , b j -> b i", (2, 3, 5), (2, 5)),
    ("i,i,i->i", (5,), (5,), (5,)),
    ("ab,bc,ca->", (3, 4), (4, 5), (5, 3)),
    ("...a->...", (2, 3, 4)),
    ("ij,ij->", (3, 5), (3, 5)),
    (",i->i", (), (5,)),
    ("ij,jk->ik", (3, 0), (0, 5)),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", EQUATIONS, ids=lambda case: case[0])
def test_equations(backend: str, case: tuple) -> None:
    equation, *shapes = case
    rng = np.random.default_rng(2)
    arrays = [floats(rng, *shape) for shape in shapes]
    (found,) = run(model("Einsum", arrays, equation=equation), feeds(arrays), backend)
    expected = np.einsum(equation, *(a.astype(np.float64) for a in arrays))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    whole = [rng.integers(-9, 9, shape).astype(np.int32) for shape in shapes]
    proto = model("Einsum", whole, equation=equation, kinds=[INT32])
    np.testing.assert_array_equal(run(proto, feeds(whole), backend)[0], np.einsum(equation, *whole))


@pytest.mark.parametrize("equation", ["ij,jk->iz", "ij,j", "i->i", "ij->ii", "ij..."])
def test_equations_that_do_not_fit(equation: str) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(GlnnError):
        proto = model("Einsum", [x], equation=equation)
        glnn.InferenceSession(proto.SerializeToString(), "cpu").run(None, {"x0": x[:, :, None]})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_determinants(backend: str, n: int) -> None:
    x = floats(np.random.default_rng(n), 2, 5, n, n)
    (found,) = run(model("Det", [x]), feeds([x]), backend)
    np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=1e-4, atol=1e-5)
