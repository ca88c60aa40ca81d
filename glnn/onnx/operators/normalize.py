"""Normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from glnn.errors import ShapeError
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Flip, LocalResponseNorm, Normalize, Reduce
from glnn.onnx.operators.call import Call, Converter
from glnn.types import DType

BFLOAT16 = frozenset((DType.bfloat16,))
Axes = tuple[int, ...]


def _moments(call: Call, x: Value, axes: Axes) -> tuple[Value, Value]:
    """The mean along `axes`, which stay, and the variance of the population."""
    mean = call(Reduce("mean", axes, True), x)
    return mean, call(Reduce("mean", axes, True, formula("square(a - b)")), x, mean)


def _batch_normalization(
    call: Call, x: Value, scale: Value, bias: Value, mean: Value, var: Value
) -> Sequence[Value]:
    """Convert BatchNormalization.

    From version 14 on an attribute says whether it is training, before 7 another one; between them
    it trains where any further result is used.
    """
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    rank = len(widened.type.dims)
    spread = (widened.type.shape[1] if rank > 1 else 1, *(1,) * (rank - 2))
    if call.version < 9 and not call.get("spatial", 1):
        spread = widened.type.shape[1:]
    training = any(call.used_outputs[1:])
    if call.version >= 14:
        training = bool(call.get("training_mode", 0))
    elif call.version < 7:
        training = not call.get("is_test", 0)
    results: list[Value] = []
    own_mean, own_var = call.widened(mean), call.widened(var)
    if training:
        axes = (0, *range(2, rank)) if spread != widened.type.shape[1:] or rank < 3 else (0,)
        momentum = float(call.get("momentum", 0.9))
        now = [call.reshape(v, mean.type.shape) for v in _moments(call, widened, axes)]
        rule = "a * c + b * (1.0 - c)"
        for old, new, like in ((own_mean, now[0], mean), (own_var, now[1], var)):
            kept = call.pointwise(rule, old, new, momentum)
            results.append(call.cast(kept, like.type.dtype))
        own_mean, own_var = now
        if call.version < 14:
            results += [call.cast(v, mean.type.dtype) for v in now]
    factor = call.pointwise("a / sqrt(b + c)", call.widened(scale), own_var, epsilon)
    shift = call.pointwise("a - b * c", call.widened(bias), own_mean, factor)
    factor, shift = (call.reshape(value, spread) for value in (factor, shift))
    y = call.pointwise("a * b + c", widened, factor, shift)
    return call.cast(y, x.type.dtype), *results


def _instance_normalization(call: Call, x: Value, scale: Value, bias: Value) -> Value:
    return call(Normalize(groups=0, eps=float(call.get("epsilon", 1e-5))), x, scale, bias)


def _layer_normalization(
    call: Call, x: Value, scale: Value, bias: Value | None = None
) -> Sequence[Value]:
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    axis = call.axis(call.get("axis", -1), widened)
    y = _over_last(
        call, widened, axis, scale, bias, Normalize(dims=len(widened.type.dims) - axis, eps=epsilon)
    )
    results = [call.cast(y, x.type.dtype)]
    if any(call.used_outputs[1:]):
        mean, var = _moments(call, widened, tuple(range(axis, len(widened.type.dims))))
        results += [mean, call.pointwise("rsqrt(a + b)", var, epsilon)]
    return results


def _rms_normalization(call: Call, x: Value, scale: Value) -> Value:
    widened, epsilon = call.widened(x), float(call.get("epsilon", 1e-5))
    axis = call.axis(call.get("axis", -1), widened)
    op = Normalize(dims=len(widened.type.dims) - axis, centred=False, eps=epsilon)
    return call.cast(_over_last(call, widened, axis, scale, None, op), scale.type.dtype)


def _over_last(
    call: Call, x: Value, axis: int, scale: Value, bias: Value | None, op: Normalize
) -> Value:
    """Normalise the dimensions from `axis` on by `op`; scale and bias broadcast to these."""
    shape = x.type.shape[axis:]
    given = [call.widened(value) for value in (scale, bias)]
    if all(v is None or len(v.type.dims) <= len(shape) for v in given):
        spread = [v if v is None or v.type.dims == shape else call(Expand(shape), v) for v in given]
        return call(op, x, *spread)
    y = call(op, x, None, None)
    factor, shift = given
    y = y if factor is None else call.pointwise("a * b", y, factor)
    return y if shift is None else call.pointwise("a + b", y, shift)


def _group_normalization(call: Call, x: Value, scale: Value, bias: Value) -> Value:
    """Below version 21, scale and bias are one number for each group instead of each channel."""
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
    apart = call.reshape(x, (x.type.shape[0], groups, prod(x.type.shape[1:]) // max(groups, 1)))
    mean, var = _moments(call, apart, (2,))
    y = call.pointwise("(a - b) / sqrt(c + d)", apart, mean, var, epsilon)
    spread = (channels, *(1,) * (len(x.type.dims) - 2))
    factor, shift = (call.reshape(v, spread) for v in (scale, bias))
    return call.pointwise("a * b + c", call.reshape(y, x.type.shape), factor, shift)


def _lp_normalization(call: Call, x: Value) -> Value:
    axis, p = call.axis(call.get("axis", -1), x), call.get("p", 2)
    if p not in (1, 2):
        raise ShapeError(f"LpNormalization: p must be 1 or 2, got {p}")
    before, after = ("abs(a)", "a") if p == 1 else ("square(a)", "sqrt(a)")
    length = call(Reduce("sum", (axis,), True, formula(before), formula(after)), x)
    return call.pointwise("where(equal(b, 0.0), 0.0, a / b)", x, length)


def _mean_variance_normalization(call: Call, x: Value) -> Value:
    axes = tuple(call.axis(axis, x) for axis in call.get("axes", (0, 2, 3)))
    mean, var = _moments(call, x, axes)
    return call.pointwise("(a - b) / (sqrt(c) + d)", x, mean, var, 1e-9)


def _lrn(call: Call, x: Value) -> Value:
    size = call.need("size")
    names = (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    op = LocalResponseNorm(size, *(float(call.get(name, default)) for name, default in names))
    if size % 2:
        return call(op, x)
    # Of an even size ours has one more channel before the number's own, ONNX's one more behind.
    return call(Flip((1,)), call(op, call(Flip((1,)), x)))


ENTRIES = (
    Converter("BatchNormalization", 1, _batch_normalization, halves=True, dtypes=BFLOAT16),
    Converter("InstanceNormalization", 1, _instance_normalization),
    Converter("LayerNormalization", 17, _layer_normalization, halves=True, dtypes=BFLOAT16),
    Converter("RMSNormalization", 23, _rms_normalization, halves=True, dtypes=BFLOAT16),
    Converter("GroupNormalization", 18, _group_normalization),
    Converter("LpNormalization", 1, _lp_normalization),
    Converter("MeanVarianceNormalization", 9, _mean_variance_normalization),
    Converter("LRN", 1, _lrn),
)
