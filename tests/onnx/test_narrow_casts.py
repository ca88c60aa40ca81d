"""Casts to and from types of 2, 4 and 8 bits: by what ONNX says of their bits, and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import glnn
from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.onnx.operators.dtypes import CODES
from tests.onnx.runtime import node_model

FLOATS = {  # bits of the exponent and the fraction, bias
    DType.float8_e4m3fn: (4, 3, 7),
    DType.float8_e4m3fnuz: (4, 3, 8),
    DType.float8_e5m2: (5, 2, 15),
    DType.float8_e5m2fnuz: (5, 2, 16),
    DType.float4_e2m1fn: (2, 1, 1),
}
INTEGERS = {DType.int4: (-8, 7), DType.uint4: (0, 15), DType.int2: (-2, 1), DType.uint2: (0, 3)}
WIDE = (DType.float32, DType.float64, DType.float16, DType.bfloat16)


def decoded(dtype: DType) -> np.ndarray:
    """The number of each code; NaN and infinities as ONNX lists them."""
    exponent, fraction, bias = FLOATS[dtype]
    found = np.empty(1 << (1 + exponent + fraction))
    for code in range(len(found)):
        sign = -1.0 if code >> (exponent + fraction) else 1.0
        e = code >> fraction & ((1 << exponent) - 1)
        m = code & ((1 << fraction) - 1)
        part = m / (1 << fraction)
        found[code] = sign * (2.0 ** (e - bias) * (1 + part) if e else 2.0 ** (1 - bias) * part)
    if dtype is DType.float8_e4m3fn:
        found[[0x7F, 0xFF]] = np.nan
    elif dtype is DType.float8_e5m2:
        for start, infinity in ((0x7C, np.inf), (0xFC, -np.inf)):
            found[start], found[start + 1 : start + 4] = infinity, np.nan
    elif dtype in (DType.float8_e4m3fnuz, DType.float8_e5m2fnuz):
        found[0x80] = np.nan
    return found


def encoded(numbers: np.ndarray, dtype: DType, saturate: bool) -> np.ndarray:
    """The numbers of `dtype` that are nearest, of two the even code."""
    table = decoded(dtype)
    codes = np.flatnonzero(np.isfinite(table) & ~np.signbit(table))
    grid = table[codes]
    step = grid[-1] - grid[-2]
    over = grid[-1] + step  # what would come next
    magnitudes = np.append(grid, over)
    found = np.empty(numbers.shape)
    for i, one in enumerate(numbers.tolist()):
        if np.isnan(one):
            found[i] = np.nan
            continue
        distance = np.abs(magnitudes - abs(one)) if np.isfinite(one) else np.append(grid * 0 + 1, 0)
        best = np.flatnonzero(distance == distance.min())
        at = best[0] if len(best) == 1 or best[0] % 2 == 0 else best[1]
        if at < len(grid):
            found[i] = np.copysign(grid[at], one)
        elif saturate:
            found[i] = np.copysign(grid[-1], one)
        else:
            found[i] = np.copysign(np.inf, one) if dtype is DType.float8_e5m2 else np.nan
    return found


def numbers(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(1)
    found = rng.normal(size=300) * 10.0 ** rng.integers(-8, 6, 300)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, -464.1, 240, 247.9, 248, 57344]
    edges += [61439, 61440, 61441, 1e6, 2**-9, 2**-10, 2**-11, 1e-30, 5, 6, 7, -7, 2.5, 3.5, 0.25]
    with np.errstate(all="ignore"):
        return np.append(found, edges).astype(dtype.numpy)


def run(operands: list[Any], to: DType, op: str = "Cast", **more: Any) -> np.ndarray:
    kinds = [to.numpy]
    if op == "Cast":
        more["to"] = CODES[to]
    model = node_model(op, operands, kinds=kinds, opset=25, **more)
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    (found,) = session.run(None, {f"x{i}": one for i, one in enumerate(operands)})
    assert found.dtype == to.numpy
    return found


@pytest.mark.parametrize("source", WIDE, ids=str)
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_to_floats(dtype: DType, saturate: bool, source: DType) -> None:
    x = numbers(source)
    if dtype is DType.float4_e2m1fn:
        x, saturate = x[~np.isnan(x.astype(np.float32))], True  # it has no NaN
    right = encoded(x.astype(np.float64), dtype, saturate)
    found = run([x], dtype, saturate=int(saturate)).astype(np.float64)
    np.testing.assert_array_equal(found, right)
    like = run([x, np.zeros(1, dtype.numpy)], dtype, "CastLike", saturate=int(saturate))
    np.testing.assert_array_equal(like.astype(np.float64), right)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("dtype", list(FLOATS)[:4], ids=str)
def test_to_floats_beside_onnx_runtime(dtype: DType, saturate: int) -> None:
    """Its results are uint8 in Python: a second node makes float32 of them."""
    x = numbers(DType.float32)
    if saturate and "fnuz" in dtype.value:
        x = x[~np.isinf(x)]  # it makes NaN of these, ONNX the greatest number
    if not saturate and dtype is DType.float8_e5m2:
        x = x[~(np.abs(x) >= 61440) | np.isinf(x)]  # it makes NaN of these, ONNX infinities
    nodes = [
        helper.make_node("Cast", ["x"], ["n"], to=CODES[dtype], saturate=saturate),
        helper.make_node("Cast", ["n"], ["y"], to=1),
    ]
    given, made = (helper.make_tensor_value_info(n, 1, x.shape) for n in ("x", "y"))
    graph = helper.make_graph(nodes, "casts", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (right,) = session.run(None, {"x": x})
    found = run([x], dtype, saturate=saturate).astype(np.float32)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("target", WIDE, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_from_floats(dtype: DType, target: DType) -> None:
    table = decoded(dtype)
    x = np.arange(len(table)).astype(np.uint8).view(dtype.numpy)
    with np.errstate(over="ignore"):
        right = table.astype(target.numpy)
    found = run([x], target).astype(np.float64)
    np.testing.assert_array_equal(found, right.astype(np.float64))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: DType) -> None:
    """The low bits are kept, as in ONNX's cases, of floats without their fraction, too."""
    low, high = INTEGERS[dtype]
    count = high - low + 1
    x = np.array([-300, -9, -3, -1, 0, 1, 2, 3, 7, 8, 15, 16, 300], np.int32)
    found = run([x], dtype).astype(np.int32)
    np.testing.assert_array_equal(found, (x - low) % count + low)
    floats = np.array([-9.5, -1.7, -0.5, 0.9, 1.9, 3.2, 15.9, 99, np.nan])
    right = (np.trunc(np.nan_to_num(floats, nan=0)) - low) % count + low
    for wide in WIDE:
        found = run([floats.astype(wide.numpy)], dtype).astype(np.float64)
        np.testing.assert_array_equal(found, right)
    each = np.arange(low, high + 1)
    for target in (*WIDE, DType.int8, DType.int32, DType.int64):
        found = run([each.astype(np.int8).astype(dtype.numpy)], target)
        np.testing.assert_array_equal(found, each.astype(target.numpy))
    found = run([each.astype(np.int8).astype(dtype.numpy)], DType.uint8)
    np.testing.assert_array_equal(found, each % 256)


