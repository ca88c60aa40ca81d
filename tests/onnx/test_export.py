"""Models written as .onnx files: what ONNX Runtime makes of them, and what comes back."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn import layers as nn
from glnn.core.tensor_info import TensorInfo
from glnn.errors import ModelError
from glnn.layers import LAYERS, Layer
from glnn.model import Model
from glnn.model.node import Node
from tests.oracle import error
from tests.random_models import random_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

IMAGE = (2, 4, 7, 9)
CASES: list[tuple[Layer, tuple[int, ...]]] = [
    (nn.AdaptiveAvgPool2d(1), IMAGE),
    (nn.AdaptiveAvgPool2d((3, None)), IMAGE),
    (nn.AdaptiveAvgPool2d((7, 3)), IMAGE),
    (nn.AdaptiveMaxPool2d(1), IMAGE),
    (nn.AdaptiveMaxPool2d((5, 4)), IMAGE),
    (nn.AdaptiveMaxPool2d((1, 3)), IMAGE),
    (nn.AlphaDropout(), IMAGE),
    (nn.AvgPool2d(3, 2, 1), IMAGE),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 2, 8, 10)),
    (nn.AvgPool2d((2, 3), (3, 2), (1, 0), True, False), (1, 2, 8, 10)),
    (nn.AvgPool2d(2, 3, 1, ceil_mode=True), (1, 2, 5, 6)),  # a last window in the padding
    (nn.AvgPool2d(3, 2, 1, True, False, 7), (1, 2, 8, 10)),
    (nn.BatchNorm1d(4, 1e-3), (3, 4)),
    (nn.BatchNorm1d(4), (3, 4, 5)),
    (nn.BatchNorm2d(4, affine=False), IMAGE),
    (nn.BatchNorm3d(2), (1, 2, 3, 2, 2)),
    (nn.Bias(4), IMAGE),
    (nn.Bias(4), (3, 4)),
    (nn.CELU(0.7), IMAGE),
    (nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 1), (1, 2), 2), IMAGE),
    (nn.Conv2d(4, 3, (2, 3), padding="same", bias=False), IMAGE),
    (nn.Conv2d(4, 2, 3, padding=(2, 1), padding_mode="reflect"), IMAGE),
    (nn.Conv2d(4, 2, 3, padding=2, padding_mode="replicate"), IMAGE),
    (nn.Conv2d(4, 2, 3, 2, "valid"), IMAGE),
    (nn.Conv2d(4, 2, (4, 3), padding="same", padding_mode="circular"), IMAGE),
    (nn.ConvTranspose2d(4, 6, 3, (2, 3), (1, 0), 1, 2), IMAGE),
    (nn.ConvTranspose2d(4, 2, (2, 3), 1, 1, bias=False, dilation=(2, 1)), IMAGE),
    (nn.Dropout(), IMAGE),
    (nn.Dropout1d(), (2, 3, 4)),
    (nn.Dropout2d(), IMAGE),
    (nn.Dropout3d(), (1, 2, 3, 4, 5)),
    (nn.ELU(0.3), IMAGE),
    (nn.FeatureAlphaDropout(), IMAGE),
    (nn.Flatten(), IMAGE),
    (nn.Flatten(2), IMAGE),
    (nn.Flatten(1, -2), IMAGE),
    (nn.GELU(), IMAGE),
    (nn.GELU("tanh"), IMAGE),
    (nn.GLU(1), IMAGE),
    (nn.GRU(3, 4, 2, bidirectional=True), (5, 2, 3)),
    (nn.GRU(3, 4, bias=False), (5, 3)),
    (nn.GRUCell(3, 4), (2, 3)),
    (nn.GroupNorm(2, 4, 1e-2), IMAGE),
    (nn.GroupNorm(4, 4, affine=False), (2, 4, 3)),
    (nn.Hardshrink(0.3), IMAGE),
    (nn.Hardsigmoid(), IMAGE),
    (nn.Hardswish(), IMAGE),
    (nn.Hardtanh(-0.4, 0.9), IMAGE),
    (nn.Identity(), IMAGE),
    (nn.InstanceNorm1d(4), (2, 4, 5)),
    (nn.InstanceNorm2d(4, 1e-2, affine=True), IMAGE),
    (nn.InstanceNorm2d(4, 1e-2, affine=True, track_running_stats=True), IMAGE),
    (nn.InstanceNorm3d(2), (2, 2, 3, 2, 4)),
    (nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, proj_size=3), (2, 5, 3)),
    (nn.LSTMCell(3, 4, False), (2, 3)),
    (nn.LayerNorm((7, 9), 1e-3), IMAGE),
    (nn.LayerNorm(9, bias=False), IMAGE),
    (nn.LayerNorm(9, elementwise_affine=False), IMAGE),
    (nn.LeakyReLU(0.2), IMAGE),
    (nn.Linear(5, 3), (2, 5)),
    (nn.Linear(5, 3, bias=False), (2, 5)),
    (nn.Linear(5, 3), (2, 4, 5)),
    (nn.LocalResponseNorm(3, 0.5, 0.6, 2.0), IMAGE),
    (nn.LocalResponseNorm(4, 0.5), IMAGE),
    (nn.LocalResponseNorm(3, 0.5), (2, 5)),
    (nn.LogSigmoid(), IMAGE),
    (nn.LogSoftmax(1), IMAGE),
    (nn.MaxPool2d(3, 2, 1), IMAGE),
    (nn.MaxPool2d((2, 3), (3, 2), (1, 0), (1, 2), ceil_mode=True), (1, 2, 8, 10)),
    (nn.MaxPool2d(2, 3, 1, ceil_mode=True), (1, 2, 5, 6)),
    (nn.Mish(), IMAGE),
    (nn.PReLU(), IMAGE),
    (nn.PReLU(4), IMAGE),
    (nn.PReLU(4), (3, 4)),
    *((nn.Pointwise(name), (3, 4)) for name in ("trunc", "expm1", "exp2", "square", "round")),
    (nn.Pointwise("pow", [2]), (3, 4)),
    (nn.Pointwise("clip", [0.5, -0.5]), (3, 4)),
    (nn.Pointwise("remainder", [0.7]), (3, 4)),
    (nn.Pointwise("fmod", [0.7]), (3, 4)),
    (nn.RMSNorm((7, 9)), IMAGE),
    (nn.RMSNorm(9, 0.1, False), IMAGE),
    (nn.RNN(3, 4, nonlinearity="relu", bidirectional=True), (5, 2, 3)),
    (nn.RNNCell(3, 4), (2, 3)),
    (nn.RReLU(0.1, 0.5), IMAGE),
    (nn.ReLU(), IMAGE),
    (nn.ReLU6(), IMAGE),
    (nn.SELU(), IMAGE),
    (nn.SiLU(), IMAGE),
    (nn.Sigmoid(), IMAGE),
    (nn.Softmax(), IMAGE),
    (nn.Softmax(-1), (2, 3, 4)),
    (nn.Softmax2d(), IMAGE),
    (nn.Softmin(-1), (2, 3, 4)),
    (nn.Softplus(), IMAGE),
    (nn.Softplus(2, 1), IMAGE),
    (nn.Softshrink(0.3), IMAGE),
    (nn.Softsign(), IMAGE),
    (nn.Subsample2d(4, (2, 3)), IMAGE),
    (nn.Tanh(), IMAGE),
    (nn.Tanhshrink(), IMAGE),
    (nn.Threshold(0.1, -3), IMAGE),
    (nn.Unflatten(1, (2, -1)), IMAGE),
    (nn.Upsample(scale_factor=2), IMAGE),
    (nn.Upsample((5, 11)), IMAGE),
    (nn.Upsample(scale_factor=(1.7, 0.6)), IMAGE),
    (nn.Upsample(3, mode="nearest-exact"), (1, 2, 7)),
    (nn.Upsample(5, mode="linear"), (1, 2, 7)),
    (nn.Upsample(scale_factor=(1.7, 2.3), mode="bilinear"), IMAGE),
    (nn.Upsample((3, 20), mode="bilinear", align_corners=True), IMAGE),
    (nn.Upsample(scale_factor=1.5, mode="trilinear"), (1, 2, 3, 4, 5)),
    (nn.Upsample(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True), IMAGE),
]
LINE, VOLUME = (2, 4, 11), (2, 4, 5, 3, 7)
CASES += [
    (nn.AdaptiveAvgPool1d(3), LINE),
    (nn.AdaptiveAvgPool3d((2, 1, 5)), VOLUME),
    (nn.AdaptiveAvgPool3d(1), VOLUME),
    (nn.AdaptiveMaxPool1d(1), LINE),
    (nn.AdaptiveMaxPool3d((5, 1, 3)), VOLUME),
    (nn.AvgPool1d(3, 2, 1, True), (1, 2, 8)),
    (nn.AvgPool3d(2, (2, 3, 1), 1, True), VOLUME),
    (nn.AvgPool3d((2, 3, 3), 2, 1, True, False, 7), VOLUME),
    (nn.ChannelShuffle(2), LINE),
    (nn.CircularPad1d((11, 4)), LINE),
    (nn.CircularPad2d((2, -1, -2, 3)), IMAGE),
    (nn.CircularPad3d(1), VOLUME),
    (nn.ConstantPad1d(0, 2), LINE),
    (nn.ConstantPad2d((1, 2, -1, 0), 7), IMAGE),
    (nn.ConstantPad3d((0, 1, 1, 0, -2, 1), 0.5), VOLUME),
    (nn.Conv1d(4, 6, 3, 2, 1, 2, 2), LINE),
    (nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular", bias=False), LINE),
    (nn.Conv3d(4, 6, (2, 1, 3), (1, 4, 2), (1, 0, 2), (2, 1, 1), 2), VOLUME),
    (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), LINE),
    (nn.ConvTranspose3d(4, 6, (1, 2, 3), (2, 1, 3), (0, 1, 1), (1, 0, 2), 2), VOLUME),
    (nn.Fold((5, 7), (2, 3), (2, 1), (0, 1), (1, 2)), (2, 12, 12)),
    (nn.LPPool1d(2, 3, 2), LINE),
    (nn.LPPool2d(1.5, (2, 3), 2, True), (1, 2, 6, 8)),
    (nn.LPPool3d(1, 2), VOLUME),
    (nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), (1, 2, 8)),
    (nn.MaxPool3d((2, 3, 2), (1, 2, 3), (1, 0, 1), ceil_mode=True), VOLUME),
    (nn.PixelShuffle(2), IMAGE),
    (nn.PixelShuffle(2), (1, 2, 4, 1, 3)),
    (nn.PixelUnshuffle(2), (1, 3, 4, 6)),
    (nn.ReflectionPad1d((10, 3)), LINE),
    (nn.ReflectionPad2d((4, -1, 0, 2)), IMAGE),
    (nn.ReflectionPad3d(1), VOLUME),
    (nn.ReplicationPad1d(13), LINE),
    (nn.ReplicationPad2d((-2, 3, 1, 0)), IMAGE),
    (nn.ReplicationPad3d(2), VOLUME),
    (nn.Unfold((2, 3), (2, 1), (0, 1), (1, 3)), IMAGE),
    (nn.Upsample((5, 11), mode="bicubic"), IMAGE),
    (nn.Upsample(scale_factor=(1.5, 0.5), mode="bicubic"), IMAGE),
    (nn.Upsample(4, mode="bicubic", align_corners=True), IMAGE),
    (nn.UpsamplingBilinear2d(scale_factor=1.5), IMAGE),  # of 7 and 9, no whole numbers
    (nn.UpsamplingNearest2d((5, 11)), IMAGE),
    (nn.ZeroPad1d((1, -2)), LINE),
    (nn.ZeroPad2d(2), IMAGE),
    (nn.ZeroPad3d((1, 0, 2, 0, 0, 3)), VOLUME),
]
"""Layers of one input of floats, and its shape."""
SEVERAL: list[tuple[Layer, tuple[np.ndarray, ...]]] = [
    (nn.Add(), (np.ones(IMAGE, np.float32), np.ones(IMAGE, np.float32))),
    (nn.Bilinear(5, 3, 4), tuple(np.ones((2, 6, n), np.float32) / n for n in (5, 3))),
    (nn.Bilinear(2, 3, 1, False), tuple(np.linspace(-1, 2, n, dtype=np.float32) for n in (2, 3))),
    (nn.CosineSimilarity(-2), tuple(np.eye(5, dtype=np.float32)[None, :, :n] for n in (4, 4))),
    (nn.Concat(3), tuple(np.full((2, n, 3), n, np.int32) for n in (1, 2, 3))),
    (nn.Embedding(7, 3), (np.array([[1, 6, 0], [2, 2, 5]], np.int32),)),
    (nn.Embedding(7, 3), (np.array([4, -1]),)),
    *(
        (nn.EmbeddingBag(7, 3, mode=mode, padding_idx=pad), (np.array([[1, 6, 0], [2, 2, -5]]),))
        for mode, pad in (("sum", None), ("sum", 2), ("mean", 2), ("max", 2), ("max", None))
    ),
    (
        nn.LSTM(3, 2, 2),
        tuple(
            np.linspace(-1, 1, n * 2 * d, dtype=np.float32).reshape(n, 2, d)
            for n, d in ((4, 3), (2, 2), (2, 2))
        ),
    ),
    (nn.Flatten(), (np.arange(24).reshape(2, 3, 4).astype(np.int8),)),
    (nn.Upsample(scale_factor=3), (np.arange(6).reshape(1, 2, 3) > 2,)),
    (nn.Pointwise("maximum"), (np.arange(3, dtype=np.int32), np.ones(3, np.int32))),
    (nn.Pointwise("add", [2]), (np.arange(3, dtype=np.int32),)),
    (nn.Pointwise("not_equal"), (np.arange(3, dtype=np.int32), np.ones(3, np.int32))),
    (nn.Pointwise("cast_float32"), (np.arange(3, dtype=np.int32),)),
    (
        nn.Pointwise("where", [1.5]),
        (np.arange(4) > 1, np.arange(4, dtype=np.float32)),
    ),
    (
        nn.MultiheadAttention(6, 2),
        tuple(np.linspace(-1, 1, n * 12, dtype=np.float32).reshape(n, 2, 6) for n in (3, 5, 5)),
    ),
    (
        nn.MultiheadAttention(6, 2, add_zero_attn=True),
        tuple(np.linspace(-1, 1, n * 6, dtype=np.float32).reshape(n, 6) for n in (3, 5, 5)),
    ),
    (
        nn.MultiheadAttention(6, 2, add_bias_kv=True, add_zero_attn=True),
        tuple(np.linspace(-1, 1, n * 12, dtype=np.float32).reshape(n, 2, 6) for n in (3, 5, 5)),
    ),
    (
        nn.MultiheadAttention(6, 3, bias=False, kdim=5, vdim=4, batch_first=True),
        tuple(
            np.linspace(-2, 1, 2 * n * d, dtype=np.float32).reshape(2, n, d)
            for n, d in ((3, 6), (5, 5), (5, 4))
        ),
    ),
]
"""Layers of several inputs, or of others than floats."""


def seeded(layer: Layer) -> Layer:
    """With parameters at random, positive as variances must be."""
    generator = np.random.default_rng(7)
    for name, shape in layer.shapes.items():
        setattr(layer, name, generator.random(shape, np.float32) + np.float32(0.1))
    return layer


def check(model: Model, feeds: dict[str, np.ndarray], path: Path) -> None:
    """That the file gives the same numbers in ONNX Runtime, and read again."""
    model.save(path)
    onnx.checker.check_model(str(path), full_check=True)
    expected = glnn.InferenceSession(model, "cpu").run(None, feeds)
    for found in (
        onnxruntime.InferenceSession(path).run(None, feeds),
        glnn.InferenceSession(glnn.load(path), "cpu").run(None, feeds),
    ):
        for got, wanted in zip(found, expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("layer", "shape"), CASES, ids=str)
def test_a_layer(layer: Layer, shape: tuple[int, ...], tmp_path: Path) -> None:
    model = Model.sequential([seeded(layer)], shape[1:])
    x = np.random.default_rng(3).standard_normal(shape, np.float32)
    check(model, {"input": x}, tmp_path / "net.onnx")


@pytest.mark.parametrize(("layer", "arrays"), SEVERAL, ids=lambda one: str(one)[:40])
def test_a_layer_of_other_inputs(
    layer: Layer, arrays: tuple[np.ndarray, ...], tmp_path: Path
) -> None:
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    names = {"float32": "float", "int32": "int32", "int64": "int64", "int8": "int8", "bool": "bool"}
    inputs = tuple(
        TensorInfo(name, x.shape, f"tensor({names[x.dtype.name]})") for name, x in feeds.items()
    )
    node = Node("layer", seeded(layer), tuple(feeds), "y")
    check(Model((node,), inputs, node.outputs), feeds, tmp_path / "net.onnx")


def test_every_layer_is_tried() -> None:
    missing = set(LAYERS) - {type(layer) for layer, _ in (*CASES, *SEVERAL)}
    assert not missing, f"no case in CASES for {sorted(layer.__name__ for layer in missing)}"


LAYERED = [
    nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 1), (1, 2), 2),
    nn.BatchNorm2d(6, 1e-3),
    nn.PReLU(6),
    nn.ConvTranspose2d(6, 4, 3, (2, 3), (1, 0), 1),
    nn.LocalResponseNorm(3, 0.5, 0.6, 2.0),
    nn.InstanceNorm2d(4, 1e-2, affine=True),
    nn.Hardtanh(-0.4, 0.9),
    nn.MaxPool2d(3, 2, 1),
    nn.LeakyReLU(0.2),
    nn.AvgPool2d(2, (1, 2), 1, count_include_pad=False),
    nn.Bias(4),
    nn.GELU("tanh"),
    nn.Dropout(),
    nn.Hardsigmoid(),
    nn.Flatten(),
    nn.Linear(200, 7),
    nn.ELU(0.3),
    nn.LogSoftmax(-1),
]
"""A model of layers that each are one node."""


def layered() -> Model:
    return Model.sequential([seeded(layer) for layer in LAYERED], IMAGE[1:], "layered")


def test_layers_of_one_node_come_back_from_onnx(tmp_path: Path) -> None:
    model = layered()
    model.save(tmp_path / "net.onnx")
    glnn.load(tmp_path / "net.onnx").save(tmp_path / "net.json")
    again = glnn.load(tmp_path / "net.json")
    assert [node.name for node in again.nodes] == [node.name for node in model.nodes]
    x = np.random.default_rng(3).standard_normal(IMAGE, np.float32)
    np.testing.assert_allclose(again(x, "cpu"), model(x, "cpu"), rtol=1e-6, atol=1e-6)


ONE_NODE = [
    (nn.AdaptiveAvgPool1d(1), LINE),
    (nn.AdaptiveMaxPool3d(1), VOLUME),
    (nn.AvgPool1d(2, 3, 1, False, False), LINE),
    (nn.AvgPool3d(2), VOLUME),
    (nn.CircularPad3d((1, 0, 2, 0, 0, 3)), VOLUME),
    (nn.ConstantPad2d((1, 2, -1, 0), 7.0), IMAGE),
    (nn.Conv1d(4, 6, 3, 2, 1, 2, 2), LINE),
    (nn.Conv2d(4, 3, (2, 3), padding="same", bias=False), IMAGE),
    (nn.Conv3d(4, 6, 2, (1, 4, 2), (1, 0, 2), (2, 1, 1), 2, False), VOLUME),
    (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2), LINE),
    (nn.ConvTranspose3d(4, 6, 2, (2, 1, 3), 1, (1, 0, 2), dilation=1), VOLUME),
    (nn.Fold((5, 7), (2, 3), (2, 1), (0, 1), (1, 2)), (2, 12, 12)),
    (nn.LPPool1d(2, 3, 2), LINE),
    (nn.MaxPool1d(3, 2, 1, 2), LINE),
    (nn.MaxPool3d(2, (1, 2, 3)), VOLUME),
    (nn.PixelShuffle(2), IMAGE),
    (nn.ReflectionPad2d((4, 0, 0, 2)), IMAGE),
    (nn.ReplicationPad1d(13), LINE),
    (nn.Upsample((14, 27)), IMAGE),
    (nn.Upsample((5, 11), mode="bicubic"), IMAGE),
    (nn.Upsample((3, 20), mode="bilinear", align_corners=True), IMAGE),
    (nn.Upsample(5, mode="linear"), LINE),
    (nn.ZeroPad1d((1, -2)), LINE),
]
"""Layers that are one node, as which they come back, and the shape of x."""


def test_layers_of_windows_come_back_from_onnx(tmp_path: Path) -> None:
    for layer, shape in ONE_NODE:
        model = Model.sequential([seeded(layer)], shape[1:])
        model.save(tmp_path / "net.onnx")
        glnn.load(tmp_path / "net.onnx").save(tmp_path / "net.json")
        (node,) = glnn.load(tmp_path / "net.json").nodes
        assert type(node.layer) is type(layer)
        x = np.random.default_rng(3).standard_normal(shape, np.float32)
        expected = layer(x, backend="cpu")
        np.testing.assert_allclose(
            node.layer(x, backend="cpu"), expected, 1e-6, 1e-6, err_msg=str(layer)
        )


class Doubled(nn.ReLU):
    """Somebody's own."""


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (Doubled(), "layer 'it': Doubled cannot be written as ONNX"),
        (
            nn.Pointwise("atan2", [2.0]),
            "layer 'it': Pointwise cannot be written as ONNX: ONNX has no operator for atan2",
        ),
    ],
)
def test_what_onnx_cannot_say_is_refused(layer: Layer, says: str, tmp_path: Path) -> None:
    model = Model.sequential([layer], (3,), names=["it"])
    with pytest.raises(ModelError, match=says):
        model.save(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_names_of_any_kind(tmp_path: Path) -> None:
    """Those of weights and of tensors on the way evade those that are there."""
    names = ["a.weight", "b: MatMul", "c\n\x00"]
    layers = [seeded(nn.Linear(3, 3)), seeded(nn.Linear(3, 3)), nn.Threshold(0.5, 0.1)]
    model = Model.sequential(layers, (2, 3), "", names)
    nodes = (Node("a", layers[0], ("input",), "a.weight"), *model.nodes[1:])
    model = Model(nodes, model.inputs, ("input", *model.outputs, "a.weight"), "é")
    x = np.random.default_rng(3).standard_normal((2, 2, 3), np.float32)
    model.save(tmp_path / "net.onnx")
    expected = glnn.InferenceSession(model, "cpu").run(None, {"input": x})
    found = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"input": x})
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    bad = Model.sequential([nn.ReLU()], (3,), names=["\ud800"])
    with pytest.raises(ModelError, match="a name that ONNX cannot have"):
        bad.save(tmp_path / "bad.onnx")


