"""Operators that move numbers, and masks of triangles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Kind, Value
from glnn.graph.index_map import EDGES, Edge
from glnn.graph.operators import (
    Concat,
    Identity,
    Pad,
    Slice,
    Split,
    Tile,
    Transpose,
)
from glnn.graph.operators.move import slice_bounds
from glnn.onnx.operators.call import Call, Converter
from glnn.symint import holds_symbols
from glnn.types import DType


def _trilu(call: Call, x: Value, k: Value | None = None) -> Value:
    """The numbers on the diagonal `k` and above it, or below it where `upper` is 0, 0 elsewhere."""
    if len(x.type.dims) < 2:
        raise ShapeError(f"Trilu: x must be matrices, got {x.type}")
    diagonal = 0 if k is None else int(call.array(k, "k").ravel()[0])
    rows, columns = x.type.shape[-2:]
    dtype = x.type.dtype
    zero = False if dtype is DType.bool else 0.0 if dtype.kind == "float" else 0
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        whether = "b - a >= c" if call.get("upper", 1) else "b - a <= c"
        at = _places(call, rows, columns)
        return call.pointwise("where(a, b, c)", call.pointwise(whether, *at, diagonal), x, zero)
    apart = np.arange(columns) - np.arange(rows)[:, None]
    kept = apart >= diagonal if call.get("upper", 1) else apart <= diagonal
    if kept.all():
        return call(Identity(), x)
    return call.pointwise("where(a, b, c)", call.constant(kept), x, zero)


def _eye_like(call: Call, x: Value) -> Value:
    """Return a matrix of x's shape: 1 on the diagonal `k`, 0 elsewhere."""
    if len(x.type.dims) != 2:
        raise ShapeError(f"EyeLike: x must be a matrix, got {x.type}")
    dtype: DType = call.get("dtype", x.type.dtype)
    rows, columns = x.type.shape
    if holds_symbols((rows, columns)) or not call.keeps(rows * columns, DType.int64):
        at = _places(call, rows, columns)
        return call.cast(call.pointwise("equal(b - a, c)", *at, call.get("k", 0)), dtype)
    apart = np.arange(columns) - np.arange(rows)[:, None]
    return call.constant(apart == call.get("k", 0), dtype.numpy)


def _places(call: Call, rows: int, columns: int) -> tuple[Value, Value]:
    """The numbers of rows and of columns, int32, which broadcast to a matrix."""
    down, across = (rows, 1), (1, columns)
    return call.count_up(rows, DType.int32, down), call.count_up(columns, DType.int32, across)


def _transpose(call: Call, x: Value) -> Value:
    rank = len(x.type.dims)
    return call(Transpose(tuple(call.get("perm", tuple(reversed(range(rank)))))), x)


def _concat(call: Call, *operands: Value) -> Value:
    axis = call.get("axis", 1) if call.version < 4 else call.need("axis")
    axis = call.axis(axis, operands[0])
    there = [x for x in operands if x.type.shape[axis]]
    if not there:
        return operands[0]
    return there[0] if len(there) == 1 else call(Concat(axis), *there)


def _split(call: Call, x: Value, split: Value | None = None) -> tuple[Value, ...]:
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
    call: Call,
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


def _tile(call: Call, x: Value, repeats: Value, axis: Value | None = None) -> Value:
    if axis is None:
        return call(Tile(call.integers(repeats, "repeats")), x)
    counts = [1] * len(x.type.dims)
    counts[call.axis(call.integers(axis)[0], x)] = call.integers(repeats)[0]
    return call(Tile(tuple(counts)), x)


def _pad(
    call: Call,
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
    call: Call, x: Value, before: Sequence[int], after: Sequence[int], edge: Edge
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
    call: Call, x: Value, before: Sequence[int], after: Sequence[int], fill: Value
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


def _center_crop_pad(call: Call, x: Value, shape: Value) -> Value:
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


def _depth_to_space(call: Call, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    if call.get("mode", "DCR") == "DCR":
        apart, perm = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        apart, perm = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return _transpose_groups(call, x, apart, perm, (n, c // b**2, h * b, w * b))


def _space_to_depth(call: Call, x: Value) -> Value:
    n, c, h, w = x.type.shape
    b = call.need("blocksize")
    apart = (n, c, h // b, b, w // b, b)
    perm = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return _transpose_groups(call, x, apart, perm, (n, c * b**2, h // b, w // b))


def _transpose_groups(
    call: Call, x: Value, split: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> Value:
    from_reshape = call.reshape(x, split)
    return call.reshape(call(Transpose(perm), from_reshape), shape)


ENTRIES = (
    Converter("Transpose", 1, _transpose),
    Converter("Concat", 1, _concat),
    Converter("Split", 1, _split, shape_inputs=(1,)),
    Converter("Slice", 1, _slice, shape_inputs=(1, 2, 3, 4)),
    Converter("Tile", 1, _tile, shape_inputs=(1, 2)),
    Converter("Pad", 1, _pad, shape_inputs=(1, 3)),
    Converter("CenterCropPad", 18, _center_crop_pad, shape_inputs=(1,)),
    Converter("DepthToSpace", 1, _depth_to_space),
    Converter("SpaceToDepth", 1, _space_to_depth),
    Converter("Trilu", 14, _trilu, shape_inputs=(1,)),
    Converter("EyeLike", 9, _eye_like, type_only=(0,), halves=True),
)
