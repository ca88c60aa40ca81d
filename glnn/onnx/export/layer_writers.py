"""Writers of layers: products, lookups, normalisation, windows, recurrence."""

from __future__ import annotations

from math import floor, prod, sqrt

import numpy as np

from glnn.core.types import Array, DType
from glnn.errors import UnsupportedOpError
from glnn.graph.compose.recurrent import RecurrentLayer
from glnn.graph.compose.sliding_windows import window_positions
from glnn.graph.operators import Normalize, windows
from glnn.graph.operators import Softmax as SoftmaxOperator
from glnn.layers import (
    GLU,
    BatchNorm2d,
    Bilinear,
    ChannelShuffle,
    CosineSimilarity,
    Embedding,
    EmbeddingBag,
    Fold,
    GroupNorm,
    InstanceNorm2d,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    MultiheadAttention,
    PixelShuffle,
    PixelUnshuffle,
    RMSNorm,
    Subsample2d,
    Unfold,
    Upsample,
)
from glnn.layers.conv import PADDING_MODES, Conv, ConvTranspose
from glnn.layers.embedding import LOWEST
from glnn.layers.pad import Pad
from glnn.layers.pool import AdaptivePool, AvgPool, LPPool, Pool
from glnn.layers.recurrent import Cell, Recurrent
from glnn.onnx.export.writer import LayerWriter

REDUCED = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}
"""ONNX's reduction for each mode of EmbeddingBag."""
RESIZED = (DType.float32, DType.int32, DType.uint8, DType.int8)
"""Dtypes for which Resize is written."""


def linear(out: LayerWriter, x: str) -> str:
    assert isinstance(out.layer, Linear)
    biased = "bias" in out.layer.shapes
    if len(out.dims) == 2:
        return out("Gemm", x, *map(out.parameter, out.layer.shapes), transB=1)
    product = out("MatMul", x, out.transposed("weight"))
    return out("Add", product, out.parameter("bias")) if biased else product


def bilinear(out: LayerWriter, x: str, y: str) -> str:
    layer = out.layer
    assert isinstance(layer, Bilinear)
    count, size = layer.out_features, layer.in2_features
    matrix = layer.weight.transpose(1, 0, 2).reshape(layer.in1_features, count * size)
    weight = out.writer.weight(f"{out.name}.weight.T", np.ascontiguousarray(matrix))
    before = [0] * (len(out.types[0].dims) - 1)
    product = out("MatMul", out("Unsqueeze", x, out.integers(-2)), weight)
    product = out("Reshape", product, out.integers(*before, count, size))
    product = out("Mul", product, out("Unsqueeze", y, out.integers(-2)))
    total = out("ReduceSum", product, out.integers(-1), keepdims=0)
    return out("Add", total, out.parameter("bias")) if "bias" in layer.shapes else total


def cosine_similarity(out: LayerWriter, x: str, y: str) -> str:
    layer = out.layer
    assert isinstance(layer, CosineSimilarity)
    axes, epsilon = out.integers(layer.dim), out.constant(layer.eps)
    product = out("ReduceSum", out("Mul", x, y), axes, keepdims=0)
    norms = (out("Max", out("ReduceL2", one, axes, keepdims=0), epsilon) for one in (x, y))
    return out("Div", product, out("Mul", *norms))


def bias(out: LayerWriter, x: str) -> str:
    return out("Add", x, out.channels("bias"))


def embedding(out: LayerWriter, x: str) -> str:
    """Write a Gather. An index out of range is clamped by glnn, and an error in ONNX."""
    assert isinstance(out.layer, Embedding)
    return out("Gather", out.parameter("weight"), x, axis=0)


