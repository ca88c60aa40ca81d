"""Reductions along axes, normalisations, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from glnn.core.types import MOST, DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.interval import Interval
from glnn.graph.operators import (
    ArgReduce,
    CumSum,
    Expand,
    Flip,
    Gather,
    GatherElements,
    Identity,
    LocalResponseNorm,
    Normalize,
    Reduce,
    Softmax,
    Squeeze,
    TopK,
    Transpose,
)
from glnn.onnx.operators.call import Converter, OperatorCall


def _reduce(
    call: OperatorCall,
    x: Value,
    axes: Value | None = None,
    *,
    kind: str,
    prologue: str,
    finish: str,
) -> Value:
    if finish != "a":
        _refuse_integers(call, x)
    reduced = _reduced_axes(call, x, axes)
    if reduced is None:
        y = call.pointwise(prologue, x) if prologue != "a" else x
        return call.pointwise(finish, y) if finish != "a" else call(Identity(), y)
    keepdims = bool(call.get("keepdims", 1))
    if 0 in (x.type.shape[axis] for axis in reduced):
        if kind in ("max", "min"):
            return _empty_extreme(call, x, reduced, keepdims, least=kind == "max")
        if kind == "mean":  # undefined by ONNX; 0 in ONNX Runtime
            kind = "sum"
    op = Reduce(kind, reduced, keepdims, formula(prologue), formula(finish))  # type: ignore[arg-type]
    return call(op, x)


def _refuse_integers(call: OperatorCall, x: Value) -> None:
    """Raise UnsupportedOpError for integers: the host computes their roots and logarithms."""
    if x.type.dtype.kind == "int":
        raise UnsupportedOpError(f"{call.name} of {x.type.dtype.value} has 64 bits, on the host")


def _reduced_axes(call: OperatorCall, x: Value, axes: Value | None) -> tuple[int, ...] | None:
    """Return the axes that are reduced; None where nothing is."""
    given = call.attributes.get("axes") if axes is None else call.integers(axes, "axes")
    rank = len(x.type.dims)
    if given:
        return tuple(call.axis(axis, x) for axis in given) if rank else ()
    return None if call.get("noop_with_empty_axes", 0) else tuple(range(rank))


def _empty_extreme(
    call: OperatorCall, x: Value, axes: tuple[int, ...], keepdims: bool, *, least: bool
) -> Value:
    """Return the maximum of empty axes, the dtype's least number, if `least`; else the minimum."""
    dtype = x.type.dtype
    zeros = call(Reduce("sum", axes, keepdims), x)
    if dtype.kind == "bool":
        return zeros if least else call.pointwise("logical_not(a)", zeros)
    interval = Interval.of_type(dtype)
    return call.pointwise("a + b", zeros, interval.low if least else interval.high)


def _log_sum_exp(call: OperatorCall, x: Value, axes: Value | None = None) -> Value:
    """Subtract the maximum first and add it to the result, where it is finite."""
    _refuse_integers(call, x)
    reduced = _reduced_axes(call, x, axes)
    if reduced is None:
        return call(Identity(), x)
    keepdims = bool(call.get("keepdims", 1))
    if 0 in (x.type.shape[axis] for axis in reduced):
        return call(Reduce("sum", reduced, keepdims, formula("exp(a)"), formula("log(a)")), x)
    maximum = call(Reduce("max", reduced, True), x)
    shifted = formula("exp(a - where(isfinite(b), b, 0.0))")
    total = call(Reduce("sum", reduced, True, shifted), x, maximum)
    y = call.pointwise("log(a) + where(isfinite(b), b, 0.0)", total, maximum)
    return y if keepdims else call(Squeeze(reduced), y)


def _row(name: str, kind: str, prologue: str = "a", finish: str = "a") -> Converter:
    return Converter(
        name, 1, partial(_reduce, kind=kind, prologue=prologue, finish=finish), shape_inputs=(1,)
    )


def _arg(call: OperatorCall, x: Value, *, kind: str) -> Value:
    axis = call.axis(call.get("axis", 0), x)
    last = bool(call.get("select_last_index", 0))
    op = ArgReduce(kind, axis, bool(call.get("keepdims", 1)), last)  # type: ignore[arg-type]
    return call.pointwise("cast_int64(a)", call(op, x))


