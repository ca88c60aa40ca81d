"""Layers, with PyTorch's names, argument order and defaults."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import GlnnError
from glnn.layers.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    Mish,
    Pointwise,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from glnn.layers.adaptive_avg_pool2d import AdaptiveAvgPool2d
from glnn.layers.adaptive_max_pool2d import AdaptiveMaxPool2d
from glnn.layers.add import Add
from glnn.layers.avg_pool2d import AvgPool2d
from glnn.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from glnn.layers.bias import Bias
from glnn.layers.bilinear import Bilinear
from glnn.layers.concat import Concat
from glnn.layers.conv2d import Conv2d
from glnn.layers.conv_transpose2d import ConvTranspose2d
from glnn.layers.cosine_similarity import CosineSimilarity
from glnn.layers.dropout import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    FeatureAlphaDropout,
)
from glnn.layers.embedding import Embedding
from glnn.layers.embedding_bag import EmbeddingBag
from glnn.layers.flatten import Flatten
from glnn.layers.glu import GLU
from glnn.layers.group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from glnn.layers.identity import Identity
from glnn.layers.layer import Layer
from glnn.layers.layer_norm import LayerNorm, RMSNorm
from glnn.layers.linear import Linear
from glnn.layers.local_response_norm import LocalResponseNorm
from glnn.layers.max_pool2d import MaxPool2d
from glnn.layers.multihead_attention import MultiheadAttention
from glnn.layers.prelu import PReLU
from glnn.layers.recurrent import GRU, LSTM, RNN
from glnn.layers.recurrent_cells import GRUCell, LSTMCell, RNNCell
from glnn.layers.softmax import LogSoftmax, Softmax, Softmax2d, Softmin
from glnn.layers.subsample import Subsample2d
from glnn.layers.unflatten import Unflatten
from glnn.layers.upsample import Upsample

__all__ = [
    "BY_NAME",
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "Add",
    "AlphaDropout",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bias",
    "Bilinear",
    "Concat",
    "Conv2d",
    "ConvTranspose2d",
    "CosineSimilarity",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LSTMCell",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "LogSigmoid",
    "LogSoftmax",
    "MaxPool2d",
    "Mish",
    "MultiheadAttention",
    "PReLU",
    "Pointwise",
    "RMSNorm",
    "RNNCell",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Subsample2d",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "Unflatten",
    "Upsample",
    "registry",
]


def registry(*layers: tuple[str, type[Layer]]) -> Mapping[str, type[Layer]]:
    """Layers by the names that files use. Raises GlnnError where a name occurs twice."""
    table: dict[str, type[Layer]] = {}
    for name, layer in layers:
        if name in table:
            raise GlnnError(f"layer {name!r} is registered twice")
        table[name] = layer
    return table


LAYERS: tuple[type[Layer], ...] = (
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
    CELU,
    Concat,
    Conv2d,
    ConvTranspose2d,
    CosineSimilarity,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    ELU,
    Embedding,
    EmbeddingBag,
    FeatureAlphaDropout,
    Flatten,
    GELU,
    GLU,
    GRU,
    GRUCell,
    GroupNorm,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LSTM,
    LSTMCell,
    LayerNorm,
    LeakyReLU,
    Linear,
    LocalResponseNorm,
    LogSigmoid,
    LogSoftmax,
    MaxPool2d,
    Mish,
    MultiheadAttention,
    PReLU,
    Pointwise,
    RMSNorm,
    RNN,
    RNNCell,
    RReLU,
    ReLU,
    ReLU6,
    SELU,
    SiLU,
    Sigmoid,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Subsample2d,
    Tanh,
    Tanhshrink,
    Threshold,
    Unflatten,
    Upsample,
)
BY_NAME = registry(
    *((layer.__name__, layer) for layer in LAYERS),
    ("AffineLayer", Linear),
    ("SigmoidLayer", Sigmoid),
    ("ReLULayer", ReLU),
)
