"""Random settings of the operators of com.microsoft on quantised numbers: see `contrib_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.onnx.contrib_cases import (
    Array,
    Case,
    Rng,
    chosen,
    maybe,
    numbers,
    shape_of,
    size,
    trimmed,
)

U8, I8, F = np.uint8, np.int8, np.float32


def integers(rng: Rng, dtype: Any, *shape: int) -> Array:
    """Return any numbers of a type."""
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max + 1, shape).astype(dtype)


def scale(rng: Rng, *shape: int, exact: bool = False) -> Array:
    """Return scales; exact ones are powers of two, by which there are ties."""
    if exact:
        return np.asarray(2.0 ** rng.integers(-5, 0, shape), F)
    return np.asarray(rng.uniform(0.01, 0.05, shape), F)


def quantized(rng: Rng, x: Array, exact: bool = False) -> list[Array | None]:
    """Return a tensor, its scale, and its zero point."""
    return [x, scale(rng, exact=exact), integers(rng, x.dtype)]


def _case(
    rng: Rng,
    op: str,
    operands: list[Array | None],
    attributes: dict[str, Any] | None = None,
    dtype: Any = F,
    data: tuple[int, ...] = (0,),
    **more: Any,
) -> Case:
    """Return a case whose operands but `data` are initialisers, or none are."""
    fixed = [i for i, one in enumerate(operands) if one is not None and i not in data]
    results, known = more.pop("results", (dtype,)), maybe(rng, fixed, 0.7) or ()
    return Case(op, operands, attributes or {}, results, known, in_halves=False, **more)


def _binary(op: str) -> Callable[[Rng], Case]:
    def make(rng: Rng) -> Case:
        dtype, exact = chosen(rng, U8, I8), rng.random() < 0.5
        shape = shape_of(rng)
        other = shape[int(rng.integers(len(shape))) :]
        other = tuple(chosen(rng, 1, n) for n in other)
        first, second = (integers(rng, dtype, *one) for one in chosen_order(rng, shape, other))
        operands = [*quantized(rng, first, exact), *quantized(rng, second, exact)]
        operands += quantized(rng, first, exact)[1:]
        return _case(rng, op, trimmed(operands), dtype=dtype, data=(0, 3))

    return make


def chosen_order(rng: Rng, first: Any, second: Any) -> tuple[Any, Any]:
    """Return both, in either order."""
    return chosen(rng, (first, second), (second, first))


def _unary(op: str) -> Callable[[Rng], Case]:
    def make(rng: Rng) -> Case:
        dtype, exact = chosen(rng, U8, I8), op == "QLinearLeakyRelu" and rng.random() < 0.5
        x = integers(rng, dtype, *shape_of(rng))
        operands = quantized(rng, x, exact) + quantized(rng, x, exact)[1:]
        attributes = {}
        if op == "QLinearLeakyRelu":
            alpha = chosen(rng, 0.5, 0.25) if exact else float(rng.uniform(0, 1))
            attributes = chosen(rng, {"alpha": alpha}, {} if not exact else {"alpha": 0.5})
        return _case(rng, op, trimmed(operands), attributes, dtype)

    return make


def _average_pool(rng: Rng) -> Case:
    dtype, rank = chosen(rng, U8, I8), int(rng.integers(1, 4))
    kernel = [int(n) for n in rng.integers(1, 4, rank)]
    sizes = [int(n) for n in rng.integers(4, 8, rank)]
    last = rank == 2 and rng.random() < 0.4
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.5:
        attributes["strides"] = [int(n) for n in rng.integers(1, 3, rank)]
    if rng.random() < 0.5:
        attributes["pads"] = [int(n) for k in (*kernel, *kernel) for n in [rng.integers(0, k)]]
    elif rng.random() < 0.5:
        attributes["auto_pad"] = chosen(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    # Of both ONNX Runtime counts what lies behind the padding, too, unlike ONNX's AveragePool.
    attributes |= chosen(rng, {}, {"count_include_pad": 1}, {"ceil_mode": 1})
    attributes |= {"channels_last": 1} if last else {}
    channels = (size(rng, 5),)
    shape = (size(rng, 3), *sizes, *channels) if last else (size(rng, 3), *channels, *sizes)
    x, exact = integers(rng, dtype, *shape), rng.random() < 0.5
    operands = quantized(rng, x, exact) + quantized(rng, x, exact)[1:]
    return _case(rng, "QLinearAveragePool", trimmed(operands), attributes, dtype)


def _global_average_pool(rng: Rng) -> Case:
    dtype, rank = chosen(rng, U8, I8), int(rng.integers(1, 4))
    x = integers(rng, dtype, *(size(rng, 6) for _ in range(rank + 2)))
    operands = quantized(rng, x) + quantized(rng, x)[1:]
    attributes = chosen(rng, {}, {"channels_last": 1})
    return _case(rng, "QLinearGlobalAveragePool", operands, attributes, dtype)


def _reduce_mean(rng: Rng) -> Case:
    """ONNX Runtime has no kernel of it."""
    dtype, shape = chosen(rng, U8, I8), shape_of(rng, 1, 4)
    x = integers(rng, dtype, *shape)
    count = int(rng.integers(1, len(shape) + 1))
    axes = sorted(rng.choice(len(shape), count, replace=False).tolist())
    x, s, z, *_ = operands = quantized(rng, x) + quantized(rng, x)[1:]
    keeps = int(rng.integers(2))
    mean = _numbers_of(x, s, z).mean(tuple(axes), keepdims=bool(keeps))
    wanted = _rounded(mean, *operands[3:])
    signed = [axis - chosen(rng, 0, len(shape)) for axis in axes]
    attributes = {"axes": signed, "keepdims": keeps}
    return _case(rng, "QLinearReduceMean", operands, attributes, dtype, expected=[wanted])


def _concat(rng: Rng) -> Case:
    dtype, exact, shape = chosen(rng, U8, I8), rng.random() < 0.5, list(shape_of(rng))
    axis = int(rng.integers(len(shape)))
    _, y_scale, y_zero = quantized(rng, integers(rng, dtype, 1), exact)
    operands, data = [y_scale, y_zero], []
    for _ in range(int(rng.integers(1, 5))):
        shape[axis] = size(rng, 5)
        x = integers(rng, dtype, *shape)
        data.append(len(operands))
        operands += chosen(rng, quantized(rng, x, exact), [x, y_scale, y_zero])
    attributes = {"axis": axis - chosen(rng, 0, len(shape))}
    return _case(rng, "QLinearConcat", operands, attributes, dtype, tuple(data))


def _softmax(rng: Rng) -> Case:
    dtype, shape = chosen(rng, U8, I8), shape_of(rng, 1, 4)
    x, opset = integers(rng, dtype, *shape), chosen(rng, 11, 13)
    operands = quantized(rng, x)
    operands += [np.array(1 / 256, F), np.array(0 if dtype is U8 else -128, dtype)]
    attributes = {"opset": opset, "axis": int(rng.integers(-len(shape), len(shape)))}
    return _case(rng, "QLinearSoftmax", operands, attributes, dtype)


def _where(rng: Rng) -> Case:
    dtype, exact, shape = chosen(rng, U8, I8), rng.random() < 0.5, shape_of(rng)
    other = tuple(chosen(rng, 1, n) for n in shape)
    first, second = (integers(rng, dtype, *one) for one in chosen_order(rng, shape, other))
    condition = rng.random(chosen(rng, shape, other)) < 0.5
    operands = [condition, *quantized(rng, first, exact), *quantized(rng, second, exact)]
    operands += quantized(rng, first, exact)[1:]
    return _case(rng, "QLinearWhere", operands, dtype=dtype, data=(0, 1, 4))


def _conv(rng: Rng) -> Case:
    dtype, rank, groups = chosen(rng, U8, I8), int(rng.integers(1, 4)), chosen(rng, 1, 2)
    weight_type = I8 if dtype is I8 else chosen(rng, U8, I8)
    kernel = [int(n) for n in rng.integers(1, 4, rank)]
    sizes = [int(n) for n in rng.integers(5, 9, rank)]
    share, out = size(rng, 5), groups * size(rng, 5)
    last = rng.random() < 0.4
    attributes: dict[str, Any] = {"group": groups} | ({"channels_last": 1} if last else {})
    attributes |= chosen(rng, {}, {"kernel_shape": kernel})
    if rng.random() < 0.5:
        attributes["pads"] = [int(n) for n in rng.integers(0, 2, 2 * rank)]
    elif rng.random() < 0.5:
        attributes["auto_pad"] = chosen(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    if rng.random() < 0.5:
        attributes["strides"] = [int(n) for n in rng.integers(1, 3, rank)]
    elif "auto_pad" not in attributes:
        attributes["dilations"] = [int(n) for n in rng.integers(1, 3, rank)]
    channels = (groups * share,)
    shape = (size(rng, 3), *sizes, *channels) if last else (size(rng, 3), *channels, *sizes)
    by_channel = chosen(rng, (), (out,))
    weight = integers(rng, weight_type, out, share, *kernel)
    zero = integers(rng, U8) if weight_type is U8 else np.array(0, I8)
    operands = [
        *quantized(rng, integers(rng, dtype, *shape)),
        weight,
        scale(rng, *by_channel),
        np.full(by_channel, zero, weight_type),
        np.array(rng.uniform(0.3, 2), F),
        integers(rng, dtype),
        maybe(rng, rng.integers(-5000, 5000, out).astype(np.int32)),
    ]
    return _case(rng, "QLinearConv", trimmed(operands), attributes, dtype)


def _factors(rng: Rng, rank: int) -> tuple[list[Array], int, Any]:
    """Return integers (..., m, k) and (k, n), n, and the type of the second."""
    first = chosen(rng, U8, U8, I8)
    second = I8 if first is I8 else chosen(rng, U8, I8)
    m, k, n = size(rng), chosen(rng, size(rng, 40), 600), size(rng, 12)
    stack = shape_of(rng, rank - 2, rank - 2) if rank > 2 else ()
    shapes = (*stack, m, k), (k, n)
    return [integers(rng, t, *s) for t, s in zip((first, second), shapes, strict=True)], n, second


def _numbers_of(x: Array, scales: Array | None, zero: Array | None) -> Array:
    """Return what integers stand for, in float64."""
    wide = x.astype(np.float64) - (0 if zero is None else zero.astype(np.float64))
    return wide if scales is None else wide * scales.astype(np.float64)


def _rounded(numbers: Array, scales: Array, zero: Array) -> Array:
    """Return integers that stand for numbers."""
    ends = _ends(zero.dtype)
    y = np.rint(numbers / scales.astype(np.float64)) + zero.astype(np.float64)
    return np.asarray(np.clip(y, int(ends.min), int(ends.max)))


def _by_column(rng: Rng, n: int, dtype: Any) -> list[Array | None]:
    """Return a scale and a zero point of a second factor, one or one for each column."""
    shape = chosen(rng, (), (1,), (n,))
    return [scale(rng, *shape), maybe(rng, integers(rng, dtype, *shape), 0.7)]


def _gemm(rng: Rng) -> Case:
    (a, b), n, second = _factors(rng, 2)
    m, k = a.shape
    turned = int(rng.integers(2)), int(rng.integers(2))
    attributes: dict[str, Any] = {"transA": turned[0], "transB": turned[1]}
    attributes |= chosen(rng, {}, {"alpha": float(rng.uniform(0.5, 2))})
    b_scale, b_zero = _by_column(rng, n, second)
    b_zero = np.zeros_like(b_scale, second) if b_zero is None else b_zero
    c_shape = chosen(rng, (m, n), (n,), (1, n))
    c = maybe(rng, rng.integers(-5000, 5000, c_shape).astype(np.int32))
    ends: list[Array | None] = []
    if rng.random() < 0.6:
        ends = [np.array(rng.uniform(0.3, 2) * np.sqrt(k), F), integers(rng, a.dtype)]
    first = quantized(rng, np.ascontiguousarray(a.T) if turned[0] else a)
    second_factor = np.ascontiguousarray(b.T) if turned[1] else b
    operands = [*first, second_factor, b_scale, b_zero, c, *ends]
    dtype, wanted = a.dtype.type if ends else F, None
    if dtype is I8 or a.dtype == I8:  # ONNX Runtime's kernel of int8 is not found
        wanted = _numbers_of(a, None, first[2]) @ _numbers_of(b, None, b_zero)
        factor = np.float32(attributes.get("alpha", 1)) * first[1] * b_scale.astype(np.float64)
        wanted = (wanted + (0 if c is None else c)) * factor
        wanted = [_rounded(wanted, *ends) if ends else wanted]
    return _case(rng, "QGemm", trimmed(operands), attributes, dtype, expected=wanted)


def _product_of_integers(rng: Rng) -> Case:
    (a, b), n, second = _factors(rng, int(rng.integers(2, 4)))
    _, a_scale, a_zero = quantized(rng, a)
    b_scale, b_zero = _by_column(rng, n, second)
    bias, wanted = maybe(rng, numbers(rng, n)), None
    operands = [a, b, a_scale, b_scale, a_zero, b_zero, bias]
    if a.dtype == I8:  # ONNX Runtime's kernel of int8 is not found
        wanted = _numbers_of(a, a_scale, a_zero) @ _numbers_of(b, b_scale, b_zero)
        wanted = [wanted + (0 if bias is None else bias)]
    return _case(rng, "MatMulIntegerToFloat", trimmed(operands), expected=wanted)


def _dynamic_product(rng: Rng) -> Case:
    (a, b), n, second = _factors(rng, int(rng.integers(2, 4)))
    b_scale, b_zero = _by_column(rng, n, second)
    operands = [numbers(rng, *a.shape), b, b_scale, b_zero, maybe(rng, numbers(rng, n))]
    return _case(rng, "DynamicQuantizeMatMul", trimmed(operands))


def _product16(rng: Rng) -> Case:
    m, k, n = size(rng), size(rng, 30), size(rng)
    stack = chosen(rng, (), (2,), (3, 2))
    most = 32768 if k < 3 else 2000
    a, b = (rng.integers(-most, most, shape).astype(np.int16) for shape in ((*stack, m, k), (k, n)))
    return _case(rng, "MatMulInteger16", [a, b], dtype=np.int32, hosted=True)


def _attention(rng: Rng) -> Case:
    batch, queries, heads, head = size(rng, 3), size(rng, 6), size(rng, 3), size(rng, 8)
    hidden, width = heads * head, size(rng, 20)
    second = chosen(rng, U8, I8)
    by_column = chosen(rng, (), (3 * hidden,))
    unidirectional = int(rng.integers(2))
    past = size(rng, 4) if rng.random() < 0.4 else 0
    keys = past + queries
    masks: list[Array | None] = [None, rng.integers(1, keys + 1, batch).astype(np.int32)]
    if not unidirectional:
        shown = (rng.random((batch, keys)) < 0.7).astype(np.int32)
        shown[:, 0] = 1
        masks.append(shown)
    operands = [
        integers(rng, U8, batch, queries, width),
        integers(rng, second, width, 3 * hidden),
        numbers(rng, 3 * hidden),
        scale(rng),
        np.asarray(scale(rng, *by_column) / 8, F),
        chosen(rng, *masks),
        maybe(rng, integers(rng, U8)),
        maybe(rng, np.full(by_column, integers(rng, second), second)),
        numbers(rng, 2, batch, heads, past, head) if past else None,
    ]
    results = (F, F) if past or rng.random() < 0.3 else (F,)
    attributes = {"num_heads": heads, "unidirectional": unidirectional}
    operands = trimmed(operands)
    return _case(
        rng, "QAttention", operands, attributes, data=(0, 5, 8), results=results, tolerance=1e-4
    )


def _embed_layer_normalization(rng: Rng) -> Case:
    batch, length, n, rows = size(rng, 3), size(rng), size(rng, 16), 12
    segmented = rng.random() < 0.7
    ids = rng.integers(0, rows, (batch, length), np.int32)
    segments = rng.integers(0, 2, (batch, length), np.int32) if segmented else None
    mask = maybe(rng, rng.integers(0, 2, (batch, length), np.int32))
    dtype = chosen(rng, U8, I8)
    parts = [quantized(rng, integers(rng, dtype, *one)) for one in ((rows, n), (rows, n))]
    parts.append(quantized(rng, integers(rng, dtype, 2, n)) if segmented else [None] * 3)
    parts += [quantized(rng, integers(rng, dtype, n)) for _ in range(2)]
    tables, scales, zeros = zip(*parts, strict=True)
    operands = [ids, segments, *tables, mask, *scales, *zeros]
    attributes = {"epsilon": chosen(rng, 1e-12, 1e-5)}
    return _case(
        rng, "QEmbedLayerNormalization", operands, attributes, data=(0, 1, 7), results=(F, np.int32)
    )


def _lstm(rng: Rng) -> Case:
    """What is expected is ONNX Runtime's LSTM of the numbers that the integers stand for: with
    integers it rounds x and states to 8 bits, too.
    """
    steps, batch, columns, units = size(rng, 5), size(rng, 3), size(rng, 9), size(rng, 7)
    direction = chosen(rng, "forward", "reverse", "bidirectional")
    d, dtype = 1 + (direction == "bidirectional"), chosen(rng, U8, I8)
    by_row = chosen(rng, (d,), (d, 4 * units))
    weights: list[Array] = [integers(rng, dtype, d, n, 4 * units) for n in (columns, units)]
    scales = [np.asarray(scale(rng, *by_row) / 4, F) for _ in weights]
    zeros = [integers(rng, dtype, *by_row) for _ in weights]
    rest = [
        maybe(rng, numbers(rng, d, 8 * units)),
        maybe(rng, rng.integers(1, steps + 1, batch).astype(np.int32)),
        maybe(rng, numbers(rng, d, batch, units)),
        maybe(rng, numbers(rng, d, batch, units)),
        maybe(rng, numbers(rng, d, 3 * units)),
    ]
    x = numbers(rng, steps, batch, columns)
    floats = [
        _numbers_of(w, s.reshape(d, 1, -1), z.reshape(d, 1, -1)).astype(F).transpose(0, 2, 1)
        for w, s, z in zip(weights, scales, zeros, strict=True)
    ]
    attributes: dict[str, Any] = {"hidden_size": units, "direction": direction}
    attributes |= chosen(rng, {}, {"input_forget": 1}, {"clip": 0.5})
    plain = Case("LSTM", trimmed([x, *floats, *rest]), attributes, (F, F, F), domain="")
    ends = [one for pair in zip(scales, zeros, strict=True) for one in pair]
    operands = [x, *weights, *rest, *ends]
    known = [i for i, one in enumerate(operands) if one is not None and i not in (0, 4, 5, 6)]
    return Case(
        "DynamicQuantizeLSTM",
        operands,
        attributes,
        (F, F, F),
        known,
        plain.runtime(),
        in_halves=False,
    )


NARROW: dict[str, Any] = {
    **{name: np.dtype(name) for name in ("uint8", "int8", "uint16", "int16")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("uint4", "int4")},
}


def _ends(dtype: Any) -> Any:
    return ml_dtypes.iinfo(dtype) if dtype.name[-1] == "4" else np.iinfo(dtype)


def _of_axis(rng: Rng, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape of scales, and the attribute that says what they are along."""
    if rng.random() < 0.5:
        return (), {}
    axis = int(rng.integers(len(shape)))
    return (shape[axis],), {"axis": axis}