def _top_k(call: OperatorCall, x: Value, k: Value | None = None) -> Sequence[Value]:
    """Return the numbers and their indices, always sorted."""
    counts = (call.need("k"),) if k is None else call.integers(k, "k")
    if len(counts) != 1 or not x.type.dims:
        raise ShapeError(f"TopK: k must be one number, of x with dimensions, got {k} of {x.type}")
    rank, axis = len(x.type.dims), call.axis(call.get("axis", -1), x)
    order = (*(i for i in range(rank) if i != axis), axis)
    n = x.type.shape[axis]
    if not 0 <= counts[0] <= n:
        raise ShapeError(f"TopK: k must be from 0 to {n} along axis {axis}, got {counts[0]}")
    rows = x if axis == rank - 1 else call(Transpose(order), x)
    indices = call(TopK(counts[0], bool(call.get("largest", 1))), rows)
    numbers = call(GatherElements(rank - 1), rows, indices)
    if axis < rank - 1:
        back = tuple(order.index(i) for i in range(rank))
        numbers, indices = call(Transpose(back), numbers), call(Transpose(back), indices)
    return numbers, call.pointwise("cast_int64(a)", indices)


def softmax(call: OperatorCall, x: Value, *, log: bool) -> Value:
    """Convert Softmax. Before version 13 all dimensions from the axis on are one."""
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


def _cum_sum(call: OperatorCall, x: Value, axis: Value) -> Value:
    along = call.axis(call.integers(axis, "axis")[0], x)
    return call(CumSum(along, bool(call.get("exclusive", 0)), bool(call.get("reverse", 0))), x)


def _cum_prod(call: OperatorCall, x: Value, axis: Value) -> Value:
    along = call.axis(call.integers(axis, "axis")[0], x)
    exclusive, reverse = bool(call.get("exclusive", 0)), bool(call.get("reverse", 0))
    return call(CumSum(along, exclusive, reverse, multiply=True), x)


BFLOAT16 = frozenset((DType.bfloat16,))
Axes = tuple[int, ...]


def moments(call: OperatorCall, x: Value, axes: Axes) -> tuple[Value, Value]:
    """Return the mean along `axes`, which keep size 1, and the population variance."""
    mean = call(Reduce("mean", axes, True), x)
    return mean, call(Reduce("mean", axes, True, formula("square(a - b)")), x, mean)


def _batch_normalization(
    call: OperatorCall, x: Value, scale: Value, bias: Value, mean: Value, var: Value
) -> Sequence[Value]:
    """Convert BatchNormalization.

    Training mode is an attribute from version 14 on, another one before 7; in between it is on
    where any further result is used.
    """
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    rank = len(widened.type.dims)
    broadcast_shape = (widened.type.shape[1] if rank > 1 else 1, *(1,) * (rank - 2))
    if call.version < 9 and not call.get("spatial", 1):
        broadcast_shape = widened.type.shape[1:]
    training = any(call.used_outputs[1:])
    if call.version >= 14:
        training = bool(call.get("training_mode", 0))
    elif call.version < 7:
        training = not call.get("is_test", 0)
    results: list[Value] = []
    used_mean, used_var = call.widened(mean), call.widened(var)
    if training:
        axes = (
            (0, *range(2, rank)) if broadcast_shape != widened.type.shape[1:] or rank < 3 else (0,)
        )
        momentum = float(call.get("momentum", 0.9))
        batch_moments = [call.reshape(v, mean.type.shape) for v in moments(call, widened, axes)]
        batch_mean, batch_var = batch_moments
        rule = "a * c + b * (1.0 - c)"
        for old, new, like in ((used_mean, batch_mean, mean), (used_var, batch_var, var)):
            running = call.pointwise(rule, old, new, momentum)
            results.append(call.cast(running, like.type.dtype))
        used_mean, used_var = batch_moments
        if call.version < 14:
            results += [call.cast(v, mean.type.dtype) for v in batch_moments]
    factor = call.pointwise("a / sqrt(b + c)", call.widened(scale), used_var, epsilon)
    shift = call.pointwise("a - b * c", call.widened(bias), used_mean, factor)
    factor, shift = (call.reshape(value, broadcast_shape) for value in (factor, shift))
    y = call.pointwise("a * b + c", widened, factor, shift)
    return call.cast(y, x.type.dtype), *results


def _instance_normalization(call: OperatorCall, x: Value, scale: Value, bias: Value) -> Value:
    return call(Normalize(groups=0, eps=float(call.get("epsilon", 1e-5))), x, scale, bias)


def layer_normalization(
    call: OperatorCall, x: Value, scale: Value, bias: Value | None = None
) -> Sequence[Value]:
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    axis = call.axis(call.get("axis", -1), widened)
    y = _normalize_last(
        call, widened, axis, scale, bias, Normalize(dims=len(widened.type.dims) - axis, eps=epsilon)
    )
    results = [call.cast(y, x.type.dtype)]
    if any(call.used_outputs[1:]):
        mean, var = moments(call, widened, tuple(range(axis, len(widened.type.dims))))
        results += [mean, call.pointwise("rsqrt(a + b)", var, epsilon)]
    return results


