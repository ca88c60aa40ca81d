"""Layers: PyTorch's arguments and defaults, parameters, and what they compute."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import numpy as np
import pytest

from glnn.errors import GlnnError, ReadOnlyError, ShapeError
from glnn.layers import (
    BY_NAME,
    GLU,
    GRU,
    LSTM,
    RNN,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    Add,
    AlphaDropout,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Bias,
    Bilinear,
    Concat,
    Conv2d,
    ConvTranspose2d,
    CosineSimilarity,
    Dropout,
    Dropout2d,
    Embedding,
    EmbeddingBag,
    Flatten,
    GroupNorm,
    GRUCell,
    Identity,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    Layer,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    LogSoftmax,
    LSTMCell,
    MaxPool2d,
    MultiheadAttention,
    ReLU,
    RMSNorm,
    RNNCell,
    RReLU,
    Sigmoid,
    Softmax,
    Softmax2d,
    Softmin,
    Subsample2d,
    Tanh,
    Unflatten,
    Upsample,
    registry,
)

# As PyTorch's documentation gives them; None stands for a required argument.
PLACE: dict[str, Any] = {"device": None, "dtype": None}
BATCH_NORM = {"num_features": ..., "eps": 1e-5, "momentum": 0.1, "affine": True}
INSTANCE_NORM = {
    **BATCH_NORM,
    "affine": False,
    "track_running_stats": False,
    **PLACE,
}
SIGNATURES: dict[type[Layer], dict[str, Any]] = {
    Linear: {"in_features": ..., "out_features": ..., "bias": True, **PLACE},
    Conv2d: {
        "in_channels": ...,
        "out_channels": ...,
        "kernel_size": ...,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "bias": True,
        "padding_mode": "zeros",
        **PLACE,
    },
    MaxPool2d: {
        "kernel_size": ...,
        "stride": None,
        "padding": 0,
        "dilation": 1,
        "return_indices": False,
        "ceil_mode": False,
    },
    AvgPool2d: {
        "kernel_size": ...,
        "stride": None,
        "padding": 0,
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor_override": None,
    },
    AdaptiveAvgPool2d: {"output_size": ...},
    AdaptiveMaxPool2d: {"output_size": ..., "return_indices": False},
    BatchNorm1d: {**BATCH_NORM, "track_running_stats": True, **PLACE},
    BatchNorm2d: {**BATCH_NORM, "track_running_stats": True, **PLACE},
    BatchNorm3d: {**BATCH_NORM, "track_running_stats": True, **PLACE},
    Dropout: {"p": 0.5, "inplace": False},
    Flatten: {"start_dim": 1, "end_dim": -1},
    Identity: {},
    LocalResponseNorm: {"size": ..., "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    Softmax: {"dim": None},
    LogSoftmax: {"dim": None},
    LayerNorm: {
        "normalized_shape": ...,
        "eps": 1e-5,
        "elementwise_affine": True,
        "bias": True,
        **PLACE,
    },
    RMSNorm: {"normalized_shape": ..., "eps": None, "elementwise_affine": True, **PLACE},
    GroupNorm: {"num_groups": ..., "num_channels": ..., "eps": 1e-5, "affine": True, **PLACE},
    InstanceNorm1d: INSTANCE_NORM,
    InstanceNorm2d: INSTANCE_NORM,
    InstanceNorm3d: INSTANCE_NORM,
    Embedding: {
        "num_embeddings": ...,
        "embedding_dim": ...,
        "padding_idx": None,
        "max_norm": None,
        "norm_type": 2.0,
        "scale_grad_by_freq": False,
        "sparse": False,
        "_weight": None,
        "_freeze": False,
        **PLACE,
    },
    Upsample: {
        "size": None,
        "scale_factor": None,
        "mode": "nearest",
        "align_corners": None,
        "recompute_scale_factor": None,
    },
    ConvTranspose2d: {
        "in_channels": ...,
        "out_channels": ...,
        "kernel_size": ...,
        "stride": 1,
        "padding": 0,
        "output_padding": 0,
        "groups": 1,
        "bias": True,
        "dilation": 1,
        "padding_mode": "zeros",
        **PLACE,
    },
    MultiheadAttention: {
        "embed_dim": ...,
        "num_heads": ...,
        "dropout": 0.0,
        "bias": True,
        "add_bias_kv": False,
        "add_zero_attn": False,
        "kdim": None,
        "vdim": None,
        "batch_first": False,
        **PLACE,
    },
    Unflatten: {"dim": ..., "unflattened_size": ...},
}


@pytest.mark.parametrize("layer", SIGNATURES)
def test_arguments_are_those_of_pytorch(layer: type[Layer]) -> None:
    found = {
        name: ... if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(layer).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    assert found == SIGNATURES[layer]
    assert list(found) == list(SIGNATURES[layer])


@pytest.mark.parametrize(
    ("layer", "fan_in"), [(Linear(50, 30), 50), (Conv2d(6, 16, (5, 3), groups=2), 3 * 5 * 3)]
)
def test_initial_parameters_are_uniform_within_the_bound(layer: Layer, fan_in: int) -> None:
    bound = fan_in**-0.5
    for name, array in layer.parameters.items():
        assert array.dtype == np.float32, name
        assert np.abs(array).max() <= bound
        assert np.abs(array).max() > 0.8 * bound
        assert abs(array.mean()) < 0.3 * bound


def test_seed_decides_the_initial_parameters() -> None:
    assert np.array_equal(Linear(4, 3).weight, Linear(4, 3, seed=0).weight)
    assert not np.array_equal(Linear(4, 3).weight, Linear(4, 3, seed=1).weight)


def test_parameter_is_checked_when_assigned() -> None:
    layer = Linear(3, 2)
    with pytest.raises(ShapeError, match=r"Linear weight must have shape \(2, 3\), got \(3, 2\)"):
        layer.weight = np.zeros((3, 2), np.float32)
    with pytest.raises(ShapeError, match="Linear bias must be a float32 NumPy array, got object"):
        layer.bias = np.zeros(2, object)
    with pytest.raises(ShapeError, match="array, got NoneType"):
        layer.bias = None
    with pytest.raises(ValueError, match="read-only"):
        layer.weight[0] = 1


class Named(Conv2d):
    """A layer as users write them: with attributes of its own, set before and after."""

    def __init__(self, name: str) -> None:
        self.before = name
        super().__init__(1, 1, 3)
        self.after = name

    @property
    def title(self) -> str:
        return self.after

    @title.setter
    def title(self, value: str) -> None:
        vars(self)["after"] = value


@pytest.mark.parametrize(
    "of", [lambda x: x, copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize(
    ("layer", "name", "message"),
    [
        (Conv2d(1, 1, 3), "padding", "Conv2d padding is read-only: a layer stays as it was made"),
        (Conv2d(1, 1, 3), "revisions", r"revisions is read-only.*\(weight, bias can be assigned\)"),
        (Conv2d(1, 1, 3, bias=False), "inputs", r"inputs is .*\(weight can be assigned\)"),
        (Conv2d(1, 1, 3), "weigth", "Conv2d has no attribute 'weigth': did you mean 'weight'"),
        (BatchNorm2d(2), "running_bar", "did you mean 'running_var'"),
        (ReLU(), "threshold", "ReLU has no attribute 'threshold'$"),
        (Named("a"), "before", "Named before is read-only"),
        (Named("a"), "after", "Named after is read-only"),
        (Named("a"), "padding", "Named padding is read-only"),
    ],
)
def test_layers_stay_as_they_were_made(of: Any, layer: Layer, name: str, message: str) -> None:
    layer = of(layer)
    with pytest.raises(ReadOnlyError, match=message):
        setattr(layer, name, 1)
    with pytest.raises(ReadOnlyError, match="cannot be deleted"):
        delattr(layer, name)


def test_what_can_be_assigned() -> None:
    layer = Named("a")
    copied = copy.deepcopy(layer)
    layer.weight, layer.title = np.ones((1, 1, 3, 3), np.float32), "b"
    assert (layer.revisions["weight"], layer.before, layer.title) == (1, "a", "b")
    assert (copied.revisions["weight"], copied.title) == (0, "a") and copied.weight.max() < 1


def test_layer_without_bias() -> None:
    layer = Conv2d(3, 2, 1, bias=False)
    assert layer.bias is None
    assert list(layer.parameters) == ["weight"]
    with pytest.raises(ShapeError, match="Conv2d bias: this layer was made without one"):
        layer.bias = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    "layer",
    [
        Linear(3, 2, bias=False),
        Conv2d(4, 6, (3, 5), (1, 2), (0, 1), 2, 2, False),
        MaxPool2d(3, 2, 1, 2, False, True),
        AvgPool2d((2, 3), 1, 1, True, False, 5),
        Conv2d(4, 6, 3, padding="same", padding_mode="zeros", dtype=np.float32),
        Softmax(1),
        LogSoftmax(-1),
        LayerNorm((3, 4), 1e-3, bias=False),
        LayerNorm(4, elementwise_affine=False),
        RMSNorm(4, 1e-3, False),
        GroupNorm(2, 4, affine=False),
        InstanceNorm2d(4, 0.1, None, True),
        InstanceNorm3d(4),
        Embedding(5, 3, 1, sparse=True),
        Upsample((2, 3), mode="bilinear", align_corners=True),
        Upsample(scale_factor=(2, 1.5), recompute_scale_factor=False),
        ConvTranspose2d(4, 6, (3, 5), (1, 2), (0, 1), 1, 2, False, 2),
        MultiheadAttention(8, 2, 0.1, False, kdim=3, batch_first=True),
        LSTM(3, 4, 2, False, True, 0.5, True, 2),
        GRU(3, 4, 2, batch_first=True),
        RNN(3, 4, 1, "relu"),
        LSTMCell(3, 4, False),
        GRUCell(3, 4),
        RNNCell(3, 4, nonlinearity="relu"),
        MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True),
        AlphaDropout(0.2, True),
        Bilinear(2, 3, 4, False),
        CosineSimilarity(2, 1e-3),
        Dropout2d(0.1),
        EmbeddingBag(5, 3, mode="max", include_last_offset=True, padding_idx=1),
        GLU(1),
        RReLU(0.1, 0.2, True),
        Softmax2d(),
        Softmin(1),
        Unflatten(1, (2, -1)),
        Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        Softmax(),
        Flatten(2, -1),
        Identity(54, unused=0.1),
        Bias(5),
        AdaptiveAvgPool2d(1),
        AdaptiveMaxPool2d((None, 7)),
        Add(),
        BatchNorm1d(5, momentum=None),
        BatchNorm2d(5, 1e-3, 0.2, False),
        BatchNorm3d(5),
        Concat(3),
        Dropout(0.25, True),
        LocalResponseNorm(3, 1.0, 0.5, 2.0),
        Subsample2d(5, (2, 3)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_config_rebuilds_the_layer_through_json(layer: Layer) -> None:
    again = BY_NAME[type(layer).__name__](**json.loads(json.dumps(layer.config())))
    assert again.op == layer.op
    assert again.shapes == layer.shapes
    assert again.config() == layer.config()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0, 2), "Linear in_features must be an integer of at least 1, got 0"),
        (lambda: Linear(2, True), "Linear out_features must be an integer"),
        (lambda: Linear(2, 2.0), "Linear out_features must be an integer"),  # type: ignore
        (lambda: Linear(2, 2, bias="no"), "Linear bias must be true or false"),  # type: ignore
        (lambda: Conv2d(1, 1, (3, 3, 3)), "Conv2d kernel_size must be an integer or two of them"),
        (lambda: Conv2d(1, 1, 3, stride=0), "Conv2d stride must be an integer of at least 1"),
        (lambda: Conv2d(1, 1, 3, padding=-1), "Conv2d padding must be an integer of at least 0"),
        (lambda: Conv2d(3, 4, 1, groups=2), "Conv2d groups must divide in_channels 3"),
        (lambda: MaxPool2d(2, padding=2), "pad"),
        (lambda: AvgPool2d("2"), "AvgPool2d kernel_size must be an integer"),  # type: ignore
        (lambda: Softmax(dim="x"), "Softmax dim must be an integer"),  # type: ignore
        (lambda: Bias(-1), "Bias features must be an integer of at least 1"),
        (lambda: AdaptiveAvgPool2d(0), "AdaptiveAvgPool2d output_size must be an integer of at"),
        (lambda: AdaptiveMaxPool2d((1, 2, 3)), "must be an integer or None, or two of them, got"),
        (lambda: AdaptiveMaxPool2d(1, True), "return_indices must be false: a layer has one resu"),
        (lambda: MaxPool2d(2, return_indices=True), "return_indices must be false: a layer has"),
        (lambda: AvgPool2d(2, divisor_override=0), "divisor_override must be an integer of at le"),
        (lambda: Conv2d(1, 1, 3, 2, "same"), r"padding 'same' needs a stride of 1, got \(2, 2\)"),
        (lambda: Conv2d(1, 1, 3, 1, "full"), "two of them, 'same' or 'valid', got 'full'"),
        (lambda: Conv2d(1, 1, 3, padding_mode="edge"), "must be one of zeros, reflect, replicate,"),
        (lambda: Conv2d(1, 1, 3, padding_mode=np.ones(2)), "padding_mode must be one of zeros, r"),
        (lambda: Conv2d(1, 1, 3, device="cuda"), "device must be None, as the backend .* 'cuda'"),
        (lambda: Linear(1, 1, dtype=np.float16), "Linear dtype must be None or float32, got"),
        (lambda: Linear(1, 1, dtype="half a float"), "Linear dtype must be None or float32, got"),
        (lambda: BatchNorm2d(2, momentum="x"), "momentum must be a number from 0 to 1, got 'x'"),
        (lambda: BatchNorm1d(2, track_running_stats=False), "BatchNorm1d track_running_stats must"),
        (lambda: ReLU("yes"), "ReLU inplace must be true or false"),
        (lambda: Flatten(1.0), "Flatten start_dim must be an integer"),
        (lambda: BatchNorm2d(0), "BatchNorm2d num_features must be an integer of at least 1"),
        (
            lambda: BatchNorm2d(2, -1e-5),
            "BatchNorm2d eps must be a number of at least 0, got -1e-05",
        ),
        (lambda: Concat(1), "Concat count must be an integer of at least 2, got 1"),
        (lambda: Dropout(1.5), "Dropout p must be a number from 0 to 1, got 1.5"),
        (lambda: Dropout(True), "Dropout p must be a number"),
        (lambda: LocalResponseNorm(0), "LocalResponseNorm size must be an integer"),
        (lambda: LocalResponseNorm(3, beta="x"), "beta must be a number"),  # type: ignore
        (lambda: LocalResponseNorm(3, k=float("nan")), "k must be a number of at least 0"),
        (lambda: Subsample2d(3, 0), "Subsample2d kernel_size must be an integer of at least 1"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make()


def test_no_name_is_registered_twice() -> None:
    with pytest.raises(GlnnError, match="'A' is registered twice"):
        registry(("A", ReLU), ("A", Tanh))


X = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)


def test_linear_by_hand() -> None:
    layer = Linear(2, 1)
    layer.weight = np.array([[10, 1]], np.float32)
    layer.bias = np.array([0.5], np.float32)
    result = layer(np.array([[1, 2], [3, 4]], np.float32), backend="cpu")
    assert result.tolist() == [[12.5], [34.5]]


def test_conv2d_by_hand() -> None:
    layer = Conv2d(1, 1, 2, stride=2)
    layer.weight = np.array([[[[1, 0], [0, -1]]]], np.float32)
    layer.bias = np.array([7], np.float32)
    assert layer(X, backend="cpu").tolist() == [[[[2, 2], [2, 2]]]]  # x[i,j] - x[i+1,j+1] = -5


def test_pools_by_hand() -> None:
    assert MaxPool2d(2)(X, backend="cpu").tolist() == [[[[5, 7], [13, 15]]]]
    assert AvgPool2d(2)(X, backend="cpu").tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]


def test_pointwise_by_hand() -> None:
    x = np.array([[-2, 0, np.nan]], np.float32)
    assert np.array_equal(ReLU()(x, backend="cpu"), [[0, 0, np.nan]], equal_nan=True)
    assert Sigmoid()(x, backend="cpu")[0, :2] == pytest.approx([0.11920292, 0.5])
    assert Tanh()(x, backend="cpu")[0, :2] == pytest.approx([-0.96402758, 0])


def test_softmax_flatten_bias_by_hand() -> None:
    x = np.log(np.array([[1, 2, 5]], np.float32))
    assert Softmax()(x, backend="cpu")[0] == pytest.approx([0.125, 0.25, 0.625])
    assert Flatten()(X, backend="cpu").shape == (1, 16)
    layer = Bias(3)
    layer.bias = np.array([1, 2, 3], np.float32)
    assert layer(np.zeros((1, 3), np.float32), backend="cpu").tolist() == [[1, 2, 3]]


def test_global_pools_by_hand() -> None:
    assert AdaptiveAvgPool2d(1)(X, backend="cpu").tolist() == [[[[7.5]]]]
    assert AdaptiveMaxPool2d(1)(X, backend="cpu").tolist() == [[[[15]]]]


def test_windows_that_share_the_image_by_hand() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)  # of 3 windows: 0 1, 1 2 3, 3 4
    assert AdaptiveAvgPool2d((1, 3))(x, backend="cpu").tolist() == [[[[0.5, 2, 3.5]]]]
    assert AdaptiveMaxPool2d((None, 3))(x, backend="cpu").tolist() == [[[[1, 3, 4]]]]
    assert AdaptiveAvgPool2d(2)(X, backend="cpu").tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert np.array_equal(AdaptiveAvgPool2d((4, 4))(X, backend="cpu"), X)


def test_divisor_by_hand() -> None:
    got = AvgPool2d(2, divisor_override=8)(X, backend="cpu")
    assert got.tolist() == [[[[1.25, 2.25], [5.25, 6.25]]]]


def test_same_padding_by_hand() -> None:
    """Of an odd number of rows the greater half is at the end, as PyTorch has it."""
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 1, 1, 4)
    for size, dilation, expected in (
        (2, 1, [12, 23, 34, 40]),
        (3, 1, [12, 123, 234, 340]),
        (2, 3, [3, 14, 20, 30]),  # of 0 1 2 3 4 0 0, places 3 apart
    ):
        layer = Conv2d(1, 1, (1, size), padding="same", dilation=dilation, bias=False)
        layer.weight = 10 ** np.arange(size, dtype=np.float32)[::-1].reshape(1, 1, 1, size)
        assert layer(x, backend="cpu").ravel().tolist() == expected
    assert Conv2d(1, 1, 3, padding="valid")(X, backend="cpu").shape == (1, 1, 2, 2)


def test_flatten_by_hand() -> None:
    x = np.zeros((2, 3, 4, 5), np.float32)
    for arguments, shape in (
        ((), (2, 60)),
        ((2,), (2, 3, 20)),
        ((1, 2), (2, 12, 5)),
        ((-2, -1), (2, 3, 20)),
        ((3, 3), (2, 3, 4, 5)),
        ((0, 0), (2, 3, 4, 5)),
    ):
        assert Flatten(*arguments)(x, backend="cpu").shape == shape
    for wrong in ((0,), (4,), (2, 1), (1, 4), (-5,)):
        with pytest.raises(ShapeError, match="batch and stays" if wrong == (0,) else "dimensions"):
            Flatten(*wrong)(x, backend="cpu")


def test_softmax_without_a_dimension_takes_that_of_pytorch() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    assert np.array_equal(Softmax()(x, backend="cpu"), Softmax(1)(x, backend="cpu"))
    with pytest.raises(ShapeError, match=r"dim must be given, 1 or 2, for x of shape \(2, 3, 4\)"):
        Softmax()(x.reshape(2, 3, 4), backend="cpu")


def test_subsample_by_hand() -> None:
    layer = Subsample2d(1, 2)
    assert layer(X, backend="cpu").tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]  # at first, a mean
    layer.weight, layer.bias = np.array([2], np.float32), np.array([-1], np.float32)
    assert layer(X, backend="cpu").tolist() == [[[[4, 8], [20, 24]]]]


def test_batch_norm_by_hand() -> None:
    layer, x = BatchNorm2d(2, eps=1.0), np.array([[5, 8]], np.float32)
    assert np.allclose(layer(x, backend="cpu"), x / np.sqrt(2), rtol=1e-6)
    plain = BatchNorm1d(2, 1.0, affine=False)
    assert list(plain.parameters) == ["running_mean", "running_var"] and plain.weight is None
    assert np.array_equal(plain(x, backend="cpu"), layer(x, backend="cpu"))
    layer.weight, layer.bias = np.array([3, 1], np.float32), np.array([0.5, 0], np.float32)
    layer.running_mean, layer.running_var = np.array([[1, 2], [3, 8]], np.float32)
    # 3 (5 - 1) / sqrt(3 + 1) + 0.5, (8 - 2) / sqrt(8 + 1)
    assert layer(x, backend="cpu").tolist() == [[6.5, 2]]


def test_local_response_norm_by_hand() -> None:
    x = np.array([[1, 2, 3, 4]], np.float32).reshape(1, 4, 1, 1)
    got = LocalResponseNorm(2, alpha=2.0, beta=1.0, k=1.0)(x, backend="cpu")
    # Of two channels one lies before: the sums of the squares are 1, 5, 13, 25.
    assert got.ravel() == pytest.approx([1 / 2, 2 / 6, 3 / 14, 4 / 26])


def test_several_inputs_by_hand() -> None:
    x, y = np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)
    assert Add()(x, y, backend="cpu").tolist() == [[11, 22]]
    assert Concat(3)(x, y, x, backend="cpu").tolist() == [[1, 2, 10, 20, 1, 2]]
    assert Dropout()(x, backend="cpu").tolist() == [[1, 2]]
    with pytest.raises(ShapeError, match="Add takes 2 inputs, got 1"):
        Add()(x, backend="cpu")
    with pytest.raises(ShapeError, match=r"y must have the shape of x, \(1, 2\), got \(1, 1\)"):
        Add()(x, y[:, :1], backend="cpu")
    with pytest.raises(ShapeError, match=r"x1 must be .* \(1, 2\) but along 1, got .* \(2, 1\)"):
        Concat()(x, y.T.copy(), backend="cpu")


def test_wrong_input() -> None:
    with pytest.raises(ShapeError, match="x must be a float32 NumPy array, got float64 array"):
        Linear(2, 1)(np.zeros((1, 2)), backend="cpu")
    with pytest.raises(ShapeError):
        Linear(2, 1)(np.zeros((1, 3), np.float32), backend="cpu")
