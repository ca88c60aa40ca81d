"""Quantized tensors: an integer q represents (q - zero point) * scale."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import (
    IntegerTensor,
    integer_tensor_conv,
    integer_tensor_matmul,
)
from glnn.graph.expression import formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Gather, Reduce
from glnn.graph.operators.dequantize import OFFSETS, Dequantize
from glnn.onnx.operators.call import Converter, OperatorCall
from glnn.onnx.operators.dtypes import HALVES, dtype_of
from glnn.onnx.operators.windows import add_channel_bias, windows_of

BYTES = (DType.uint8, DType.int8)
RANGES = {
    DType.uint8: (0.0, 255.0),
    DType.int8: (-128.0, 127.0),
    DType.uint16: (0.0, 65535.0),
    DType.int16: (-32768.0, 32767.0),
    DType.uint4: (0.0, 15.0),
    DType.int4: (-8.0, 7.0),
    DType.uint2: (0.0, 3.0),
    DType.int2: (-2.0, 1.0),
}
"""The least and the greatest number of each quantized dtype."""


def _broadcast_parameter(call: OperatorCall, value: Value, x: Value) -> Value:
    """Return a scale or zero point in a shape that broadcasts to x.

    value: one number, one for each index of an axis, or one for each block along it.
    """
    shape, value_shape = x.type.shape, value.type.shape
    axis, block = _blocks(call, value, x)
    if not block:
        is_single = prod(value_shape) == 1
        return call.reshape(
            value, () if is_single else (value_shape[0], *(1,) * (len(shape) - axis - 1))
        )
    return call(Gather(axis), value, call.constant(np.arange(shape[axis]) // block, np.int32))


def _blocks(call: OperatorCall, scale: Value, x: Value) -> tuple[int, int]:
    """Return the axis of x along which scales differ, and the size of a block that shares one.

    (0, 0) for a single scale; a block size of 0 for one scale for each index. Raises ShapeError.
    """
    shape, value_shape = x.type.shape, scale.type.shape
    if prod(value_shape) == 1 and len(value_shape) < 2:
        return 0, 0
    axis = call.axis(call.get("axis", 1), x)
    if len(value_shape) == 1:
        if value_shape[0] != shape[axis]:
            raise ShapeError(f"{call.name}: {scale.type} for axis {axis} of {x.type}")
        return axis, 0
    block: int = call.get("block_size", 0) or -(-shape[axis] // max(value_shape[axis], 1))
    expected = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    if value_shape != expected:
        raise ShapeError(
            f"{call.name}: blocks of {block} along {axis} of {x.type}, got {value_shape}"
        )
    return axis, block


def _precision(call: OperatorCall, scale: Value) -> DType:
    """Return the dtype in which x is divided by its scale."""
    code = call.get("precision", 0)
    result = dtype_of(code, call.name) if code else scale.type.dtype
    if result not in (DType.float32, *HALVES):
        raise UnsupportedOpError(f"{call.name}: division in {result.value}")
    return result


def quantize(call: OperatorCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """Return x / scale, rounded to the nearest integer, ties to even, plus the zero point."""
    output_dtype = call.get("output_dtype", DType.uint8)
    dtype = output_dtype if zero is None else zero.type.dtype
    if dtype not in RANGES:
        raise UnsupportedOpError(f"QuantizeLinear: to {dtype.value}")
    precision = _precision(call, scale)
    x, float32_scale = (call.cast(one, DType.float32) for one in (x, scale))
    y = call.pointwise("quotient(a, b)", x, _broadcast_parameter(call, float32_scale, x))
    if precision is not DType.float32:
        y = call.cast(call.cast(y, precision), DType.float32)
    return round_and_clamp(call, y, dtype, zero and _broadcast_parameter(call, zero, x))


def one_number(call: OperatorCall, value: Value) -> Value:
    """Return the scale or zero point of a tensor as a scalar. Raises ShapeError for several."""
    if prod(value.type.shape) != 1:
        raise ShapeError(f"{call.name}: scales and zero points are one number, got {value.type}")
    return call.reshape(value, ())


def round_and_clamp(call: OperatorCall, y: Value, dtype: DType, zero: Value | None) -> Value:
    """Return float32 y rounded, with its zero point added, clamped to `dtype`."""
    y = call.pointwise("round(a)", y)
    if zero is not None:
        y = call.pointwise("a + b", y, call.cast(zero, DType.float32))
    if dtype in BYTES:
        return call.cast(y, dtype)
    y = call.pointwise("cast_int32(clip(a, b, c))", y, *RANGES[dtype])
    return call.cast(y, dtype)


def dequantize(call: OperatorCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    dtype = call.get("output_dtype", scale.type.dtype)
    if dtype not in (DType.float32, DType.float16):
        raise UnsupportedOpError(f"DequantizeLinear: to {dtype.value}")
    axis, block = _blocks(call, scale, x)
    operands = [x, scale] if zero is None else [x, scale, zero]
    alike = {value.type.shape for value in operands[1:]} == {scale.type.shape}
    if alike and x.type.dtype in OFFSETS and all(v.kind is Kind.CONSTANT for v in operands):
        return call(Dequantize(axis, block, dtype), *operands)
    factor = _broadcast_parameter(call, call.cast(scale, DType.float32), x)
    y = call.cast(x, DType.float32)
    if zero is not None:
        y = call.pointwise(
            "a - b", y, _broadcast_parameter(call, call.cast(zero, DType.float32), x)
        )
    return call.cast(call.pointwise("a * b", y, factor), dtype)


def dynamic_quantize(call: OperatorCall, x: Value) -> tuple[Value, Value, Value]:
    """Quantize x to uint8 by its range; return y, scale and zero point."""
    if not prod(x.type.shape):
        scale, zero = call.constant(1.0, np.float32), call.constant(0, np.uint8)
        return call.cast(x, DType.uint8), scale, zero
    axes = tuple(range(len(x.type.dims)))
    numbers = call.pointwise("where(isnan(a), 0.0, a)", x)
    low = call(Reduce("min", axes, finish=formula("minimum(a, 0.0)")), numbers)
    high = call(Reduce("max", axes, finish=formula("maximum(a, 0.0)")), numbers)
    # As ONNX Runtime: the range ignores NaN; zeros have the scale 1; a zero point of NaN is 255.
    span = call.pointwise("where(a > b, a - b, 255.0)", high, low)
    scale = call.pointwise("quotient(a, 255.0)", span)
    point = call.pointwise("quotient(-a, b)", low, scale)
    zero = call.pointwise("cast_uint8(where(isnan(a), 255.0, round(clip(a, 0.0, 255.0))))", point)
    y = call.pointwise("quotient(a, b)", x, scale)
    return round_and_clamp(call, y, DType.uint8, zero), scale, zero


def _factor(call: OperatorCall, x: Value, zero: Value | None, *, rows: bool) -> IntegerTensor:
    """Return a factor of a product. zero: one, or one for each row if `rows`, else column."""
    axes = (-1,) if rows or len(x.type.dims) == 1 else (-2,)
    return IntegerTensor(x, zero and _matrix_parameter(call, zero, rows=rows), axes)


def _matrix_parameter(call: OperatorCall, value: Value, *, rows: bool) -> Value:
    """Return a scale or zero point of a matrix, also one for each row or column, to broadcast."""
    if prod(value.type.shape) == 1:
        return call.reshape(value, ())
    if rows and len(value.type.dims) == 1:
        return call.reshape(value, (*value.type.shape, 1))
    return value


def matmul_integer(
    call: OperatorCall, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
) -> Value:
    first, second = _factor(call, a, a_zero, rows=True), _factor(call, b, b_zero, rows=False)
    return integer_tensor_matmul(call, first, second)


def _qlinear_matmul(
    call: OperatorCall,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    sums = matmul_integer(call, a, b, a_zero, b_zero)
    scales = [call.cast(one, DType.float32) for one in (a_scale, b_scale, y_scale)]
    a_scale, b_scale, scale = (
        _matrix_parameter(call, v, rows=i != 1) for i, v in enumerate(scales)
    )
    return _requantize(
        call, sums, a_scale, b_scale, scale, _matrix_parameter(call, y_zero, rows=True)
    )


def _requantize(
    call: OperatorCall, sums: Value, a_scale: Value, b_scale: Value, scale: Value, zero: Value
) -> Value:
    """Requantize int32 sums of products, of the scale `a_scale` * `b_scale`, to `scale`, `zero`."""
    dtype = zero.type.dtype
    if dtype not in BYTES:
        raise UnsupportedOpError(f"{call.name}: to {dtype.value}")
    factor = call.pointwise("quotient(a * b, c)", a_scale, b_scale, scale)
    return round_and_clamp(call, call.pointwise("cast_float32(a) * b", sums, factor), dtype, zero)


def _conv_integer(
    call: OperatorCall,
    x: Value,
    weight: Value,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
) -> Value:
    windows = windows_of(call, x.type.shape[2:], weight.type.shape[2:])
    count = len(windows.kernel)
    w_zeros = w_zero and _channel_parameter(call, w_zero, weight, count + 1)
    taps = tuple(range(1, count + 2))
    return integer_tensor_conv(
        call,
        IntegerTensor(x, x_zero and one_number(call, x_zero), taps),
        IntegerTensor(weight, w_zeros, taps),
        stride=windows.stride,
        padding=windows.sides,
        dilation=windows.dilation,
        groups=call.get("group", 1),
    )


def _channel_parameter(call: OperatorCall, value: Value, weight: Value, inner: int) -> Value:
    """Return a scale or zero point, one or one for each output channel of `weight`.

    In a shape with `inner` trailing dimensions of size 1. Raises ShapeError for another number.
    """
    size, outputs = prod(value.type.shape), weight.type.shape[0]
    if size not in (1, outputs):
        raise ShapeError(
            f"{call.name}: scales and zero points of {weight.type} are one number or ({outputs},), "
            f"got {value.type}"
        )
    return call.reshape(value, () if size == 1 else (size, *(1,) * inner))


def qlinear_conv(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    weight: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None = None,
) -> Value:
    sums = _conv_integer(call, x, weight, x_zero, w_zero)
    sums = add_channel_bias(call, sums, bias)
    w_scales = _channel_parameter(call, w_scale, weight, len(weight.type.dims) - 2)
    x_scale, y_scale, y_zero = (one_number(call, v) for v in (x_scale, y_scale, y_zero))
    return _requantize(call, sums, x_scale, w_scales, y_scale, y_zero)


ENTRIES = (
    Converter(
        "QuantizeLinear", 10, quantize, halves=True, dtypes=frozenset((*RANGES, DType.bfloat16))
    ),
    Converter("DequantizeLinear", 10, dequantize, halves=True, dtypes=frozenset(RANGES)),
    Converter("DynamicQuantizeLinear", 11, dynamic_quantize),
    Converter("MatMulInteger", 10, matmul_integer),
    Converter("QLinearMatMul", 10, _qlinear_matmul),
    Converter("ConvInteger", 10, _conv_integer),
    Converter("QLinearConv", 10, qlinear_conv),
)