def test_an_imported_model_is_written_as_it_was(tmp_path: Path) -> None:
    """The weights too, which are kept once; also through a pickle, and from a file of their own."""
    model = layered()
    model.save(tmp_path / "net.onnx")
    content = (tmp_path / "net.onnx").read_bytes()
    read = glnn.load(tmp_path / "net.onnx")
    proto = onnx.load(tmp_path / "net.onnx")
    assert (proto.producer_name, proto.producer_version) == ("glnn", glnn.__version__)
    assert len(read.source.proto.SerializeToString()) < len(content) / 2
    pickle.loads(pickle.dumps(read)).save(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == content
    onnx.save_model(proto, tmp_path / "apart.onnx", save_as_external_data=True, location="w.bin")
    glnn.load(tmp_path / "apart.onnx").save(tmp_path / "whole.onnx")
    (tmp_path / "w.bin").unlink()
    x = np.random.default_rng(3).standard_normal(IMAGE, np.float32)
    again = glnn.load(tmp_path / "whole.onnx")
    assert np.array_equal(again(x, "cpu"), read(x, "cpu"))


def test_too_much_for_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"weights are 2304096000 bytes, an \.onnx file holds"):
        Model.sequential([nn.Linear(24000, 24000)], (24000,)).save(tmp_path / "net.onnx")


