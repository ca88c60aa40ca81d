"""ONNX's conversions to and from types of 2, 4 and 8 bits and texts, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError, shown
from glnn.numeric import cast as number_cast
from glnn.onnx.operators.dtypes import dtype_of
from glnn.types import Array, DType

Attributes = Mapping[str, Any]
FLOAT8 = (DType.float8_e4m3fn, DType.float8_e4m3fnuz, DType.float8_e5m2, DType.float8_e5m2fnuz)
MOST = {
    DType.float8_e4m3fn: 448.0,
    DType.float8_e4m3fnuz: 240.0,
    DType.float8_e5m2: 57344.0,
    DType.float8_e5m2fnuz: 57344.0,
    DType.float4_e2m1fn: 6.0,
}
"""The greatest number of each type."""
BITS = {DType.int4: 4, DType.uint4: 4, DType.int2: 2, DType.uint2: 2}


def cast(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return x as the type `to`."""
    dtype = dtype_of(attributes["to"], "Cast")
    saturate = bool(attributes.get("saturate", 1))
    return [converted(x, dtype, saturate, attributes.get("round_mode", b"up").decode())]


def cast_like(attributes: Attributes, version: int, x: Array, like: Array) -> list[Array]:
    """Return x as the type of `like`."""
    saturate = bool(attributes.get("saturate", 1))
    return [converted(x, DType.of(like), saturate, attributes.get("round_mode", b"up").decode())]


