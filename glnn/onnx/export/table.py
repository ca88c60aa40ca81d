"""How each kind of layers is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glnn import layers
from glnn.layers import Layer
from glnn.layers.activations import Activation
from glnn.onnx.export import elementwise, normalise, recurrent, rows, windows

Row = Callable[..., str | tuple[str, ...]]
"""Takes the layer's Place and the names of its inputs; gives the name of its result, or of all."""

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
TABLE: Mapping[type[Layer], Row] = {
    **_NORMS,
    **_ELEMENTWISE,
    layers.AdaptiveAvgPool2d: windows.adaptive_avg_pool2d,
    layers.AdaptiveMaxPool2d: windows.adaptive_max_pool2d,
    layers.AvgPool2d: windows.avg_pool2d,
    layers.Bias: rows.bias,
    layers.Bilinear: rows.bilinear,
    layers.Concat: rows.concat,
    layers.Conv2d: windows.conv2d,
    layers.ConvTranspose2d: windows.conv_transpose2d,
    layers.CosineSimilarity: rows.cosine_similarity,
    **{kind: rows.identity for kind in layers.LAYERS if issubclass(kind, layers.Dropout)},
    layers.Embedding: rows.embedding,
    layers.EmbeddingBag: rows.embedding_bag,
    layers.Flatten: rows.flatten,
    layers.GLU: rows.glu,
    **dict.fromkeys((layers.GRU, layers.LSTM, layers.RNN), recurrent.recurrent),
    **dict.fromkeys((layers.GRUCell, layers.LSTMCell, layers.RNNCell), recurrent.cell),
    layers.Identity: rows.identity,
    layers.Linear: rows.linear,
    layers.MaxPool2d: windows.max_pool2d,
    layers.MultiheadAttention: rows.multihead_attention,
    layers.Subsample2d: windows.subsample2d,
    layers.Unflatten: rows.view,
    layers.Upsample: rows.upsample,
}