def test_a_tensor_beside_the_file_is_refused(tmp_path: Path) -> None:
    """Where the graph has no array of it: in a constant, or the body of a branch."""
    helper, tensor = onnx.helper, onnx.numpy_helper.from_array(np.ones((2, 300), np.float32), "w")
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])],
        "body",
        [],
        [helper.make_tensor_value_info("z", 1, [2, 300])],
        [tensor],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    info = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("y", 1, None)]
    proto = helper.make_model(helper.make_graph([node], "net", info[:1], info[1:]), ir_version=10)
    onnx.save_model(proto, tmp_path / "apart.onnx", save_as_external_data=True, location="w.bin")
    model = glnn.load(tmp_path / "apart.onnx")
    with pytest.raises(ModelError, match=r"x\.onnx: the tensor 'w' lies in a file of its own"):
        model.save(tmp_path / "x.onnx")


AS_PYTORCH = """
<ir_version: 8, opset_import: ["" : 18]>
net (float[N, 2, 6, 6] x) => (float[N, 3] y, float[N, 2] z)
<float low = {0}, float high = {6}, int64[1] minus = {-1}, int64[1] rest = {72},
 int64[2] image = {-1, -2}, int64[1] two = {2}>
{
    sizes = Shape <start = 0, end = 1> (x)
    batch = Squeeze (sizes)
    normal = BatchNormalization (x, w, b, m, v)
    below = CastLike (low, normal)
    above = CastLike (high, normal)
    clipped = Clip (normal, below, above)
    first = Reshape (batch, minus)
    flat = Concat <axis = 0> (first, rest)
    joined = Reshape (clipped, flat)
    y = Gemm <transB = 1> (joined, fcw, fcb)
    mean = ReduceMean <keepdims = 1> (clipped, image)
    pair = Concat <axis = 0> (first, two)
    z = Reshape (mean, pair)
}
"""
PARAMETERS = {
    "w": ("body.bn.weight", (2,)),
    "b": ("body.bn.bias", (2,)),
    "m": ("body.bn.running_mean", (2,)),
    "v": ("body.bn.running_var", (2,)),
    "fcw": ("fc.weight", (3, 72)),
    "fcb": ("fc.bias", (3,)),
}
"""Of AS_PYTORCH: what they are called there, and their shapes."""


