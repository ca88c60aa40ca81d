"""Rows of `onnx_rows` for windows of one to three dimensions, and for what moves numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glnn import layers as nn
from glnn.errors import UnsupportedOpError
from glnn.graph.compose.resample import Places
from glnn.layers import Layer
from glnn.layers.conv import same
from glnn.model.onnx_found import OnnxNode, Row, with_parameters
from glnn.types import Dim

Sizes = tuple[int, ...]
Dims = tuple[Dim, ...]

CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONV_TRANSPOSE = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MAX_POOL = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVG_POOL = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
LP_POOL = (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)
GLOBAL_AVERAGE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
GLOBAL_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
ZERO_PAD = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
CONSTANT_PAD = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
PADS: Mapping[str, tuple[type[Layer], ...]] = {
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "edge": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "wrap": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}
"""Padding layers by ONNX's modes, for one, two and three dimensions."""
LINEAR = ("linear", "bilinear", "trilinear")


def _by_rank(kinds: tuple[type[Any], ...], count: int) -> Any:
    """Return the layer class for `count` dimensions. Raises UnsupportedOpError where there is
    none.
    """
    if not 1 <= count <= len(kinds):
        raise UnsupportedOpError(f"it must have one to three dimensions of places, got {count}")
    return kinds[count - 1]


def _strides(node: OnnxNode, count: int) -> tuple[Sizes, Sizes]:
    """Return strides and dilations."""
    ones = (1,) * count
    return tuple(node.get("strides", ones)), tuple(node.get("dilations", ones))


def _padding(node: OnnxNode, count: int) -> Sizes:
    """Return the padding of each dimension. Raises UnsupportedOpError where its two ends differ."""
    auto = node.get("auto_pad", "NOTSET")
    pads = tuple(node.get("pads", (0,) * (2 * count)))
    if auto == "VALID":
        return (0,) * count
    if auto != "NOTSET":
        raise UnsupportedOpError(f"its auto_pad is {auto}")
    if len(pads) != 2 * count or pads[:count] != pads[count:]:
        raise UnsupportedOpError(f"its pads must be alike at both ends of an image, got {pads}")
    return pads[:count]


def _conv(node: OnnxNode) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    out, share, *kernel = weight.shape
    count = len(kernel)
    kind, (stride, dilation) = _by_rank(CONV, count), _strides(node, count)
    around, auto = same(tuple(kernel), dilation), node.get("auto_pad", "NOTSET")
    whole = auto == "SAME_UPPER" or (auto == "NOTSET" and node.get("pads") == around)
    uneven = whole and around[:count] != around[count:] and set(stride) == {1}
    padding = "same" if uneven or auto == "SAME_UPPER" else _padding(node, count)
    groups = node.get("group", 1)
    more = {"groups": groups, "bias": bias is not None}
    layer = kind(share * groups, out, tuple(kernel), stride, padding, dilation, **more)
    return with_parameters(layer, weight=weight, bias=bias)


def _conv_transpose(node: OnnxNode) -> Layer:
    weight, bias = node.array(1), node.optional(2)
    if node.get("output_shape") is not None:
        raise UnsupportedOpError("it must be without output_shape")
    channels, share, *kernel = weight.shape
    count, groups = len(kernel), node.get("group", 1)
    kind, (stride, dilation) = _by_rank(CONV_TRANSPOSE, count), _strides(node, count)
    layer = kind(
        channels,
        share * groups,
        tuple(kernel),
        stride,
        _padding(node, count),
        node.get("output_padding", (0,) * count),
        groups,
        bias is not None,
        dilation,
    )
    return with_parameters(layer, weight=weight, bias=bias)


def _max_pool(node: OnnxNode) -> Layer:
    kernel = node.get("kernel_shape", ())
    kind, (stride, dilation) = _by_rank(MAX_POOL, len(kernel)), _strides(node, len(kernel))
    padding, ceil = _padding(node, len(kernel)), bool(node.get("ceil_mode", 0))
    layer: Layer = kind(kernel, stride, padding, dilation, ceil_mode=ceil)
    return layer


def _average_pool(node: OnnxNode) -> Layer:
    kernel = node.get("kernel_shape", ())
    kind, (stride, dilation) = _by_rank(AVG_POOL, len(kernel)), _strides(node, len(kernel))
    if set(dilation) != {1}:
        raise UnsupportedOpError(f"its dilations must be 1, got {dilation}")
    padding, counted = _padding(node, len(kernel)), bool(node.get("count_include_pad", 0))
    layer: Layer = kind(kernel, stride, padding, bool(node.get("ceil_mode", 0)), counted)
    return layer


def _lp_pool(node: OnnxNode) -> Layer:
    """Return a layer for an LpPool of even p, whose windows are all whole."""
    kernel, p = node.get("kernel_shape", ()), node.get("p", 2)
    kind, (stride, dilation) = _by_rank(LP_POOL, len(kernel)), _strides(node, len(kernel))
    node.only(ceil_mode=0)
    if p % 2 or set(dilation) != {1} or any(_padding(node, len(kernel))):
        raise UnsupportedOpError("it must be of an even p, with no pads and no dilations")
    layer: Layer = kind(p, kernel, stride)
    return layer


def _global_pool(kinds: tuple[type[Any], ...]) -> Row:
    """Return a function that makes an adaptive pool of one window."""

    def row(node: OnnxNode) -> Layer:
        layer: Layer = _by_rank(kinds, len(node.dims) - 2)(1)
        return layer

    return row


