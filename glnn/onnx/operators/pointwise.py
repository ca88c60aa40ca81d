"""Pointwise operators, one formula each, of operands that broadcast."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial, reduce

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.functions import FUNCTIONS
from glnn.graph.graph import Value
from glnn.graph.operators import Unsqueeze
from glnn.onnx.operators.call import Converter, OperatorCall
from glnn.onnx.operators.dtypes import HALVES

BYTES = (DType.uint8, DType.int8)


def _gelu(call: OperatorCall, x: Value) -> Value:
    form = call.get("approximate", "none")
    if form not in ("none", "tanh"):
        raise ShapeError(f"Gelu: approximate must be none or tanh, got {form!r}")
    return call.pointwise("gelu(a)" if form == "none" else "gelu_tanh(a)", x)


def _swiglu(call: OperatorCall, gate: Value, x: Value) -> Value:
    return call.pointwise("a * sigmoid(a * c) * b", gate, x, float(call.get("alpha", 1.0)))


def _bit_cast(call: OperatorCall, x: Value) -> Value:
    """Reinterpret the bits as another dtype: of 8 bits only, where a cast does the same."""
    dtype, source_dtype = call.need("to"), x.type.dtype
    if dtype is not source_dtype and not (dtype in BYTES and source_dtype in (*BYTES, DType.bool)):
        raise UnsupportedOpError(f"BitCast: {source_dtype.value} as {dtype.value}")
    return call.cast(x, dtype)


def _formula(
    call: OperatorCall,
    *operands: Value,
    formula: str,
    attributes: Mapping[str, float] | None = None,
) -> Value:
    """Apply `formula` to the operands and, as further arguments, to `attributes` (defaults)."""
    defaults = (attributes or {}).items()
    numbers = (float(call.get(name, default)) for name, default in defaults)
    return call.pointwise(formula, *operands, *numbers)


def _legacy(call: OperatorCall, a: Value, b: Value, *, formula: str) -> Value:
    """Broadcast as before version 7: only b, and only with `broadcast`, to a's dimensions from
    `axis`.
    """
    if call.get("broadcast", 0) and "axis" in call.attributes:
        trailing = len(a.type.dims) - call.axis(call.get("axis", 0), a) - len(b.type.dims)
        if trailing > 0:
            rank = len(b.type.dims)
            b = call(Unsqueeze(tuple(range(rank, rank + trailing))), b)
    return call.pointwise(formula, a, b)


def _function_converters(excluded: Collection[str]) -> Iterator[Converter]:
    """Yield the converters of operators that are rows of FUNCTIONS, except for `excluded`."""
    for row in FUNCTIONS.values():
        if row.onnx is None or row.onnx.name in excluded:
            continue
        convert = partial(_formula, formula=row.onnx_import, attributes=row.onnx.attributes)
        if row.onnx.legacy_broadcast:
            yield Converter(row.onnx.name, 1, partial(_legacy, formula=row.onnx_import))
        yield Converter(row.onnx.name, 7 if row.onnx.legacy_broadcast else 1, convert)


def _variadic(call: OperatorCall, *operands: Value, formula: str) -> Value:
    """Fold `formula` over any number of operands."""
    if not operands:
        raise ShapeError(f"{call.name}: at least one operand must be there")
    return reduce(lambda a, b: call.pointwise(formula, a, b), operands)


def _mean(call: OperatorCall, *operands: Value) -> Value:
    return call.pointwise(
        "a / b", _variadic(call, *operands, formula="a + b"), float(len(operands))
    )


def _clip(
    call: OperatorCall, x: Value, low: Value | None = None, high: Value | None = None
) -> Value:
    """Convert Clip. An omitted bound is the largest finite number: ONNX leaves no infinity."""
    bounds: Sequence[Value | float | None] = (low, high)
    if call.version < 11:
        bounds = tuple(call.attributes.get(name) for name in ("min", "max"))
    dtype = x.type.dtype
    limits = LIMITS.get(dtype, (None, None))
    if dtype in HALVES:
        x = call.cast(x, DType.float32)
    formulas = ("maximum(a, b)", "minimum(a, b)")
    for bound, limit, formula in zip(bounds, limits, formulas, strict=True):
        if (bound := limit if bound is None else bound) is not None:
            if isinstance(bound, Value) and dtype in HALVES:
                bound = call.cast(bound, DType.float32)
            x = call.pointwise(formula, x, bound)
    return call.cast(x, dtype) if dtype in HALVES else x


def _pow(call: OperatorCall, base: Value, exponent: Value) -> Value:
    """Raise base to exponent; the result has the base's type."""
    dtype = base.type.dtype
    if exponent.type.dtype is not dtype:
        if dtype.kind == "int" and exponent.type.dtype.kind == "float":
            return _power_of_integers(call, base, call.cast(exponent, DType.float32))
        exponent = call.cast(exponent, dtype)
    return call.pointwise("pow(a, b)", base, exponent)


