"""Convolutions."""

from __future__ import annotations

from math import prod

from glnn.errors import ShapeError
from glnn.graph.compose import conv as compose
from glnn.graph.compose.conv_transpose import conv_transpose
from glnn.graph.compose.fold import fold
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Pad, Slice
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
from glnn.onnx.operators.window import pads, shared, windows_of


def biased(call: Call, y: Value, bias: Value | None) -> Value:
    """`y` (n, c, ...) with one number added for each channel."""
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
    return biased(call, y, bias)


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
        before, after = shared(totals, upper=mode == "SAME_UPPER")
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
    return biased(call, y, bias)


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
    y = biased(call, y, bias)
    activation = call.get("activation", "none")
    if activation in ("silu", "swish"):
        y = call.pointwise("silu(a)", y)
    elif activation != "none":
        raise ShapeError(f"CausalConvWithState: activation {activation!r} is not known")
    length = joined.type.shape[2]
    return y, call(Slice((length - kept,), (length,), (2,), (1,)), joined)


def _col2im(call: Call, x: Value, image: Value, block: Value) -> Value:
    """Each number of x is added to the place that its window's tap lies upon."""
    sizes, kernel = call.integers(image, "image_shape"), call.integers(block, "block_shape")
    return fold(call, x, windows_of(call, sizes, kernel), sizes)


ENTRIES = (
    Entry("Conv", 1, _conv),
    Entry("ConvTranspose", 1, _conv_transpose),
    Entry("CausalConvWithState", 1, _causal_conv),
    Entry("Col2Im", 18, _col2im, told=(1, 2)),
)