def converted(x: Array, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return x as `dtype`.

    saturate: what is beyond float8 becomes its greatest number, else an infinity or NaN. Floats
    beyond integers become the nearest one, and NaN becomes 0; integers keep their low bits, and
    so does what becomes an integer of 2 or 4 bits, as in ONNX's own cases.
    """
    if x.dtype.hasobject or dtype is DType.object:
        return _of_texts(x, dtype) if x.dtype.hasobject else _as_texts(x)
    source = DType.of(x)
    if source.kind == "float" and x.dtype.kind != "f":  # ml_dtypes'
        x = x.astype(np.float32)
    if source in BITS:
        x = x.astype(np.int8)
    if dtype in BITS:
        return _as_few_bits(x, dtype)
    if dtype is DType.float8_e8m0fnu:
        return _as_powers(x, saturate, round_mode)
    if dtype in MOST:
        wide = x.astype(np.float64)
        if saturate or dtype is DType.float4_e2m1fn:
            wide = np.clip(wide, -MOST[dtype], MOST[dtype])
        # ml_dtypes goes from float64 to float8 in one step, to nearest even.
        return wide.astype(dtype.numpy)
    return number_cast(dtype.numpy)(x)


def _as_few_bits(x: Array, dtype: DType) -> Array:
    bits = BITS[dtype]
    low = 0 if dtype.value.startswith("u") else -(1 << (bits - 1))
    if x.dtype.kind == "f":
        x = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0)), -(2.0**62), 2.0**62)
    whole = ((x.astype(np.int64) - low) & ((1 << bits) - 1)) + low
    return whole.astype(np.int8).astype(dtype.numpy)


def _as_powers(x: Array, saturate: bool, round_mode: str) -> Array:
    """Return positive numbers as powers of 2, float8_e8m0fnu: 2^-127 to 2^127, NaN."""
    wide = x.astype(np.float64)
    fraction, exponent = np.frexp(wide)  # fraction * 2 ** exponent, from 0.5 on
    exponent = exponent - 1
    up = {"up": 0.5, "nearest": 0.75, "down": 1.0}
    if round_mode not in up:
        raise ShapeError(f"Cast: round_mode must be up, down or nearest, got {round_mode!r}")
    over = fraction >= 0.75 if round_mode == "nearest" else fraction > up[round_mode]
    exponent = exponent + over
    finite = np.isfinite(wide)
    inside = finite & (wide > 0) & (exponent >= -127) & (exponent <= 127)
    codes = np.where(inside, np.clip(exponent, -127, 127) + 127, 255).astype(np.uint8)
    if saturate:
        codes = np.where(wide >= 2.0**127, 254, codes)
        codes = np.where((wide >= 0) & (exponent < -127) | (wide == 0), 0, codes)
    return codes.astype(np.uint8).view(DType.float8_e8m0fnu.numpy)


def _of_texts(x: Array, dtype: DType) -> Array:
    """Return texts as numbers: decimal ones of ASCII, without the `_` that Python's may have."""
    if dtype is DType.object:
        return x
    texts = x.reshape(-1).tolist()
    for one in texts:
        if "_" in one or not one.isascii():
            raise ShapeError(f"Cast: {shown(one)} is no number")
    try:
        numbers = [int(one) if dtype.kind == "int" else float(one) for one in texts]
    except ValueError as error:
        raise ShapeError(f"Cast: {error}") from None
    if dtype is DType.bool:
        raise UnsupportedOpError("Cast: ONNX does not say which texts are true")
    wide = np.array(numbers, np.float64 if dtype.kind == "float" else object)
    if dtype.kind == "int":
        ends = np.iinfo(dtype.numpy)
        if any(not ends.min <= one <= ends.max for one in numbers):
            raise ShapeError(f"Cast: texts are beyond {dtype.value}")
    return wide.astype(dtype.numpy).reshape(x.shape)


def _as_texts(x: Array) -> Array:
    """Return numbers as texts, floats with as many digits as ONNX Runtime writes."""
    found = np.empty(x.size, object)
    for i, one in enumerate(x.reshape(-1).tolist()):
        if isinstance(one, float):
            text = f"{one:.8g}"
            found[i] = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(text, text)
        else:
            found[i] = str(int(one))
    return found.reshape(x.shape)


def _along(operator: str, one: Array, x: Array, axis: int, block: int) -> Array:
    """Return a scale or zero point as it broadcasts to x: of all, of an axis, or of blocks."""
    if one.size == 1 and not block:
        return one.reshape(())
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{operator}: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}")
    axis %= x.ndim
    if block:
        found = np.repeat(one, block, axis) if one.ndim == x.ndim else one
        found = (
            found[(slice(None),) * axis + (slice(x.shape[axis]),)] if one.ndim == x.ndim else one
        )
        shape = x.shape
    else:
        found, shape = one, (x.shape[axis],)
    if found.shape != shape:
        raise ShapeError(
            f"{operator}: x {x.shape} has other scales or zero points than {one.shape}"
        )
    return found if block else found.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def dequantize_linear(
    attributes: Attributes, version: int, x: Array, scale: Array, zero: Array | None = None
) -> list[Array]:
    """Return (x - zero) * scale, of one scale, one along an axis, or one for each block.

    It is computed in 64 bits and rounded once, to `output_dtype` or the type of the scale.
    """
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    numbers = _wide(x)
    if zero is not None:
        numbers = numbers - _along("DequantizeLinear", _wide(zero), x, axis, block)
    numbers = numbers * _along("DequantizeLinear", _wide(scale), x, axis, block)
    code = attributes.get("output_dtype", 0)
    dtype = dtype_of(code, "DequantizeLinear").numpy if code else scale.dtype
    return [numbers.astype(dtype)]


def quantize_linear(
    attributes: Attributes, version: int, x: Array, scale: Array, zero: Array | None = None
) -> list[Array]:
    """Return x / scale + zero as float8 or float4; the quotient is of the type of the scale."""
    code = attributes.get("output_dtype", 0)
    dtype = DType.of(zero) if zero is not None else dtype_of(code or 2, "QuantizeLinear")
    if dtype not in MOST:
        raise UnsupportedOpError(f"QuantizeLinear: to {dtype.value} of such operands")
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    precision = attributes.get("precision", 0)
    kept = dtype_of(precision, "QuantizeLinear").numpy if precision else scale.dtype
    divisor = _along("QuantizeLinear", scale.astype(kept), x, axis, block)
    numbers = _wide(_wide(x.astype(kept)) / _wide(divisor)).astype(kept).astype(np.float64)
    if zero is not None:
        numbers = numbers + _along("QuantizeLinear", _wide(zero), x, axis, block)
    return [converted(numbers, dtype, bool(attributes.get("saturate", 1)))]


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("", "DequantizeLinear"): dequantize_linear,
    ("", "QuantizeLinear"): quantize_linear,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
