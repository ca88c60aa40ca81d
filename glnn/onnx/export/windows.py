"""Layers of windows: convolutions, pooling, sampling."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.graph.operators import windows
from glnn.layers import Subsample2d
from glnn.layers.conv import PADDING_MODES, Conv, ConvTranspose
from glnn.layers.pool import AdaptivePool, AvgPool, LPPool, Pool
from glnn.onnx.export.writer import LayerWriter
from glnn.types import Array

Sizes = tuple[int, ...]


def conv(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Conv)
    around, count = layer.around, layer.count
    if layer.padding_mode != "zeros" and any(around):
        sides = out.integers(0, 0, *around[:count], 0, 0, *around[count:])
        x = out("Pad", x, sides, mode=PADDING_MODES[layer.padding_mode])
        around = (0,) * len(around)
    return out(
        "Conv",
        x,
        *map(out.parameter, layer.shapes),
        kernel_shape=layer.kernel_size,
        strides=layer.stride,
        pads=around,
        dilations=layer.dilation,
        group=layer.groups,
    )


def conv_transpose(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, ConvTranspose)
    return out(
        "ConvTranspose",
        x,
        *map(out.parameter, layer.shapes),
        kernel_shape=layer.kernel_size,
        strides=layer.stride,
        pads=(*layer.padding, *layer.padding),
        dilations=layer.dilation,
        output_padding=layer.output_padding,
        group=layer.groups,
    )


def max_pool(out: LayerWriter, x: str) -> str:
    layer, ends = out.layer, _ends(out)
    assert isinstance(layer, Pool)
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.stride}
    return out("MaxPool", x, **sizes, dilations=layer.dilation, pads=(*layer.padding, *ends))


def avg_pool(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, AvgPool)
    if layer.divisor_override is None:
        return _mean(out, x, layer, count_padding=layer.count_include_pad)
    pads = (*layer.padding, *_ends(out))
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.stride, "pads": pads}
    mean = out("AveragePool", x, **sizes, count_include_pad=1)
    return out("Mul", mean, out.constant(prod(layer.kernel_size) / layer.divisor_override))


def _mean(out: LayerWriter, x: str, layer: Pool, *, count_padding: bool) -> str:
    """Write an average pool; windows beyond the end count what is inside, with or without
    padding.
    """
    ends, padding = _ends(out), layer.padding
    pads = (*padding, *ends)
    if count_padding and ends != padding:
        if any(padding):
            x = out("Pad", x, out.integers(0, 0, *padding, 0, 0, *padding))
        over = (max(0, end - side) for end, side in zip(ends, padding, strict=True))
        pads = (*(0,) * layer.count, *over)
        count_padding = False
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.stride, "pads": pads}
    return out("AveragePool", x, **sizes, count_include_pad=int(count_padding))


def lp_pool(out: LayerWriter, x: str) -> str:
    """ONNX's operator has no signs and, of a window that hangs over the end, only what is there."""
    layer = out.layer
    assert isinstance(layer, LPPool)
    p = float(layer.norm_type)
    if p % 2 == 0 and not any(_ends(out)):
        return out("LpPool", x, kernel_shape=layer.kernel_size, strides=layer.stride, p=int(p))
    powers = x if p == 1 else out("Pow", x, out.constant(p))
    mean = _mean(out, powers, layer, count_padding=True)
    sums = out("Mul", mean, out.constant(prod(layer.kernel_size)))
    return sums if p == 1 else out("Pow", sums, out.constant(1 / p))


def _ends(out: LayerWriter) -> Sizes:
    """The padding behind each dimension that gives as many windows as there are."""
    layer = out.layer
    assert isinstance(layer, Pool)
    found = []
    for axis, size in enumerate(out.sizes):
        kernel, stride = layer.kernel_size[axis], layer.stride[axis]
        dilation, side = layer.dilation[axis], layer.padding[axis]
        count = windows.output(size, side, side, kernel, stride, dilation, layer.ceil_mode)
        after = side
        if windows.output(size, side, side, kernel, stride, dilation) != count:
            after = max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - size - side)
        found.append(after)
    return tuple(found)


def _window_counts(out: LayerWriter) -> Sizes:
    """Return the number of windows along each dimension of x."""
    layer = out.layer
    assert isinstance(layer, AdaptivePool)
    pairs = zip(out.sizes, layer.output_size, strict=True)
    return tuple(size if count is None else count for size, count in pairs)


def adaptive_avg_pool(out: LayerWriter, x: str) -> str:
    counts, sizes = _window_counts(out), out.sizes
    if set(counts) == {1}:
        return out("GlobalAveragePool", x)
    if not any(size % count for size, count in zip(sizes, counts, strict=True)):
        return _pool_evenly(out, "AveragePool", x, counts)
    means = [_means(size, count) for size, count in zip(sizes, counts, strict=True)]
    if len(means) > 1:
        x = out("MatMul", out.constant(means[-2]), x)
    x = out("MatMul", x, out.constant(means[-1].T))
    if len(means) == 3:
        n, c = out.dims[:2]
        x = out.reshape(x, (n, c), (n, c, sizes[0], prod(counts[1:])))
        x = out("MatMul", out.constant(means[0]), x)
        x = out.reshape(x, (n, c), (n, c, *counts))
    return x


def adaptive_max_pool(out: LayerWriter, x: str) -> str:
    counts, sizes = _window_counts(out), out.sizes
    if set(counts) == {1}:
        return out("GlobalMaxPool", x)
    if not any(size % count for size, count in zip(sizes, counts, strict=True)):
        return _pool_evenly(out, "MaxPool", x, counts)
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True), 2):
        parts = list(_parts(size, count))
        most = max(len(part) for part in parts)
        index = [[*part, *[part[-1]] * (most - len(part))] for part in parts]
        x = out("Gather", x, out.constant(index, np.int64), axis=axis)
        x = out("ReduceMax", x, out.integers(axis + 1), keepdims=0)
    return x


def _pool_evenly(out: LayerWriter, op_type: str, x: str, counts: Sizes) -> str:
    """Write a pool whose windows are of one size and side by side."""
    kernel = tuple(size // count for size, count in zip(out.sizes, counts, strict=True))
    return out(op_type, x, kernel_shape=kernel, strides=kernel)


def _parts(size: int, count: int) -> list[range]:
    """The places of each of `count` windows that share `size`."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _means(size: int, count: int) -> Array:
    """The matrix whose product with a column is the mean of each window."""
    found = np.zeros((count, size), np.float32)
    for row, part in zip(found, _parts(size, count), strict=True):
        row[part] = 1 / len(part)
    return found


def subsample2d(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Subsample2d)
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.kernel_size}
    mean = out("AveragePool", x, **sizes)
    return out("Add", out("Mul", mean, out.channels("weight")), out.channels("bias"))
