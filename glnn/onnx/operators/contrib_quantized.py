"""Operators of ONNX Runtime's operator set on integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import IntegerTensor, integer_tensor_matmul
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Concat, Reduce, Transpose
from glnn.graph.operators.pointwise import broadcast
from glnn.onnx.operators.call import (
    FLOAT,
    INTS,
    MICROSOFT,
    REQUIRED_INT,
    Attribute,
    Attributes,
    Converter,
    OperatorCall,
    Signature,
)
from glnn.onnx.operators.contrib_attention import self_attention
from glnn.onnx.operators.contrib_normalization import (
    EPSILON,
    embedding_rows,
    normalize_embeddings,
)
from glnn.onnx.operators.quantize import (
    BYTES,
    RANGES,
    dequantize,
    dynamic_quantize,
    matmul_integer,
    one_number,
    qlinear_conv,
    quantize,
    round_and_clamp,
)
from glnn.onnx.operators.recurrent import lstm
from glnn.onnx.operators.reduce import softmax
from glnn.onnx.operators.windows import pool_averages


def _dequantize_tensor(call: OperatorCall, x: Value, scale: Value, zero: Value | None) -> Value:
    """Dequantize a tensor with one scale and zero point to float32."""
    return call.pointwise("a * b", _differences(call, x, zero), one_number(call, scale))


def _differences(call: OperatorCall, x: Value, zero: Value | None) -> Value:
    """Return 8-bit integers minus their zero point, float32. Raises UnsupportedOpError."""
    if x.type.dtype not in BYTES:
        raise UnsupportedOpError(f"{call.name}: of uint8 and int8, got {x.type}")
    if zero is None:
        return call.cast(x, DType.float32)
    return call.pointwise("cast_float32(a) - cast_float32(b)", x, one_number(call, zero))


def _quantize_tensor(
    call: OperatorCall, y: Value, scale: Value, zero: Value | None, dtype: DType
) -> Value:
    """Quantize y: divide by the scale, round ties to even, add the zero point, clamp."""
    dtype = dtype if zero is None else zero.type.dtype
    y = call.pointwise("quotient(a, b)", y, one_number(call, scale))
    return round_and_clamp(call, y, dtype, zero and one_number(call, zero))


def _round_sum(call: OperatorCall, y: Value, zero: Value | None, dtype: DType) -> Value:
    """Add the zero point, round ties to even, and clamp.

    As some operators of ONNX Runtime do. With an odd zero point, ties round in the other direction
    than in `_quantize_tensor`.
    """
    if zero is not None:
        y = call.pointwise("a + cast_float32(b)", y, one_number(call, zero))
    return round_and_clamp(call, y, dtype, None)


def _binary(
    call: OperatorCall,
    a: Value,
    a_scale: Value,
    a_zero: Value | None,
    b: Value,
    b_scale: Value,
    b_zero: Value | None,
    c_scale: Value,
    c_zero: Value | None = None,
    *,
    product: bool,
) -> Value:
    """Return the quantized sum or product."""
    first, second = _differences(call, a, a_zero), _differences(call, b, b_zero)
    scales = [one_number(call, one) for one in (a_scale, b_scale, c_scale)]
    if product:
        factor = call.pointwise("quotient(a * b, c)", *scales)
        y = call.pointwise("a * b * c", first, second, factor)
    else:
        shares = [call.pointwise("quotient(a, b)", one, scales[2]) for one in scales[:2]]
        y = call.pointwise("a * b + c * d", first, shares[0], second, shares[1])
    return _round_sum(call, y, c_zero, a.type.dtype)


def _unary(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None = None,
    *,
    formula: str,
) -> Value:
    """Return a quantized function of x. b in the formula is the attribute alpha."""
    numbers = _dequantize_tensor(call, x, x_scale, x_zero)
    parameters = (float(call.need("alpha")),) if "alpha" in call.attributes else ()
    y = call.pointwise(formula, numbers, *parameters)
    return _quantize_tensor(call, y, y_scale, y_zero, x.type.dtype)


def _average_pool(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None = None,
) -> Value:
    """Return means of windows. One window as large as the image is a global pool."""
    axes = _spatial_axes(call, x)
    is_global = tuple(x.type.shape[axis] for axis in axes) == call.need("kernel_shape")
    padded = any(call.get("pads", ())) or call.need("auto_pad") not in ("NOTSET", "VALID")
    if is_global and not padded:
        return _mean(call, x, x_scale, x_zero, y_scale, y_zero, axes, keepdims=True)
    numbers = _channels_first(call, _dequantize_tensor(call, x, x_scale, x_zero))
    y = _channels_last(call, pool_averages(call, numbers))
    y = call.pointwise("quotient(a, b)", y, one_number(call, y_scale))
    return _round_sum(call, y, y_zero, x.type.dtype)


def _spatial_axes(call: OperatorCall, x: Value) -> range:
    """Return the spatial axes, which follow or precede the channels."""
    rank = len(x.type.dims)
    return range(1, rank - 1) if call.need("channels_last") else range(2, rank)


def _channels_first(call: OperatorCall, x: Value) -> Value:
    """Return x with its channels in dimension 1, from the last one with `channels_last`."""
    return call.channels_first(x) if call.need("channels_last") else x


def _channels_last(call: OperatorCall, x: Value) -> Value:
    return call.channels_last(x) if call.need("channels_last") else x


def _mean(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None,
    axes: Sequence[int],
    *,
    keepdims: bool,
) -> Value:
    """Return means along `axes`, scaled by one factor so that ties of integers remain ties."""
    mean = call(Reduce("mean", tuple(axes), keepdims), _differences(call, x, x_zero))
    y = call.pointwise(
        "a * quotient(b, c)", mean, one_number(call, x_scale), one_number(call, y_scale)
    )
    return round_and_clamp(call, y, x.type.dtype, y_zero and one_number(call, y_zero))


def _global_average_pool(
    call: OperatorCall, x: Value, x_scale: Value, x_zero: Value, y_scale: Value, y_zero: Value
) -> Value:
    axes = _spatial_axes(call, x)
    return _mean(call, x, x_scale, x_zero, y_scale, y_zero, axes, keepdims=True)


def _reduce_mean(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value | None = None,
) -> Value:
    axes = tuple(call.axis(axis, x) for axis in call.need("axes")) or range(len(x.type.dims))
    keepdims = bool(call.need("keepdims"))
    return _mean(call, x, x_scale, x_zero, y_scale, y_zero, axes, keepdims=keepdims)


def _concat(call: OperatorCall, y_scale: Value, y_zero: Value, *operands: Value) -> Value:
    """Concatenate tensors. operands: each tensor with its scale and zero point."""
    if not operands or len(operands) % 3:
        raise ShapeError(f"{call.name}: tensors with scales and zero points, got {len(operands)}")
    parts = []
    for x, scale, zero in zip(*(operands[i::3] for i in range(3)), strict=True):
        is_same = _same_number(scale, y_scale) and _same_number(zero, y_zero)
        numbers = None if is_same else _dequantize_tensor(call, x, scale, zero)
        parts.append(
            x if numbers is None else _quantize_tensor(call, numbers, y_scale, y_zero, x.type.dtype)
        )
    axis = call.axis(call.need("axis"), parts[0])
    return parts[0] if len(parts) == 1 else call(Concat(axis), *parts)


def _same_number(a: Value, b: Value) -> bool:
    """Return True where two values are known to be the same number of the same type."""
    if a.kind is not Kind.CONSTANT or b.kind is not Kind.CONSTANT:
        return a is b
    return a.type.dtype is b.type.dtype and bool((a.data == b.data).all())  # type: ignore[union-attr]


def _softmax(
    call: OperatorCall,
    x: Value,
    x_scale: Value,
    x_zero: Value | None,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    """Return the softmax of ONNX's operator set `opset`."""
    numbers = _dequantize_tensor(call, x, x_scale, x_zero)
    y = softmax(replace(call, version=call.need("opset")), numbers, log=False)
    return _quantize_tensor(call, y, y_scale, y_zero, x.type.dtype)


