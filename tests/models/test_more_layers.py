"""Layers of a few operators against formulae in float64, on every backend, and dropped channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn import InferenceSession, Model
from glnn.backends import open_backend
from glnn.errors import DeviceError, ShapeError
from glnn.layers import (
    GLU,
    AlphaDropout,
    Bilinear,
    CosineSimilarity,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    EmbeddingBag,
    FeatureAlphaDropout,
    InstanceNorm2d,
    Layer,
    MultiheadAttention,
    RReLU,
    Softmax2d,
    Softmin,
)
from glnn.model import Node, TensorInfo


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> str:
    try:
        return open_backend(request.param).name
    except DeviceError as failure:
        pytest.skip(str(failure))


def check(layer: Layer, backend: str, expected: np.ndarray, *inputs: np.ndarray) -> None:
    got = layer(*inputs, backend=backend)
    assert got.shape == expected.shape and got.dtype == np.float32, layer
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=str(layer))


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize(("dim", "shape"), [(1, (2, 6, 5, 3)), (-1, (7, 2)), (0, (4,))])
def test_glu(backend: str, rng: Any, dim: int, shape: tuple[int, ...]) -> None:
    x = 3 * rng(shape)
    value, gate = np.split(x.astype(np.float64), 2, dim)
    check(GLU(dim), backend, value / (1 + np.exp(-gate)), x)


def test_softmin_and_softmax2d(backend: str, rng: Any) -> None:
    x = 5 * rng((2, 3, 4, 5))
    for layer, axis, sign in ((Softmin(-1), -1, -1), (Softmin(), 1, -1), (Softmax2d(), 1, 1)):
        powers = np.exp(sign * x.astype(np.float64))
        check(layer, backend, powers / powers.sum(axis, keepdims=True), x)
    powers = np.exp(x[0].astype(np.float64))
    check(Softmax2d(), backend, powers / powers.sum(0), x[0])


def test_rrelu(backend: str, rng: Any) -> None:
    x = rng((3, 7))
    check(RReLU(), backend, np.where(x > 0, x, x * (11 / 48)), x)
    check(RReLU(0.1, 0.5), backend, np.where(x > 0, x, x * 0.3), x)


@pytest.mark.parametrize(("before", "biased"), [((4,), True), ((), False), ((2, 3), True)])
def test_bilinear(backend: str, rng: Any, before: tuple[int, ...], biased: bool) -> None:
    layer = Bilinear(5, 3, 4, biased)
    x, y = rng((*before, 5)), rng((*before, 3))
    weight = layer.weight.astype(np.float64)
    expected = np.einsum("...i,kij,...j->...k", *wide(x), weight, *wide(y))
    check(layer, backend, expected + (layer.bias if biased else 0), x, y)


@pytest.mark.parametrize(("dim", "eps"), [(1, 1e-8), (-1, 1e-8), (0, 2.5)])
def test_cosine_similarity(backend: str, rng: Any, dim: int, eps: float) -> None:
    x, y = rng((3, 5, 4)), rng((3, 5, 4))
    x[0] = 0  # whose norm is eps
    a, b = wide(x, y)
    norms = (np.maximum(np.sqrt((one**2).sum(dim)), eps) for one in (a, b))
    check(CosineSimilarity(dim, eps), backend, (a * b).sum(dim) / np.prod(list(norms), 0), x, y)


@pytest.mark.parametrize("affine", [True, False])
def test_instances_by_running_statistics(backend: str, rng: Any, affine: bool) -> None:
    layer, x = InstanceNorm2d(3, 0.01, affine=affine, track_running_stats=True), rng((2, 3, 4, 5))
    mean, var, weight, bias = rng((3,)), rng((3,)) ** 2, rng((3,)), rng((3,))
    layer.running_mean, layer.running_var = mean, var
    if affine:
        layer.weight, layer.bias = weight, bias
    of = [one[:, None, None].astype(np.float64) for one in (mean, var, weight, bias)]
    expected = (x - of[0]) / np.sqrt(of[1] + 0.01)
    check(layer, backend, expected * of[2] + of[3] if affine else expected, x)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -1])
def test_bags(backend: str, mode: str, padding: int | None) -> None:
    layer = EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
    layer.weight = np.random.default_rng(0).standard_normal((5, 3)) - 2  # the greatest is below 0
    x = np.array([[0, 2, 4, 2], [2, 2, 2, 2], [4, -1, 4, 4], [1, 0, 3, 1]], np.int32)
    left_out = set() if padding is None else {padding % 5}
    expected = np.zeros((4, 3))
    for row, bag in enumerate(x):
        kept = [layer.weight[i].astype(np.float64) for i in bag % 5 if i not in left_out]
        if kept:
            how = {"sum": np.sum, "mean": np.mean, "max": np.max}[mode]
            expected[row] = how(kept, axis=0)
    check(layer, backend, expected, x)


def attended(layer: MultiheadAttention, query: Any, key: Any, value: Any) -> np.ndarray:
    """(n, l, embed_dim) by Vaswani's formula, with what PyTorch adds to keys and values."""
    size, heads = layer.embed_dim, layer.num_heads
    weights = np.split(layer.in_proj_weight.astype(np.float64), 3)
    biases = np.split(layer.in_proj_bias.astype(np.float64), 3)
    found = np.zeros(query.shape)
    for n in range(len(query)):
        given = (query[n], key[n], value[n])
        q, k, v = (x @ w.T + b for x, w, b in zip(given, weights, biases, strict=True))
        if layer.bias_k is not None:
            k, v = (np.vstack([x, b[0]]) for x, b in ((k, layer.bias_k), (v, layer.bias_v)))
        if layer.add_zero_attn:
            k, v = (np.vstack([x, np.zeros(size)]) for x in (k, v))
        for h in range(heads):
            at = slice(h * size // heads, (h + 1) * size // heads)
            scores = np.exp(q[:, at] @ k[:, at].T / np.sqrt(size // heads))
            found[n, :, at] = scores / scores.sum(1, keepdims=True) @ v[:, at]
    return found @ layer.out_proj_weight.T.astype(np.float64) + layer.out_proj_bias


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("biased", "zeros"), [(True, True), (True, False), (False, True)])
def test_what_attention_adds(
    backend: str, rng: Any, batch_first: bool, biased: bool, zeros: bool
) -> None:
    layer = MultiheadAttention(
        6, 3, add_bias_kv=biased, add_zero_attn=zeros, batch_first=batch_first
    )
    layer.in_proj_bias = rng((18,))
    given = [rng((2, n, 6)) for n in (3, 4, 4)]
    expected = attended(layer, *given)
    if batch_first:
        check(layer, "cpu", expected[1], *(one[1] for one in given))  # without a batch
    if not batch_first:
        given, expected = [one.swapaxes(0, 1).copy() for one in given], expected.swapaxes(0, 1)
    check(layer, backend, expected, *given)


@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention_is_projected_by_one_product(
    backend: str, rng: Any, batch_first: bool
) -> None:
    layer = MultiheadAttention(8, 2, batch_first=batch_first)
    layer.in_proj_bias = rng((24,))
    x = rng((3, 5, 8))
    expected = attended(layer, x, x, x)
    if not batch_first:
        x, expected = x.swapaxes(0, 1).copy(), expected.swapaxes(0, 1)
    for shape in (x.shape, x.shape[1:]) if batch_first else (x.shape,):
        image = TensorInfo("x", shape)
        model = Model((Node("attention", layer, ("x", "x", "x"), "y"),), (image,), ("y",))
        session = InferenceSession(model, backend=backend)
        given, wanted = (x, expected) if len(shape) == 3 else (x[1], expected[1])
        got = session.run(None, {"x": given})[0]
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        products = [step for step in session.plan({"x": shape}).steps if step.op.name == "matmul"]
        assert sum(24 in step.shapes["weight"] for step in products) == 1


DROPOUTS = [Dropout1d, Dropout2d, Dropout3d, AlphaDropout, FeatureAlphaDropout]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropouts_change_nothing_at_inference(kind: type[Dropout], rng: Any) -> None:
    x = rng((2, 3, 4))
    assert np.array_equal(kind(0.9)(x, backend="cpu"), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GLU(1)(np.zeros((2, 3), np.float32)), r"even size along 1, got \(2, 3\)"),
        (lambda: GLU(2)(np.zeros((2, 4), np.float32)), r"even size along 2, got \(2, 4\)"),
        (lambda: Softmax2d()(np.zeros((2, 3), np.float32)), r"\(n, c, h, w\) or \(c, h, w\), got"),
        (lambda: Bilinear(2, 3, 1)(*[np.zeros((2, 2), np.float32)] * 2), "Bilinear: x and y must"),
        (lambda: Bilinear(2, 0, 1), "Bilinear in2_features must be an integer of at least 1"),
        (lambda: CosineSimilarity(eps=-1), "CosineSimilarity eps must be a number of at least 0"),
        (lambda: EmbeddingBag(2, 3, mode="min"), "mode must be sum, mean or max, got 'min'"),
        (lambda: EmbeddingBag(2, 3, padding_idx=2), "EmbeddingBag padding_idx must be from -2 to"),
        (lambda: EmbeddingBag(2, 3, max_norm=1.0), "EmbeddingBag max_norm must be None"),
        (lambda: EmbeddingBag(2, 3)(np.zeros(3, np.int32)), r"x must have shape \(n, k\), got"),
        (lambda: AlphaDropout(2), "AlphaDropout p must be a number from 0 to 1, got 2"),
        (lambda: RReLU("x"), "RReLU lower must be a number"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()
