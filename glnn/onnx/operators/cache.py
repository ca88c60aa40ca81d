"""Caches of keys and values."""

from __future__ import annotations

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Expand, GatherElements, Slice
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry
from glnn.types import DType


def _tensor_scatter(call: Call, past: Value, update: Value, first: Value | None = None) -> Value:
    """`past` with `update` along an axis, from the place on that `first` (batch,) says.

    Each place of the cache looks up what comes to lie there.
    """
    shape, own = past.type.shape, update.type.shape
    axis = call.axis(call.get("axis", -2), past)
    mode = call.get("mode", "linear")
    expected = (*shape[:axis], own[axis] if len(own) == len(shape) else 0, *shape[axis + 1 :])
    if own != expected or own[axis] > shape[axis] or not axis:
        raise ShapeError(f"TensorScatter: update {update.type} along {axis} of {past.type}")
    if mode not in ("linear", "circular"):
        raise ShapeError(f"TensorScatter: mode must be linear or circular, got {mode!r}")
    size, length = shape[axis], own[axis]
    if first is None:
        rest = call(Slice((length,), (size,), (axis,), (1,)), past)
        return call(Concat(axis), update, rest)
    first = call.reshape(first, (shape[0], *(1,) * (len(shape) - 1)))
    places = np.arange(size, dtype=np.int64).reshape(-1, *(1,) * (len(shape) - axis - 1))
    formula = "remainder(a - remainder(b, c), c)" if mode == "circular" else "a - clip(b, -c, c)"
    behind = call.pointwise(formula, call.constant(places), first, size)
    behind = call.cast(behind, DType.int32)
    here = call.pointwise("logical_and(a >= 0, a < b)", behind, length)
    index = call(Expand(shape), call.pointwise("clip(a, 0, b)", behind, max(length - 1, 0)))
    return call.pointwise("where(a, b, c)", here, call(GatherElements(axis), update, index), past)


ENTRIES = (Entry("TensorScatter", 24, _tensor_scatter),)
