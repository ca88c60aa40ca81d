"""Operators of shapes, moved numbers, lookups by indices, and masks of triangles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.core.symint import greatest, holds_symbols, is_symbolic
from glnn.core.types import MOST, DType
from glnn.errors import ShapeError
from glnn.graph.graph import Kind, Value
from glnn.graph.index_map import EDGES, Edge
from glnn.graph.operators import (
    Concat,
    Expand,
    Gather,
    GatherElements,
    GatherND,
    Identity,
    Pad,
    Reshape,
    ScatterElements,
    ScatterND,
    Slice,
    Split,
    Squeeze,
    Tile,
    Transpose,
    Unsqueeze,
)
from glnn.graph.operators.move import slice_bounds
from glnn.graph.operators.pointwise import broadcast
from glnn.graph.operators.scatter import REDUCED, Scatter
from glnn.onnx.operators.call import Converter, OperatorCall

LONGEST = 1 << 20  # numbers of a table that a range of open sizes is a part of


def _shape(call: OperatorCall, x: Value) -> Value:
    rank = len(x.type.dims)
    start, end = call.get("start", 0), call.get("end", rank)
    return call.constant(x.type.shape[slice(*slice(start, end).indices(rank))], np.int64)


def _size(call: OperatorCall, x: Value) -> Value:
    return call.constant(prod(x.type.shape), np.int64)


def _reshape(call: OperatorCall, x: Value, shape: Value | None = None) -> Value:
    sizes = call.need("shape") if shape is None else call.integers(shape, "shape")
    return call(Reshape(tuple(sizes), bool(call.get("allowzero", 0))), x)


def _flatten(call: OperatorCall, x: Value) -> Value:
    axis = call.get("axis", 1)
    rank = len(x.type.dims)
    axis = axis if axis >= 0 else axis + rank
    if not 0 <= axis <= rank:
        raise ShapeError(f"Flatten: axis must be from {-rank} to {rank}, got {axis}")
    shape = x.type.shape
    return call(Reshape((prod(shape[:axis]), prod(shape[axis:])), True), x)


def _axes(call: OperatorCall, axes: Value | None) -> tuple[int, ...] | None:
    """The axes, an attribute before version 13."""
    if axes is not None:
        return call.integers(axes, "axes")
    match = call.attributes.get("axes")
    return None if match is None else tuple(match)


def _squeeze(call: OperatorCall, x: Value, axes: Value | None = None) -> Value:
    return call(Squeeze(_axes(call, axes)), x)


def _unsqueeze(call: OperatorCall, x: Value, axes: Value | None = None) -> Value:
    result = _axes(call, axes)
    if result is None:
        raise ShapeError("Unsqueeze: axes are missing")
    return call(Unsqueeze(result), x)


def _expand(call: OperatorCall, x: Value, shape: Value) -> Value:
    """Broadcast x and `shape` with each other: a size of 1 in `shape` keeps x's."""
    wanted = call.integers(shape, "shape")
    try:
        dims = broadcast({"x": x.type.shape, "shape": wanted})
    except ShapeError:
        raise ShapeError(f"Expand: {x.type} does not broadcast with {wanted}") from None
    return call(Expand(dims), x)


def _constant_of_shape(call: OperatorCall, shape: Value) -> Value:
    sizes = call.integers(shape, "shape")
    if any(n < 0 for n in sizes) or prod(sizes) > MOST:
        raise ShapeError(f"ConstantOfShape: no tensor has the shape {sizes}")
    value = np.asarray(call.get("value", np.zeros(1, np.float32))).reshape(())
    return call(Expand(sizes), call.constant(value))


def _identity(call: OperatorCall, x: Value) -> Value:
    return call(Identity(), x)


def _dropout(
    call: OperatorCall, x: Value, ratio: Value | None = None, training: Value | None = None
) -> tuple[Value, Value]:
    """Return x, as at inference, and a mask of True."""
    trains = training is not None and bool(call.array(training, "training_mode").item())
    if trains and (ratio is None or float(call.array(ratio, "ratio").item()) > 0):
        raise ShapeError("Dropout: training_mode needs random numbers")
    mask = call(Expand(x.type.shape), call.constant(np.array(True)))
    return call(Identity(), x), mask


def _range(call: OperatorCall, start: Value, limit: Value, delta: Value) -> Value:
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