def _power_of_integers(call: OperatorCall, base: Value, exponent: Value) -> Value:
    """Return the truncated power of integers with a float32 exponent, as float64 would give it.

    float32's power may be off by an ulp, so that 6^3 is 215 and 9^0.5 is 2: integral exponents are
    computed in integers, and powers within 3e-7 of an integer are rounded to it.
    """
    integer_power = call.pointwise("pow(a, b)", base, call.cast(exponent, base.type.dtype))
    power = call.pointwise("pow(a, b)", call.cast(base, DType.float32), exponent)
    rounded = call.pointwise("where(abs(a - round(a)) <= 3e-7 * abs(a), round(a), a)", power)
    return call.pointwise(
        "where(floor(a) <= a, where(floor(a) >= a, b, c), c)",
        exponent,
        integer_power,
        call.cast(rounded, base.type.dtype),
    )


def _mod(call: OperatorCall, a: Value, b: Value) -> Value:
    return call.pointwise("fmod(a, b)" if call.get("fmod", 0) else "remainder(a, b)", a, b)


def _prelu(call: OperatorCall, x: Value, slope: Value) -> Value:
    if call.version < 9 and len(slope.type.dims) == 1 and len(x.type.dims) > 2:
        slope = call(Unsqueeze(tuple(range(1, len(x.type.dims) - 1))), slope)
    return call.pointwise("where(a < c, a * b, a)", x, slope, _zero(x))


def _relu(call: OperatorCall, x: Value) -> Value:
    if x.type.dtype.kind == "float":
        return call.pointwise("relu(a)", x)
    return call.pointwise("maximum(a, b)", x, 0)


def _zero(x: Value) -> float | int:
    return 0.0 if x.type.dtype.kind == "float" else 0


def _cast(call: OperatorCall, x: Value) -> Value:
    return call.cast(x, call.need("to"))


def _is_inf(call: OperatorCall, x: Value) -> Value:
    positive, negative = call.get("detect_positive", 1), call.get("detect_negative", 1)
    if positive and negative:
        return call.pointwise("isinf(a)", x)
    if not positive and not negative:
        return call.pointwise("logical_xor(isnan(a), isnan(a))", x)
    sign = "a > 0.0" if positive else "a < 0.0"
    return call.pointwise(f"logical_and(isinf(a), {sign})", x)


def _shift(call: OperatorCall, a: Value, b: Value) -> Value:
    left = call.need("direction") == "LEFT"
    return call.pointwise("left_shift(a, b)" if left else "right_shift(a, b)", a, b)


def _cast_like(call: OperatorCall, x: Value, like: Value) -> Value:
    return call.cast(x, like.type.dtype)


LIMITS = {
    DType.float32: (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
    DType.float64: (float(np.finfo(np.float64).min), float(np.finfo(np.float64).max)),
    DType.float16: (-65504.0, 65504.0),
    DType.bfloat16: (-3.3895313892515355e38, 3.3895313892515355e38),
}
"""The lowest and the greatest finite number of each float dtype."""
CAST = frozenset((DType.int16, DType.uint16, DType.uint32, DType.uint64, DType.bfloat16))
_SHRINK = "where(a < -c, a + b, where(a > c, a - b, 0.0))"
_OWN = (
    Converter("Pow", 1, partial(_legacy, formula="pow(a, b)")),
    Converter("Pow", 7, _pow),
    Converter("BitShift", 11, _shift),
    Converter("Mod", 10, _mod),
    Converter("Sum", 1, partial(_variadic, formula="a + b")),
    Converter("Max", 1, partial(_variadic, formula="maximum(a, b)")),
    Converter("Min", 1, partial(_variadic, formula="minimum(a, b)")),
    Converter("Mean", 1, _mean),
    Converter(
        "Shrink", 1, partial(_formula, formula=_SHRINK, attributes={"bias": 0.0, "lambd": 0.5})
    ),
    Converter("Clip", 1, _clip, halves=True, dtypes=frozenset(HALVES)),
    Converter("PRelu", 1, _prelu),
    Converter("Relu", 1, _relu),
    Converter("Cast", 1, _cast, halves=True, dtypes=CAST),
    Converter("CastLike", 15, _cast_like, type_only=(1,), halves=True, dtypes=CAST),
    Converter("IsInf", 10, _is_inf),
    Converter("Gelu", 20, _gelu),
    Converter("SwiGLU", 28, _swiglu),
    Converter("BitCast", 26, _bit_cast, halves=True),
)
"""Converters of operators that need more than one row of FUNCTIONS."""
ENTRIES = (*_OWN, *_function_converters({one.name for one in _OWN}))
