"""Layers of several operators against formulae in float64, on every backend."""

from __future__ import annotations

from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.backends import Backend, open_backend
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError, GlnnError, ModelError, ShapeError
from glnn.layers import (
    Conv2d,
    ConvTranspose2d,
    Embedding,
    Flatten,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    Layer,
    LayerNorm,
    Linear,
    LogSoftmax,
    MultiheadAttention,
    RMSNorm,
    Softmax,
    Unflatten,
    Upsample,
)
from glnn.model import Model
from glnn.model.node import Node
from tests import oracle


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


def check(layer: Layer, backend: Backend, expected: np.ndarray, *inputs: np.ndarray) -> None:
    got = layer(*inputs, backend=backend.name)
    assert got.shape == expected.shape and got.dtype == np.float32, layer
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=str(layer))


def given(layer: Layer, rng: Any, *names: str) -> list[np.ndarray]:
    """Parameters at random, in float64."""
    for name in names:
        setattr(layer, name, rng(layer.shapes[name]))
    return [getattr(layer, name).astype(np.float64) for name in names]


def test_normalisations(backend, rng) -> None:
    x = rng((2, 6, 3, 5))
    wide = x.astype(np.float64)

    def normal(rows: np.ndarray, eps: float, axes: Any = -1) -> np.ndarray:
        mean = rows.mean(axis=axes, keepdims=True)
        return (rows - mean) / np.sqrt(((rows - mean) ** 2).mean(axis=axes, keepdims=True) + eps)

    layer: Layer = LayerNorm((3, 5), 1e-3)
    weight, bias = given(layer, rng, "weight", "bias")
    check(layer, backend, normal(wide, 1e-3, (2, 3)) * weight + bias, x)
    layer = LayerNorm(5, bias=False)
    (weight,) = given(layer, rng, "weight")
    check(layer, backend, normal(wide, 1e-5) * weight, x)
    check(LayerNorm([5], elementwise_affine=False), backend, normal(wide, 1e-5), x)
    layer = RMSNorm(5)
    (weight,) = given(layer, rng, "weight")
    square = (wide**2).mean(axis=-1, keepdims=True)
    check(layer, backend, wide / np.sqrt(square + 2.0**-23) * weight, x)
    layer = GroupNorm(3, 6)
    weight, bias = (w.reshape(6, 1, 1) for w in given(layer, rng, "weight", "bias"))
    groups = normal(wide.reshape(2, 3, -1), 1e-5).reshape(wide.shape)
    check(layer, backend, groups * weight + bias, x)
    check(InstanceNorm2d(6), backend, normal(wide, 1e-5, (2, 3)), x)
    layer = InstanceNorm1d(6, 0.1, affine=True)
    weight, bias = (w.reshape(6, 1) for w in given(layer, rng, "weight", "bias"))
    lines = wide.reshape(2, 6, 15)
    check(layer, backend, normal(lines, 0.1) * weight + bias, x.reshape(2, 6, 15))


def test_softmax_along_any_dimension(backend, rng) -> None:
    x = rng((3, 4, 5, 2))
    for dim in (0, 1, -1):
        powers = np.exp(x.astype(np.float64))
        shares = powers / powers.sum(axis=dim, keepdims=True)
        check(Softmax(dim), backend, shares, x)
        check(LogSoftmax(dim), backend, np.log(shares), x)
    powers = np.exp(x[0, 0, :, 0].astype(np.float64))
    check(Softmax(), backend, powers / powers.sum(), x[0, 0, :, 0].copy())


def test_linear_of_any_rank(backend, rng) -> None:
    layer, plain = Linear(5, 3), Linear(5, 3, bias=False)
    weight, bias = given(layer, rng, "weight", "bias")
    (other,) = given(plain, rng, "weight")
    for shape in ((5,), (2, 5), (2, 3, 5), (2, 1, 3, 5)):
        x = rng(shape)
        check(layer, backend, x.astype(np.float64) @ weight.T + bias, x)
        check(plain, backend, x.astype(np.float64) @ other.T, x)


MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "zeros": "constant"}


@pytest.mark.parametrize(("mode", "edge"), MODES.items())
def test_padding_modes(backend, rng, mode, edge) -> None:
    x = rng((2, 4, 5, 6))
    layer = Conv2d(4, 6, (3, 2), (1, 2), (2, 1), groups=2, padding_mode=mode)
    weight, bias = given(layer, rng, "weight", "bias")
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (2, 2), (1, 1)), mode=edge)
    expected = oracle.conv2d(padded, weight, bias, (1, 2), (0, 0, 0, 0), (1, 1), 2)
    check(layer, backend, expected, x)