def test_what_pytorch_writes_comes_back_as_layers(tmp_path: Path) -> None:
    """Shapes by way of the batch's size, types by way of other tensors; by PyTorch's names."""
    generator = np.random.default_rng(5)
    proto = onnx.parser.parse_model(AS_PYTORCH)
    arrays = {name: generator.random(shape, np.float32) for name, shape in PARAMETERS.values()}
    for node in proto.graph.node:
        node.input[:] = [PARAMETERS.get(name, (name,))[0] for name in node.input]
    proto.graph.initializer.extend(map(onnx.numpy_helper.from_array, arrays.values(), arrays))
    onnx.save(proto, tmp_path / "net.onnx")
    model = glnn.load(tmp_path / "net.onnx")
    assert "229 parameters" in str(model).splitlines()[0]  # 4 x 2 + 3 x 72 + 3, and 0 and 6
    model.save(tmp_path / "net.json")
    layers = glnn.load(tmp_path / "net.json")
    state = layers.state_dict()
    assert {n: a.tolist() for n, a in state.items()} == {n: a.tolist() for n, a in arrays.items()}
    x = generator.standard_normal((5, 2, 6, 6), np.float32)
    expected = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})
    found = glnn.InferenceSession(tmp_path / "net.json", "cpu").run(None, {"x": x})
    assert max(map(error, found, expected)) <= 2e-6


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (
            "size = Shape (x) n = Cast <to = 1> (size) y = Add (x, n)",
            "it computes with the batch's",
        ),
        ("size = Shape (x) y = Expand (x, size)", "there is none for Expand"),
        ("y = ReduceMean <keepdims = 1> (x)", "it must be over all behind the channels"),
    ],
)
def test_what_needs_the_batch_s_size_is_no_layer(nodes: str, says: str, tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 18]> net (float[N, 2, 6, 4] x) => (float[] y)'
    onnx.save(onnx.parser.parse_model(f"{head} {{ {nodes} }}"), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=f"is no layer of glnn's: {says}"):
        glnn.load(tmp_path / "net.onnx").save(tmp_path / "net.json")


@pytest.mark.parametrize("seed", range(12))
def test_a_random_network(seed: int, tmp_path: Path) -> None:
    """As ONNX, and where it comes back as layers, as these."""
    model = random_model(seed)
    shape = model.inputs[0].with_batch(2)
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    expected = glnn.InferenceSession(model, "cpu").run(None, {"input": x})
    model.save(tmp_path / "net.onnx")
    read = glnn.load(tmp_path / "net.onnx")
    results = [
        onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"input": x}),
        glnn.InferenceSession(read, "cpu").run(None, {"input": x}),
    ]
    try:
        read.save(tmp_path / "net.json")
        results.append(glnn.InferenceSession(tmp_path / "net.json", "cpu").run(None, {"input": x}))
    except ModelError as refused:
        assert "is no layer of glnn's" in str(refused)
    for found in results:
        assert max(map(error, found, expected)) <= 2e-5
