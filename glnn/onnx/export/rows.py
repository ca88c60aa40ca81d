"""Writers of layers that look numbers up, move them, or multiply matrices."""

from __future__ import annotations

from math import floor, sqrt

import numpy as np

from glnn.graph.compose.fold import along
from glnn.layers import (
    GLU,
    Bilinear,
    ChannelShuffle,
    CosineSimilarity,
    Embedding,
    EmbeddingBag,
    Fold,
    Linear,
    MultiheadAttention,
    PixelShuffle,
    PixelUnshuffle,
    Unfold,
    Upsample,
)
from glnn.layers.embedding import LOWEST
from glnn.layers.pad import Pad
from glnn.onnx.export.writer import LayerWriter
from glnn.types import DType

REDUCED = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}
"""ONNX reductions by EmbeddingBag's modes."""
RESIZED = (DType.float32, DType.int32, DType.uint8, DType.int8)
"""Dtypes that Resize is known to take."""


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
    made = out("MatMul", out("Unsqueeze", x, out.integers(-2)), weight)
    made = out("Reshape", made, out.integers(*before, count, size))
    made = out("Mul", made, out("Unsqueeze", y, out.integers(-2)))
    total = out("ReduceSum", made, out.integers(-1), keepdims=0)
    return out("Add", total, out.parameter("bias")) if "bias" in layer.shapes else total


def cosine_similarity(out: LayerWriter, x: str, y: str) -> str:
    layer = out.layer
    assert isinstance(layer, CosineSimilarity)
    axes, least = out.integers(layer.dim), out.constant(layer.eps)
    product = out("ReduceSum", out("Mul", x, y), axes, keepdims=0)
    norms = (out("Max", out("ReduceL2", one, axes, keepdims=0), least) for one in (x, y))
    return out("Div", product, out("Mul", *norms))


def bias(out: LayerWriter, x: str) -> str:
    return out("Add", x, out.channels("bias"))


def embedding(out: LayerWriter, x: str) -> str:
    """An index out of range, which is the nearest one in range here, is an error in ONNX."""
    assert isinstance(out.layer, Embedding)
    return out("Gather", out.parameter("weight"), x, axis=0)