def rms_normalization(call: OperatorCall, x: Value, scale: Value) -> Value:
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    axis = call.axis(call.get("axis", -1), widened)
    op = Normalize(dims=len(widened.type.dims) - axis, centred=False, eps=epsilon)
    return call.cast(_normalize_last(call, widened, axis, scale, None, op), scale.type.dtype)


def _normalize_last(
    call: OperatorCall, x: Value, axis: int, scale: Value, bias: Value | None, op: Normalize
) -> Value:
    """Normalise the dimensions from `axis` on by `op`; scale and bias broadcast to these."""
    shape = x.type.shape[axis:]
    parameters = [call.widened(value) for value in (scale, bias)]
    if all(v is None or len(v.type.dims) <= len(shape) for v in parameters):
        expanded = [
            v if v is None or v.type.dims == shape else call(Expand(shape), v) for v in parameters
        ]
        return call(op, x, *expanded)
    y = call(op, x, None, None)
    factor, shift = parameters
    y = y if factor is None else call.pointwise("a * b", y, factor)
    return y if shift is None else call.pointwise("a + b", y, shift)


def _group_normalization(call: OperatorCall, x: Value, scale: Value, bias: Value) -> Value:
    """Convert GroupNormalization. Before version 21 scale and bias are (groups,)."""
    groups, channels = call.need("num_groups"), x.type.shape[1]
    epsilon = float(call.get("epsilon", 1e-5))
    if call.version < 21 and scale.type.shape == (groups,) != (channels,):
        share = channels // max(groups, 1)
        scale, bias = (
            call.reshape(call(Expand((groups, share)), call.reshape(v, (groups, 1))), (channels,))
            for v in (scale, bias)
        )
    if x.type.dtype is not DType.float64:
        return call(Normalize(groups=groups, eps=epsilon), x, scale, bias)
    grouped = call.reshape(x, (x.type.shape[0], groups, prod(x.type.shape[1:]) // max(groups, 1)))
    mean, var = moments(call, grouped, (2,))
    y = call.pointwise("(a - b) / sqrt(c + d)", grouped, mean, var, epsilon)
    broadcast_shape = (channels, *(1,) * (len(x.type.dims) - 2))
    factor, shift = (call.reshape(v, broadcast_shape) for v in (scale, bias))
    return call.pointwise("a * b + c", call.reshape(y, x.type.shape), factor, shift)


def _lp_normalization(call: OperatorCall, x: Value) -> Value:
    axis, p = call.axis(call.get("axis", -1), x), call.get("p", 2)
    if p not in (1, 2):
        raise ShapeError(f"LpNormalization: p must be 1 or 2, got {p}")
    prologue, finish = ("abs(a)", "a") if p == 1 else ("square(a)", "sqrt(a)")
    length = call(Reduce("sum", (axis,), True, formula(prologue), formula(finish)), x)
    return call.pointwise("where(equal(b, 0.0), 0.0, a / b)", x, length)


def _mean_variance_normalization(call: OperatorCall, x: Value) -> Value:
    axes = tuple(call.axis(axis, x) for axis in call.get("axes", (0, 2, 3)))
    mean, var = moments(call, x, axes)
    return call.pointwise("(a - b) / (sqrt(c) + d)", x, mean, var, 1e-9)


def _lrn(call: OperatorCall, x: Value) -> Value:
    size = call.need("size")
    names = (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    op = LocalResponseNorm(size, *(float(call.get(name, default)) for name, default in names))
    if size % 2:
        return call(op, x)
    # For an even size glnn's window has one more channel before the center, ONNX's one more behind.
    return call(Flip((1,)), call(op, call(Flip((1,)), x)))


def _loss(call: OperatorCall, scores: Value, target: Value, weight: Value | None) -> Value:
    """Return the negative log-likelihood loss of scores (n, c, ...) for target classes (n, ...).

    weight: of each class, (c,). Targets that are `ignore_index` have the weight 0.
    """
    shape = scores.type.shape
    if len(shape) < 2 or target.type.shape != (shape[0], *shape[2:]):
        raise ShapeError(f"{call.name}: a target {target.type} for scores {scores.type}")
    reduction = call.get("reduction", "mean")
    if reduction not in ("none", "mean", "sum"):
        raise ShapeError(f"{call.name}: reduction must be none, mean or sum, got {reduction!r}")
    ignored = call.get("ignore_index", None)
    classes = target  # with 0 for ignored targets, which may be out of range
    if ignored is not None:
        classes = call.pointwise("where(equal(a, b), 0, a)", target, ignored)
    index = call.reshape(classes, (shape[0], 1, *shape[2:]))
    result = call.reshape(call(GatherElements(1), scores, index), target.type.shape)
    result = call.pointwise("-a", result)
    factor: Value | None = None
    if weight is not None:
        factor = call(Gather(0), weight, classes)
    if ignored is not None:
        sample_weight: Value | float = 1.0 if factor is None else factor
        factor = call.pointwise("where(equal(a, b), 0.0, c)", target, ignored, sample_weight)
    axes = tuple(range(len(target.type.dims)))
    if factor is None:
        if reduction == "none":
            return result
        return call(Reduce("sum" if reduction == "sum" else "mean", axes), result)
    # The score of an ignored target may be infinite or NaN.
    weighted = call.pointwise("where(equal(b, 0.0), 0.0, a * b)", result, factor)
    if reduction == "none":
        return weighted
    total = call(Reduce("sum", axes), weighted)
    if reduction == "sum":
        return total
    return call.pointwise("a / b", total, call(Reduce("sum", axes), factor))


def _nll(call: OperatorCall, scores: Value, target: Value, weight: Value | None = None) -> Value:
    return _loss(call, scores, target, weight)


def _cross_entropy(
    call: OperatorCall, scores: Value, target: Value, weight: Value | None = None
) -> tuple[Value, Value]:
    """Return the loss, and the logarithms of the probabilities."""
    logarithms = call(Softmax(1, True), scores)
    return _loss(call, logarithms, target, weight), logarithms


def _hardmax(call: OperatorCall, x: Value) -> Value:
    """Return 1 at the first maximum along the axis, 0 elsewhere.

    Before version 13 all dimensions from the axis on are one.
    """
    shape = x.type.shape
    axis = call.axis(call.get("axis", -1 if call.version >= 13 else 1), x)
    if call.version < 13 and axis < len(shape) - 1:
        x = call.reshape(x, (*shape[:axis], int(np.prod(shape[axis:]))))
    if x.type.shape[axis] == 0:
        return call.reshape(x, shape)
    first = call(ArgReduce("max", axis, True), x)
    positions = np.arange(x.type.shape[axis]).reshape(-1, *(1,) * (len(x.type.dims) - axis - 1))
    result = call.pointwise("equal(a, b)", first, call.constant(positions, np.int32))
    return call.reshape(call.cast(result, x.type.dtype), shape)


def _one_hot(call: OperatorCall, index: Value, depth: Value, values: Value) -> Value:
    """Return values[1] where an index points along a new axis, values[0] elsewhere."""
    count = int(call.array(depth, "depth").ravel()[0])
    axis = call.axis(call.get("axis", -1), index, 1)
    if index.type.dtype.kind == "float":
        index = call.cast(index, DType.int32)
    shape = index.type.shape
    if not 0 <= count * prod(shape) <= MOST:
        raise ShapeError(f"OneHot: {index.type} of depth {count} would hold more than {MOST}")
    index = call.reshape(index, (*shape[:axis], 1, *shape[axis:]))
    dtype = index.type.dtype
    if dtype not in (DType.int32, DType.int64):
        index = call.cast(index, DType.int32 if dtype.numpy.itemsize < 4 else DType.int64)
    positions = call.count_up(count, index.type.dtype, (-1, *(1,) * (len(shape) - axis)))
    is_hot = call.pointwise("equal(a, b)", index, positions)
    if dtype.value.startswith("int"):
        negative = call.pointwise("a - b", positions, count)
        is_hot = call.pointwise("logical_or(a, equal(b, c))", is_hot, index, negative)
    off, on = (call(Gather(0), values, call.constant(i, np.int32)) for i in (0, 1))
    return call.pointwise("where(a, b, c)", is_hot, on, off)


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
    Converter("TopK", 1, _top_k, shape_inputs=(1,)),
    Converter("Softmax", 1, partial(softmax, log=False)),
    Converter("LogSoftmax", 1, partial(softmax, log=True)),
    Converter("CumSum", 11, _cum_sum, shape_inputs=(1,)),
    Converter("CumProd", 26, _cum_prod, shape_inputs=(1,)),
    Converter("BatchNormalization", 1, _batch_normalization, halves=True, dtypes=BFLOAT16),
    Converter("InstanceNormalization", 1, _instance_normalization),
    Converter("LayerNormalization", 17, layer_normalization, halves=True, dtypes=BFLOAT16),
    Converter("RMSNormalization", 23, rms_normalization, halves=True, dtypes=BFLOAT16),
    Converter("GroupNormalization", 18, _group_normalization),
    Converter("LpNormalization", 1, _lp_normalization),
    Converter("MeanVarianceNormalization", 9, _mean_variance_normalization),
    Converter("LRN", 1, _lrn),
    Converter("NegativeLogLikelihoodLoss", 12, _nll),
    Converter("SoftmaxCrossEntropyLoss", 12, _cross_entropy),
    Converter("Hardmax", 1, _hardmax),
    Converter("OneHot", 9, _one_hot, shape_inputs=(1,)),
)
