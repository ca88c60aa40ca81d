"""Shapes, and tensors that follow from them."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Identity, Reshape, Slice, Squeeze, Unsqueeze
from glnn.graph.operators.pointwise import broadcast
from glnn.onnx.operators.call import Call, Converter
from glnn.symint import greatest, is_symbolic
from glnn.types import MOST, DType

LONGEST = 1 << 20  # numbers of a table that a range of open sizes is a part of


def _shape(call: Call, x: Value) -> Value:
    rank = len(x.type.dims)
    start, end = call.get("start", 0), call.get("end", rank)
    return call.constant(x.type.shape[slice(*slice(start, end).indices(rank))], np.int64)


def _size(call: Call, x: Value) -> Value:
    return call.constant(prod(x.type.shape), np.int64)


def _reshape(call: Call, x: Value, shape: Value | None = None) -> Value:
    sizes = call.need("shape") if shape is None else call.integers(shape, "shape")
    return call(Reshape(tuple(sizes), bool(call.get("allowzero", 0))), x)


def _flatten(call: Call, x: Value) -> Value:
    axis = call.get("axis", 1)
    rank = len(x.type.dims)
    axis = axis if axis >= 0 else axis + rank
    if not 0 <= axis <= rank:
        raise ShapeError(f"Flatten: axis must be from {-rank} to {rank}, got {axis}")
    shape = x.type.shape
    return call(Reshape((prod(shape[:axis]), prod(shape[axis:])), True), x)


def _axes(call: Call, axes: Value | None) -> tuple[int, ...] | None:
    """The axes, an attribute before version 13."""
    if axes is not None:
        return call.integers(axes, "axes")
    found = call.attributes.get("axes")
    return None if found is None else tuple(found)


def _squeeze(call: Call, x: Value, axes: Value | None = None) -> Value:
    return call(Squeeze(_axes(call, axes)), x)


def _unsqueeze(call: Call, x: Value, axes: Value | None = None) -> Value:
    found = _axes(call, axes)
    if found is None:
        raise ShapeError("Unsqueeze: axes are missing")
    return call(Unsqueeze(found), x)


def _expand(call: Call, x: Value, shape: Value) -> Value:
    """Broadcast x and `shape` with each other: a size of 1 in `shape` keeps x's."""
    wanted = call.integers(shape, "shape")
    try:
        dims = broadcast({"x": x.type.shape, "shape": wanted})
    except ShapeError:
        raise ShapeError(f"Expand: {x.type} does not broadcast with {wanted}") from None
    return call(Expand(dims), x)


def _constant_of_shape(call: Call, shape: Value) -> Value:
    sizes = call.integers(shape, "shape")
    if any(n < 0 for n in sizes) or prod(sizes) > MOST:
        raise ShapeError(f"ConstantOfShape: no tensor has the shape {sizes}")
    value = np.asarray(call.get("value", np.zeros(1, np.float32))).reshape(())
    return call(Expand(sizes), call.constant(value))


def _identity(call: Call, x: Value) -> Value:
    return call(Identity(), x)


def _dropout(
    call: Call, x: Value, ratio: Value | None = None, training: Value | None = None
) -> tuple[Value, Value]:
    """Return x, as at inference, and a mask of True."""
    trains = training is not None and bool(call.array(training, "training_mode").item())
    if trains and (ratio is None or float(call.array(ratio, "ratio").item()) > 0):
        raise ShapeError("Dropout: training_mode needs random numbers")
    mask = call(Expand(x.type.shape), call.constant(np.array(True)))
    return call(Identity(), x), mask


def _range(call: Call, start: Value, limit: Value, delta: Value) -> Value:
    """Return a range whose bounds are known."""
    first, end, step = (call.array(one).reshape(()) for one in (start, limit, delta))
    if not step:
        raise ShapeError("Range: delta must not be 0")
    if is_symbolic(first) or is_symbolic(end):
        return _open_range(call, first.item(), end.item(), step.item(), start.type.dtype)
    count = max(-(-(float(end) - float(first)) // float(step)), 0)
    if not count <= MOST:
        raise ShapeError(f"Range: from {first} to {end} by {step} are too many numbers")
    if call.keeps(int(count), start.type.dtype):
        return call.constant(first + np.arange(int(count)).astype(first.dtype) * step)
    dtype = start.type.dtype
    places = call.count_up(int(count), DType.int64, (int(count),))
    return call.pointwise("a * b + c", call.cast(places, dtype), delta, start)


def _open_range(call: Call, first: int, end: int, step: int, dtype: DType) -> Value:
    """A part of a table: numbers that follow from sizes would be others for other sizes."""
    most = greatest(end)
    if step != 1 or first < 0 or end < first or most > LONGEST:
        raise ShapeError(f"Range: from {first} to {end} by {step}")  # which says what it is here
    table = call.constant(np.arange(most), dtype.numpy)
    return call(Slice((first,), (end,), (0,), (1,)), table)


ENTRIES = (
    Converter("Shape", 1, _shape, type_only=(0,)),
    Converter("Size", 1, _size, type_only=(0,)),
    Converter("Reshape", 1, _reshape, shape_inputs=(1,)),
    Converter("Flatten", 1, _flatten),
    Converter("Squeeze", 1, _squeeze, shape_inputs=(1,)),
    Converter("Unsqueeze", 1, _unsqueeze, shape_inputs=(1,)),
    Converter("Expand", 8, _expand, shape_inputs=(1,)),
    Converter("ConstantOfShape", 9, _constant_of_shape, shape_inputs=(0,)),
    Converter("Range", 11, _range, shape_inputs=(0, 1, 2)),
    Converter("Identity", 1, _identity),
    Converter("Dropout", 1, _dropout, shape_inputs=(1, 2)),
)
