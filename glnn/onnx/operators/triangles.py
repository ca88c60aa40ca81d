"""Parts of matrices by the places of their numbers."""

from __future__ import annotations

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Value
from glnn.graph.operators import Identity
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
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
    """1 on the diagonal `k` of a matrix of x's shape, 0 elsewhere."""
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


ENTRIES = (
    Entry("Trilu", 14, _trilu, told=(1,)),
    Entry("EyeLike", 9, _eye_like, type_only=(0,), halves=True),
)