def _open_range(call: OperatorCall, first: int, end: int, step: int, dtype: DType) -> Value:
    """A part of a table: numbers that follow from sizes would be others for other sizes."""
    most = greatest(end)
    if step != 1 or first < 0 or end < first or most > LONGEST:
        raise ShapeError(f"Range: from {first} to {end} by {step}")  # which says what it is here
    table = call.constant(np.arange(most), dtype.numpy)
    return call(Slice((first,), (end,), (0,), (1,)), table)


def _trilu(call: OperatorCall, x: Value, k: Value | None = None) -> Value:
    """The numbers on the diagonal `k` and above it, or below it where `upper` is 0, 0 elsewhere."""
    if len(x.type.dims) < 2:
        raise ShapeError(f"Trilu: x must be matrices, got {x.type}")
    diagonal = 0 if k is None else int(call.array(k, "k").ravel()[0])
    rows, columns = x.type.shape[-2:]
    dtype = x.type.dtype
    zero = False if dtype is DType.bool else 0.0 if dtype.kind == "float" else 0
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        whether = "b - a >= c" if call.get("upper", 1) else "b - a <= c"
        at = _row_and_column(call, rows, columns)
        return call.pointwise("where(a, b, c)", call.pointwise(whether, *at, diagonal), x, zero)
    apart = np.arange(columns) - np.arange(rows)[:, None]
    kept = apart >= diagonal if call.get("upper", 1) else apart <= diagonal
    if kept.all():
        return call(Identity(), x)
    return call.pointwise("where(a, b, c)", call.constant(kept), x, zero)


def _eye_like(call: OperatorCall, x: Value) -> Value:
    """Return a matrix of x's shape: 1 on the diagonal `k`, 0 elsewhere."""
    if len(x.type.dims) != 2:
        raise ShapeError(f"EyeLike: x must be a matrix, got {x.type}")
    dtype: DType = call.get("dtype", x.type.dtype)
    rows, columns = x.type.shape
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        at = _row_and_column(call, rows, columns)
        return call.cast(call.pointwise("equal(b - a, c)", *at, call.get("k", 0)), dtype)
    apart = np.arange(columns) - np.arange(rows)[:, None]
    return call.constant(apart == call.get("k", 0), dtype.numpy)


def _row_and_column(call: OperatorCall, rows: int, columns: int) -> tuple[Value, Value]:
    """The numbers of rows and of columns, int32, which broadcast to a matrix."""
    down, across = (rows, 1), (1, columns)
    return call.count_up(rows, DType.int32, down), call.count_up(columns, DType.int32, across)


def _transpose(call: OperatorCall, x: Value) -> Value:
    rank = len(x.type.dims)
    return call(Transpose(tuple(call.get("perm", tuple(reversed(range(rank)))))), x)


def _concat(call: OperatorCall, *operands: Value) -> Value:
    axis = call.get("axis", 1) if call.version < 4 else call.need("axis")
    axis = call.axis(axis, operands[0])
    there = [x for x in operands if x.type.shape[axis]]
    if not there:
        return operands[0]
    return there[0] if len(there) == 1 else call(Concat(axis), *there)


