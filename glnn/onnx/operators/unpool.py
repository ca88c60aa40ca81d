"""MaxUnpool: numbers back to where MaxPool found them."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Pad, ScatterElements
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
from glnn.onnx.operators.window import windows_of
from glnn.types import DType


def _max_unpool(call: Call, x: Value, places: Value, shape: Value | None = None) -> Value:
    """Each number to its place in its own channel, zeros elsewhere."""
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


ENTRIES = (Entry("MaxUnpool", 9, _max_unpool, told=(2,)),)