@pytest.mark.parametrize("saturate", [1, 0])
@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_to_powers_of_two(round_mode: str, saturate: int) -> None:
    x = np.array([1, 1.5, 1.4, 1.6, 3, 4, 0.3, 2.0**-126, 2.0**127, 1e38, np.nan], np.float32)
    up = {"up": np.ceil, "down": np.floor}
    with np.errstate(all="ignore"):
        power = np.log2(x.astype(np.float64))
        base = np.floor(power)
        part = x / 2**base
    exponent = up[round_mode](power) if round_mode in up else base + (part >= 1.5)
    right = 2.0**exponent
    found = run([x], DType.float8_e8m0fnu, round_mode=round_mode, saturate=saturate)
    np.testing.assert_array_equal(found.astype(np.float64), right)
    ends = run([np.array([np.inf, 0.0, 3e38], np.float32)], DType.float8_e8m0fnu, saturate=saturate)
    most = 2.0**127
    right = np.array([most, 2.0**-127, most] if saturate else [np.nan] * 3)
    np.testing.assert_array_equal(ends.astype(np.float64), right)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64, np.int32, np.bool_])
def test_texts(dtype: Any) -> None:
    x = np.array([0, 1, -5, 100], dtype)
    if np.dtype(dtype).kind == "f":
        x = np.append(x, np.array([0.1, 1e10, -1.5e-7, np.inf, -np.inf, np.nan], dtype))
    model = node_model("Cast", [x], kinds=[object], opset=21, to=8)
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": x})
    found = run([x], DType.object)
    assert found.tolist() == right.tolist()
    if np.dtype(dtype).kind in "fi":
        texts = np.array(
            ["1", "-17", "0"] + (["1e-3", "INF", "NaN"] if x.dtype.kind == "f" else [])
        )
        back = run([texts.astype(object)], DType(np.dtype(dtype).name))
        np.testing.assert_array_equal(back, texts.astype(np.float64).astype(dtype))


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64, DType.int64, DType.uint8], ids=str)
@pytest.mark.parametrize("text", ["1_000", "\uff11\uff12", "", "x", "1 2"])
def test_texts_that_are_no_numbers(text: str, dtype: DType) -> None:
    """ONNX Runtime has other numbers for 1_000 and 1 2, those before the sign, or none."""
    with pytest.raises(ShapeError, match="Cast"):
        run([np.array([text], object)], dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, DType.int16, DType.uint16], ids=str)
