"""Pooling over windows, and its inverse."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.compose.pool import averaged, pooled
from glnn.graph.compose.window import Window
from glnn.graph.graph import Value
from glnn.graph.operators import ArgReduce, Expand, Gather, Pad, Pool2d, Reduce, ScatterElements
from glnn.onnx.operators.call import Call, Converter
from glnn.onnx.operators.window import windows_of
from glnn.types import Array, DType


def _max_unpool(call: Call, x: Value, places: Value, shape: Value | None = None) -> Value:
    """Put each number to its index in its own channel, zeros elsewhere."""
    n, c, *sizes = x.type.shape
    windows = windows_of(call, tuple(sizes), call.need("kernel_shape"))
    found = tuple(
        (size - 1) * s - before - after + k
        for size, s, before, after, k in zip(
            sizes, windows.stride, windows.before, windows.after, windows.kernel, strict=True
        )
    )
    whole = found if shape is None else call.integers(shape, "output_shape")[2:]
    if places.type.shape != x.type.shape:
        raise ShapeError(f"MaxUnpool: indices must be as {x.type}, got {places.type}")
    planes, count = n * c, prod(found)
    first = call.constant(np.arange(planes)[:, None] * count, np.int32)
    flat = call.cast(call.reshape(places, (planes, prod(sizes))), DType.int32)
    index = call.pointwise("a - b", flat, first)
    zeros = call(Expand((planes, count)), call.constant(0, x.type.dtype.numpy))
    numbers = call.reshape(x, (planes, prod(sizes)))
    y = call(ScatterElements(1), zeros, index, numbers)
    y = call.reshape(y, (n, c, *found))
    if whole == found:
        return y
    after = tuple(m - k for m, k in zip(whole, found, strict=True))
    return call(Pad((0,) * (len(found) + 2), (0, 0, *after)), y)


TABLE = 32  # bytes for each tap of each window, with those of temporary arrays


def _windows(call: Call, x: Value) -> Window:
    """The node's windows. Raises ShapeError where images have none, or nothing to put them on."""
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


def _empty(call: Call, x: Value, windows: Window) -> Value | None:
    """Return the result for a batch of 0, whatever the size of its images; None for others."""
    n, c, *sizes = x.type.shape
    if n != 0:
        return None
    outs = windows.outputs(tuple(sizes), least=0)
    return call(Expand((0, c, *outs)), call.constant(0, x.type.dtype.numpy))


def _max_pool(call: Call, x: Value) -> tuple[Value, ...]:
    windows = _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return (empty, call.cast(empty, DType.int64)) if call.outputs > 1 else (empty,)
    dtype = x.type.dtype
    y = call.cast(pooled(call, call.cast(x, DType.float32), windows, "max"), dtype)
    return (y, _places(call, x, windows)) if call.outputs > 1 and call.used_outputs[1] else (y,)


def _places(call: Call, x: Value, windows: Window) -> Value:
    """Return the index in all of x of the first maximum of each window, int64."""
    n, c, *sizes = x.type.shape
    planes, outs = n * c, windows.outputs(tuple(sizes))
    call.check_tables(prod(outs) * prod(windows.kernel), TABLE)
    column_major = bool(call.get("storage_order", 0))
    met = _met(windows, tuple(sizes), outs)
    rows = call.reshape(x, (planes, int(np.prod(sizes))))
    numbers = call(Gather(1), rows, call.constant(met.astype(np.int32)))
    tap = call(ArgReduce("max", 2), numbers)
    flat = call.constant(np.arange(len(met)) * met.shape[1], np.int32)
    told = met
    if column_major:
        told = np.ravel_multi_index(np.unravel_index(met, sizes)[::-1], sizes[::-1])
    table = call.constant(told.reshape(-1).astype(np.int32))
    place = call(Gather(0), table, call.pointwise("a + b", tap, flat))
    first = call.constant(np.arange(planes)[:, None] * int(np.prod(sizes)), np.int32)
    return call.reshape(call.pointwise("cast_int64(a + b)", place, first), (n, c, *outs))


def _met(windows: Window, sizes: tuple[int, ...], outs: tuple[int, ...]) -> Array:
    """(windows, taps): the place of each tap of each window among `sizes`.

    A tap in the padding has the place of the window's first one that is not.
    """
    at, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    fields = zip(sizes, outs, windows.kernel, windows.stride, windows.dilation, windows.before)
    for size, out, k, s, d, before in fields:
        own = np.add.outer(np.arange(out) * s - before, np.arange(k) * d)
        there = (own >= 0) & (own < size)
        at = (at[:, None, :, None] * size + own[:, None]).reshape(len(at) * out, -1)
        inside = (inside[:, None, :, None] & there[:, None]).reshape(len(inside) * out, -1)
    if not inside.any(axis=1).all():
        raise ShapeError(f"MaxPool: a window of {windows.kernel} meets nothing but padding")
    first = np.take_along_axis(at, inside.argmax(axis=1)[:, None], axis=1)
    return np.where(inside, at, first)


def _average_pool(call: Call, x: Value) -> Value:
    counted, windows = bool(call.get("count_include_pad", 0)), _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return empty
    return averaged(call, x, windows, counted=counted)


def _lp_pool(call: Call, x: Value) -> Value:
    p, windows = call.get("p", 2), _windows(call, x)
    if (empty := _empty(call, x, windows)) is not None:
        return empty
    sums = pooled(call, _powers(call, x, p), windows, "average", 1)
    return _root(call, sums, p)


def _powers(call: Call, x: Value, p: float) -> Value:
    """The numbers of x to the power p, without their signs."""
    if p in (1, 2):
        return call.pointwise("abs(a)" if p == 1 else "square(a)", x)
    return call.pointwise("pow(abs(a), b)", x, float(p))


def _root(call: Call, x: Value, p: float) -> Value:
    """The p-th root."""
    if p == 1:
        return x
    return call.pointwise("sqrt(a)", x) if p == 2 else call.pointwise("pow(a, b)", x, 1.0 / p)


def _global_lp_pool(call: Call, x: Value) -> Value:
    p = call.get("p", 2)
    op = Reduce("sum", tuple(range(2, len(x.type.dims))), True)
    return _root(call, call(op, _powers(call, x, p)), p)


def _global_average_pool(call: Call, x: Value) -> Value:
    return _global(call, x, "average")


def _global_max_pool(call: Call, x: Value) -> Value:
    return _global(call, x, "max")


def _global(call: Call, x: Value, mode: str) -> Value:
    """Pool each channel to one number; images keep the layout that convolutions leave them in."""
    if len(x.type.dims) == 4 and x.type.dtype is DType.float32:
        return call(Pool2d(mode, None), x)
    kind = "mean" if mode == "average" else "max"
    return call(Reduce(kind, tuple(range(2, len(x.type.dims))), True), x)  # type: ignore[arg-type]


ENTRIES = (
    Converter("MaxPool", 1, _max_pool),
    Converter("AveragePool", 1, _average_pool),
    Converter("LpPool", 1, _lp_pool),
    Converter("GlobalAveragePool", 1, _global_average_pool),
    Converter("GlobalMaxPool", 1, _global_max_pool),
    Converter("GlobalLpPool", 1, _global_lp_pool),
    Converter("MaxUnpool", 9, _max_unpool, shape_inputs=(2,)),
)