def transposed(x: np.ndarray, weight: np.ndarray, layer: ConvTranspose2d) -> np.ndarray:
    """Each number of x times the kernel, added where it falls."""
    n, c, h, w = x.shape
    _, share, kh, kw = weight.shape
    (sh, sw), (dh, dw), groups = layer.stride, layer.dilation, layer.groups
    (ph, pw), (oph, opw) = layer.padding, layer.output_padding
    whole = np.zeros((n, share * groups, (h - 1) * sh + dh * (kh - 1) + 1 + oph,
                      (w - 1) * sw + dw * (kw - 1) + 1 + opw))  # fmt: skip
    for i, o, y, z, ky, kx in product(*map(range, (c, share, h, w, kh, kw))):
        to = i // (c // groups) * share + o
        whole[:, to, y * sh + ky * dh, z * sw + kx * dw] += x[:, i, y, z] * weight[i, o, ky, kx]
    return whole[:, :, ph : whole.shape[2] - ph, pw : whole.shape[3] - pw]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (3, 1), "dilation": (1, 2), "groups": 2},
        {"stride": (1, 2), "padding": (2, 3), "bias": False},  # more cut off than there is
        {"dilation": 3, "output_padding": 2, "groups": 4},
    ],
    ids=str,
)
def test_transposed_convolution(backend, rng, arguments) -> None:
    layer, x = ConvTranspose2d(4, 8, (2, 3), **arguments), rng((2, 4, 4, 5))
    (weight,) = given(layer, rng, "weight")
    expected = transposed(x.astype(np.float64), weight, layer)
    if "bias" in layer.shapes:
        (bias,) = given(layer, rng, "bias")
        expected = expected + bias.reshape(-1, 1, 1)
    check(layer, backend, expected, x)


def line(x: np.ndarray, axis: int, count: int, step: float, *, corners: bool) -> np.ndarray:
    """Between the numbers along `axis`, place by place."""
    size, places = x.shape[axis], []
    for i in range(count):
        at = i * step if corners else max((i + 0.5) * step - 0.5, 0)
        low = min(int(at), size - 1)
        high, part = min(low + 1, size - 1), at - low
        places.append((1 - part) * x.take(low, axis) + part * x.take(high, axis))
    return np.stack(places, axis)


def test_upsampling(backend, rng) -> None:
    x = rng((2, 3, 4, 5))
    wide = x.astype(np.float64)
    check(Upsample(scale_factor=2), backend, wide.repeat(2, 2).repeat(2, 3), x)
    picked = wide[:, :, [0, 0, 1, 2, 2, 3]][:, :, :, [0, 1, 3]]  # 4 / 6 and 5 / 3 from each
    check(Upsample((6, 3)), backend, picked, x)
    exact = wide[:, :, [0, 1, 1, 2, 3, 3]][:, :, :, [0, 2, 4]]  # of the middles
    check(Upsample((6, 3), mode="nearest-exact"), backend, exact, x)
    for layer, steps, corners in (
        (Upsample((7, 5), mode="bilinear"), (4 / 7, 1.0), False),
        (Upsample((7, 2), mode="bilinear", align_corners=True), (3 / 6, 4.0), True),
        (Upsample(scale_factor=(1.6, 2), mode="bilinear"), (1 / 1.6, 0.5), False),
        (Upsample(None, (1.6, 2), "bilinear", False, True), (4 / 6, 0.5), False),
    ):
        high, across = (layer.size or (6, 10)) if isinstance(layer.size, tuple) else (6, 10)
        rows = line(wide, 2, high, steps[0], corners=corners)
        check(layer, backend, line(rows, 3, across, steps[1], corners=corners), x)
    check(Upsample(9, mode="linear"), backend, line(wide[0], 2, 9, 5 / 9, corners=False), x[0])


