"""Operators that reshape, move, gather and scatter elements; ranges and triangular masks."""

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

LONGEST = 1 << 20  # numbers of the table of which a Range of an open size is a slice


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
    """Return the axes, an operand or, before version 13, an attribute."""
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
    """Broadcast x and `shape` with each other: for a size of 1 in `shape`, x's size counts."""
    sizes = call.integers(shape, "shape")
    try:
        dims = broadcast({"x": x.type.shape, "shape": sizes})
    except ShapeError:
        raise ShapeError(f"Expand: {x.type} does not broadcast with {sizes}") from None
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
    """Return x, as in inference, and a mask of True."""
    trains = training is not None and bool(call.array(training, "training_mode").item())
    if trains and (ratio is None or float(call.array(ratio, "ratio").item()) > 0):
        raise ShapeError("Dropout: training_mode needs random numbers")
    mask = call(Expand(x.type.shape), call.constant(np.array(True)))
    return call(Identity(), x), mask


def _range(call: OperatorCall, start: Value, limit: Value, delta: Value) -> Value:
    """Return a range with known bounds."""
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
    """Return a range up to an open size: a slice of a constant, which is the same for all sizes."""
    most = greatest(end)
    if step != 1 or first < 0 or end < first or most > LONGEST:
        raise ShapeError(f"Range: from {first} to {end} by {step}")
    table = call.constant(np.arange(most), dtype.numpy)
    return call(Slice((first,), (end,), (0,), (1,)), table)


def _trilu(call: OperatorCall, x: Value, k: Value | None = None) -> Value:
    """Return x with zeros below the diagonal `k`, or above it where `upper` is 0."""
    if len(x.type.dims) < 2:
        raise ShapeError(f"Trilu: x must be matrices, got {x.type}")
    diagonal = 0 if k is None else int(call.array(k, "k").ravel()[0])
    rows, columns = x.type.shape[-2:]
    dtype = x.type.dtype
    zero = False if dtype is DType.bool else 0.0 if dtype.kind == "float" else 0
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        condition = "b - a >= c" if call.get("upper", 1) else "b - a <= c"
        row, column = _row_and_column(call, rows, columns)
        mask = call.pointwise(condition, row, column, diagonal)
        return call.pointwise("where(a, b, c)", mask, x, zero)
    distance = np.arange(columns) - np.arange(rows)[:, None]
    nonzero = distance >= diagonal if call.get("upper", 1) else distance <= diagonal
    if nonzero.all():
        return call(Identity(), x)
    return call.pointwise("where(a, b, c)", call.constant(nonzero), x, zero)


def _eye_like(call: OperatorCall, x: Value) -> Value:
    """Return a matrix of x's shape: 1 on the diagonal `k`, 0 elsewhere."""
    if len(x.type.dims) != 2:
        raise ShapeError(f"EyeLike: x must be a matrix, got {x.type}")
    dtype: DType = call.get("dtype", x.type.dtype)
    rows, columns = x.type.shape
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        row, column = _row_and_column(call, rows, columns)
        return call.cast(call.pointwise("equal(b - a, c)", row, column, call.get("k", 0)), dtype)
    distance = np.arange(columns) - np.arange(rows)[:, None]
    return call.constant(distance == call.get("k", 0), dtype.numpy)


def _row_and_column(call: OperatorCall, rows: int, columns: int) -> tuple[Value, Value]:
    """Return the indices of rows and of columns, int32, which broadcast to a matrix."""
    down, across = (rows, 1), (1, columns)
    return call.count_up(rows, DType.int32, down), call.count_up(columns, DType.int32, across)


def _transpose(call: OperatorCall, x: Value) -> Value:
    rank = len(x.type.dims)
    return call(Transpose(tuple(call.get("perm", tuple(reversed(range(rank)))))), x)


def _concat(call: OperatorCall, *operands: Value) -> Value:
    axis = call.get("axis", 1) if call.version < 4 else call.need("axis")
    axis = call.axis(axis, operands[0])
    nonempty = [x for x in operands if x.type.shape[axis]]
    if not nonempty:
        return operands[0]
    return nonempty[0] if len(nonempty) == 1 else call(Concat(axis), *nonempty)


