"""Operators that look numbers up, or put them, where indices say."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import (
    Gather,
    GatherElements,
    GatherND,
    ScatterElements,
    ScatterND,
)
from glnn.graph.operators.scatter import REDUCED, Scatter
from glnn.onnx.operators.call import Call, Converter
from glnn.types import DType

BACKWARDS = "where(a < c, c - 1 - a, a) * d + b"  # the row of step a of a sample with c steps


def _gather(call: Call, x: Value, index: Value) -> Value:
    return call(Gather(call.axis(call.get("axis", 0), x)), x, index)


def _gather_elements(call: Call, x: Value, index: Value) -> Value:
    return call(GatherElements(call.axis(call.get("axis", 0), x)), x, index)


def _gather_nd(call: Call, x: Value, index: Value) -> Value:
    return call(GatherND(call.get("batch_dims", 0)), x, index)


def _scatter_elements(call: Call, x: Value, index: Value, updates: Value) -> Value:
    axis = call.axis(call.get("axis", 0), x)
    return _scatter(call, ScatterElements(axis, call.get("reduction", "none")), x, index, updates)


def _scatter_nd(call: Call, x: Value, index: Value, updates: Value) -> Value:
    return _scatter(call, ScatterND(call.get("reduction", "none")), x, index, updates)


def _scatter(call: Call, scatter: Scatter, x: Value, index: Value, updates: Value) -> Value:
    """Small integers and bools are reduced as int32, of which they keep the low bits."""
    dtype = x.type.dtype
    if scatter.reduction == "none" or dtype.value in REDUCED:
        return call(scatter, x, index, updates)
    wide = (call.cast(one, DType.int32) for one in (x, updates))
    first, second = wide
    return call.cast(call(scatter, first, index, second), dtype)


def _reverse_sequence(call: Call, x: Value, lengths: Value) -> Value:
    """The first numbers along the axis of time backwards, in each sample as many as `lengths`."""
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    if {batch, time} != {0, 1} or len(x.type.dims) < 2:
        raise ShapeError("ReverseSequence: batch_axis and time_axis must be 0 and 1")
    shape = x.type.shape
    samples, steps = shape[batch], shape[time]
    if lengths.type.dims != (samples,):
        raise ShapeError(f"ReverseSequence: a length for each of {samples}, got {lengths.type}")
    across, along = ((-1, 1), (1, -1)) if batch == 0 else ((1, -1), (-1, 1))
    length = call.reshape(
        call.cast(lengths, DType.int32), (samples, 1) if batch == 0 else (1, samples)
    )
    at = call.constant(np.arange(steps).reshape(along), np.int32)
    # The first two dimensions are rows, of which `apart` lie from one step of a sample to the next.
    apart = 1 if batch == 0 else samples
    first = np.arange(samples).reshape(across) * (steps if batch == 0 else 1)
    row = call.pointwise(BACKWARDS, at, call.constant(first, np.int32), length, apart)
    rows = call.reshape(x, (shape[0] * shape[1], *shape[2:]))
    found = call(Gather(0), rows, call.reshape(row, (shape[0] * shape[1],)))
    return call.reshape(found, shape)


def _tensor_scatter(call: Call, past: Value, update: Value, starts: Value | None = None) -> Value:
    """Write `update` over as many steps of a cache, from `starts` on in each sample."""
    axis = call.axis(call.get("axis", -2), past)
    shape, steps = past.type.shape, update.type.shape[axis]
    if not axis:
        raise ShapeError("TensorScatter: the axis must not be that of the samples")
    lead, rest = shape[1:axis], shape[axis + 1 :]
    at = call.constant(np.arange(steps), np.int32)
    if starts is not None:
        first = call.reshape(call.cast(starts, DType.int32), (shape[0], 1))
        at = call.pointwise("a + b", first, at)
    if call.get("mode", "linear") == "circular":
        at = call.pointwise("remainder(a, b)", at, shape[axis])
    # The row of each step, where all dimensions up to the axis are one.
    before = np.arange(shape[0] * prod(lead)).reshape(shape[0], prod(lead), 1) * shape[axis]
    at = call.reshape(at, (at.type.shape[0] if len(at.type.dims) > 1 else 1, 1, steps))
    row = call.pointwise("a + b", call.constant(before, np.int32), at)
    count = before.size * steps
    rows = call.reshape(past, (before.size * shape[axis], *rest))
    new = call.reshape(update, (count, *rest))
    return call.reshape(call(ScatterND(), rows, call.reshape(row, (count, 1)), new), shape)


ENTRIES = (
    Converter("Gather", 1, _gather),
    Converter("GatherElements", 11, _gather_elements),
    Converter("GatherND", 11, _gather_nd),
    Converter("Scatter", 9, _scatter_elements),
    Converter("ScatterElements", 11, _scatter_elements),
    Converter("ScatterND", 11, _scatter_nd),
    Converter("ReverseSequence", 10, _reverse_sequence),
    Converter("TensorScatter", 24, _tensor_scatter),
)