def _where(
    call: OperatorCall,
    condition: Value,
    x: Value,
    x_scale: Value,
    x_zero: Value,
    y: Value,
    y_scale: Value,
    y_zero: Value,
    z_scale: Value,
    z_zero: Value,
) -> Value:
    parts = [
        _dequantize_tensor(call, x, x_scale, x_zero),
        _dequantize_tensor(call, y, y_scale, y_zero),
    ]
    numbers = call.pointwise("where(a, b, c)", condition, *parts)
    return _quantize_tensor(call, numbers, z_scale, z_zero, x.type.dtype)


def _conv(call: OperatorCall, x: Value, *operands: Value | None) -> Value:
    """Convert ONNX's QLinearConv, also with `channels_last`."""
    y = qlinear_conv(call, _channels_first(call, x), *operands)  # type: ignore[arg-type]
    return _channels_last(call, y)


def _gemm(
    call: OperatorCall,
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    c: Value | None = None,
    y_scale: Value | None = None,
    y_zero: Value | None = None,
) -> Value:
    """Return (alpha a b + c) / y_scale, with a and b transposed as attributes say.

    Quantized to the dtype of `y_zero`; floats where that is left out. c: int32, in the scale of the
    products.
    """
    if len(a.type.dims) != 2 or len(b.type.dims) != 2:
        raise ShapeError(f"{call.name}: factors must be matrices, got {a.type} and {b.type}")
    a, b = (
        call(Transpose((1, 0)), factor) if call.need(name) else factor
        for name, factor in (("transA", a), ("transB", b))
    )
    sums = matmul_integer(call, a, b, a_zero, b_zero)
    if c is not None:
        if broadcast({"c": c.type.shape, "y": sums.type.shape}) != sums.type.shape:
            raise ShapeError(f"{call.name}: C {c.type} does not broadcast to {sums.type}")
        sums = call.pointwise("a + b", sums, c)
    factor = call.pointwise(
        "a * b * c", a_scale, _broadcast_scale(call, b_scale), float(call.need("alpha"))
    )
    numbers = call.pointwise("cast_float32(a) * b", sums, factor)
    if y_scale is not None:
        numbers = call.pointwise("quotient(a, b)", numbers, one_number(call, y_scale))
    if y_zero is None:
        return numbers
    return round_and_clamp(call, numbers, y_zero.type.dtype, one_number(call, y_zero))


