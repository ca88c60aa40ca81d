"""Convolutions, also transposed, causal and deformable ones."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose import conv as compose
from glnn.graph.compose.conv_transpose import conv_transpose
from glnn.graph.compose.fold import fold
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.window import Window
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Expand, GatherElements, Pad, Slice
from glnn.onnx.operators.call import Call, Converter
from glnn.onnx.operators.window import pads, split_padding, windows_of
from glnn.types import Array

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def _deform_conv(
    call: Call,
    x: Value,
    weight: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
) -> Value:
    """A product of the weights and what each tap of each window meets."""
    if len(x.type.dims) != 4:
        raise UnsupportedOpError(f"DeformConv: of {len(x.type.dims) - 2} dimensions")
    n, c, h, w = x.type.shape
    windows = windows_of(call, (h, w), weight.type.shape[2:])
    outs, groups, parts = windows.outputs((h, w)), call.get("group", 1), call.get("offset_group", 1)
    taps, places = windows.kernel[0] * windows.kernel[1], outs[0] * outs[1]
    offsets = call.reshape(offset, (n, parts, taps, 2, places))
    down, across = (
        call.pointwise(
            "a + b",
            call(Slice((i,), (i + 1,), (3,), (1,)), offsets),
            call.constant(_places(windows, outs, i), np.float32),
        )
        for i in (0, 1)
    )
    of_mask = None if mask is None else call.reshape(mask, (n, parts, taps, 1, places))
    terms: list[Value] = []
    images = call.reshape(x, (n, parts, c // parts, h * w))
    for i, j in CORNERS:
        row = f"cast_int32(clip(floor(a) + {i}.0, 0.0, c))"
        column = f"cast_int32(clip(floor(b) + {j}.0, 0.0, d))"
        index = call.pointwise(f"{row} * da + {column}", down, across, h - 1.0, w - 1.0, w)
        index = call.reshape(index, (n, parts, 1, taps * places))
        index = call(Expand((n, parts, c // parts, taps * places)), index)
        share = call.pointwise(
            f"{_share('a', i, 'c')} * {_share('b', j, 'd')}", down, across, float(h), float(w)
        )
        if of_mask is not None:
            share = call.pointwise("a * b", share, of_mask)
        share = call.reshape(share, (n, parts, 1, taps * places))
        terms += [call(GatherElements(3), images, index), share]
    met = call.pointwise("a * b + c * d + da * db + dc * dd", *terms)
    columns = call.reshape(met, (n, groups, c // groups * taps, places))
    out = weight.type.shape[0]
    factor = call.reshape(weight, (groups, out // groups, c // groups * taps))
    y = matmul(call, factor, columns)
    return add_bias(call, call.reshape(y, (n, out, *outs)), bias)


def _share(name: str, corner: int, size: str) -> str:
    """Return the formula of the bilinear weight of a corner, 0 where it lies outside the image."""
    at = f"(floor({name}) + {corner}.0)"
    inside = f"cast_float32({at} >= 0.0) * cast_float32({at} < {size})"
    return f"{inside} * (1.0 - abs({name} - {at}))"


def _places(windows: Window, outs: tuple[int, ...], axis: int) -> Array:
    """(taps, 1, windows): where each tap of each window lies along an axis, without an offset."""
    kernel, step, apart = windows.kernel, windows.stride[axis], windows.dilation[axis]
    tap = np.indices(kernel)[axis].reshape(-1, 1, 1) * apart
    return np.asarray(tap + np.indices(outs)[axis].reshape(-1) * step - windows.before[axis])


def add_bias(call: Call, y: Value, bias: Value | None) -> Value:
    """Return `y` (n, c, ...) with a number added for each channel."""
    if bias is None:
        return y
    spread = (prod(bias.type.shape), *(1,) * (len(y.type.dims) - 2))
    return call.pointwise("a + b", y, call.reshape(bias, spread))


def _conv(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    windows = windows_of(call, x.type.shape[2:], weight.type.shape[2:])
    y = compose.conv(
        call,
        x,
        weight,
        stride=windows.stride,
        padding=windows.sides,
        dilation=windows.dilation,
        groups=call.get("group", 1),
    )
    return add_bias(call, y, bias)


def _conv_transpose(call: Call, x: Value, weight: Value, bias: Value | None = None) -> Value:
    sizes, kernel = x.type.shape[2:], weight.type.shape[2:]
    count = len(kernel)
    if len(sizes) != count or not count:
        raise ShapeError(f"ConvTranspose: x {x.type} and weight {weight.type} do not fit")
    ones: tuple[int, ...] = (1,) * count
    stride, dilation = call.get("strides", ones), call.get("dilations", ones)
    extra = call.get("output_padding", (0,) * count)
    mode = call.get("auto_pad", "NOTSET")
    none: tuple[int, ...] = ()
    wanted = call.get("output_shape", none)[-count:]
    whole = [
        (n - 1) * s + e + d * (k - 1) + 1
        for n, s, e, d, k in zip(sizes, stride, extra, dilation, kernel, strict=True)
    ]
    if not wanted and mode.startswith("SAME"):
        wanted = tuple(n * s for n, s in zip(sizes, stride, strict=True))
    if wanted:
        totals = [max(n - m, 0) for n, m in zip(whole, wanted, strict=True)]
        before, after = split_padding(totals, upper=mode == "SAME_UPPER")
        extra = tuple(e + max(m - n, 0) for e, n, m in zip(extra, whole, wanted, strict=True))
    else:
        before, after = pads(call, sizes, kernel, stride, dilation)
    y = conv_transpose(
        call,
        x,
        weight,
        stride=tuple(stride),
        padding=(*before, *after),
        output_padding=tuple(extra),
        dilation=tuple(dilation),
        groups=call.get("group", 1),
    )
    return add_bias(call, y, bias)


def _causal_conv(
    call: Call,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past: Value | None = None,
) -> tuple[Value, Value]:
    c = x.type.shape[1]
    kept = weight.type.shape[-1] - 1
    joined = x
    if kept:
        joined = call(Pad((0, 0, kept), (0, 0, 0)), x) if past is None else call(Concat(2), past, x)
    y = compose.conv(call, joined, weight, stride=(1,), padding=(0, 0), dilation=(1,), groups=c)
    y = add_bias(call, y, bias)
    activation = call.get("activation", "none")
    if activation in ("silu", "swish"):
        y = call.pointwise("silu(a)", y)
    elif activation != "none":
        raise ShapeError(f"CausalConvWithState: activation {activation!r} is not known")
    length = joined.type.shape[2]
    return y, call(Slice((length - kept,), (length,), (2,), (1,)), joined)


def _col2im(call: Call, x: Value, image: Value, block: Value) -> Value:
    """Add each number of x to the element that its window's tap lies upon."""
    sizes, kernel = call.integers(image, "image_shape"), call.integers(block, "block_shape")
    return fold(call, x, windows_of(call, sizes, kernel), sizes)


ENTRIES = (
    Converter("Conv", 1, _conv),
    Converter("ConvTranspose", 1, _conv_transpose),
    Converter("CausalConvWithState", 1, _causal_conv),
    Converter("Col2Im", 18, _col2im, shape_inputs=(1, 2)),
    Converter("DeformConv", 19, _deform_conv),
)