def _quantize(rng: Rng) -> Case:
    name = chosen(rng, *NARROW)
    dtype, x = NARROW[name], numbers(rng, *shape_of(rng))
    shape, attributes = _of_axis(rng, x.shape)
    ends = _ends(dtype)
    zero = rng.integers(int(ends.min), int(ends.max) + 1, shape).astype(dtype)
    scales = scale(rng, *shape, exact=rng.random() < 0.5)
    hosted, wanted = name not in ("uint8", "int8"), None
    if name.endswith("4"):  # which ONNX Runtime's Python has not
        wanted = [_rounded(x, *(_spread(one, x, attributes) for one in (scales, zero)))]
    float_type = F if wanted else chosen(rng, F, np.float16)
    operands: list[Array | None] = [x.astype(float_type), scales.astype(float_type), zero]
    if name == "uint8":
        operands = trimmed([*operands[:2], maybe(rng, zero)])
    return _case(rng, "QuantizeLinear", operands, attributes, dtype, hosted=hosted, expected=wanted)


def _spread(each: Array, x: Array, attributes: dict[str, int]) -> Array:
    """Return scales or zero points as they broadcast to x."""
    return each.reshape(-1, *(1,) * (x.ndim - 1 - attributes["axis"])) if attributes else each


def _dequantize(rng: Rng) -> Case:
    name = chosen(rng, *NARROW, "int32")
    dtype, sizes = NARROW.get(name, np.dtype(np.int32)), shape_of(rng)
    ends = _ends(dtype)
    low, high = max(int(ends.min), -100_000), min(int(ends.max), 100_000)
    x = rng.integers(low, high + 1, sizes).astype(dtype)
    shape, attributes = _of_axis(rng, x.shape)
    zero = rng.integers(low, high + 1, shape).astype(dtype)
    scales, points = scale(rng, *shape), None if name == "int32" else maybe(rng, zero, 0.7)
    hosted, wanted = name not in ("uint8", "int8", "int32"), None
    if name.endswith("4"):  # which ONNX Runtime's Python has not
        both = [one if one is None else _spread(one, x, attributes) for one in (scales, points)]
        wanted = [_numbers_of(x, *both)]
    float_type = F if wanted or name == "int32" else chosen(rng, F, np.float16)
    operands = trimmed([x, scales.astype(float_type), points])
    return _case(
        rng, "DequantizeLinear", operands, attributes, float_type, hosted=hosted, expected=wanted,
        tolerance=2e-5 if float_type is F else 1e-3,
    )  # fmt: skip


