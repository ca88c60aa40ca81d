"""Layers that normalise."""

from __future__ import annotations

import numpy as np

from glnn.graph.operators import Normalize
from glnn.graph.operators import Softmax as SoftmaxOperator
from glnn.layers import (
    BatchNorm2d,
    GroupNorm,
    InstanceNorm2d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from glnn.onnx.export.writer import LayerWriter


def _or(out: LayerWriter, name: str, value: float, *shape: int) -> str:
    """The layer's parameter, or so many of `value` where it has none."""
    if name in out.layer.shapes:
        return out.parameter(name)
    return out.constant(np.full(shape, value))


def batch_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, (BatchNorm2d, InstanceNorm2d))
    count = layer.num_features
    scale, shift = _or(out, "weight", 1, count), _or(out, "bias", 0, count)
    moments = out.parameter("running_mean"), out.parameter("running_var")
    return out("BatchNormalization", x, scale, shift, *moments, epsilon=float(layer.eps))


def group_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, GroupNorm)
    count = layer.num_channels
    scale, shift = _or(out, "weight", 1, count), _or(out, "bias", 0, count)
    more = {"num_groups": layer.num_groups, "epsilon": float(layer.eps)}
    return out("GroupNormalization", x, scale, shift, **more)


def instance_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, InstanceNorm2d)
    if layer.track_running_stats:
        return batch_norm(out, x)
    count = layer.num_features
    scale, shift = _or(out, "weight", 1, count), _or(out, "bias", 0, count)
    return out("InstanceNormalization", x, scale, shift, epsilon=float(layer.eps))


def layer_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, LayerNorm)
    scale = _or(out, "weight", 1, *layer.normalized_shape)
    shift = (out.parameter("bias"),) if "bias" in layer.shapes else ()
    more = {"axis": -len(layer.normalized_shape), "epsilon": float(layer.eps)}
    return out("LayerNormalization", x, scale, *shift, **more)


def rms_norm(out: LayerWriter, x: str) -> str:
    """ONNX has an operator for it from opset 23 on only."""
    layer = out.layer
    assert isinstance(layer, RMSNorm) and isinstance(layer.op, Normalize)
    axes = out.integers(*range(-len(layer.normalized_shape), 0))
    mean = out("ReduceMean", out("Mul", x, x), axes)
    found = out("Div", x, out("Sqrt", out("Add", mean, out.constant(layer.op.eps))))
    return out("Mul", found, out.parameter("weight")) if layer.shapes else found


def local_response_norm(out: LayerWriter, x: str) -> str:
    """ONNX's operator takes images, and of an even size it has the other half more behind x's."""
    layer, dims = out.layer, out.dims
    assert isinstance(layer, LocalResponseNorm)
    size, channels = layer.size, dims[1]
    if len(dims) == 4 and size % 2:
        more = {"alpha": float(layer.alpha), "beta": float(layer.beta), "bias": float(layer.k)}
        return out("LRN", x, size=size, **more)
    assert isinstance(channels, int)
    away = np.arange(channels) - np.arange(channels)[:, None]
    near = (away >= -(size // 2)) & (away <= (size - 1) // 2)
    squares = out("Reshape", out("Mul", x, x), out.integers(0, channels, -1))
    sums = out("MatMul", out.constant(near * (layer.alpha / size)), squares)
    sums = out.reshape(sums, (dims[0],), dims)
    power = out("Pow", out("Add", sums, out.constant(layer.k)), out.constant(layer.beta))
    return out("Div", x, power)


def softmax(out: LayerWriter, x: str) -> str:
    op = out.layer.op
    assert isinstance(op, SoftmaxOperator)
    axis = 0 if len(out.dims) == 1 else op.axis
    return out("LogSoftmax" if op.log else "Softmax", x, axis=axis)


def softmin(out: LayerWriter, x: str) -> str:
    return softmax(out, out("Neg", x))


def softmax2d(out: LayerWriter, x: str) -> str:
    return out("Softmax", x, axis=-3)