def embedding_bag(out: LayerWriter, x: str) -> str:
    """Write an EmbeddingBag by Gather and a reduction; a bag of padding alone is 0 in any mode."""
    layer = out.layer
    assert isinstance(layer, EmbeddingBag)
    rows, axes = out("Gather", out.parameter("weight"), x, axis=0), out.integers(1)
    if layer.padding_idx is None:
        return out(REDUCED[layer.mode], rows, axes, keepdims=0)
    index = out.types[0].dtype.numpy
    places = layer.padding_idx, layer.padding_idx - layer.num_embeddings
    same = (out("Equal", x, out.constant(one, index)) for one in places)
    padded, zero = out("Or", *same), out.constant(0)
    mask = out("Unsqueeze", padded, out.integers(2))
    count = out("ReduceSum", out("Where", padded, zero, out.constant(1)), axes)
    if layer.mode == "max":
        lowest = out.constant(LOWEST)
        found = out("ReduceMax", out("Where", mask, lowest, rows), axes, keepdims=0)
        return out("Where", out("Greater", count, zero), found, zero)
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
        (axis, n, layer.places(n, axis - 2, len(dims) - 2))
        for axis, n in enumerate(dims)
        if axis >= 2 and isinstance(n, int)
    ]
    nearest = layer.mode.startswith("nearest")
    whole = all(
        places.step * places.count == n
        and np.array_equal(places.nearest, np.repeat(np.arange(n), places.count // n))
        for _, n, places in sizes
    )
    if nearest and not (whole and out.types[0].dtype in RESIZED):
        exact = layer.mode == "nearest-exact"
        for axis, _, places in sizes:  # float32's rounding decides: the indices are written
            index = places.nearest_exact if exact else places.nearest
            x = out("Gather", x, out.constant(index, np.int64), axis=axis)
        return x
    coordinates = "align_corners" if layer.align_corners else "half_pixel"
    cubic = layer.mode == "bicubic"
    how = {
        "mode": "nearest" if nearest else "cubic" if cubic else "linear",
        "coordinate_transformation_mode": "asymmetric" if nearest else coordinates,
        "axes": [axis for axis, _, _ in sizes],
    } | ({"nearest_mode": "floor"} if nearest else {})
    if layer.align_corners or any(places.scale is None for _, _, places in sizes):
        wanted = out.integers(*(places.count for _, _, places in sizes))
        return out("Resize", x, "", "", wanted, **how)
    scales = [_scale(n, places.count, places.scale or 1.0) for _, n, places in sizes]
    return out("Resize", x, "", out.constant(scales), **how)


def _scale(size: int, count: int, scale: float) -> float:
    """`scale` as float32, which takes `size` places to `count`."""
    found = np.float32(scale)
    while floor(np.float32(size) * found) < count:
        found = np.nextafter(found, np.float32(np.inf))
    return float(found)


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
    n, places = (0, 1) if layer.batch_first else (1, 0)
    parts = []
    for i, x in enumerate((query, key, value)):
        projected = _project(out, layer, x, i)
        split = out("Reshape", projected, out.integers(0, 0, heads, size // heads))
        if i > 0:
            split = _longer(out, layer, split, f"bias_{'qkv'[i]}")
        turned = (n, 2, 3, places) if i == 1 else (n, 2, places, 3)
        parts.append(out("Transpose", split, perm=turned))
    scaled = out("Mul", parts[0], out.constant(1 / sqrt(size // heads)))
    weights = out("Softmax", out("MatMul", scaled, parts[1]), axis=-1)
    found = out("MatMul", weights, parts[2])
    found = out("Transpose", found, perm=(0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))
    joined = out("Reshape", found, out.integers(0, 0, size))
    product = out("MatMul", joined, out.transposed("out_proj_weight"))
    if "out_proj_bias" not in layer.shapes:
        return product
    return out("Add", product, out.parameter("out_proj_bias"))


def _longer(out: LayerWriter, layer: MultiheadAttention, x: str, bias: str) -> str:
    """Keys or values x, of four dimensions, with those that are always there."""
    axis, size = 1 if layer.batch_first else 0, layer.embed_dim // layer.num_heads
    ends = out.integers(0), out.integers(1), out.integers(axis)
    found = [x]
    if bias in layer.shapes:
        array = layer.parameters[bias].reshape(1, 1, layer.num_heads, size)
        first = out("Slice", x, *ends)
        own = out.writer.weight(f"{out.name}.{bias}", array)
        found.append(out("Where", out("Less", first, first), first, own))
    if layer.add_zero_attn:
        first = out("Slice", x, *ends)
        found.append(out("Where", out("Less", first, first), first, out.constant(0)))
    return out("Concat", *found, axis=axis) if len(found) > 1 else x


def _project(out: LayerWriter, layer: MultiheadAttention, x: str, i: int) -> str:
    """The projection of input number i."""
    arrays, size, letter = layer.parameters, layer.embed_dim, "qkv"[i]
    part = slice(i * size, (i + 1) * size)
    weight = (
        arrays["in_proj_weight"][part]
        if "in_proj_weight" in arrays
        else arrays[f"{letter}_proj_weight"]
    )
    writer = out.writer
    turned = writer.weight(f"{out.name}.{letter}_proj_weight.T", np.ascontiguousarray(weight.T))
    product = out("MatMul", x, turned)
    if "in_proj_bias" not in arrays:
        return product
    bias = writer.weight(f"{out.name}.{letter}_proj_bias", arrays["in_proj_bias"][part])
    return out("Add", product, bias)


def pad(out: LayerWriter, x: str) -> str:
    """Write a Pad for each step of the layer that pads; Identity where none does."""
    layer = out.layer
    assert isinstance(layer, Pad)
    none, nodes = (0,) * (len(out.dims) - layer.count), 0
    for before, after, edge in layer.steps:
        if any((*before, *after)):
            sides = out.integers(*none, *before, *none, *after)
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
    at = len(first)
    assert isinstance(c, int)
    x = out.reshape(x, dims, (*first, c // r**2, r, r, h, w))
    order = (*range(at + 1), at + 3, at + 1, at + 4, at + 2)
    return out.reshape(out("Transpose", x, perm=order), dims, out.result.dims)


def pixel_unshuffle(out: LayerWriter, x: str) -> str:
    """ONNX's SpaceToDepth has all channels of one place behind one another."""
    layer, dims = out.layer, out.dims
    assert isinstance(layer, PixelUnshuffle)
    r, (*first, c, h, w) = layer.downscale_factor, dims
    at = len(first)
    assert isinstance(h, int) and isinstance(w, int)
    x = out.reshape(x, dims, (*first, c, h // r, r, w // r, r))
    order = (*range(at + 1), at + 2, at + 4, at + 1, at + 3)
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
    lie = layer.windows
    outs = lie.outputs(out.sizes)
    if any(lie.sides):
        x = out("Pad", x, out.integers(0, 0, *lie.before, 0, 0, *lie.after))
    for axis in (1, 0):
        x = out("Gather", x, out.constant(along(lie, outs, axis), np.int64), axis=2 + axis)
    x = out("Transpose", x, perm=(0, 1, 2, 4, 3, 5))
    return out.reshape(x, out.dims[:1], out.result.dims)


def fold(out: LayerWriter, x: str) -> str:
    layer = out.layer
    assert isinstance(layer, Fold)
    lie = layer.windows
    more = {"strides": lie.stride, "dilations": lie.dilation, "pads": lie.sides}
    image, block = out.integers(*layer.output_size), out.integers(*lie.kernel)
    return out("Col2Im", x, image, block, **more)