def packed(values: Array, bits: int) -> Array:
    """Return integers (..., n), from 0 on, as bytes, the first of each in its lowest bits."""
    each = 8 // bits
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // each) * each), np.int64)
    padded[..., : values.shape[-1]] = values
    parts = padded.reshape(*values.shape[:-1], -1, each)
    return (parts << (bits * np.arange(each))).sum(-1).astype(U8)


def _matmul_nbits(rng: Rng) -> Case:
    bits, block = chosen(rng, 2, 4, 4, 8), chosen(rng, 16, 32, 64, 128, 256)
    k, n = chosen(rng, size(rng, 70), 2 * block, 300), chosen(rng, size(rng), 40)
    blocks = -(-k // block)
    a = numbers(rng, *shape_of(rng, 0, 2), k)
    weight = rng.integers(0, 1 << bits, (n, blocks * block))
    weight[:, k:] = 0
    b = packed(weight, bits).reshape(n, blocks, -1)
    scales = numbers(rng, n, blocks) / 64
    kind = chosen(rng, "none", "bits", "bits", "floats")
    points: Array = np.full((n, blocks), 1 << bits - 1)
    zero = None
    if kind == "bits":
        points = rng.integers(0, 1 << bits, (n, blocks))
        zero = packed(points, bits)
    elif kind == "floats":
        zero = points = numbers(rng, n, blocks) * 2 + (1 << bits - 1)
    natural = np.arange(k) // block
    groups = chosen(rng, None, None, natural, rng.permutation(natural), rng.integers(0, blocks, k))
    index = natural if groups is None else groups
    bias = maybe(rng, numbers(rng, n))
    numbers_of = (weight[:, :k] - points[:, index]) * scales[:, index].astype(np.float64)
    wanted = a.astype(np.float64) @ numbers_of.T + (0 if bias is None else bias)
    groups = None if groups is None else groups.astype(np.int32)
    operands = trimmed([a, b, scales, zero, groups, bias])
    level = int(chosen(rng, 0, 1, 4))
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    known = [i for i, one in enumerate(operands) if i and one is not None]
    # ONNX Runtime rounds A to 8 bits at level 4, and has no kernel for some of the others.
    spoken = level < 4 and groups is None and (bits, kind) != (8, "floats")
    expected = None if spoken else [wanted]
    return Case("MatMulNBits", operands, attributes, known=known, expected=expected)


def _gather_block_quantized(rng: Rng) -> Case:
    bits, block = chosen(rng, 2, 4, 4, 8), chosen(rng, 16, 32)
    rank = int(rng.integers(2, 4))
    in_bytes = bits != 4 or rng.random() < 0.5
    shape = [size(rng, 5) + 1 for _ in range(rank)]
    gathered, along = chosen(rng, *((i, j) for i in range(rank) for j in range(rank)))
    if in_bytes:
        gathered, along = 0, rank - 1
    shape[along] = chosen(rng, 2 * block, 3 * block, block - 8)
    values = rng.integers(0, 1 << bits, shape)
    of_scale = [*shape[:along], -(-shape[along] // block), *shape[along + 1 :]]
    scales = numbers(rng, *of_scale) / 16
    points = maybe(rng, rng.integers(0, 1 << bits, of_scale))
    if in_bytes:
        data, zero = packed(values, bits), None if points is None else packed(points, bits)
    else:
        kind = chosen(rng, "uint4", "int4")
        low = 0 if kind == "uint4" else 8
        data = (values - low).astype(NARROW[kind])
        zero = None if points is None else (points - low).astype(NARROW[kind])
    places = shape[gathered]
    index = rng.integers(-places, places, shape_of(rng, 1, 2)).astype(
        chosen(rng, np.int32, np.int64)
    )
    if rng.random() < 0.3:
        index.flat[0] = chosen(rng, places, -places - 1, places + 100)
    attributes = {
        "bits": bits,
        "block_size": block,
        "gather_axis": gathered - chosen(rng, 0, rank),
        "quantize_axis": along - chosen(rng, 0, rank),
    }
    operands = trimmed([data, index, scales, zero])
    known = [i for i, one in enumerate(operands) if i != 1 and one is not None]
    return Case("GatherBlockQuantized", operands, attributes, known=known)


def _matmul_bnb4(rng: Rng) -> Case:
    n, k, block = size(rng, 20), chosen(rng, size(rng, 40), 64), chosen(rng, 16, 32, 64)
    turned = int(rng.random() < 0.8)
    a = numbers(rng, *shape_of(rng, 1, 2), k if turned else n)
    scales = np.abs(numbers(rng, -(-n * k // block)))
    operands: list[Array | None] = [a, integers(rng, U8, -(-n * k // 2)), scales]
    attributes = {"N": n, "K": k, "block_size": block, "quant_type": int(rng.integers(2))}
    if turned:
        return Case("MatMulBnb4", operands, attributes, known=(1, 2))
    # ONNX Runtime's CPU package has no numbers for it: its weight does, by a product with one.
    whole = Case("MatMulBnb4", [np.eye(k, dtype=F), *operands[1:]], attributes, known=(1, 2))
    wanted = a.astype(np.float64) @ whole.runtime()[0].T
    return Case(
        "MatMulBnb4", operands, {**attributes, "transB": 0}, known=(1, 2), expected=[wanted]
    )


QUANTIZED: dict[str, Callable[[Rng], Case]] = {
    "QLinearAdd": _binary("QLinearAdd"),
    "QLinearMul": _binary("QLinearMul"),
    "QLinearSigmoid": _unary("QLinearSigmoid"),
    "QLinearLeakyRelu": _unary("QLinearLeakyRelu"),
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearReduceMean": _reduce_mean,
    "QLinearConcat": _concat,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QLinearConv": _conv,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _product_of_integers,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulInteger16": _product16,
    "QAttention": _attention,
    "QEmbedLayerNormalization": _embed_layer_normalization,
    "DynamicQuantizeLSTM": _lstm,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized,
    "MatMulBnb4": _matmul_bnb4,
}
"""Generators of cases, by operator."""
