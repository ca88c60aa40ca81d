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
from glnn.model.onnx_found import Found, Row, with_parameters
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
"""By ONNX's modes, for one, two and three dimensions."""
LINEAR = ("linear", "bilinear", "trilinear")


def _of(kinds: tuple[type[Any], ...], count: int) -> Any:
    """That of `count` dimensions. Raises UnsupportedOpError where there is none."""
    if not 1 <= count <= len(kinds):
        raise UnsupportedOpError(f"it must have one to three dimensions of places, got {count}")
    return kinds[count - 1]


def _lie(found: Found, count: int) -> tuple[Sizes, Sizes]:
    """Strides and dilations."""
    ones = (1,) * count
    return tuple(found.get("strides", ones)), tuple(found.get("dilations", ones))


def _padding(found: Found, count: int) -> Sizes:
    """Places at both ends of each dimension. Raises UnsupportedOpError where these differ."""
    auto = found.get("auto_pad", "NOTSET")
    pads = tuple(found.get("pads", (0,) * (2 * count)))
    if auto == "VALID":
        return (0,) * count
    if auto != "NOTSET":
        raise UnsupportedOpError(f"its auto_pad is {auto}")
    if len(pads) != 2 * count or pads[:count] != pads[count:]:
        raise UnsupportedOpError(f"its pads must be alike at both ends of an image, got {pads}")
    return pads[:count]


def _conv(found: Found) -> Layer:
    weight, bias = found.array(1), found.optional(2)
    out, share, *kernel = weight.shape
    count = len(kernel)
    kind, (stride, dilation) = _of(CONV, count), _lie(found, count)
    around, auto = same(tuple(kernel), dilation), found.get("auto_pad", "NOTSET")
    whole = auto == "SAME_UPPER" or (auto == "NOTSET" and found.get("pads") == around)
    uneven = whole and around[:count] != around[count:] and set(stride) == {1}
    padding = "same" if uneven or auto == "SAME_UPPER" else _padding(found, count)
    groups = found.get("group", 1)
    more = {"groups": groups, "bias": bias is not None}
    layer = kind(share * groups, out, tuple(kernel), stride, padding, dilation, **more)
    return with_parameters(layer, weight=weight, bias=bias)


def _conv_transpose(found: Found) -> Layer:
    weight, bias = found.array(1), found.optional(2)
    if found.get("output_shape") is not None:
        raise UnsupportedOpError("it must be without output_shape")
    channels, share, *kernel = weight.shape
    count, groups = len(kernel), found.get("group", 1)
    kind, (stride, dilation) = _of(CONV_TRANSPOSE, count), _lie(found, count)
    layer = kind(
        channels,
        share * groups,
        tuple(kernel),
        stride,
        _padding(found, count),
        found.get("output_padding", (0,) * count),
        groups,
        bias is not None,
        dilation,
    )
    return with_parameters(layer, weight=weight, bias=bias)


def _max_pool(found: Found) -> Layer:
    kernel = found.get("kernel_shape", ())
    kind, (stride, dilation) = _of(MAX_POOL, len(kernel)), _lie(found, len(kernel))
    padding, ceil = _padding(found, len(kernel)), bool(found.get("ceil_mode", 0))
    layer: Layer = kind(kernel, stride, padding, dilation, ceil_mode=ceil)
    return layer


def _average_pool(found: Found) -> Layer:
    kernel = found.get("kernel_shape", ())
    kind, (stride, dilation) = _of(AVG_POOL, len(kernel)), _lie(found, len(kernel))
    if set(dilation) != {1}:
        raise UnsupportedOpError(f"its dilations must be 1, got {dilation}")
    padding, counted = _padding(found, len(kernel)), bool(found.get("count_include_pad", 0))
    layer: Layer = kind(kernel, stride, padding, bool(found.get("ceil_mode", 0)), counted)
    return layer


def _lp_pool(found: Found) -> Layer:
    """Where powers have no signs, and every window is whole."""
    kernel, p = found.get("kernel_shape", ()), found.get("p", 2)
    kind, (stride, dilation) = _of(LP_POOL, len(kernel)), _lie(found, len(kernel))
    found.only(ceil_mode=0)
    if p % 2 or set(dilation) != {1} or any(_padding(found, len(kernel))):
        raise UnsupportedOpError("it must be of an even p, with no pads and no dilations")
    layer: Layer = kind(p, kernel, stride)
    return layer


def _whole(kinds: tuple[type[Any], ...]) -> Row:
    """One window that is all there is."""

    def row(found: Found) -> Layer:
        layer: Layer = _of(kinds, len(found.dims) - 2)(1)
        return layer

    return row