def embedding_bag(out: LayerWriter, x: str) -> str:
    """Write a Gather and a reduction. A bag of padding alone is 0 in each mode."""
    layer = out.layer
    assert isinstance(layer, EmbeddingBag)
    rows, axes = out("Gather", out.parameter("weight"), x, axis=0), out.integers(1)
    if layer.padding_idx is None:
        return out(REDUCED[layer.mode], rows, axes, keepdims=0)
    index = out.types[0].dtype.numpy
    padding = layer.padding_idx, layer.padding_idx - layer.num_embeddings
    equal = (out("Equal", x, out.constant(one, index)) for one in padding)
    padded, zero = out("Or", *equal), out.constant(0)
    mask = out("Unsqueeze", padded, out.integers(2))
    count = out("ReduceSum", out("Where", padded, zero, out.constant(1)), axes)
    if layer.mode == "max":
        lowest = out.constant(LOWEST)
        result = out("ReduceMax", out("Where", mask, lowest, rows), axes, keepdims=0)
        return out("Where", out("Greater", count, zero), result, zero)
    total = out("ReduceSum", out("Where", mask, zero, rows), axes, keepdims=0)
    if layer.mode == "sum":
        return total
    return out("Div", total, out("Max", count, out.constant(1)))


def concat(out: LayerWriter, *inputs: str) -> str:
    return out("Concat", *inputs, axis=1)


def glu(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, GLU)
    value, gate = out.all(2, "Split", x, axis=layer.dim, num_outputs=2)
    return out("Mul", value, out("Sigmoid", gate))


def identity(out: LayerWriter, x: str) -> str:
    return out("Identity", x)


def flatten(out: LayerWriter, x: str) -> str:
    if len(out.result.dims) == 2 and out.dims[0] == out.result.dims[0]:
        return out("Flatten", x)
    return view(out, x)


def view(out: LayerWriter, x: str) -> str:
    return out.reshape(x, out.dims, out.result.dims)


