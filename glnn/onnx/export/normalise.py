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
from glnn.onnx.export.writer import Place


def _or(place: Place, name: str, value: float, *shape: int) -> str:
    """The layer's parameter, or so many of `value` where it has none."""
    if name in place.layer.shapes:
        return place.parameter(name)
    return place.constant(np.full(shape, value))


def batch_norm(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, (BatchNorm2d, InstanceNorm2d))
    count = layer.num_features
    scale, shift = _or(place, "weight", 1, count), _or(place, "bias", 0, count)
    moments = place.parameter("running_mean"), place.parameter("running_var")
    return place("BatchNormalization", x, scale, shift, *moments, epsilon=float(layer.eps))


def group_norm(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, GroupNorm)
    count = layer.num_channels
    scale, shift = _or(place, "weight", 1, count), _or(place, "bias", 0, count)
    more = {"num_groups": layer.num_groups, "epsilon": float(layer.eps)}
    return place("GroupNormalization", x, scale, shift, **more)


def instance_norm(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, InstanceNorm2d)
    if layer.track_running_stats:
        return batch_norm(place, x)
    count = layer.num_features
    scale, shift = _or(place, "weight", 1, count), _or(place, "bias", 0, count)
    return place("InstanceNormalization", x, scale, shift, epsilon=float(layer.eps))


def layer_norm(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, LayerNorm)
    scale = _or(place, "weight", 1, *layer.normalized_shape)
    shift = (place.parameter("bias"),) if "bias" in layer.shapes else ()
    more = {"axis": -len(layer.normalized_shape), "epsilon": float(layer.eps)}
    return place("LayerNormalization", x, scale, *shift, **more)


def rms_norm(place: Place, x: str) -> str:
    """ONNX has an operator for it from opset 23 on only."""
    layer = place.layer
    assert isinstance(layer, RMSNorm) and isinstance(layer.op, Normalize)
    axes = place.integers(*range(-len(layer.normalized_shape), 0))
    mean = place("ReduceMean", place("Mul", x, x), axes)
    found = place("Div", x, place("Sqrt", place("Add", mean, place.constant(layer.op.eps))))
    return place("Mul", found, place.parameter("weight")) if layer.shapes else found


def local_response_norm(place: Place, x: str) -> str:
    """ONNX's operator takes images, and of an even size it has the other half more behind x's."""
    layer, dims = place.layer, place.dims
    assert isinstance(layer, LocalResponseNorm)
    size, channels = layer.size, dims[1]
    if len(dims) == 4 and size % 2:
        more = {"alpha": float(layer.alpha), "beta": float(layer.beta), "bias": float(layer.k)}
        return place("LRN", x, size=size, **more)
    assert isinstance(channels, int)
    away = np.arange(channels) - np.arange(channels)[:, None]
    near = (away >= -(size // 2)) & (away <= (size - 1) // 2)
    squares = place("Reshape", place("Mul", x, x), place.integers(0, channels, -1))
    sums = place("MatMul", place.constant(near * (layer.alpha / size)), squares)
    sums = place.reshape(sums, (dims[0],), dims)
    power = place("Pow", place("Add", sums, place.constant(layer.k)), place.constant(layer.beta))
    return place("Div", x, power)


def softmax(place: Place, x: str) -> str:
    op = place.layer.op
    assert isinstance(op, SoftmaxOperator)
    axis = 0 if len(place.dims) == 1 else op.axis
    return place("LogSoftmax" if op.log else "Softmax", x, axis=axis)


def softmin(place: Place, x: str) -> str:
    return softmax(place, place("Neg", x))


def softmax2d(place: Place, x: str) -> str:
    return place("Softmax", x, axis=-3)