def _split(call: OperatorCall, x: Value, split: Value | None = None) -> tuple[Value, ...]:
    axis = call.axis(call.get("axis", 0), x)
    size = x.type.shape[axis]
    pieces = call.attributes.get("split") if split is None else call.integers(split, "split")
    if pieces is None:
        count = call.get("num_outputs", call.outputs)
        piece = -(-size // count)
        pieces = tuple(max(min(piece, size - i * piece), 0) for i in range(count))
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
    slice_axes = numbers("axes", axes, tuple(range(len(first))))
    stride = numbers("steps", steps, (1,) * len(first))
    if not len(first) == len(last) == len(slice_axes) == len(stride):
        raise ShapeError(
            f"Slice: starts {first}, ends {last}, axes {slice_axes}, steps {stride} differ"
        )
    positive_axes = tuple(call.axis(axis, x) for axis in slice_axes)
    if 0 in stride:
        raise ShapeError(f"Slice: steps must not be 0, got {stride}")
    bounds = [
        slice_bounds(x.type.shape[axis], a, b, s)
        for a, b, s, axis in zip(first, last, stride, positive_axes, strict=True)
    ]
    # ONNX: a backward slice that starts before the first element starts at the first element.
    low = tuple(a if a >= 0 else 0 for a, _ in bounds)
    # The end of a backward slice that includes the first element: -1 would be the last one.
    high = tuple(
        b if b >= 0 else -x.type.shape[axis] - 1 for (_, b), axis in zip(bounds, positive_axes)
    )
    return call(Slice(low, high, positive_axes, stride), x)


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
    padded_axes = tuple(range(rank)) if axes is None else call.integers(axes, "axes")
    if len(widths) != 2 * len(padded_axes):
        raise ShapeError(
            f"Pad: {len(padded_axes)} axes need twice as many pads, got {tuple(widths)}"
        )
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(padded_axes):
        before[call.axis(axis, x)], after[call.axis(axis, x)] = (
            widths[i],
            widths[i + len(padded_axes)],
        )
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
    """Return x padded in the mode `edge`; negative pads crop."""
    axes = tuple(range(len(before)))
    if min(*before, *after, 0) < 0:
        starts = tuple(max(-n, 0) for n in before)
        ends = tuple(n - max(-m, 0) for n, m in zip(x.type.shape, after, strict=True))
        x = call(Slice(starts, ends, axes, (1,) * len(axes)), x)
    before, after = (tuple(max(n, 0) for n in sides) for sides in (before, after))
    return call(Pad(before, after, edge), x)


def _pad_with_value(
    call: OperatorCall, x: Value, before: Sequence[int], after: Sequence[int], fill: Value
) -> Value:
    """Return x padded with a value that is known only in a run."""
    rank, sizes = len(before), x.type.shape
    result = call(Pad(tuple(before), tuple(after)), x)
    value = call.reshape(fill, ())
    for axis, (size, left, right) in enumerate(zip(sizes, before, after, strict=True)):
        if left > 0 or right > 0:
            count, broadcast_shape = left + size + right, (-1, *(1,) * (rank - 1 - axis))
            if call.keeps(count, DType.int64):
                position = np.arange(-left, size + right).reshape(broadcast_shape)
                inside = call.constant((position >= 0) & (position < size))
            else:
                index = call.count_up(count, DType.int32, (count, *broadcast_shape[1:]))
                end = left + size
                inside = call.pointwise("logical_and(a >= b, a < c)", index, left, end)
            result = call.pointwise("where(a, b, c)", inside, result, value)
    return result


def _center_crop_pad(call: OperatorCall, x: Value, shape: Value) -> Value:
    """Return the center of x along some axes, padded with zeros where x is smaller."""
    sizes = call.integers(shape, "shape")
    rank = len(x.type.dims)
    axes = [call.axis(axis, x) for axis in call.get("axes", tuple(range(rank)))]
    if len(axes) != len(sizes):
        raise ShapeError(f"CenterCropPad: {len(axes)} axes, got the sizes {sizes}")
    before, after = [0] * rank, [0] * rank
    for axis, size in zip(axes, sizes, strict=True):
        padding = size - x.type.shape[axis]
        before[axis] = padding // 2 if padding >= 0 else -(-padding // 2)
        after[axis] = padding - before[axis]
    return call(Pad(tuple(before), tuple(after), "constant", _zero(x.type.dtype)), x)


def _zero(dtype: DType) -> float | int | bool:
    return {"float": 0.0, "int": 0, "bool": False}[dtype.kind]


def _depth_to_space(call: OperatorCall, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    if call.get("mode", "DCR") == "DCR":
        split, perm = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return _transpose_groups(call, x, split, perm, (n, c // b**2, h * b, w * b))


def _space_to_depth(call: OperatorCall, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    split = (n, c, h // b, b, w // b, b)
    perm = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return _transpose_groups(call, x, split, perm, (n, c * b**2, h // b, w // b))


def _transpose_groups(
    call: OperatorCall,
    x: Value,
    split: tuple[int, ...],
    perm: tuple[int, ...],
    shape: tuple[int, ...],
) -> Value:
    return call.reshape(call(Transpose(perm), call.reshape(x, split)), shape)


# The source row of step a: of c steps to reverse; d rows from step to step, b the sample's first.
REVERSED_ROW = "where(a < c, c - 1 - a, a) * d + b"


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
    """Scatter; dtypes that `Scatter` does not reduce are reduced as int32 and keep the low bits."""
    dtype = x.type.dtype
    if scatter.reduction == "none" or dtype.value in REDUCED:
        return call(scatter, x, index, updates)
    x, updates = (call.cast(one, DType.int32) for one in (x, updates))
    return call.cast(call(scatter, x, index, updates), dtype)


def _reverse_sequence(call: OperatorCall, x: Value, lengths: Value) -> Value:
    """Reverse the first `lengths` steps of each sample along the time axis."""
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
    step = call.constant(np.arange(steps).reshape(along), np.int32)
    # The first two dimensions are merged to rows; `stride` rows lead from step to step of a sample.
    stride = 1 if batch == 0 else samples
    first = np.arange(samples).reshape(across) * (steps if batch == 0 else 1)
    row = call.pointwise(REVERSED_ROW, step, call.constant(first, np.int32), length, stride)
    rows = call.reshape(x, (shape[0] * shape[1], *shape[2:]))
    result = call(Gather(0), rows, call.reshape(row, (shape[0] * shape[1],)))
    return call.reshape(result, shape)


def _tensor_scatter(
    call: OperatorCall, past: Value, update: Value, starts: Value | None = None
) -> Value:
    """Write `update` to a cache, from step `starts` of each sample on, by default the first."""
    axis = call.axis(call.get("axis", -2), past)
    shape, steps = past.type.shape, update.type.shape[axis]
    if not axis:
        raise ShapeError("TensorScatter: the axis must not be that of the samples")
    outer, inner = shape[1:axis], shape[axis + 1 :]
    step = call.constant(np.arange(steps), np.int32)
    if starts is not None:
        first = call.reshape(call.cast(starts, DType.int32), (shape[0], 1))
        step = call.pointwise("a + b", first, step)
    if call.get("mode", "linear") == "circular":
        step = call.pointwise("remainder(a, b)", step, shape[axis])
    # All dimensions up to the axis are merged to rows, of which each step has one.
    first_row = np.arange(shape[0] * prod(outer)).reshape(shape[0], prod(outer), 1) * shape[axis]
    step = call.reshape(step, (step.type.shape[0] if len(step.type.dims) > 1 else 1, 1, steps))
    row = call.pointwise("a + b", call.constant(first_row, np.int32), step)
    count = first_row.size * steps
    rows = call.reshape(past, (first_row.size * shape[axis], *inner))
    new = call.reshape(update, (count, *inner))
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