def _broadcast_scale(call: OperatorCall, value: Value) -> Value:
    """Return the scale of a factor in a shape that broadcasts to products."""
    return call.reshape(value, ()) if prod(value.type.shape) == 1 else value


def _scaled_product(
    call: OperatorCall,
    a: Value,
    b: Value,
    a_scale: Value,
    b_scale: Value,
    a_zero: Value | None = None,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Return the product of quantized a (..., m, k) and b (..., k, n), in float32."""
    sums = matmul_integer(call, a, b, a_zero, b_zero)
    factor = call.pointwise(
        "a * b", _broadcast_scale(call, a_scale), _broadcast_scale(call, b_scale)
    )
    y = call.pointwise("cast_float32(a) * b", sums, factor)
    return y if bias is None else call.add_bias(y, bias)


def _dynamic_matmul(
    call: OperatorCall,
    a: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Return the product of floats, quantized dynamically, and a quantized weight."""
    integers, scale, zero = dynamic_quantize(call, a)
    return _scaled_product(call, integers, b, scale, b_scale, zero, b_zero, bias)


def _matmul_integer16(call: OperatorCall, a: Value, b: Value) -> Value:
    """Return the product of int16 matrices, wrapped to int32, by products of their bytes."""
    if {a.type.dtype, b.type.dtype} != {DType.int16}:
        raise UnsupportedOpError(f"{call.name}: of int16, got {a.type} and {b.type}")
    factors = []
    for axis, x in ((-1, a), (-1 if len(b.type.dims) == 1 else -2, b)):
        wide = call.cast(x, DType.int32)
        low = call.pointwise("cast_uint8(bitwise_and(a, b))", wide, 255)
        high = call.pointwise("cast_int8(right_shift(a, b))", wide, 8)
        factors.append([IntegerTensor(part, None, (axis,)) for part in (high, low)])
    (a_high, a_low), (b_high, b_low) = factors
    product = partial(integer_tensor_matmul, call)
    middle = call.pointwise("a + b", product(a_high, b_low), product(a_low, b_high))
    sums = call.pointwise(
        "left_shift(a, b) + left_shift(c, d)", product(a_high, b_high), 16, middle, 8
    )
    return call.pointwise("a + b", sums, product(a_low, b_low))


def _attention(
    call: OperatorCall,
    x: Value,
    weights: Value,
    bias: Value,
    x_scale: Value,
    w_scale: Value,
    mask: Value | None = None,
    x_zero: Value | None = None,
    w_zero: Value | None = None,
    past: Value | None = None,
) -> tuple[Value, ...]:
    """Project quantized x to queries, keys and values; return the results of `self_attention`."""
    if call.get("do_rotary", 0) or call.get("past_present_share_buffer", 0):
        raise UnsupportedOpError(f"{call.name}: with do_rotary or past_present_share_buffer")
    width = weights.type.shape[-1]
    if len(x.type.dims) != 3 or width % 3:
        raise ShapeError(f"{call.name}: input {x.type} and weights {weights.type} do not fit")
    y = _scaled_product(call, x, weights, x_scale, w_scale, x_zero, w_zero, bias)
    return self_attention(call, y, (width // 3,) * 3, mask, past)


def _embed_layer_normalization(
    call: OperatorCall,
    words: Value,
    segments: Value | None,
    word_table: Value,
    position_table: Value,
    segment_table: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None,
    *quantization: Value | None,
) -> tuple[Value, ...]:
    """Return the normalised sum of embeddings, and the number of tokens of each sample.

    quantization: the scales of words, positions, segments, gamma and beta, and their zero points.
    """
    tables = word_table, position_table, segment_table
    rows = embedding_rows(call, words, segments, *tables)
    integers = [
        *rows,
        *[None] * (3 - len(rows)),
        gamma,
        beta,
    ]  # without segments there is no third row
    numbers = []
    for x, scale, zero in zip(integers, quantization[:5], quantization[5:], strict=True):
        if x is not None and (scale is None or zero is None):
            raise ShapeError(f"{call.name}: each table must have a scale and a zero point")
        if x is not None and scale is not None:
            numbers.append(_dequantize_tensor(call, x, scale, zero))
    *rows, gamma, beta = numbers
    return normalize_embeddings(call, rows, gamma, beta, mask)[:2]


def _lstm(
    call: OperatorCall,
    x: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None,
    lengths: Value | None,
    hidden: Value | None,
    cell: Value | None,
    peepholes: Value | None,
    w_scale: Value,
    w_zero: Value,
    r_scale: Value,
    r_zero: Value,
) -> Sequence[Value]:
    """Convert an LSTM with quantized weights (directions, columns, rows).

    x and states stay floats; ONNX Runtime quantizes them to 8 bits before each product.
    """
    inner = _layer_weight(call, weight, w_scale, w_zero)
    outer = _layer_weight(call, recurrent, r_scale, r_zero)
    return lstm(call, x, inner, outer, bias, lengths, hidden, cell, peepholes)


def _layer_weight(call: OperatorCall, weight: Value, scale: Value, zero: Value) -> Value:
    """Dequantize a weight (directions, columns, rows) to (directions, rows, columns).

    scale, zero: (directions,) or (directions, rows).
    """
    directions, _, rows = weight.type.shape
    for one in (scale, zero):
        if one.type.shape not in ((directions,), (directions, rows)):
            raise ShapeError(
                f"{call.name}: scales and zero points of {weight.type} must be ({directions},) or "
                f"({directions}, {rows}), got {one.type}"
            )
    scale, zero = (call.reshape(one, (directions, 1, -1)) for one in (scale, zero))
    formula = "a * (cast_float32(b) - cast_float32(c))"
    return call(Transpose((0, 2, 1)), call.pointwise(formula, scale, weight, zero))


def _quantize(call: OperatorCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """Convert QuantizeLinear; unlike ONNX's, the division is in float32 for all scales."""
    return quantize(call, x, call.cast(scale, DType.float32), zero)


_WINDOWS: Attributes = {"auto_pad": "NOTSET", "pads": INTS, "strides": INTS}
_CHANNELS: Attributes = {"channels_last": 0}
_row = partial(Converter, since=1, domain=MICROSOFT)
_BINARY = Signature((7, 8))
ENTRIES = (
    _row("QLinearAdd", convert=partial(_binary, product=False), signature=_BINARY),
    _row("QLinearMul", convert=partial(_binary, product=True), signature=_BINARY),
    _row(
        "QLinearSigmoid", convert=partial(_unary, formula="sigmoid(a)"), signature=Signature((4, 5))
    ),
    _row(
        "QLinearLeakyRelu",
        convert=partial(_unary, formula="where(a >= 0.0, a, b * a)"),
        signature=Signature((4, 5), attributes={"alpha": 0.01}),
    ),
    _row(
        "QLinearAveragePool",
        convert=_average_pool,
        signature=Signature(
            (4, 5),
            attributes={
                **_WINDOWS,
                **_CHANNELS,
                "ceil_mode": 0,
                "count_include_pad": 0,
                "kernel_shape": Attribute("INTS", required=True),
            },
        ),
    ),
    _row(
        "QLinearGlobalAveragePool",
        convert=_global_average_pool,
        signature=Signature((5, 5), attributes=_CHANNELS),
    ),
    _row(
        "QLinearReduceMean",
        convert=_reduce_mean,
        signature=Signature(
            (4, 5),
            attributes={
                "axes": Attribute("INTS", required=True),
                "keepdims": REQUIRED_INT,
            },
        ),
    ),
    _row(
        "QLinearConcat",
        convert=_concat,
        signature=Signature((3, (1 << 31) - 1), attributes={"axis": REQUIRED_INT}, dtypes=(1,)),
    ),
    _row(
        "QLinearSoftmax",
        convert=_softmax,
        signature=Signature((5, 5), attributes={"axis": -1, "opset": REQUIRED_INT}),
    ),
    _row("QLinearWhere", convert=_where, signature=Signature((9, 9), dtypes=(1,))),
    _row(
        "QLinearConv",
        convert=_conv,
        signature=Signature(
            (8, 9),
            attributes={
                **_WINDOWS,
                **_CHANNELS,
                "dilations": INTS,
                "group": 1,
                "kernel_shape": INTS,
            },
            dtypes=(7,),
        ),
    ),
    _row(
        "QGemm",
        convert=_gemm,
        signature=Signature(
            (6, 9),
            attributes={"alpha": 1.0, "transA": 0, "transB": 0},
            dtypes=((8, DType.float32),),
        ),
    ),
    _row("MatMulIntegerToFloat", convert=_scaled_product, signature=Signature((4, 7), dtypes=(2,))),
    _row("DynamicQuantizeMatMul", convert=_dynamic_matmul, signature=Signature((3, 5))),
    _row(
        "MatMulInteger16",
        convert=_matmul_integer16,
        dtypes=frozenset({DType.int16}),
        signature=Signature((2, 2), dtypes=(DType.int32,)),
    ),
    _row(
        "QAttention",
        convert=_attention,
        signature=Signature(
            (5, 9),
            (1, 2),
            attributes={
                "do_rotary": Attribute("INT"),
                "mask_filter_value": FLOAT,
                "num_heads": REQUIRED_INT,
                "past_present_share_buffer": Attribute("INT"),
                "scale": FLOAT,
                "unidirectional": 0,
            },
            dtypes=(2,),
        ),
    ),
    _row(
        "QEmbedLayerNormalization",
        convert=_embed_layer_normalization,
        signature=Signature(
            (18, 18), (2, 2), attributes={"epsilon": EPSILON}, dtypes=(8, DType.int32)
        ),
    ),
    _row(
        "DynamicQuantizeLSTM",
        convert=_lstm,
        signature=Signature(
            (12, 12),
            (0, 3),
            attributes={
                "activation_alpha": Attribute("FLOATS"),
                "activation_beta": Attribute("FLOATS"),
                "activations": Attribute("STRINGS"),
                "clip": FLOAT,
                "direction": "forward",
                "hidden_size": Attribute("INT"),
                "input_forget": 0,
            },
        ),
    ),
    _row(
        "QuantizeLinear",
        convert=_quantize,
        halves=True,
        dtypes=frozenset(RANGES),
        signature=Signature(
            (2, 3), attributes={"axis": Attribute("INT")}, dtypes=((2, DType.uint8),)
        ),
    ),
    _row(
        "DequantizeLinear",
        convert=dequantize,
        halves=True,
        dtypes=frozenset(RANGES),
        signature=Signature((2, 3), attributes={"axis": Attribute("INT")}, dtypes=(1,)),
    ),
)
