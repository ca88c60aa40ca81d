"""The table of the writers of all kinds of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glnn import layers
from glnn.layers import Layer
from glnn.layers.activations import Activation
from glnn.layers.conv import Conv, ConvTranspose
from glnn.layers.pad import Pad
from glnn.layers.pool import AdaptiveMaxPool, AdaptivePool, AvgPool, LPPool, MaxPool
from glnn.onnx.export import elementwise, normalise, recurrent, rows, windows

Row = Callable[..., str | tuple[str, ...]]
"""Function of a layer's writer and its inputs' names, which returns the names of its results."""

_NORMS: dict[type[Layer], Row] = {
    **dict.fromkeys(
        (layers.BatchNorm1d, layers.BatchNorm2d, layers.BatchNorm3d), normalise.batch_norm
    ),
    **dict.fromkeys(
        (layers.InstanceNorm1d, layers.InstanceNorm2d, layers.InstanceNorm3d),
        normalise.instance_norm,
    ),
    layers.GroupNorm: normalise.group_norm,
    layers.LayerNorm: normalise.layer_norm,
    layers.LocalResponseNorm: normalise.local_response_norm,
    layers.RMSNorm: normalise.rms_norm,
    **dict.fromkeys((layers.Softmax, layers.LogSoftmax), normalise.softmax),
    layers.Softmax2d: normalise.softmax2d,
    layers.Softmin: normalise.softmin,
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
    AdaptiveMaxPool: windows.adaptive_max_pool,
    AdaptivePool: windows.adaptive_avg_pool,
    AvgPool: windows.avg_pool,
    Conv: windows.conv,
    ConvTranspose: windows.conv_transpose,
    LPPool: windows.lp_pool,
    MaxPool: windows.max_pool,
    Pad: rows.pad,
    layers.Upsample: rows.upsample,
}
"""Writers for layers that differ only by their dimensions; a layer of two families is of the
first.
"""
TABLE: Mapping[type[Layer], Row] = {
    **_NORMS,
    **_ELEMENTWISE,
    **{
        kind: next(row for family, row in _FAMILIES.items() if issubclass(kind, family))
        for kind in layers.LAYERS
        if issubclass(kind, tuple(_FAMILIES))
    },
    layers.Bias: rows.bias,
    layers.Bilinear: rows.bilinear,
    layers.ChannelShuffle: rows.channel_shuffle,
    layers.Concat: rows.concat,
    layers.CosineSimilarity: rows.cosine_similarity,
    **{kind: rows.identity for kind in layers.LAYERS if issubclass(kind, layers.Dropout)},
    layers.Embedding: rows.embedding,
    layers.EmbeddingBag: rows.embedding_bag,
    layers.Flatten: rows.flatten,
    layers.Fold: rows.fold,
    layers.GLU: rows.glu,
    **dict.fromkeys((layers.GRU, layers.LSTM, layers.RNN), recurrent.recurrent),
    **dict.fromkeys((layers.GRUCell, layers.LSTMCell, layers.RNNCell), recurrent.cell),
    layers.Identity: rows.identity,
    layers.Linear: rows.linear,
    layers.MultiheadAttention: rows.multihead_attention,
    layers.PixelShuffle: rows.pixel_shuffle,
    layers.PixelUnshuffle: rows.pixel_unshuffle,
    layers.Subsample2d: windows.subsample2d,
    layers.Unflatten: rows.view,
    layers.Unfold: rows.unfold,
}