def _split(call: OperatorCall, x: Value, split: Value | None = None) -> tuple[Value, ...]:
    axis = call.axis(call.get("axis", 0), x)
    size = x.type.shape[axis]
    pieces = call.attributes.get("split") if split is None else call.integers(split, "split")
    if pieces is None:
        count = call.get("num_outputs", call.outputs)
        each = -(-size // count)
        pieces = tuple(max(min(each, size - i * each), 0) for i in range(count))
    if sum(pieces) != size:
        raise ShapeError(f"Split: pieces {tuple(pieces)} of {x.type} along axis {axis}")
    return call.all(Split(tuple(pieces), axis), x)


def _slice(
    call: OperatorCall,
    x: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    def numbers(name: str, value: Value | None, default: tuple[int, ...]) -> tuple[int, ...]:
        if value is not None:
            return call.integers(value, name)
        return tuple(call.get(name, default))

    first = numbers("starts", starts, ())
    last = numbers("ends", ends, ())
    along = numbers("axes", axes, tuple(range(len(first))))
    by = numbers("steps", steps, (1,) * len(first))
    if not len(first) == len(last) == len(along) == len(by):
        raise ShapeError(f"Slice: starts {first}, ends {last}, axes {along}, steps {by} differ")
    whole = tuple(call.axis(axis, x) for axis in along)
    if 0 in by:
        raise ShapeError(f"Slice: steps must not be 0, got {by}")
    bounds = [
        slice_bounds(x.type.shape[axis], a, b, s)
        for a, b, s, axis in zip(first, last, by, whole, strict=True)
    ]
    # A slice that begins before the first place and goes backwards begins at that, says ONNX.
    low = tuple(a if a >= 0 else 0 for a, _ in bounds)
    # Where a slice goes backwards to the first place, -1 would be the last one.
    high = tuple(b if b >= 0 else -x.type.shape[axis] - 1 for (_, b), axis in zip(bounds, whole))
    return call(Slice(low, high, whole, by), x)


def _tile(call: OperatorCall, x: Value, repeats: Value, axis: Value | None = None) -> Value:
    if axis is None:
        return call(Tile(call.integers(repeats, "repeats")), x)
    counts = [1] * len(x.type.dims)
    counts[call.axis(call.integers(axis)[0], x)] = call.integers(repeats)[0]
    return call(Tile(tuple(counts)), x)


def pad(
    call: OperatorCall,
    x: Value,
    pads: Value | None = None,
    fill: Value | None = None,
    axes: Value | None = None,
) -> Value:
    if pads is None:
        widths = call.attributes.get("pads", call.attributes.get("paddings"))
        if widths is None:
            raise ShapeError("Pad: pads are missing")
    else:
        widths = call.integers(pads, "pads")
    rank = len(x.type.dims)
    along = tuple(range(rank)) if axes is None else call.integers(axes, "axes")
    if len(widths) != 2 * len(along):
        raise ShapeError(f"Pad: {len(along)} axes need twice as many pads, got {tuple(widths)}")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(along):
        before[call.axis(axis, x)], after[call.axis(axis, x)] = widths[i], widths[i + len(along)]
    mode = call.get("mode", "constant")
    if mode not in EDGES[1:]:
        raise ShapeError(f"Pad: mode must be one of {', '.join(EDGES[1:])}, got {mode!r}")
    if mode != "constant" and rank:
        return _pad_with_edge(call, x, before, after, mode)
    if fill is not None and fill.kind is not Kind.CONSTANT:
        return _pad_with_value(call, x, before, after, fill)
    value = call.get("value", 0.0) if fill is None else call.array(fill).item()
    kind = x.type.dtype.kind
    value = bool(value) if kind == "bool" else float(value) if kind == "float" else int(value)
    return call(Pad(tuple(before), tuple(after), "constant", value), x)


def _pad_with_edge(
    call: OperatorCall, x: Value, before: Sequence[int], after: Sequence[int], edge: Edge
) -> Value:
    """Return x padded by its own numbers, as `edge` says; negative pads crop."""
    axes = tuple(range(len(before)))
    if min(*before, *after, 0) < 0:
        starts = tuple(max(-n, 0) for n in before)
        ends = tuple(n - max(-m, 0) for n, m in zip(x.type.shape, after, strict=True))
        x = call(Slice(starts, ends, axes, (1,) * len(axes)), x)
    first, behind = (tuple(max(n, 0) for n in sides) for sides in (before, after))
    return call(Pad(first, behind, edge), x)


def _pad_with_value(
    call: OperatorCall, x: Value, before: Sequence[int], after: Sequence[int], fill: Value
) -> Value:
    """Return x padded by a number that is known only when the graph runs."""
    rank, sizes = len(before), x.type.shape
    result = call(Pad(tuple(before), tuple(after)), x)
    value = call.reshape(fill, ())
    for axis, (size, first, behind) in enumerate(zip(sizes, before, after, strict=True)):
        if first > 0 or behind > 0:
            count, spread = first + size + behind, (-1, *(1,) * (rank - 1 - axis))
            if call.keeps(count, DType.int64):
                at = np.arange(-first, size + behind).reshape(spread)
                inside = call.constant((at >= 0) & (at < size))
            else:
                places = call.count_up(count, DType.int32, (count, *spread[1:]))
                last = first + size
                inside = call.pointwise("logical_and(a >= b, a < c)", places, first, last)
            result = call.pointwise("where(a, b, c)", inside, result, value)
    return result


def _center_crop_pad(call: OperatorCall, x: Value, shape: Value) -> Value:
    """The middle of x along some axes, with zeros around it where x is smaller."""
    sizes = call.integers(shape, "shape")
    rank = len(x.type.dims)
    axes = [call.axis(axis, x) for axis in call.get("axes", tuple(range(rank)))]
    if len(axes) != len(sizes):
        raise ShapeError(f"CenterCropPad: {len(axes)} axes, got the sizes {sizes}")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, sizes, strict=True):
        more = size - x.type.shape[axis]
        before[axis] = more // 2 if more >= 0 else -(-more // 2)
        after[axis] = more - before[axis]
    return call(Pad(tuple(before), tuple(after), "constant", _zero(x.type.dtype)), x)


def _zero(dtype: DType) -> float | int | bool:
    return {"float": 0.0, "int": 0, "bool": False}[dtype.kind]


def _depth_to_space(call: OperatorCall, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    if call.get("mode", "DCR") == "DCR":
        apart, perm = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        apart, perm = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return _transpose_groups(call, x, apart, perm, (n, c // b**2, h * b, w * b))


def _space_to_depth(call: OperatorCall, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    apart = (n, c, h // b, b, w // b, b)
    perm = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return _transpose_groups(call, x, apart, perm, (n, c * b**2, h // b, w // b))


def _transpose_groups(
    call: OperatorCall,
    x: Value,
    split: tuple[int, ...],
    perm: tuple[int, ...],
    shape: tuple[int, ...],
) -> Value:
    from_reshape = call.reshape(x, split)
    return call.reshape(call(Transpose(perm), from_reshape), shape)


BACKWARDS = "where(a < c, c - 1 - a, a) * d + b"  # the row of step a of a sample with c steps


def _gather(call: OperatorCall, x: Value, index: Value) -> Value:
    return call(Gather(call.axis(call.get("axis", 0), x)), x, index)


def _gather_elements(call: OperatorCall, x: Value, index: Value) -> Value:
    return call(GatherElements(call.axis(call.get("axis", 0), x)), x, index)


def _gather_nd(call: OperatorCall, x: Value, index: Value) -> Value:
    return call(GatherND(call.get("batch_dims", 0)), x, index)


def _scatter_elements(call: OperatorCall, x: Value, index: Value, updates: Value) -> Value:
    axis = call.axis(call.get("axis", 0), x)
    return _scatter(call, ScatterElements(axis, call.get("reduction", "none")), x, index, updates)


def _scatter_nd(call: OperatorCall, x: Value, index: Value, updates: Value) -> Value:
    return _scatter(call, ScatterND(call.get("reduction", "none")), x, index, updates)


def _scatter(call: OperatorCall, scatter: Scatter, x: Value, index: Value, updates: Value) -> Value:
    """Small integers and bools are reduced as int32, of which they keep the low bits."""
    dtype = x.type.dtype
    if scatter.reduction == "none" or dtype.value in REDUCED:
        return call(scatter, x, index, updates)
    wide = (call.cast(one, DType.int32) for one in (x, updates))
    first, second = wide
    return call.cast(call(scatter, first, index, second), dtype)


def _reverse_sequence(call: OperatorCall, x: Value, lengths: Value) -> Value:
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
    result = call(Gather(0), rows, call.reshape(row, (shape[0] * shape[1],)))
    return call.reshape(result, shape)


def _tensor_scatter(
    call: OperatorCall, past: Value, update: Value, starts: Value | None = None
) -> Value:
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
    Converter("Transpose", 1, _transpose),
    Converter("Concat", 1, _concat),
    Converter("Split", 1, _split, shape_inputs=(1,)),
    Converter("Slice", 1, _slice, shape_inputs=(1, 2, 3, 4)),
    Converter("Tile", 1, _tile, shape_inputs=(1, 2)),
    Converter("Pad", 1, pad, shape_inputs=(1, 3)),
    Converter("CenterCropPad", 18, _center_crop_pad, shape_inputs=(1,)),
    Converter("DepthToSpace", 1, _depth_to_space),
    Converter("SpaceToDepth", 1, _space_to_depth),
    Converter("Trilu", 14, _trilu, shape_inputs=(1,)),
    Converter("EyeLike", 9, _eye_like, type_only=(0,), halves=True),
    Converter("Gather", 1, _gather),
    Converter("GatherElements", 11, _gather_elements),
    Converter("GatherND", 11, _gather_nd),
    Converter("Scatter", 9, _scatter_elements),
    Converter("ScatterElements", 11, _scatter_elements),
    Converter("ScatterND", 11, _scatter_nd),
    Converter("ReverseSequence", 10, _reverse_sequence),
    Converter("TensorScatter", 24, _tensor_scatter),
)
