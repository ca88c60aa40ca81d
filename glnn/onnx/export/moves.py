"""Layers that move numbers: around x, between channels and places, from windows to columns."""

from __future__ import annotations

import numpy as np

from glnn.graph.compose.fold import along
from glnn.layers import ChannelShuffle, Fold, PixelShuffle, PixelUnshuffle, Unfold
from glnn.layers.pad import Pad
from glnn.onnx.export.writer import Place
from glnn.types import DType


def pad(place: Place, x: str) -> str:
    """Write a Pad for each step of the layer that pads; Identity where none does."""
    layer = place.layer
    assert isinstance(layer, Pad)
    none, nodes = (0,) * (len(place.dims) - layer.count), 0
    for before, after, edge in layer.steps:
        if any((*before, *after)):
            sides = place.integers(*none, *before, *none, *after)
            value = (place.constant(layer.value, place.types[0].dtype.numpy),)
            value = value if edge == "constant" and layer.value else ()  # type: ignore[assignment]
            x, nodes = place("Pad", x, sides, *value, mode=edge), nodes + 1
    return x if nodes else place("Identity", x)


def pixel_shuffle(place: Place, x: str) -> str:
    layer, dims = place.layer, place.dims
    assert isinstance(layer, PixelShuffle)
    r = layer.upscale_factor
    if len(dims) == 4 and place.types[0].dtype is DType.float32:
        return place("DepthToSpace", x, blocksize=r, mode="CRD")
    *first, c, h, w = dims
    at = len(first)
    assert isinstance(c, int)
    x = place.reshape(x, dims, (*first, c // r**2, r, r, h, w))
    order = (*range(at + 1), at + 3, at + 1, at + 4, at + 2)
    return place.reshape(place("Transpose", x, perm=order), dims, place.result.dims)


def pixel_unshuffle(place: Place, x: str) -> str:
    """ONNX's SpaceToDepth has all channels of one place behind one another."""
    layer, dims = place.layer, place.dims
    assert isinstance(layer, PixelUnshuffle)
    r, (*first, c, h, w) = layer.downscale_factor, dims
    at = len(first)
    assert isinstance(h, int) and isinstance(w, int)
    x = place.reshape(x, dims, (*first, c, h // r, r, w // r, r))
    order = (*range(at + 1), at + 2, at + 4, at + 1, at + 3)
    return place.reshape(place("Transpose", x, perm=order), dims, place.result.dims)


def channel_shuffle(place: Place, x: str) -> str:
    layer, dims = place.layer, place.dims
    assert isinstance(layer, ChannelShuffle)
    n, c, *rest = dims
    assert isinstance(c, int)
    x = place.reshape(x, dims, (n, layer.groups, c // layer.groups, *rest))
    x = place("Transpose", x, perm=(0, 2, 1, *range(3, len(dims) + 1)))
    return place.reshape(x, dims, dims)


def unfold(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, Unfold)
    lie = layer.windows
    outs = lie.outputs(place.sizes)
    if any(lie.sides):
        x = place("Pad", x, place.integers(0, 0, *lie.before, 0, 0, *lie.after))
    for axis in (1, 0):
        x = place("Gather", x, place.constant(along(lie, outs, axis), np.int64), axis=2 + axis)
    x = place("Transpose", x, perm=(0, 1, 2, 4, 3, 5))
    return place.reshape(x, place.dims[:1], place.result.dims)


def fold(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, Fold)
    lie = layer.windows
    more = {"strides": lie.stride, "dilations": lie.dilation, "pads": lie.sides}
    image, block = place.integers(*layer.output_size), place.integers(*lie.kernel)
    return place("Col2Im", x, image, block, **more)
