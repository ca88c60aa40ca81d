"""Layers that look numbers up, move them, or multiply matrices."""

from __future__ import annotations

from math import floor, sqrt

import numpy as np

from glnn.layers import (
    GLU,
    Bilinear,
    CosineSimilarity,
    Embedding,
    EmbeddingBag,
    Linear,
    MultiheadAttention,
    Upsample,
)
from glnn.layers.embedding_bag import LOWEST
from glnn.onnx.export.writer import Place
from glnn.types import DType

REDUCED = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}
"""ONNX reductions by EmbeddingBag's modes."""
RESIZED = (DType.float32, DType.int32, DType.uint8, DType.int8)
"""Dtypes that Resize is known to take."""


def linear(place: Place, x: str) -> str:
    assert isinstance(place.layer, Linear)
    biased = "bias" in place.layer.shapes
    if len(place.dims) == 2:
        return place("Gemm", x, *map(place.parameter, place.layer.shapes), transB=1)
    product = place("MatMul", x, place.turned("weight"))
    return place("Add", product, place.parameter("bias")) if biased else product


def bilinear(place: Place, x: str, y: str) -> str:
    layer = place.layer
    assert isinstance(layer, Bilinear)
    count, size = layer.out_features, layer.in2_features
    matrix = layer.weight.transpose(1, 0, 2).reshape(layer.in1_features, count * size)
    weight = place.writer.weight(f"{place.name}.weight.T", np.ascontiguousarray(matrix))
    before = [0] * (len(place.types[0].dims) - 1)
    made = place("MatMul", place("Unsqueeze", x, place.integers(-2)), weight)
    made = place("Reshape", made, place.integers(*before, count, size))
    made = place("Mul", made, place("Unsqueeze", y, place.integers(-2)))
    total = place("ReduceSum", made, place.integers(-1), keepdims=0)
    return place("Add", total, place.parameter("bias")) if "bias" in layer.shapes else total


def cosine_similarity(place: Place, x: str, y: str) -> str:
    layer = place.layer
    assert isinstance(layer, CosineSimilarity)
    axes, least = place.integers(layer.dim), place.constant(layer.eps)
    product = place("ReduceSum", place("Mul", x, y), axes, keepdims=0)
    norms = (place("Max", place("ReduceL2", one, axes, keepdims=0), least) for one in (x, y))
    return place("Div", product, place("Mul", *norms))


def bias(place: Place, x: str) -> str:
    return place("Add", x, place.channels("bias"))


def embedding(place: Place, x: str) -> str:
    """An index out of range, which is the nearest one in range here, is an error in ONNX."""
    assert isinstance(place.layer, Embedding)
    return place("Gather", place.parameter("weight"), x, axis=0)


def embedding_bag(place: Place, x: str) -> str:
    """Write an EmbeddingBag by Gather and a reduction; a bag of padding alone is 0 in any mode."""
    layer = place.layer
    assert isinstance(layer, EmbeddingBag)
    rows, axes = place("Gather", place.parameter("weight"), x, axis=0), place.integers(1)
    if layer.padding_idx is None:
        return place(REDUCED[layer.mode], rows, axes, keepdims=0)
    index = place.types[0].dtype.numpy
    places = layer.padding_idx, layer.padding_idx - layer.num_embeddings
    same = (place("Equal", x, place.constant(one, index)) for one in places)
    padded, zero = place("Or", *same), place.constant(0)
    mask = place("Unsqueeze", padded, place.integers(2))
    count = place("ReduceSum", place("Where", padded, zero, place.constant(1)), axes)
    if layer.mode == "max":
        lowest = place.constant(LOWEST)
        found = place("ReduceMax", place("Where", mask, lowest, rows), axes, keepdims=0)
        return place("Where", place("Greater", count, zero), found, zero)
    total = place("ReduceSum", place("Where", mask, zero, rows), axes, keepdims=0)
    if layer.mode == "sum":
        return total
    return place("Div", total, place("Max", count, place.constant(1)))


def concat(place: Place, *inputs: str) -> str:
    return place("Concat", *inputs, axis=1)


def glu(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, GLU)
    value, gate = place.all(2, "Split", x, axis=layer.dim, num_outputs=2)
    return place("Mul", value, place("Sigmoid", gate))


def identity(place: Place, x: str) -> str:
    return place("Identity", x)


def flatten(place: Place, x: str) -> str:
    if len(place.result.dims) == 2 and place.dims[0] == place.result.dims[0]:
        return place("Flatten", x)
    return view(place, x)


def view(place: Place, x: str) -> str:
    return place.reshape(x, place.dims, place.result.dims)