@pytest.mark.parametrize("scale_type", [DType.float32, DType.float16], ids=str)
def test_dequantize_linear(dtype: DType, scale_type: DType) -> None:
    rng = np.random.default_rng(2)
    low, high = INTEGERS.get(dtype, (0, 3))
    x = rng.integers(low, high + 1, (3, 4)).astype(np.float32).astype(dtype.numpy)
    for shape, axis, block in (
        ((), 1, 0),
        ((1,), 1, 0),
        ((3,), 0, 0),
        ((4,), -1, 0),
        ((3, 2), 1, 2),
    ):
        scale = rng.uniform(0.1, 2, shape).astype(scale_type.numpy)
        zero = rng.integers(max(low, 0), 2, shape).astype(np.float32).astype(dtype.numpy)
        wide = [one.astype(np.float64) for one in (scale, zero)]
        if shape and shape != (1,):
            if block:
                wide = [np.repeat(one, block, axis) for one in wide]
            else:
                wide = [one.reshape((-1, 1) if axis == 0 else (1, -1)) for one in wide]
        for zeros in (True, False):
            right = ((x.astype(np.float64) - (wide[1] if zeros else 0)) * wide[0]).astype(
                scale.dtype
            )
            given = [x, scale, zero] if zeros else [x, scale]
            found = run(given, scale_type, "DequantizeLinear", axis=axis, block_size=block)
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quantize_linear(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 300, (3, 4)).astype(np.float32)
    for scale, axis in (
        (np.array(1.5, np.float32), 1),
        (np.array([0.5, 2, 3], np.float32), 0),
        (np.array([0.5, 2, 3, 0.1], np.float32), 1),
    ):
        along = scale.reshape(-1, 1) if axis == 0 else scale
        right = encoded((x / along).astype(np.float64).reshape(-1), dtype, True).reshape(3, 4)
        zero = np.zeros(scale.shape, dtype.numpy)
        found = run([x, scale, zero], dtype, "QuantizeLinear", axis=axis)
        np.testing.assert_array_equal(found.astype(np.float64), right)
