"""Pooling: what is made of the numbers of each window."""

from __future__ import annotations

from functools import reduce

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import (
    ArgReduce,
    Gather,
    Pad,
    Pool2d,
    Reduce,
    Squeeze,
    Unsqueeze,
)
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
from glnn.onnx.operators.window import Window
from glnn.types import Array, DType


def _windows(call: Call, x: Value) -> Window:
    """The node's windows. Raises ShapeError where there are none."""
    if len(x.type.dims) < 3:
        raise ShapeError(f"{call.name}: x must be (n, c, ...), got {x.type}")
    sizes = x.type.shape[2:]
    windows = Window.of(call, sizes, call.need("kernel_shape"))
    windows.outputs(sizes)
    return windows


def _pooled(call: Call, x: Value, windows: Window, mode: str, divisor: int | None = None) -> Value:
    """The greatest number of each window, or the sum over `divisor`: one or two dimensions at a
    time, since both are separable.
    """
    count = len(windows.kernel)
    if count == 1:
        y = _pooled(call, call(Unsqueeze((2,)), x), windows.with_rows(), mode, divisor)
        return call(Squeeze((2,)), y)
    if count > 2:
        n, c, depth, *sizes = x.type.shape
        images = call.reshape(x, (n, c * depth, *sizes))
        y = _pooled(call, images, windows.part(1, count), mode, divisor)
        outs = y.type.shape[2:]
        y = call.reshape(y, (n, c, depth, int(np.prod(outs))))
        first = windows.part(0, 1)
        across = Window(
            (*first.kernel, 1),
            (*first.stride, 1),
            (*first.dilation, 1),
            (*first.before, 0),
            (*first.after, 0),
            first.ceil,
        )
        y = _pooled(call, y, across, mode, divisor)
        return call.reshape(y, (n, c, y.type.shape[2], *outs))
    return _of_images(call, x, windows, mode, divisor)


def _of_images(
    call: Call, x: Value, windows: Window, mode: str, divisor: int | None, counted: bool = True
) -> Value:
    """The same of images."""
    sides = windows.sides
    if any(2 * side > k for side, k in zip(sides, 2 * windows.kernel, strict=True)):
        # More than Pool2d takes: what no sum and no maximum sees is put around x.
        fill = 0.0 if mode == "average" else -np.inf
        x = call(Pad((0, 0, *windows.before), (0, 0, *windows.after), "constant", fill), x)
        sides = (0, 0, 0, 0)
    op = Pool2d(
        mode,
        windows.kernel,  # type: ignore[arg-type]
        windows.stride,  # type: ignore[arg-type]
        sides,  # type: ignore[arg-type]
        windows.dilation,  # type: ignore[arg-type]
        windows.ceil,
        counted,
        divisor,
    )
    return call(op, x)


def _max_pool(call: Call, x: Value) -> tuple[Value, ...]:
    windows = _windows(call, x)
    dtype = x.type.dtype
    y = call.cast(_pooled(call, call.cast(x, DType.float32), windows, "max"), dtype)
    return (y, _places(call, x, windows)) if call.outputs > 1 and call.wanted[1] else (y,)


def _places(call: Call, x: Value, windows: Window) -> Value:
    """Where the first greatest number of each window lies in all of x, int64."""
    n, c, *sizes = x.type.shape
    planes, outs = n * c, windows.outputs(tuple(sizes))
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
    windows = _windows(call, x)
    counted = bool(call.get("count_include_pad", 0))
    sizes = x.type.shape[2:]
    small = all(2 * p <= k for p, k in zip(windows.sides, 2 * windows.kernel, strict=True))
    if len(sizes) <= 2 and small and set(windows.dilation) == {1}:
        if len(sizes) == 2:
            return _of_images(call, x, windows, "average", None, counted)
        rows = call(Unsqueeze((2,)), x)
        y = _of_images(call, rows, windows.with_rows(), "average", None, counted)
        return call(Squeeze((2,)), y)
    sums = _pooled(call, x, windows, "average", 1)
    counts = _counts(windows, sizes, counted)
    return call.pointwise("a / b", sums, call.constant(counts, np.float32))


def _counts(windows: Window, sizes: tuple[int, ...], counted: bool) -> Array:
    """How many numbers the mean of each window is of. counted: those in the padding, too."""
    found = []
    for i, (size, out) in enumerate(zip(sizes, windows.outputs(sizes), strict=True)):
        taps = np.arange(windows.kernel[i]) * windows.dilation[i]
        at = np.add.outer(np.arange(out) * windows.stride[i] - windows.before[i], taps)
        first, last = (-windows.before[i], size + windows.after[i]) if counted else (0, size)
        found.append(((at >= first) & (at < last)).sum(axis=1))
    return np.asarray(reduce(np.multiply.outer, found))


def _lp_pool(call: Call, x: Value) -> Value:
    p = call.get("p", 2)
    sums = _pooled(call, _powers(call, x, p), _windows(call, x), "average", 1)
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
    """One number of each channel: images in whatever layout convolutions leave them."""
    if len(x.type.dims) == 4 and x.type.dtype is DType.float32:
        return call(Pool2d(mode, None), x)
    kind = "mean" if mode == "average" else "max"
    return call(Reduce(kind, tuple(range(2, len(x.type.dims))), True), x)  # type: ignore[arg-type]


ENTRIES = (
    Entry("MaxPool", 1, _max_pool),
    Entry("AveragePool", 1, _average_pool),
    Entry("LpPool", 1, _lp_pool),
    Entry("GlobalAveragePool", 1, _global_average_pool),
    Entry("GlobalMaxPool", 1, _global_max_pool),
    Entry("GlobalLpPool", 1, _global_lp_pool),
)
