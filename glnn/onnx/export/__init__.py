"""The table of writers, by layer class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glnn import layers
from glnn.layers import Layer
from glnn.layers.activations import Activation
from glnn.layers.conv import Conv, ConvTranspose
from glnn.layers.pad import Pad
from glnn.layers.pool import AdaptiveMaxPool, AdaptivePool, AvgPool, LPPool, MaxPool
from glnn.onnx.export import elementwise, layer_writers

Row = Callable[..., str | tuple[str, ...]]
"""Function of a layer's writer and its inputs' names, which returns the names of its results."""

_NORMS: dict[type[Layer], Row] = {
    **dict.fromkeys(
        (layers.BatchNorm1d, layers.BatchNorm2d, layers.BatchNorm3d), layer_writers.batch_norm
    ),
    **dict.fromkeys(
        (layers.InstanceNorm1d, layers.InstanceNorm2d, layers.InstanceNorm3d),
        layer_writers.instance_norm,
    ),
    layers.GroupNorm: layer_writers.group_norm,
    layers.LayerNorm: layer_writers.layer_norm,
    layers.LocalResponseNorm: layer_writers.local_response_norm,
    layers.RMSNorm: layer_writers.rms_norm,
    **dict.fromkeys((layers.Softmax, layers.LogSoftmax), layer_writers.softmax),
    layers.Softmax2d: layer_writers.softmax2d,
    layers.Softmin: layer_writers.softmin,
}
_ELEMENTWISE: dict[type[Layer], Row] = {
    **{
        kind: elementwise.expression
        for kind in layers.BY_NAME.values()
        if issubclass(kind, (Activation, layers.GELU, layers.Pointwise, layers.Add))
    },
    layers.PReLU: elementwise.prelu,
}
_FAMILIES: Mapping[type[Layer], Row] = {
    AdaptiveMaxPool: layer_writers.adaptive_max_pool,
    AdaptivePool: layer_writers.adaptive_avg_pool,
    AvgPool: layer_writers.avg_pool,
    Conv: layer_writers.conv,
    ConvTranspose: layer_writers.conv_transpose,
    LPPool: layer_writers.lp_pool,
    MaxPool: layer_writers.max_pool,
    Pad: layer_writers.pad,
    layers.Upsample: layer_writers.upsample,
}
"""Writers of base classes, for layers that differ in dimensions only. The first base class counts.
"""
TABLE: Mapping[type[Layer], Row] = {
    **_NORMS,
    **_ELEMENTWISE,
    **{
        kind: next(row for family, row in _FAMILIES.items() if issubclass(kind, family))
        for kind in layers.LAYERS
        if issubclass(kind, tuple(_FAMILIES))
    },
    layers.Bias: layer_writers.bias,
    layers.Bilinear: layer_writers.bilinear,
    layers.ChannelShuffle: layer_writers.channel_shuffle,
    layers.Concat: layer_writers.concat,
    layers.CosineSimilarity: layer_writers.cosine_similarity,
    **{kind: layer_writers.identity for kind in layers.LAYERS if issubclass(kind, layers.Dropout)},
    layers.Embedding: layer_writers.embedding,
    layers.EmbeddingBag: layer_writers.embedding_bag,
    layers.Flatten: layer_writers.flatten,
    layers.Fold: layer_writers.fold,
    layers.GLU: layer_writers.glu,
    **dict.fromkeys((layers.GRU, layers.LSTM, layers.RNN), layer_writers.recurrent),
    **dict.fromkeys((layers.GRUCell, layers.LSTMCell, layers.RNNCell), layer_writers.cell),
    layers.Identity: layer_writers.identity,
    layers.Linear: layer_writers.linear,
    layers.MultiheadAttention: layer_writers.multihead_attention,
    layers.PixelShuffle: layer_writers.pixel_shuffle,
    layers.PixelUnshuffle: layer_writers.pixel_unshuffle,
    layers.Subsample2d: layer_writers.subsample2d,
    layers.Unflatten: layer_writers.view,
    layers.Unfold: layer_writers.unfold,
}
