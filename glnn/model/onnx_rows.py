"""Layers for ONNX operators: a function for each operator, for `onnx_layers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from glnn import layers as nn
from glnn.errors import UnsupportedOpError
from glnn.layers import Layer
from glnn.model.onnx_found import OnnxNode, Row, with_parameters
from glnn.model.onnx_windows import WINDOWS
from glnn.types import Array


def _gemm(node: OnnxNode) -> Layer:
    node.only(alpha=1.0, beta=1.0, transA=0)
    weight = node.array(1) if node.get("transB", 0) else node.array(1).T
    bias = node.optional(2)
    if bias is not None:
        bias = np.broadcast_to(bias, (1, len(weight)))[0]
    return _linear(weight, bias)


def _matmul(node: OnnxNode) -> Layer:
    weight = node.array(1)
    if weight.ndim != 2:
        raise UnsupportedOpError(f"its weight must be a matrix, got {weight.shape}")
    return _linear(weight.T, None)


def _linear(weight: Array, bias: Array | None) -> Layer:
    count, features = weight.shape
    layer = nn.Linear(features, count, bias is not None)
    return with_parameters(layer, weight=weight, bias=bias)


def _add(node: OnnxNode) -> Layer:
    if len(node.types) == 2:
        return nn.Add()
    array = next(one for one in node.arrays if one is not None)
    rank = len(node.dims)
    shape = (1,) * (rank - array.ndim) + array.shape
    if rank < 2 or len(shape) > rank or shape != (1, shape[1], *(1,) * (rank - 2)):
        raise UnsupportedOpError(f"what it adds must be of channels, got {array.shape}")
    count = node.dims[1]
    if not isinstance(count, int) or shape[1] not in (1, count):
        raise UnsupportedOpError(f"what it adds must be of channels, got {array.shape}")
    spread = np.broadcast_to(array.reshape(-1), (count,))
    return with_parameters(nn.Bias(count), bias=spread)


def _batch_norm(node: OnnxNode) -> Layer:
    node.only(training_mode=0, spatial=1, is_test=1)
    weight, bias, mean, var = (node.array(i) for i in range(1, 5))
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 5: nn.BatchNorm3d}
    layer = kinds.get(len(node.dims), nn.BatchNorm2d)(len(mean), node.get("epsilon", 1e-5))
    given = {"weight": weight, "bias": bias, "running_mean": mean, "running_var": var}
    return with_parameters(layer, **given)


def _instance_norm(node: OnnxNode) -> Layer:
    weight, bias = node.array(1), node.array(2)
    kinds = {3: nn.InstanceNorm1d, 5: nn.InstanceNorm3d}
    kind = kinds.get(len(node.dims), nn.InstanceNorm2d)
    layer = kind(len(weight), node.get("epsilon", 1e-5), affine=True)
    return with_parameters(layer, weight=weight, bias=bias)


def _group_norm(node: OnnxNode) -> Layer:
    weight, bias = node.array(1), node.array(2)
    if node.dims[1:2] != weight.shape:
        raise UnsupportedOpError(f"its scale must be of channels, got {weight.shape}")
    layer = nn.GroupNorm(node.get("num_groups"), len(weight), node.get("epsilon", 1e-5))
    return with_parameters(layer, weight=weight, bias=bias)


def _layer_norm(node: OnnxNode) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    axis = node.get("axis", -1)
    behind = len(node.dims) - axis if axis >= 0 else -axis
    if weight.ndim != behind:
        raise UnsupportedOpError(f"its scale must be of {behind} dimensions, got {weight.shape}")
    layer = nn.LayerNorm(weight.shape, node.get("epsilon", 1e-5), bias=bias is not None)
    return with_parameters(layer, weight=weight, bias=bias)


def _lrn(node: OnnxNode) -> Layer:
    size = node.get("size")
    if size % 2 == 0:
        raise UnsupportedOpError(f"its size must be odd, got {size}")
    numbers = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    return nn.LocalResponseNorm(size, *numbers)


def _flatten(node: OnnxNode) -> Layer:
    if node.get("axis", 1) not in (1, 1 - len(node.dims)):
        raise UnsupportedOpError(f"its axis must be 1, got {node.get('axis')}")
    return nn.Flatten()


def _reshape(node: OnnxNode) -> Layer:
    """Return a Flatten for a Reshape that keeps the batch and joins the rest."""
    (batch, *rest), dims = node.dims, node.result.dims
    known = len(dims) == 2 and all(isinstance(n, int) for n in rest)
    if not known or dims[0] != batch or (isinstance(dims[1], int) and dims[1] != prod(rest)):
        raise UnsupportedOpError(f"it must keep the batch and join the rest, got {dims}")
    return nn.Flatten()


def _reduce_mean(node: OnnxNode) -> Layer:
    """Return an adaptive pool for a mean over all spatial dimensions, as PyTorch writes it."""
    rank = len(node.dims)
    given = node.optional(1) if len(node.arrays) > 1 else node.get("axes")
    axes = [] if given is None else sorted(int(axis) % rank for axis in given)
    kinds = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}
    if rank not in kinds or axes != list(range(2, rank)) or node.get("keepdims", 1) != 1:
        raise UnsupportedOpError(f"it must be over all behind the channels, and keep {rank} sizes")
    return kinds[rank](1)


def _softmax(kind: type[nn.Softmax]) -> Row:
    def row(node: OnnxNode) -> Layer:
        rank, old = len(node.dims), node.operator.version < 13
        axis = node.get("axis", 1 if old else -1)
        if old and axis not in (-1, rank - 1):
            raise UnsupportedOpError(f"its axis must be the last below opset 13, got {axis}")
        return kind(axis)

    return row


def _concat(node: OnnxNode) -> Layer:
    if node.get("axis") not in (1, 1 - len(node.dims)):
        raise UnsupportedOpError(f"its axis must be 1, got {node.get('axis')}")
    return nn.Concat(len(node.types))


def _prelu(node: OnnxNode) -> Layer:
    slope, rank = node.array(1), len(node.dims)
    shape = (1,) * (rank - slope.ndim) + slope.shape
    if slope.size > 1 and shape != (1, slope.size, *(1,) * (rank - 2)):
        raise UnsupportedOpError(f"its slope must be of channels, got {slope.shape}")
    return with_parameters(nn.PReLU(slope.size), weight=slope.reshape(-1))


def _clip(node: OnnxNode) -> Layer:
    largest = float(np.finfo(np.float32).max)
    if len(node.arrays) == 1:
        low, high = node.get("min", -largest), node.get("max", largest)
    else:
        low, high = (
            limit if node.arrays[i : i + 1] in ((), (None,)) else float(node.array(i))
            for i, limit in ((1, -largest), (2, largest))
        )
    return nn.Hardtanh(float(low), float(high))


def _plain(make: Callable[[], Layer]) -> Row:
    return lambda node: make()


def _numbers(make: Callable[..., Layer], **defaults: float) -> Row:
    """Return a function that makes a layer of attributes, which are its arguments in order."""
    return lambda node: make(*(node.get(name, value) for name, value in defaults.items()))


def _gelu(node: OnnxNode) -> Layer:
    return nn.GELU(node.get("approximate", "none"))


def _hardsigmoid(node: OnnxNode) -> Layer:
    return nn.Pointwise("hardsigmoid", (node.get("alpha", 0.2), node.get("beta", 0.5)))


PLAIN: Mapping[str, Callable[[], Layer]] = {
    **{"Relu": nn.ReLU, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh, "Softsign": nn.Softsign},
    **{"HardSwish": nn.Hardswish, "Mish": nn.Mish, "Identity": nn.Identity},
    **{"Softplus": nn.Softplus, "Dropout": nn.Dropout},
}
ROWS: Mapping[str, Row] = {
    **{name: _plain(make) for name, make in PLAIN.items()},
    **WINDOWS,
    **{"Gemm": _gemm, "MatMul": _matmul, "Add": _add, "LRN": _lrn},
    **{"BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm},
    **{"GroupNormalization": _group_norm, "LayerNormalization": _layer_norm, "Gelu": _gelu},
    **{"Flatten": _flatten, "Reshape": _reshape, "Concat": _concat, "PRelu": _prelu},
    "ReduceMean": _reduce_mean,
    **{"Softmax": _softmax(nn.Softmax), "LogSoftmax": _softmax(nn.LogSoftmax), "Clip": _clip},
    "LeakyRelu": _numbers(nn.LeakyReLU, alpha=0.01),
    "Elu": _numbers(nn.ELU, alpha=1.0),
    "Celu": _numbers(nn.CELU, alpha=1.0),
    "HardSigmoid": _hardsigmoid,
}
"""Functions that make layers, by ONNX operator."""
