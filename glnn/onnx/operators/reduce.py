"""Reductions along axes."""

from __future__ import annotations

from functools import partial

from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import ArgReduce, CumSum, Identity, Reduce, Softmax
from glnn.onnx.call import Call
from glnn.onnx.entry import Entry


def _reduce(
    call: Call, x: Value, axes: Value | None = None, *, kind: str, before: str, after: str
) -> Value:
    along = call.attributes.get("axes") if axes is None else call.integers(axes, "axes")
    rank = len(x.type.dims)
    if not along:
        if call.get("noop_with_empty_axes", 0):
            y = call.pointwise(before, x) if before != "a" else x
            return call.pointwise(after, y) if after != "a" else call(Identity(), y)
        along = tuple(range(rank))
    whole = tuple(call.axis(axis, x) for axis in along) if rank else ()
    op = Reduce(kind, whole, bool(call.get("keepdims", 1)), formula(before), formula(after))  # type: ignore[arg-type]
    return call(op, x)


def _row(name: str, kind: str, before: str = "a", after: str = "a") -> Entry:
    return Entry(name, 1, partial(_reduce, kind=kind, before=before, after=after), told=(1,))


def _arg(call: Call, x: Value, *, kind: str) -> Value:
    axis = call.axis(call.get("axis", 0), x)
    last = bool(call.get("select_last_index", 0))
    op = ArgReduce(kind, axis, bool(call.get("keepdims", 1)), last)  # type: ignore[arg-type]
    return call.pointwise("cast_int64(a)", call(op, x))


def _softmax(call: Call, x: Value, *, log: bool) -> Value:
    """Before version 13 all dimensions from the axis on are one."""
    if call.version >= 13:
        return call(Softmax(call.axis(call.get("axis", -1), x), log), x)
    axis = call.axis(call.get("axis", 1), x)
    shape = x.type.shape
    if axis == len(shape) - 1:
        return call(Softmax(axis, log), x)
    size = 1
    for n in shape[axis:]:
        size *= n
    y = call(Softmax(len(shape[:axis]), log), call.reshape(x, (*shape[:axis], size)))
    return call.reshape(y, shape)


def _cum_sum(call: Call, x: Value, axis: Value) -> Value:
    along = call.axis(call.integers(axis, "axis")[0], x)
    return call(CumSum(along, bool(call.get("exclusive", 0)), bool(call.get("reverse", 0))), x)


def _global(call: Call, x: Value, *, kind: str) -> Value:
    axes = tuple(range(2, len(x.type.dims)))
    return call(Reduce(kind, axes, True), x)  # type: ignore[arg-type]


ENTRIES = (
    _row("ReduceSum", "sum"),
    _row("ReduceMean", "mean"),
    _row("ReduceMax", "max"),
    _row("ReduceMin", "min"),
    _row("ReduceProd", "prod"),
    _row("ReduceL1", "sum", "abs(a)"),
    _row("ReduceL2", "sum", "square(a)", "sqrt(a)"),
    _row("ReduceSumSquare", "sum", "square(a)"),
    _row("ReduceLogSum", "sum", "a", "log(a)"),
    Entry("ArgMax", 1, partial(_arg, kind="max")),
    Entry("ArgMin", 1, partial(_arg, kind="min")),
    Entry("Softmax", 1, partial(_softmax, log=False)),
    Entry("LogSoftmax", 1, partial(_softmax, log=True)),
    Entry("CumSum", 11, _cum_sum, told=(1,)),
    Entry("GlobalAveragePool", 1, partial(_global, kind="mean")),
    Entry("GlobalMaxPool", 1, partial(_global, kind="max")),
)