def _pad(node: OnnxNode) -> Layer:
    rank, mode = len(node.dims), node.get("mode", "constant")
    count = max(rank - 2, 1)
    widths = node.array(1) if len(node.arrays) > 1 else node.get("pads", ())
    given = node.arrays[3:4] not in ((), (None,))
    axes = [axis % rank for axis in (node.array(3).tolist() if given else range(rank))]
    sides = np.zeros((2, rank), np.int64)
    sides[:, axes] = np.asarray(widths, np.int64).reshape(2, -1)
    if sides[:, : rank - count].any():
        raise UnsupportedOpError(f"it must pad no samples and no channels, got {sides.tolist()}")
    padding = tuple(sides[:, rank - count :].T[::-1].ravel().tolist())
    if mode != "constant":
        if min(padding) < 0 and mode != "wrap":
            raise UnsupportedOpError(f"its pads must be at least 0 in mode {mode}, got {padding}")
        layer: Layer = _by_rank(PADS[mode], count)(padding)
        return layer
    old = node.get("value", 0.0)
    value = node.array(2).item() if node.arrays[2:3] not in ((), (None,)) else old
    layer = (
        _by_rank(CONSTANT_PAD, count)(padding, value)
        if value
        else _by_rank(ZERO_PAD, count)(padding)
    )
    return layer


def _depth_to_space(node: OnnxNode) -> Layer:
    if node.get("mode", "DCR") != "CRD":
        raise UnsupportedOpError("its mode must be CRD, got DCR")
    return nn.PixelShuffle(node.get("blocksize"))


def _col2im(node: OnnxNode) -> Layer:
    sizes, kernel = node.array(1).tolist(), node.array(2).tolist()
    if len(sizes) != 2:
        raise UnsupportedOpError(f"it must be of images, got {sizes}")
    stride, dilation = _strides(node, 2)
    return nn.Fold(sizes, kernel, dilation, _padding(node, 2), stride)


def _resize(node: OnnxNode) -> Layer:
    """Return an Upsample for a Resize that computes coordinates as PyTorch does, from opset 11
    on.
    """
    node.only(antialias=0, exclude_outside=0, keep_aspect_ratio_policy="stretch")
    before, after = node.dims, node.result.dims
    count = len(before) - 2
    axes = tuple(node.get("axes", range(2, len(before))))
    if node.operator.version < 11 or axes != tuple(range(2, len(before))):
        raise UnsupportedOpError(f"it must be of opset 11 on, of axes from 2 on, got {axes}")
    known = all(isinstance(dim, int) for dim in (*before[2:], *after[2:]))
    if not 1 <= count <= len(LINEAR) or before[:2] != after[:2] or not known:
        raise UnsupportedOpError(f"it must keep samples and channels, got {before} and {after}")
    mode = node.get("mode", "nearest")
    way = node.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        return _nearest(node, way, before[2:], after[2:])
    if way not in ("half_pixel", "align_corners") or mode not in ("linear", "cubic"):
        raise UnsupportedOpError(f"there is none for {mode} and {way}")
    node.only(cubic_coeff_a=-0.75)
    if mode == "cubic" and count != 2:
        raise UnsupportedOpError("cubic ones are of images")
    kind = "bicubic" if mode == "cubic" else LINEAR[count - 1]
    corners = True if way == "align_corners" else None
    scales = _scales(node)
    if scales is None or corners:
        return nn.Upsample(_as_integers(after[2:]), mode=kind, align_corners=corners)
    return nn.Upsample(scale_factor=scales, mode=kind)


def _nearest(node: OnnxNode, way: str, before: Dims, after: Dims) -> Layer:
    """Return an Upsample that repeats each element as often; others depend on the rounding of
    coordinates.
    """
    rounding = node.get("nearest_mode", "round_prefer_floor")
    pairs = zip(_as_integers(before), _as_integers(after), strict=True)
    if (
        way != "asymmetric"
        or rounding != "floor"
        or not all(_repeats_evenly(*pair) for pair in pairs)
    ):
        raise UnsupportedOpError(f"there is none for {way} and {rounding} of {before} to {after}")
    return nn.Upsample(_as_integers(after))


def _as_integers(dims: Dims) -> Sizes:
    return tuple(int(dim) for dim in dims)


def _repeats_evenly(size: int, count: int) -> bool:
    """Return True where each element of a dimension is repeated as often as the others."""
    return np.array_equal(Places(size, count).nearest, np.repeat(np.arange(size), count // size))


def _scales(node: OnnxNode) -> list[float] | None:
    """Return the scales of the spatial dimensions, None where sizes are given."""
    given = node.arrays[2] if len(node.arrays) > 2 else None
    if given is None or not given.size:
        return None
    scales: list[float] = given[2 - len(node.dims) :].tolist()
    return scales


WINDOWS: Mapping[str, Row] = {
    **{"Conv": _conv, "ConvTranspose": _conv_transpose, "Pad": _pad, "Resize": _resize},
    **{"MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool},
    **{
        "GlobalAveragePool": _global_pool(GLOBAL_AVERAGE),
        "GlobalMaxPool": _global_pool(GLOBAL_MAX),
    },
    **{"DepthToSpace": _depth_to_space, "Col2Im": _col2im},
}
"""Functions that make layers, by ONNX operator."""
