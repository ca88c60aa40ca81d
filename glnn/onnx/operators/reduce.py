"""Reductions along axes."""

from __future__ import annotations

from functools import partial

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.interval import Interval
from glnn.graph.operators import ArgReduce, CumSum, Identity, Reduce, Softmax, Squeeze
from glnn.onnx.operators.call import Call, Converter


def _reduce(
    call: Call, x: Value, axes: Value | None = None, *, kind: str, before: str, after: str
) -> Value:
    if after != "a":
        _refuse_integers(call, x)
    along = _along(call, x, axes)
    if along is None:
        y = call.pointwise(before, x) if before != "a" else x
        return call.pointwise(after, y) if after != "a" else call(Identity(), y)
    keepdims = bool(call.get("keepdims", 1))
    if 0 in (x.type.shape[axis] for axis in along):
        if kind in ("max", "min"):
            return _extreme_of_nothing(call, x, along, keepdims, least=kind == "max")
        if kind == "mean":  # which ONNX leaves undefined: ONNX Runtime's is 0
            kind = "sum"
    op = Reduce(kind, along, keepdims, formula(before), formula(after))  # type: ignore[arg-type]
    return call(op, x)


def _refuse_integers(call: Call, x: Value) -> None:
    """Raise UnsupportedOpError for integers, of which the host computes roots and logarithms."""
    if x.type.dtype.kind == "int":
        raise UnsupportedOpError(f"{call.name} of {x.type.dtype.value} has 64 bits, on the host")


def _along(call: Call, x: Value, axes: Value | None) -> tuple[int, ...] | None:
    """The axes that are reduced; None where nothing is."""
    given = call.attributes.get("axes") if axes is None else call.integers(axes, "axes")
    rank = len(x.type.dims)
    if given:
        return tuple(call.axis(axis, x) for axis in given) if rank else ()
    return None if call.get("noop_with_empty_axes", 0) else tuple(range(rank))


def _extreme_of_nothing(
    call: Call, x: Value, axes: tuple[int, ...], keepdims: bool, *, least: bool
) -> Value:
    """The greatest number of nothing is the least that there is, and the other way round."""
    dtype = x.type.dtype
    nothing = call(Reduce("sum", axes, keepdims), x)
    if dtype.kind == "bool":
        return nothing if least else call.pointwise("logical_not(a)", nothing)
    lies = Interval.of_type(dtype)
    return call.pointwise("a + b", nothing, lies.low if least else lies.high)


def _log_sum_exp(call: Call, x: Value, axes: Value | None = None) -> Value:
    """The greatest number is taken off before and added afterwards, where it is finite."""
    _refuse_integers(call, x)
    along = _along(call, x, axes)
    if along is None:
        return call(Identity(), x)
    keepdims = bool(call.get("keepdims", 1))
    if 0 in (x.type.shape[axis] for axis in along):
        return call(Reduce("sum", along, keepdims, formula("exp(a)"), formula("log(a)")), x)
    most = call(Reduce("max", along, True), x)
    less = formula("exp(a - where(isfinite(b), b, 0.0))")
    total = call(Reduce("sum", along, True, less), x, most)
    y = call.pointwise("log(a) + where(isfinite(b), b, 0.0)", total, most)
    return y if keepdims else call(Squeeze(along), y)


def _row(name: str, kind: str, before: str = "a", after: str = "a") -> Converter:
    return Converter(
        name, 1, partial(_reduce, kind=kind, before=before, after=after), shape_inputs=(1,)
    )


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


def _cum_prod(call: Call, x: Value, axis: Value) -> Value:
    along = call.axis(call.integers(axis, "axis")[0], x)
    exclusive, reverse = bool(call.get("exclusive", 0)), bool(call.get("reverse", 0))
    return call(CumSum(along, exclusive, reverse, multiply=True), x)


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
    Converter("ReduceLogSumExp", 1, _log_sum_exp, shape_inputs=(1,)),
    Converter("ArgMax", 1, partial(_arg, kind="max")),
    Converter("ArgMin", 1, partial(_arg, kind="min")),
    Converter("Softmax", 1, partial(_softmax, log=False)),
    Converter("LogSoftmax", 1, partial(_softmax, log=True)),
    Converter("CumSum", 11, _cum_sum, shape_inputs=(1,)),
    Converter("CumProd", 26, _cum_prod, shape_inputs=(1,)),
)