def upsample(place: Place, x: str) -> str:
    layer, dims = place.layer, place.dims
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
    if nearest and not (whole and place.types[0].dtype in RESIZED):
        exact = layer.mode == "nearest-exact"
        for axis, _, places in sizes:  # float32's rounding decides: the indices are written
            index = places.nearest_exact if exact else places.nearest
            x = place("Gather", x, place.constant(index, np.int64), axis=axis)
        return x
    coordinates = "align_corners" if layer.align_corners else "half_pixel"
    cubic = layer.mode == "bicubic"
    how = {
        "mode": "nearest" if nearest else "cubic" if cubic else "linear",
        "coordinate_transformation_mode": "asymmetric" if nearest else coordinates,
        "axes": [axis for axis, _, _ in sizes],
    } | ({"nearest_mode": "floor"} if nearest else {})
    if layer.align_corners or any(places.scale is None for _, _, places in sizes):
        wanted = place.integers(*(places.count for _, _, places in sizes))
        return place("Resize", x, "", "", wanted, **how)
    scales = [_scale(n, places.count, places.scale or 1.0) for _, n, places in sizes]
    return place("Resize", x, "", place.constant(scales), **how)


def _scale(size: int, count: int, scale: float) -> float:
    """`scale` as float32, which takes `size` places to `count`."""
    found = np.float32(scale)
    while floor(np.float32(size) * found) < count:
        found = np.nextafter(found, np.float32(np.inf))
    return float(found)


def multihead_attention(place: Place, query: str, key: str, value: str) -> str:
    layer = place.layer
    assert isinstance(layer, MultiheadAttention)
    if any(len(type.dims) != 2 for type in place.types):
        return _attended(place, layer, query, key, value)
    axes = place.integers(0 if layer.batch_first else 1)
    batch = (place("Unsqueeze", x, axes) for x in (query, key, value))
    return place("Squeeze", _attended(place, layer, *batch), axes)


def _attended(place: Place, layer: MultiheadAttention, query: str, key: str, value: str) -> str:
    heads, size = layer.num_heads, layer.embed_dim
    n, places = (0, 1) if layer.batch_first else (1, 0)
    parts = []
    for i, x in enumerate((query, key, value)):
        projected = _projected(place, layer, x, i)
        split = place("Reshape", projected, place.integers(0, 0, heads, size // heads))
        if i > 0:
            split = _longer(place, layer, split, f"bias_{'qkv'[i]}")
        turned = (n, 2, 3, places) if i == 1 else (n, 2, places, 3)
        parts.append(place("Transpose", split, perm=turned))
    scaled = place("Mul", parts[0], place.constant(1 / sqrt(size // heads)))
    weights = place("Softmax", place("MatMul", scaled, parts[1]), axis=-1)
    found = place("MatMul", weights, parts[2])
    found = place("Transpose", found, perm=(0, 2, 1, 3) if layer.batch_first else (2, 0, 1, 3))
    joined = place("Reshape", found, place.integers(0, 0, size))
    product = place("MatMul", joined, place.turned("out_proj_weight"))
    if "out_proj_bias" not in layer.shapes:
        return product
    return place("Add", product, place.parameter("out_proj_bias"))


def _longer(place: Place, layer: MultiheadAttention, x: str, bias: str) -> str:
    """Keys or values x, of four dimensions, with those that are always there."""
    axis, size = 1 if layer.batch_first else 0, layer.embed_dim // layer.num_heads
    ends = place.integers(0), place.integers(1), place.integers(axis)
    found = [x]
    if bias in layer.shapes:
        array = layer.parameters[bias].reshape(1, 1, layer.num_heads, size)
        first = place("Slice", x, *ends)
        own = place.writer.weight(f"{place.name}.{bias}", array)
        found.append(place("Where", place("Less", first, first), first, own))
    if layer.add_zero_attn:
        first = place("Slice", x, *ends)
        found.append(place("Where", place("Less", first, first), first, place.constant(0)))
    return place("Concat", *found, axis=axis) if len(found) > 1 else x


def _projected(place: Place, layer: MultiheadAttention, x: str, i: int) -> str:
    """The projection of input number i."""
    arrays, size, letter = layer.parameters, layer.embed_dim, "qkv"[i]
    part = slice(i * size, (i + 1) * size)
    weight = (
        arrays["in_proj_weight"][part]
        if "in_proj_weight" in arrays
        else arrays[f"{letter}_proj_weight"]
    )
    writer = place.writer
    turned = writer.weight(f"{place.name}.{letter}_proj_weight.T", np.ascontiguousarray(weight.T))
    product = place("MatMul", x, turned)
    if "in_proj_bias" not in arrays:
        return product
    bias = writer.weight(f"{place.name}.{letter}_proj_bias", arrays["in_proj_bias"][part])
    return place("Add", product, bias)
