"""Pooling, its inverse, and all kinds of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.core.types import Array, DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose import sliding_windows as compose
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.sliding_windows import (
    Sizes,
    Window,
    average_pool,
    conv_transpose,
    fold,
    pool,
)
from glnn.graph.graph import Value
from glnn.graph.operators import (
    ArgReduce,
    Concat,
    Expand,
    Gather,
    GatherElements,
    Pad,
    Pool2d,
    Reduce,
    ScatterElements,
    Slice,
)
from glnn.graph.operators.windows import check
from glnn.onnx.operators.call import Converter, OperatorCall


def windows_of(call: OperatorCall, sizes: Sizes, kernel: Sequence[int]) -> Window:
    """Return a node's windows for an operand of spatial `sizes`. Raises ShapeError."""
    count = len(kernel)
    if len(sizes) != count or not count:
        raise ShapeError(f"{call.name}: the kernel {tuple(kernel)} does not fit sizes {sizes}")
    stride = tuple(call.get("strides", (1,) * count))
    dilation = tuple(call.get("dilations", (1,) * count))
    check(
        call.name,
        kernel_shape=(tuple(kernel), count, 1),
        strides=(stride, count, 1),
        dilations=(dilation, count, 1),
    )
    before, after = pads(call, sizes, kernel, stride, dilation)
    ceil = bool(call.get("ceil_mode", 0))
    return Window(tuple(kernel), stride, dilation, before, after, ceil)


def pads(
    call: OperatorCall,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Sizes, Sizes]:
    """Return the padding before and behind each spatial dimension, as `pads` or `auto_pad` says."""
    count = len(kernel)
    mode = call.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * count, (0,) * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        return split_padding(totals, upper=mode == "SAME_UPPER")
    if mode != "NOTSET":
        raise ShapeError(f"{call.name}: auto_pad {mode!r} is not known")
    result = tuple(call.get("pads", (0,) * (2 * count)))
    check(call.name, pads=(result, 2 * count, 0))
    return result[:count], result[count:]


def split_padding(totals: Sequence[int], *, upper: bool) -> tuple[Sizes, Sizes]:
    """Split each of `totals` in halves, the larger one behind if `upper`."""
    small, large = tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)
    return (small, large) if upper else (large, small)


CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def _deform_conv(
    call: OperatorCall,
    x: Value,
    weight: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
) -> Value:
    """Multiply the weights by the bilinearly sampled taps of all windows."""
    if len(x.type.dims) != 4:
        raise UnsupportedOpError(f"DeformConv: of {len(x.type.dims) - 2} dimensions")
    n, c, h, w = x.type.shape
    windows = windows_of(call, (h, w), weight.type.shape[2:])
    output_sizes, groups, parts = (
        windows.outputs((h, w)),
        call.get("group", 1),
        call.get("offset_group", 1),
    )
    taps, count = windows.kernel[0] * windows.kernel[1], output_sizes[0] * output_sizes[1]
    offsets = call.reshape(offset, (n, parts, taps, 2, count))
    down, across = (
        call.pointwise(
            "a + b",
            call(Slice((i,), (i + 1,), (3,), (1,)), offsets),
            call.constant(_tap_positions(windows, output_sizes, i), np.float32),
        )
        for i in (0, 1)
    )
    masks = None if mask is None else call.reshape(mask, (n, parts, taps, 1, count))
    terms: list[Value] = []
    images = call.reshape(x, (n, parts, c // parts, h * w))
    for i, j in CORNERS:
        row = f"cast_int32(clip(floor(a) + {i}.0, 0.0, c))"
        column = f"cast_int32(clip(floor(b) + {j}.0, 0.0, d))"
        index = call.pointwise(f"{row} * da + {column}", down, across, h - 1.0, w - 1.0, w)
        index = call.reshape(index, (n, parts, 1, taps * count))
        index = call(Expand((n, parts, c // parts, taps * count)), index)
        corner_weight = call.pointwise(
            f"{_share('a', i, 'c')} * {_share('b', j, 'd')}", down, across, float(h), float(w)
        )
        if masks is not None:
            corner_weight = call.pointwise("a * b", corner_weight, masks)
        corner_weight = call.reshape(corner_weight, (n, parts, 1, taps * count))
        terms += [call(GatherElements(3), images, index), corner_weight]
    samples = call.pointwise("a * b + c * d + da * db + dc * dd", *terms)
    columns = call.reshape(samples, (n, groups, c // groups * taps, count))
    filters = weight.type.shape[0]
    factor = call.reshape(weight, (groups, filters // groups, c // groups * taps))
    y = matmul(call, factor, columns)
    return add_channel_bias(call, call.reshape(y, (n, filters, *output_sizes)), bias)


def _share(name: str, corner: int, size: str) -> str:
    """Return the formula of a corner's bilinear weight, 0 for corners outside the image."""
    pixel = f"(floor({name}) + {corner}.0)"
    inside = f"cast_float32({pixel} >= 0.0) * cast_float32({pixel} < {size})"
    return f"{inside} * (1.0 - abs({name} - {pixel}))"


def _tap_positions(windows: Window, outs: tuple[int, ...], axis: int) -> Array:
    """Return (taps, 1, windows): the positions of taps along an axis, without offsets."""
    kernel, stride, dilation = windows.kernel, windows.stride[axis], windows.dilation[axis]
    tap = np.indices(kernel)[axis].reshape(-1, 1, 1) * dilation
    return np.asarray(tap + np.indices(outs)[axis].reshape(-1) * stride - windows.before[axis])


def add_channel_bias(call: OperatorCall, y: Value, bias: Value | None) -> Value:
    """Return y (n, c, ...) plus `bias` (c,), if any. Raises ShapeError for another size."""
    if bias is None:
        return y
    call.check_bias_size(bias, y.type.shape[1])
    broadcast_shape = (*bias.type.shape, *(1,) * (len(y.type.dims) - 2))
    return call.pointwise("a + b", y, call.reshape(bias, broadcast_shape))


def conv(call: OperatorCall, x: Value, weight: Value, bias: Value | None = None) -> Value:
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
    return add_channel_bias(call, y, bias)


def _conv_transpose(
    call: OperatorCall, x: Value, weight: Value, bias: Value | None = None
) -> Value:
    sizes, kernel = x.type.shape[2:], weight.type.shape[2:]
    count = len(kernel)
    if len(sizes) != count or not count:
        raise ShapeError(f"ConvTranspose: x {x.type} and weight {weight.type} do not fit")
    ones: tuple[int, ...] = (1,) * count
    stride, dilation = call.get("strides", ones), call.get("dilations", ones)
    extra = call.get("output_padding", (0,) * count)
    mode = call.get("auto_pad", "NOTSET")
    no_shape: tuple[int, ...] = ()
    output_sizes = call.get("output_shape", no_shape)[-count:]
    unpadded = [
        (n - 1) * s + e + d * (k - 1) + 1
        for n, s, e, d, k in zip(sizes, stride, extra, dilation, kernel, strict=True)
    ]
    if not output_sizes and mode.startswith("SAME"):
        output_sizes = tuple(n * s for n, s in zip(sizes, stride, strict=True))
    if output_sizes:
        totals = [max(n - m, 0) for n, m in zip(unpadded, output_sizes, strict=True)]
        before, after = split_padding(totals, upper=mode == "SAME_UPPER")
        extra = tuple(
            e + max(m - n, 0) for e, n, m in zip(extra, unpadded, output_sizes, strict=True)
        )
    else:
        before, after = pads(call, sizes, kernel, stride, dilation)
    groups = call.get("group", 1)
    if bias is not None:
        call.check_bias_size(bias, weight.type.shape[1] * groups)
    return conv_transpose(
        call,
        x,
        weight,
        stride=tuple(stride),
        padding=(*before, *after),
        output_padding=tuple(extra),
        dilation=tuple(dilation),
        groups=groups,
        bias=bias,
    )


def _causal_conv(
    call: OperatorCall,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    past: Value | None = None,
) -> tuple[Value, Value]:
    c = x.type.shape[1]
    state_length = weight.type.shape[-1] - 1
    joined = x
    if state_length:
        joined = (
            call(Pad((0, 0, state_length), (0, 0, 0)), x)
            if past is None
            else call(Concat(2), past, x)
        )
    y = compose.conv(call, joined, weight, stride=(1,), padding=(0, 0), dilation=(1,), groups=c)
    y = add_channel_bias(call, y, bias)
    activation = call.get("activation", "none")
    if activation in ("silu", "swish"):
        y = call.pointwise("silu(a)", y)
    elif activation != "none":
        raise ShapeError(f"CausalConvWithState: activation {activation!r} is not known")
    length = joined.type.shape[2]
    return y, call(Slice((length - state_length,), (length,), (2,), (1,)), joined)


def _col2im(call: OperatorCall, x: Value, image: Value, block: Value) -> Value:
    """Add each number of x to the element under its window's tap."""
    sizes, kernel = call.integers(image, "image_shape"), call.integers(block, "block_shape")
    return fold(call, x, windows_of(call, sizes, kernel), sizes)


def _max_unpool(call: OperatorCall, x: Value, indices: Value, shape: Value | None = None) -> Value:
    """Scatter the numbers of each channel to their indices, zeros elsewhere."""
    n, c, *sizes = x.type.shape
    windows = windows_of(call, tuple(sizes), call.need("kernel_shape"))
    default_sizes = tuple(
        (size - 1) * s - before - after + k
        for size, s, before, after, k in zip(
            sizes, windows.stride, windows.before, windows.after, windows.kernel, strict=True
        )
    )
    output_sizes = default_sizes if shape is None else call.integers(shape, "output_shape")[2:]
    if indices.type.shape != x.type.shape:
        raise ShapeError(f"MaxUnpool: indices must be as {x.type}, got {indices.type}")
    planes, count = n * c, prod(default_sizes)
    first = call.constant(np.arange(planes)[:, None] * count, np.int32)
    flat = call.cast(call.reshape(indices, (planes, prod(sizes))), DType.int32)
    index = call.pointwise("a - b", flat, first)
    zeros = call(Expand((planes, count)), call.constant(0, x.type.dtype.numpy))
    numbers = call.reshape(x, (planes, prod(sizes)))
    y = call(ScatterElements(1), zeros, index, numbers)
    y = call.reshape(y, (n, c, *default_sizes))
    if output_sizes == default_sizes:
        return y
    padding = tuple(m - k for m, k in zip(output_sizes, default_sizes, strict=True))
    return call(Pad((0,) * (len(default_sizes) + 2), (0, 0, *padding)), y)


TABLE = 32  # bytes for each tap of each window, with temporary arrays


def _windows(call: OperatorCall, x: Value) -> Window:
    """Return the node's windows. Raises ShapeError for empty images, and images without windows."""
    if len(x.type.dims) < 3:
        raise ShapeError(f"{call.name}: x must be (n, c, ...), got {x.type}")
    sizes = x.type.shape[2:]
    windows = windows_of(call, sizes, call.need("kernel_shape"))
    if x.type.shape[0] == 0:
        return windows
    if 0 in x.type.shape:
        raise ShapeError(f"{call.name}: images of {x.type} are empty: only the batch may be 0")
    windows.outputs(sizes)
    return windows


def _empty(call: OperatorCall, x: Value, windows: Window) -> Value | None:
    """Return the result for a batch of 0; None for other batches."""
    n, c, *sizes = x.type.shape
    if n != 0:
        return None
    outs = windows.outputs(tuple(sizes), least=0)
    return call(Expand((0, c, *outs)), call.constant(0, x.type.dtype.numpy))


def max_pool(call: OperatorCall, x: Value) -> tuple[Value, ...]:
    windows = _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return (empty, call.cast(empty, DType.int64)) if call.outputs > 1 else (empty,)
    dtype = x.type.dtype
    y = call.cast(pool(call, call.cast(x, DType.float32), windows, "max"), dtype)
    return (
        (y, _max_positions(call, x, windows)) if call.outputs > 1 and call.used_outputs[1] else (y,)
    )


def _max_positions(call: OperatorCall, x: Value, windows: Window) -> Value:
    """Return the flat index in x of the first maximum of each window, int64."""
    n, c, *sizes = x.type.shape
    planes, outs = n * c, windows.outputs(tuple(sizes))
    call.check_tables(prod(outs) * prod(windows.kernel), TABLE)
    column_major = bool(call.get("storage_order", 0))
    indices = _tap_indices(windows, tuple(sizes), outs)
    rows = call.reshape(x, (planes, int(np.prod(sizes))))
    numbers = call(Gather(1), rows, call.constant(indices.astype(np.int32)))
    tap = call(ArgReduce("max", 2), numbers)
    offsets = call.constant(np.arange(len(indices)) * indices.shape[1], np.int32)
    numbering = indices
    if column_major:
        numbering = np.ravel_multi_index(np.unravel_index(indices, sizes)[::-1], sizes[::-1])
    table = call.constant(numbering.reshape(-1).astype(np.int32))
    position = call(Gather(0), table, call.pointwise("a + b", tap, offsets))
    first = call.constant(np.arange(planes)[:, None] * int(np.prod(sizes)), np.int32)
    return call.reshape(call.pointwise("cast_int64(a + b)", position, first), (n, c, *outs))


def _tap_indices(windows: Window, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Array:
    """Return (windows, taps): the flat index into an image of each tap.

    A tap in the padding has the index of the window's first tap that is not.
    """
    index, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    fields = zip(sizes, outs, windows.kernel, windows.stride, windows.dilation, windows.before)
    for size, out, k, s, d, before in fields:
        positions = np.add.outer(np.arange(out) * s - before, np.arange(k) * d)
        in_image = (positions >= 0) & (positions < size)
        index = (index[:, None, :, None] * size + positions[:, None]).reshape(len(index) * out, -1)
        inside = (inside[:, None, :, None] & in_image[:, None]).reshape(len(inside) * out, -1)
    if not inside.any(axis=1).all():
        raise ShapeError(f"MaxPool: a window of {windows.kernel} meets nothing but padding")
    first = np.take_along_axis(index, inside.argmax(axis=1)[:, None], axis=1)
    return np.where(inside, index, first)


def pool_averages(call: OperatorCall, x: Value) -> Value:
    counted, windows = bool(call.get("count_include_pad", 0)), _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return empty
    return average_pool(call, x, windows, counted=counted)


def _lp_pool(call: OperatorCall, x: Value) -> Value:
    p, windows = call.get("p", 2), _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return empty
    sums = pool(call, _powers(call, x, p), windows, "average", 1)
    return _root(call, sums, p)


def _powers(call: OperatorCall, x: Value, p: float) -> Value:
    """Return the magnitudes of x to the power p."""
    if p in (1, 2):
        return call.pointwise("abs(a)" if p == 1 else "square(a)", x)
    return call.pointwise("pow(abs(a), b)", x, float(p))


def _root(call: OperatorCall, x: Value, p: float) -> Value:
    """Return the p-th root of x."""
    if p == 1:
        return x
    return call.pointwise("sqrt(a)", x) if p == 2 else call.pointwise("pow(a, b)", x, 1.0 / p)


def _global_lp_pool(call: OperatorCall, x: Value) -> Value:
    p = call.get("p", 2)
    op = Reduce("sum", tuple(range(2, len(x.type.dims))), True)
    return _root(call, call(op, _powers(call, x, p)), p)


def _global_average_pool(call: OperatorCall, x: Value) -> Value:
    return _global(call, x, "average")


def _global_max_pool(call: OperatorCall, x: Value) -> Value:
    return _global(call, x, "max")


def _global(call: OperatorCall, x: Value, mode: str) -> Value:
    """Pool each channel to one number. For images `Pool2d` reads the layout of convolutions."""
    if len(x.type.dims) == 4 and x.type.dtype is DType.float32:
        return call(Pool2d(mode, None), x)
    kind = "mean" if mode == "average" else "max"
    return call(Reduce(kind, tuple(range(2, len(x.type.dims))), True), x)  # type: ignore[arg-type]


ENTRIES = (
    Converter("Conv", 1, conv),
    Converter("ConvTranspose", 1, _conv_transpose),
    Converter("CausalConvWithState", 1, _causal_conv),
    Converter("Col2Im", 18, _col2im, shape_inputs=(1, 2)),
    Converter("DeformConv", 19, _deform_conv),
    Converter("MaxPool", 1, max_pool),
    Converter("AveragePool", 1, pool_averages),
    Converter("LpPool", 1, _lp_pool),
    Converter("GlobalAveragePool", 1, _global_average_pool),
    Converter("GlobalMaxPool", 1, _global_max_pool),
    Converter("GlobalLpPool", 1, _global_lp_pool),
    Converter("MaxUnpool", 9, _max_unpool, shape_inputs=(2,)),
)