def _pad(found: Found) -> Layer:
    rank, mode = len(found.dims), found.get("mode", "constant")
    count = max(rank - 2, 1)
    widths = found.array(1) if len(found.arrays) > 1 else found.get("pads", ())
    given = found.arrays[3:4] not in ((), (None,))
    axes = [axis % rank for axis in (found.array(3).tolist() if given else range(rank))]
    sides = np.zeros((2, rank), np.int64)
    sides[:, axes] = np.asarray(widths, np.int64).reshape(2, -1)
    if sides[:, : rank - count].any():
        raise UnsupportedOpError(f"it must pad no samples and no channels, got {sides.tolist()}")
    padding = tuple(sides[:, rank - count :].T[::-1].ravel().tolist())
    if mode != "constant":
        if min(padding) < 0 and mode != "wrap":
            raise UnsupportedOpError(f"its pads must be at least 0 in mode {mode}, got {padding}")
        layer: Layer = _of(PADS[mode], count)(padding)
        return layer
    old = found.get("value", 0.0)
    value = found.array(2).item() if found.arrays[2:3] not in ((), (None,)) else old
    layer = _of(CONSTANT_PAD, count)(padding, value) if value else _of(ZERO_PAD, count)(padding)
    return layer


def _depth_to_space(found: Found) -> Layer:
    if found.get("mode", "DCR") != "CRD":
        raise UnsupportedOpError("its mode must be CRD, got DCR")
    return nn.PixelShuffle(found.get("blocksize"))


def _col2im(found: Found) -> Layer:
    sizes, kernel = found.array(1).tolist(), found.array(2).tolist()
    if len(sizes) != 2:
        raise UnsupportedOpError(f"it must be of images, got {sizes}")
    stride, dilation = _lie(found, 2)
    return nn.Fold(sizes, kernel, dilation, _padding(found, 2), stride)


def _resize(found: Found) -> Layer:
    """Where places are found as PyTorch does; older ones than of opset 11 are not."""
    found.only(antialias=0, exclude_outside=0, keep_aspect_ratio_policy="stretch")
    before, after = found.dims, found.result.dims
    count = len(before) - 2
    axes = tuple(found.get("axes", range(2, len(before))))
    if found.operator.version < 11 or axes != tuple(range(2, len(before))):
        raise UnsupportedOpError(f"it must be of opset 11 on, of axes from 2 on, got {axes}")
    known = all(isinstance(dim, int) for dim in (*before[2:], *after[2:]))
    if not 1 <= count <= len(LINEAR) or before[:2] != after[:2] or not known:
        raise UnsupportedOpError(f"it must keep samples and channels, got {before} and {after}")
    mode = found.get("mode", "nearest")
    way = found.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        return _repeated(found, way, before[2:], after[2:])
    if way not in ("half_pixel", "align_corners") or mode not in ("linear", "cubic"):
        raise UnsupportedOpError(f"there is none for {mode} and {way}")
    found.only(cubic_coeff_a=-0.75)
    if mode == "cubic" and count != 2:
        raise UnsupportedOpError("cubic ones are of images")
    kind = "bicubic" if mode == "cubic" else LINEAR[count - 1]
    corners = True if way == "align_corners" else None
    scales = _scales(found)
    if scales is None or corners:
        return nn.Upsample(_known(after[2:]), mode=kind, align_corners=corners)
    return nn.Upsample(scale_factor=scales, mode=kind)


def _repeated(found: Found, way: str, before: Dims, after: Dims) -> Layer:
    """Each place as often: then the rounding of places decides nothing."""
    rounding = found.get("nearest_mode", "round_prefer_floor")
    pairs = zip(_known(before), _known(after), strict=True)
    if way != "asymmetric" or rounding != "floor" or not all(_often(*pair) for pair in pairs):
        raise UnsupportedOpError(f"there is none for {way} and {rounding} of {before} to {after}")
    return nn.Upsample(_known(after))


def _known(dims: Dims) -> Sizes:
    return tuple(int(dim) for dim in dims)


def _often(size: int, count: int) -> bool:
    """Whether a dimension gets each of its places as often as the others."""
    return np.array_equal(Places(size, count).nearest, np.repeat(np.arange(size), count // size))


def _scales(found: Found) -> list[float] | None:
    """Those of the places, where they are given and no sizes."""
    given = found.arrays[2] if len(found.arrays) > 2 else None
    if given is None or not given.size:
        return None
    scales: list[float] = given[2 - len(found.dims) :].tolist()
    return scales


WINDOWS: Mapping[str, Row] = {
    **{"Conv": _conv, "ConvTranspose": _conv_transpose, "Pad": _pad, "Resize": _resize},
    **{"MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool},
    **{"GlobalAveragePool": _whole(GLOBAL_AVERAGE), "GlobalMaxPool": _whole(GLOBAL_MAX)},
    **{"DepthToSpace": _depth_to_space, "Col2Im": _col2im},
}
"""By ONNX's names."""