def attention(query: Any, key: Any, value: Any, weights: Any, biases: Any, heads: int) -> Any:
    """One sample, head by head: query (l, e), key and value (s, ...), in float64."""
    q, k, v = (
        x.astype(np.float64) @ w.T + b
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    found, width = [], q.shape[1] // heads
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        powers = np.exp(q[:, part] @ k[:, part].T / sqrt(width))
        found.append(powers / powers.sum(axis=1, keepdims=True) @ v[:, part])
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention(backend, rng, batch_first) -> None:
    layer: Layer = MultiheadAttention(12, 3, batch_first=batch_first)
    names = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    assert not layer.in_proj_bias.any() and layer.q_proj_weight is None  # type: ignore
    weight, bias, last, final = given(layer, rng, *names)
    x = rng((2, 5, 12))
    parts = np.split(weight, 3), np.split(bias, 3)
    expected = np.stack([attention(s, s, s, *parts, 3) @ last.T + final for s in x])
    turned = (lambda a: a) if batch_first else (lambda a: np.ascontiguousarray(a.swapaxes(0, 1)))
    check(layer, backend, turned(expected), *[turned(x)] * 3)
    layer = MultiheadAttention(12, 2, 0.1, False, kdim=7, vdim=5, batch_first=batch_first)
    *weights, last = given(
        layer, rng, "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"
    )
    key, value = rng((2, 4, 7)), rng((2, 4, 5))
    cross = zip(x, key, value, strict=True)
    expected = np.stack([attention(*one, weights, (0, 0, 0), 2) @ last.T for one in cross])
    check(layer, backend, turned(expected), turned(x), turned(key), turned(value))


def test_embedding(backend, rng) -> None:
    layer = Embedding(7, 3, padding_idx=-1)
    assert not layer.weight[6].any() and layer.weight[:6].all() and layer.padding_idx == 6
    (weight,) = given(layer, rng, "weight")
    for index in (np.array([[1, 0], [6, 6]], np.int32), np.array([2, 5], np.int64)):
        check(layer, backend, weight[index], index)
    with pytest.raises(ShapeError, match=r"x must be an int32 or an int64 .*, got float32 array"):
        layer(np.ones(2, np.float32), backend=backend.name)
    for far in (np.array([1, 2**32]), np.array([1, 7], np.int32), np.array([-8])):
        said = rf"'x' must be indices from -7 to 6, of a table of 7, got {far[-1]} at"
        with pytest.raises(ShapeError, match=said):
            layer(far, backend=backend.name)


def encoder() -> Model:
    """A block of a transformer over words, of any number of samples."""
    nodes = (
        Node("words", Embedding(11, 8), ("ids",), "words"),
        Node("norm", LayerNorm(8), ("words",), "norm"),
        Node("attend", MultiheadAttention(8, 2, batch_first=True), ("norm",) * 3, "attend"),
        Node("scores", Linear(8, 4), ("attend",), "scores"),
        Node("pairs", Unflatten(-1, (2, -1)), ("scores",), "pairs"),
        Node("flat", Flatten(2), ("pairs",), "flat"),
    )
    return Model(nodes, (TensorInfo("ids", ("N", 6), "tensor(int32)"),), ("flat",), "encoder")


def test_a_model_of_words(backend, tmp_path: Path) -> None:
    model = encoder()
    assert model.tensors["pairs"].shape == ("N", 6, 2, 2)
    assert model.tensors["ids"].type == "tensor(int32)"
    assert str(model).startswith("encoder: ids int32 (N, 6) -> flat, ")
    model.save(tmp_path / "words.json")
    session = glnn.InferenceSession(tmp_path / "words.json", backend.name)
    (info,) = session.get_inputs()
    assert (info.shape, info.type, info.dtype.value) == (("N", 6), "tensor(int32)", "int32")
    ids = np.arange(18).reshape(3, 6) % 11
    (got,) = session.run(None, {"ids": ids})
    np.testing.assert_allclose(got, model(ids.astype(np.int32), backend="cpu"), atol=1e-5)
    one = [model(row[None], backend="cpu") for row in ids]
    np.testing.assert_allclose(got, np.concatenate(one), atol=1e-5)
    with pytest.raises(ShapeError, match="'ids' must be an int32 NumPy array, got float32 array"):
        session.run(None, {"ids": ids.astype(np.float32)})


def test_sequences_of_any_length(backend, rng) -> None:
    """Without batch_first the open size is the sequence's."""
    nodes = (Node("a", MultiheadAttention(8, 2), ("x",) * 3, "a"),)
    model = Model(nodes, (TensorInfo("x", ("N", 2, 8)),), ("a",))
    assert model.tensors["a"].shape == ("N", 2, 8)
    for length in (1, 5):
        x = rng((length, 2, 8))
        expected = nodes[0].layer(x, x, x, backend="cpu")
        np.testing.assert_allclose(model(x, backend=backend.name), expected, atol=1e-5)


def test_types_of_inputs() -> None:
    with pytest.raises(ModelError, match=r"type must be one of tensor\(float\), .*'tensor\(compl"):
        TensorInfo("x", ("N",), "tensor(complex64)")
    nodes = (Node("a", Linear(3, 2), ("x",), "a"),)
    with pytest.raises(ShapeError, match=r"layer .a.: matmul: x must be float32 or .*, got int32"):
        Model(nodes, (TensorInfo("x", ("N", 3), "tensor(int32)"),), ("a",))
    model = Model.sequential([Linear(3, 2)], (3,))
    with pytest.raises(ShapeError, match="'input' must be a float32 NumPy array, got int32 array"):
        model(np.ones((1, 3), np.int32), backend="cpu")


IMAGES = np.ones((1, 4, 5, 5), np.float32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LayerNorm(()), "normalized_shape must be an integer or several, got"),
        (lambda: LayerNorm((3, 0)), "normalized_shape must be an integer of at least 1, got 0"),
        (lambda: LayerNorm(4)(IMAGES, backend="cpu"), r"shape \(\.\.\., 4\), got \(1, 4, 5, 5\)"),
        (lambda: RMSNorm(5, -1), "RMSNorm eps must be a number of at least 0"),
        (lambda: GroupNorm(3, 4), "num_groups must divide num_channels 4, got 3"),
        (lambda: GroupNorm(2, 6)(IMAGES, backend="cpu"), r"must have shape \(n, 6, \.\.\.\)"),
        (lambda: InstanceNorm2d(4, track_running_stats=1), "track_running_stats must be true or"),
        (lambda: InstanceNorm1d(4)(IMAGES, backend="cpu"), r"must have shape \(n, 4, l\), got"),
        (lambda: InstanceNorm2d(3)(IMAGES, backend="cpu"), r"must have shape \(n, 3, h, w\)"),
        (lambda: Embedding(3, 2, 3), "padding_idx must be from -3 to 2, got 3"),
        (lambda: Embedding(3, 2, max_norm=1.0), "max_norm must be None: weights stay as they"),
        (lambda: Upsample(), "it has either size or scale_factor"),
        (lambda: Upsample(2, 2.0), "it has either size or scale_factor"),
        (lambda: Upsample(2, mode="area"), "mode must be one of nearest, .*, got 'area'"),
        (lambda: Upsample(2, align_corners=False), "align_corners must be None in mode 'nearest'"),
        (lambda: Upsample(scale_factor=0), "scale_factor must be a number above 0, got 0"),
        (lambda: Upsample(scale_factor=0.1)(IMAGES, backend="cpu"), "0.1 leaves nothing of 5"),
        (lambda: Upsample((1, 2, 3))(IMAGES, backend="cpu"), "or one for 2 dimensions"),
        (lambda: Upsample((1, 2**24 + 1))(IMAGES, backend="cpu"), "more than 16777216 along one"),
        (lambda: Upsample(3, mode="linear")(IMAGES, backend="cpu"), "must have 3 dimensions"),
        (
            lambda: Upsample(3, mode="bilinear")(np.ones((1, 1, 2, 2), np.int32), backend="cpu"),
            r"x must be float32 in mode 'bilinear', got int32 \(1, 1, 2, 2\)",
        ),
        (lambda: ConvTranspose2d(4, 6, 3, groups=4), "groups must divide in_channels 4 and out"),
        (lambda: ConvTranspose2d(1, 1, 3, 2, 0, 2), "output_padding must be smaller than the st"),
        (lambda: ConvTranspose2d(1, 1, 3, padding_mode="reflect"), "padding_mode must be 'zeros'"),
        (lambda: ConvTranspose2d(3, 1, 3)(IMAGES, backend="cpu"), r"must have shape \(n, 3, h, w"),
        (lambda: ConvTranspose2d(4, 1, 1, padding=3)(IMAGES, backend="cpu"), "too few places"),
        (lambda: MultiheadAttention(6, 4), "num_heads must divide embed_dim 6, got 4"),
        (lambda: MultiheadAttention(6, 2, add_zero_attn=1), "add_zero_attn must be true or false"),
        (lambda: MultiheadAttention(5, 1)(*[IMAGES] * 3, backend="cpu"), "query must have shape"),
        (
            lambda: MultiheadAttention(5, 1)(
                IMAGES[0], IMAGES[0], IMAGES[0, :3].copy(), backend="cpu"
            ),
            r"key \(4, 5, 5\) and value \(3, 5, 5\) differ in number",
        ),
        (lambda: Unflatten(1, 4), "unflattened_size must be sizes, got 4"),
        (lambda: Unflatten(1, (3, -1))(IMAGES, backend="cpu"), r"is not \(3, -1\)"),
        (lambda: Unflatten(4, (3, -1))(IMAGES, backend="cpu"), "axes must name dimensions of 4"),
        (
            lambda: Conv2d(4, 1, 3, padding=5, padding_mode="reflect")(IMAGES, backend="cpu"),
            r"padding \(5, 5, 5, 5\) reaches beyond x of shape \(1, 4, 5, 5\)",
        ),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(GlnnError, match=message):
        make()