def upsample(out: LayerWriter, x: str) -> str:
    layer, dims = out.layer, out.dims
    assert isinstance(layer, Upsample)
    sizes = [
        (axis, n, layer.source_coordinates(n, axis - 2, len(dims) - 2))
        for axis, n in enumerate(dims)
        if axis >= 2 and isinstance(n, int)
    ]
    nearest = layer.mode.startswith("nearest")
    repeats = all(
        resampling.step * resampling.count == n
        and np.array_equal(resampling.nearest, np.repeat(np.arange(n), resampling.count // n))
        for _, n, resampling in sizes
    )
    if nearest and not (repeats and out.types[0].dtype in RESIZED):
        exact = layer.mode == "nearest-exact"
        for axis, _, resampling in sizes:  # indices, so that runtimes do not round differently
            index = resampling.nearest_exact if exact else resampling.nearest
            x = out("Gather", x, out.constant(index, np.int64), axis=axis)
        return x
    coordinates = "align_corners" if layer.align_corners else "half_pixel"
    cubic = layer.mode == "bicubic"
    attributes = {
        "mode": "nearest" if nearest else "cubic" if cubic else "linear",
        "coordinate_transformation_mode": "asymmetric" if nearest else coordinates,
        "axes": [axis for axis, _, _ in sizes],
    } | ({"nearest_mode": "floor"} if nearest else {})
    if layer.align_corners or any(resampling.scale is None for _, _, resampling in sizes):
        counts = out.integers(*(resampling.count for _, _, resampling in sizes))
        return out("Resize", x, "", "", counts, **attributes)
    scales = [_scale(n, axis.count, axis.scale or 1.0) for _, n, axis in sizes]
    return out("Resize", x, "", out.constant(scales), **attributes)


def _scale(size: int, count: int, scale: float) -> float:
    """Return `scale` in float32, increased until floor(size * scale) is `count`."""
    result = np.float32(scale)
    while floor(np.float32(size) * result) < count:
        result = np.nextafter(result, np.float32(np.inf))
    return float(result)


def multihead_attention(out: LayerWriter, query: str, key: str, value: str) -> str:
    layer = out.layer
    assert isinstance(layer, MultiheadAttention)
    if any(len(type.dims) != 2 for type in out.types):
        return _attend(out, layer, query, key, value)
    axes = out.integers(0 if layer.batch_first else 1)
    batch = (out("Unsqueeze", x, axes) for x in (query, key, value))
    return out("Squeeze", _attend(out, layer, *batch), axes)


def _attend(out: LayerWriter, layer: MultiheadAttention, query: str, key: str, value: str) -> str:
    heads, size = layer.num_heads, layer.embed_dim
    n, length = (0, 1) if layer.batch_first else (1, 0)
    parts = []
    for i, x in enumerate((query, key, value)):
        projected = _project(out, layer, x, i)
        split = out("Reshape", projected, out.integers(0, 0, heads, size // heads))
        if i > 0:
            split = _append_keys(out, layer, split, f"bias_{'qkv'[i]}")
        perm = (n, 2, 3, length) if i == 1 else (n, 2, length, 3)
        parts.append(out("Transpose", split, perm=perm))
    scaled = out("Mul", parts[0], out.constant(1 / sqrt(size // heads)))
    weights = out("Softmax", out("MatMul", scaled, parts[1]), axis=-1)
    result = out("MatMul", weights, parts[2])
    result = out("Transpose", result, perm=(0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))
    joined = out("Reshape", result, out.integers(0, 0, size))
    product = out("MatMul", joined, out.transposed("out_proj_weight"))
    if "out_proj_bias" not in layer.shapes:
        return product
    return out("Add", product, out.parameter("out_proj_bias"))


def _append_keys(out: LayerWriter, layer: MultiheadAttention, x: str, bias: str) -> str:
    """Append `bias_k` or `bias_v` and, for `add_zero_attn`, zeros to keys or values x (4-D)."""
    axis, size = 1 if layer.batch_first else 0, layer.embed_dim // layer.num_heads
    ends = out.integers(0), out.integers(1), out.integers(axis)
    result = [x]
    if bias in layer.shapes:
        array = layer.parameters[bias].reshape(1, 1, layer.num_heads, size)
        first = out("Slice", x, *ends)
        row = out.writer.weight(f"{out.name}.{bias}", array)
        result.append(out("Where", out("Less", first, first), first, row))
    if layer.add_zero_attn:
        first = out("Slice", x, *ends)
        result.append(out("Where", out("Less", first, first), first, out.constant(0)))
    return out("Concat", *result, axis=axis) if len(result) > 1 else x


def _project(out: LayerWriter, layer: MultiheadAttention, x: str, i: int) -> str:
    """Project input i: the query, key or value."""
    arrays, size, letter = layer.parameters, layer.embed_dim, "qkv"[i]
    part = slice(i * size, (i + 1) * size)
    weight = (
        arrays["in_proj_weight"][part]
        if "in_proj_weight" in arrays
        else arrays[f"{letter}_proj_weight"]
    )
    writer = out.writer
    transposed = writer.weight(f"{out.name}.{letter}_proj_weight.T", np.ascontiguousarray(weight.T))
    product = out("MatMul", x, transposed)
    if "in_proj_bias" not in arrays:
        return product
    bias = writer.weight(f"{out.name}.{letter}_proj_bias", arrays["in_proj_bias"][part])
    return out("Add", product, bias)


def pad(out: LayerWriter, x: str) -> str:
    """Write a Pad for each step of the layer that pads; Identity where none does."""
    layer = out.layer
    assert isinstance(layer, Pad)
    zeros, nodes = (0,) * (len(out.dims) - layer.count), 0
    for before, after, edge in layer.steps:
        if any((*before, *after)):
            sides = out.integers(*zeros, *before, *zeros, *after)
            value = (out.constant(layer.value, out.types[0].dtype.numpy),)
            value = value if edge == "constant" and layer.value else ()  # type: ignore[assignment]
            x, nodes = out("Pad", x, sides, *value, mode=edge), nodes + 1
    return x if nodes else out("Identity", x)


def pixel_shuffle(out: LayerWriter, x: str) -> str:
    layer, dims = out.layer, out.dims
    assert isinstance(layer, PixelShuffle)
    r = layer.upscale_factor
    if len(dims) == 4 and out.types[0].dtype is DType.float32:
        return out("DepthToSpace", x, blocksize=r, mode="CRD")
    *first, c, h, w = dims
    axis = len(first)
    assert isinstance(c, int)
    x = out.reshape(x, dims, (*first, c // r**2, r, r, h, w))
    order = (*range(axis + 1), axis + 3, axis + 1, axis + 4, axis + 2)
    return out.reshape(out("Transpose", x, perm=order), dims, out.result.dims)


def pixel_unshuffle(out: LayerWriter, x: str) -> str:
    """Write a Reshape and Transpose: ONNX's SpaceToDepth orders channels differently."""
    layer, dims = out.layer, out.dims
    assert isinstance(layer, PixelUnshuffle)
    r, (*first, c, h, w) = layer.downscale_factor, dims
    axis = len(first)
    assert isinstance(h, int) and isinstance(w, int)
    x = out.reshape(x, dims, (*first, c, h // r, r, w // r, r))
    order = (*range(axis + 1), axis + 2, axis + 4, axis + 1, axis + 3)
    return out.reshape(out("Transpose", x, perm=order), dims, out.result.dims)


def channel_shuffle(out: LayerWriter, x: str) -> str:
    layer, dims = out.layer, out.dims
    assert isinstance(layer, ChannelShuffle)
    n, c, *rest = dims
    assert isinstance(c, int)
    x = out.reshape(x, dims, (n, layer.groups, c // layer.groups, *rest))
    x = out("Transpose", x, perm=(0, 2, 1, *range(3, len(dims) + 1)))
    return out.reshape(x, dims, dims)


def unfold(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Unfold)
    windows = layer.windows
    counts = windows.outputs(out.sizes)
    if any(windows.sides):
        x = out("Pad", x, out.integers(0, 0, *windows.before, 0, 0, *windows.after))
    for axis in (1, 0):
        positions = window_positions(windows, counts, axis)
        x = out("Gather", x, out.constant(positions, np.int64), axis=2 + axis)
    x = out("Transpose", x, perm=(0, 1, 2, 4, 3, 5))
    return out.reshape(x, out.dims[:1], out.result.dims)


def fold(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Fold)
    windows = layer.windows
    image, block = out.integers(*layer.output_size), out.integers(*windows.kernel)
    return out(
        "Col2Im",
        x,
        image,
        block,
        strides=windows.stride,
        dilations=windows.dilation,
        pads=windows.sides,
    )


def _parameter_or(out: LayerWriter, name: str, value: float, *shape: int) -> str:
    """Return the layer's parameter, or a constant of `value` where it has none."""
    if name in out.layer.shapes:
        return out.parameter(name)
    return out.constant(np.full(shape, value))


def batch_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, (BatchNorm2d, InstanceNorm2d))
    count = layer.num_features
    scale, shift = _parameter_or(out, "weight", 1, count), _parameter_or(out, "bias", 0, count)
    moments = out.parameter("running_mean"), out.parameter("running_var")
    return out("BatchNormalization", x, scale, shift, *moments, epsilon=float(layer.eps))


def group_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, GroupNorm)
    count = layer.num_channels
    scale, shift = _parameter_or(out, "weight", 1, count), _parameter_or(out, "bias", 0, count)
    attributes = {"num_groups": layer.num_groups, "epsilon": float(layer.eps)}
    return out("GroupNormalization", x, scale, shift, **attributes)


def instance_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, InstanceNorm2d)
    if layer.track_running_stats:
        return batch_norm(out, x)
    count = layer.num_features
    scale, shift = _parameter_or(out, "weight", 1, count), _parameter_or(out, "bias", 0, count)
    return out("InstanceNormalization", x, scale, shift, epsilon=float(layer.eps))


def layer_norm(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, LayerNorm)
    scale = _parameter_or(out, "weight", 1, *layer.normalized_shape)
    shift = (out.parameter("bias"),) if "bias" in layer.shapes else ()
    attributes = {"axis": -len(layer.normalized_shape), "epsilon": float(layer.eps)}
    return out("LayerNormalization", x, scale, *shift, **attributes)


def rms_norm(out: LayerWriter, x: str) -> str:
    """Write single operators: ONNX has RMSNormalization only from version 23 on."""
    layer = out.layer
    assert isinstance(layer, RMSNorm) and isinstance(layer.op, Normalize)
    axes = out.integers(*range(-len(layer.normalized_shape), 0))
    mean = out("ReduceMean", out("Mul", x, x), axes)
    result = out("Div", x, out("Sqrt", out("Add", mean, out.constant(layer.op.eps))))
    return out("Mul", result, out.parameter("weight")) if layer.shapes else result


def local_response_norm(out: LayerWriter, x: str) -> str:
    """Write an LRN for images and an odd size; else a product with a band matrix.

    For an even size ONNX's window has one more channel behind the center, glnn's one before.
    """
    layer, dims = out.layer, out.dims
    assert isinstance(layer, LocalResponseNorm)
    size, channels = layer.size, dims[1]
    if len(dims) == 4 and size % 2:
        attributes = {
            "alpha": float(layer.alpha),
            "beta": float(layer.beta),
            "bias": float(layer.k),
        }
        return out("LRN", x, size=size, **attributes)
    assert isinstance(channels, int)
    distance = np.arange(channels) - np.arange(channels)[:, None]
    band = (distance >= -(size // 2)) & (distance <= (size - 1) // 2)
    squares = out("Reshape", out("Mul", x, x), out.integers(0, channels, -1))
    sums = out("MatMul", out.constant(band * (layer.alpha / size)), squares)
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
    """Write an average pool, whose windows beyond the end count only elements inside.

    count_padding: True if padding counts, too.
    """
    ends, padding = _ends(out), layer.padding
    pads = (*padding, *ends)
    if count_padding and ends != padding:
        if any(padding):
            x = out("Pad", x, out.integers(0, 0, *padding, 0, 0, *padding))
        overhang = (max(0, end - side) for end, side in zip(ends, padding, strict=True))
        pads = (*(0,) * layer.count, *overhang)
        count_padding = False
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.stride, "pads": pads}
    return out("AveragePool", x, **sizes, count_include_pad=int(count_padding))


def lp_pool(out: LayerWriter, x: str) -> str:
    """Write an LpPool where p is even and no window is beyond the end, else sums of powers.

    ONNX's operator takes magnitudes, and no padding for windows beyond the end.
    """
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
    """Return the padding behind each dimension that gives the layer's number of windows."""
    layer = out.layer
    assert isinstance(layer, Pool)
    result = []
    for axis, size in enumerate(out.sizes):
        kernel, stride = layer.kernel_size[axis], layer.stride[axis]
        dilation, side = layer.dilation[axis], layer.padding[axis]
        count = windows.output(size, side, side, kernel, stride, dilation, layer.ceil_mode)
        after = side
        if windows.output(size, side, side, kernel, stride, dilation) != count:
            after = max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - size - side)
        result.append(after)
    return tuple(result)


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
        longest = max(len(part) for part in parts)
        index = [[*part, *[part[-1]] * (longest - len(part))] for part in parts]
        x = out("Gather", x, out.constant(index, np.int64), axis=axis)
        x = out("ReduceMax", x, out.integers(axis + 1), keepdims=0)
    return x


def _pool_evenly(out: LayerWriter, op_type: str, x: str, counts: Sizes) -> str:
    """Write a pool of adjacent windows of one size."""
    kernel = tuple(size // count for size, count in zip(out.sizes, counts, strict=True))
    return out(op_type, x, kernel_shape=kernel, strides=kernel)


def _parts(size: int, count: int) -> list[range]:
    """Return the indices of each of `count` windows that divide `size`."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _means(size: int, count: int) -> Array:
    """Return the matrix (count, size) whose products are the means of windows."""
    result = np.zeros((count, size), np.float32)
    for row, part in zip(result, _parts(size, count), strict=True):
        row[part] = 1 / len(part)
    return result


def subsample2d(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Subsample2d)
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.kernel_size}
    mean = out("AveragePool", x, **sizes)
    return out("Add", out("Mul", mean, out.channels("weight")), out.channels("bias"))


OP_TYPES = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Indices of PyTorch's gates in ONNX's order: i, o, f, c of an LSTM, z, r, h of a GRU."""


def recurrent(out: LayerWriter, x: str, *states: str) -> tuple[str, ...]:
    layer = out.layer
    assert isinstance(layer, Recurrent)
    op = layer.op
    assert isinstance(op, RecurrentLayer)
    unbatched = len(out.types[0].dims) == 2
    if unbatched:
        axes = out.integers(1)
        x, *states = (out("Unsqueeze", one, axes) for one in (x, *states))  # type: ignore
    elif layer.batch_first:
        x = out("Transpose", x, perm=(1, 0, 2))
    final_states: list[list[str]] = []
    for number in range(layer.num_layers):
        layer_states = [_slice_layer(out, one, number, layer) for one in states]
        x, *last = _write_layer(out, x, layer_states, op, f"_l{number}")
        final_states.append(last)
    result = [
        out("Concat", *one, axis=0) if len(one) > 1 else one[0]
        for one in zip(*final_states, strict=True)
    ]
    if unbatched:
        x, *result = (out("Squeeze", one, axes) for one in (x, *result))
    elif layer.batch_first:
        x = out("Transpose", x, perm=(1, 0, 2))
    return x, *result


def cell(out: LayerWriter, x: str, *states: str) -> tuple[str, ...]:
    op = out.layer.op
    assert isinstance(out.layer, Cell) and isinstance(op, RecurrentLayer)
    axes = out.integers(*((0, 1) if len(out.types[0].dims) == 1 else (0,)))
    operands = [out("Unsqueeze", one, axes) for one in (x, *states)]
    _, *ends = _write_layer(out, operands[0], operands[1:], op, "")
    return tuple(out("Squeeze", one, axes) for one in ends)


def _write_layer(
    out: LayerWriter, x: str, states: list[str], op: RecurrentLayer, suffix: str
) -> list[str]:
    """Write a node for one layer; return its output (t, b, d p) and its last states.

    suffix: of the parameters' names.
    """
    kind, arrays = OP_TYPES[op.kind], out.layer.parameters
    suffixes = ("", "_reverse")[: op.directions]

    def stack(part: str) -> Array:
        return np.stack([arrays[f"{part}{suffix}{end}"] for end in suffixes])

    input_weight, recurrent_weight = stack("weight_ih"), stack("weight_hh")
    if op.projected:
        if states:
            raise UnsupportedOpError("ONNX has no projection, so that h_0 must be left out")
        projection = stack("weight_hr")
        recurrent_weight = (recurrent_weight.astype(np.float64) @ projection).astype(np.float32)
    biases = [stack("bias_ih"), stack("bias_hh")] if op.biased else []
    operands = {
        "W": _reorder_gates(kind, input_weight),
        "R": _reorder_gates(kind, recurrent_weight),
    }
    if biases:
        operands["B"] = np.concatenate([_reorder_gates(kind, array) for array in biases], 1)
    operand_names = [
        out.writer.weight(f"{out.name}.{name}{suffix}", array) for name, array in operands.items()
    ]
    operand_names += [""] * (3 - len(operand_names)) + ["", *states] if states else []
    attributes = {
        "hidden_size": recurrent_weight.shape[2],
        "direction": "bidirectional" if op.directions == 2 else "forward",
    }
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if op.kind == "rnn_relu":
        attributes["activations"] = ["Relu"] * op.directions
    y, *final_states = out.all(1 + op.states, kind, x, *operand_names, **attributes)
    if op.projected:
        name = f"{out.name}.weight_hr{suffix}.T"
        transposed = out.writer.weight(name, np.ascontiguousarray(projection.swapaxes(1, 2)))
        y, final_states[0] = (out("MatMul", array, transposed) for array in (y, final_states[0]))
    y = out("Transpose", y, perm=(0, 2, 1, 3))
    return [out("Reshape", y, out.integers(0, 0, -1)), *final_states]


def _reorder_gates(kind: str, array: Array) -> Array:
    """Return `array` (d, g u, ...) with the gates in ONNX's order."""
    gates = GATES[kind]
    split = array.reshape(len(array), len(gates), -1, *array.shape[2:])
    return np.ascontiguousarray(split[:, gates].reshape(array.shape))


def _slice_layer(out: LayerWriter, states: str, number: int, layer: Recurrent) -> str:
    """Slice the states of layer `number` from the states of all layers."""
    if layer.num_layers == 1:
        return states
    count = 2 if layer.bidirectional else 1
    bounds = out.integers(number * count), out.integers((number + 1) * count)
    return out("Slice", states, *bounds, out.integers(0))
