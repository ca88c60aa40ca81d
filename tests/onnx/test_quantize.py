"""Quantized tensors, exactly: rounding halfway, zero points, and sums beyond float32's integers."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import glnn
from tests import oracle
from tests.onnx.single import BACKENDS, feeds, model, run, runtime

INT32, UINT8, INT8, FLOAT = (
    getattr(onnx.TensorProto, name) for name in ("INT32", "UINT8", "INT8", "FLOAT")
)
U8, I8 = np.uint8, np.int8


def numbers(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def turned(sums: np.ndarray, factor: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """`sums` by a float32 factor, rounded, with their zero point, in its type."""
    limits = np.iinfo(zero.dtype)
    scaled = np.rint(sums.astype(np.float32) * factor)
    return np.clip(scaled + zero, limits.min, limits.max).astype(zero.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [U8, I8])
def test_halfway(backend: str, dtype: type) -> None:
    """Numbers that lie between two integers, or a unit beside, by scales of which none is exact."""
    scales = np.array([0.1, 0.3, 1 / 3, 7e-3, 1.7, 0.0039215689], np.float32)
    places = np.arange(-140, 140, dtype=np.float32) + np.float32(0.5)
    x = places[:, None] * scales
    x = np.stack([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    zero = np.arange(6).astype(dtype)
    proto = model(
        "QuantizeLinear", [x, scales, zero], axis=-1, kinds=[UINT8 if dtype is U8 else INT8]
    )
    (found,) = run(proto, feeds([x, scales, zero]), backend)
    limits = np.iinfo(dtype)
    expected = np.clip(np.rint(x / scales) + zero, limits.min, limits.max)
    np.testing.assert_array_equal(found, expected.astype(dtype))


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_that_do_not_divide(backend: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 7, 5)) * 9).astype(np.float32)
    scale = rng.uniform(0.05, 0.2, (3, 3, 5)).astype(np.float32)
    zero = numbers(rng, I8, 3, 3, 5)
    proto = model("QuantizeLinear", [x, scale, zero], axis=1, block_size=3, kinds=[INT8])
    (found,) = run(proto, feeds([x, scale, zero]), backend)
    wide, shift = (np.repeat(one, 3, 1)[:, :7] for one in (scale, zero))
    expected = np.clip(np.rint(x / wide) + shift, -128, 127).astype(I8)
    np.testing.assert_array_equal(found, expected)
    proto = model("DequantizeLinear", [found, scale, zero], axis=1, block_size=3)
    (back,) = run(proto, feeds([found, scale, zero]), backend)
    np.testing.assert_allclose(back, (found.astype(np.float32) - shift) * wide, rtol=1e-6)


DYNAMIC = [
    *([0.0, 0.0], [-0.0], [-3.0, -1.0, 0.5], [1.0, 2.0, 7.3], [-1e-3, 255.0], [3e38, -3e38]),
    *([-np.inf, 1.0], [np.inf], [-np.inf, np.inf], [np.nan, 7.0], [1.0, -np.inf, np.nan], []),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("x", DYNAMIC)
def test_dynamic(backend: str, x: list[float]) -> None:
    array = np.array(x, np.float32)
    proto = model("DynamicQuantizeLinear", [array], outputs=3, kinds=[UINT8, FLOAT, UINT8])
    found, expected = run(proto, feeds([array]), backend), runtime(proto, feeds([array]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(24))
def test_dynamic_of_any_numbers(backend: str, seed: int) -> None:
    """Rounded to even, from all sides of 0, and of many magnitudes."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 40, rng.integers(1, 4)))
    array = rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 20) + rng.choice([0, 0, 1, -1])
    if seed % 3 == 0:  # halves of steps
        array = rng.integers(-510, 511, shape) / 2
        array.reshape(-1)[:2] = np.array([-128, 127])[: array.size]
    array = array.astype(np.float32)
    proto = model("DynamicQuantizeLinear", [array], outputs=3, kinds=[UINT8, FLOAT, UINT8])
    found, expected = run(proto, feeds([array]), backend), runtime(proto, feeds([array]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("x", [*DYNAMIC, [1e-45], [1e-40, -3e-41, 2e-42], [2e-38, -1e-38]])
def test_dynamic_on_cpu(x: list[float]) -> None:
    """Subnormal numbers, too, which GPUs may take for 0."""
    array = np.array(x, np.float32)
    proto = model("DynamicQuantizeLinear", [array], outputs=3, kinds=[UINT8, FLOAT, UINT8])
    found = glnn.InferenceSession(proto.SerializeToString(), "cpu").run(None, feeds([array]))
    for one, other in zip(found, runtime(proto, feeds([array])), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("depth", [1, 258, 259, 5000])
def test_products_are_exact(backend: str, depth: int, fixed: bool) -> None:
    """Also where sums are odd and beyond 2^24."""
    rng = np.random.default_rng(depth)
    a, b = numbers(rng, U8, 3, depth), numbers(rng, U8, depth, 5)
    a[0], b[:, 0] = 255, 255
    arrays = [a, b, np.array(0, U8), np.array([0, 255, 128, 3, 7], U8)]
    weights = {i: arrays[i] for i in (1, 2, 3)} if fixed else {}
    proto = model("MatMulInteger", arrays, weights, kinds=[INT32])
    (found,) = run(proto, feeds(arrays, weights), backend)
    expected = a.astype(np.int64) @ (b.astype(np.int64) - arrays[3])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stacks_vectors_and_rows(backend: str) -> None:
    rng = np.random.default_rng(1)
    for first, second in [((2, 1, 3, 700), (4, 700, 2)), ((700,), (2, 700, 3)), ((3, 700), (700,))]:
        a, b = numbers(rng, I8, *first), numbers(rng, U8, *second)
        zero = numbers(rng, I8, 3) if first[-2:-1] == (3,) and len(first) == 2 else None
        arrays = [a, b, zero]
        proto = model("MatMulInteger", arrays[: 2 + (zero is not None)], kinds=[INT32])
        (found,) = run(proto, feeds(arrays), backend)
        less = 0 if zero is None else zero.astype(np.int64)[:, None]
        expected = np.matmul(a.astype(np.int64) - less, b.astype(np.int64))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_qlinear_matmul_by_rows_and_columns(backend: str) -> None:
    rng = np.random.default_rng(2)
    a, b = numbers(rng, U8, 5, 300), numbers(rng, I8, 300, 7)
    sa, sb = (rng.uniform(0.01, 0.02, n).astype(np.float32) for n in (5, 7))
    za, zb = numbers(rng, U8, 5), numbers(rng, I8, 7)
    sy, zy = np.array(1.7, np.float32), np.array(-3, I8)
    arrays = [a, sa, za, b, sb, zb, sy, zy]
    proto = model("QLinearMatMul", arrays, kinds=[INT8])
    (found,) = run(proto, feeds(arrays), backend)
    sums = (a.astype(np.int64) - za[:, None]) @ (b.astype(np.int64) - zb)
    np.testing.assert_array_equal(found, turned(sums, sa[:, None] * sb / sy, zy))


CONVOLUTIONS = [
    # x, weight, attributes
    ((1, 32, 9, 9), (32, 32, 3, 3), {"pads": [1, 1, 1, 1]}),  # what Winograd would be taken for
    ((2, 6, 7, 5), (4, 3, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}),
    ((1, 301, 3, 3), (2, 301, 1, 1), {}),
    ((1, 130, 4, 3), (4, 65, 3, 3), {"group": 2, "pads": [1, 0, 1, 1]}),
    ((2, 3, 11), (5, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2]}),
    ((1, 40, 3, 4, 5), (4, 20, 2, 3, 3), {"group": 2, "pads": [1, 0, 1, 0, 1, 1]}),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("shape", "taps", "attributes"), CONVOLUTIONS)
def test_convolutions_are_exact(backend, shape, taps, attributes, fixed) -> None:
    rng = np.random.default_rng(3)
    x, weight = numbers(rng, U8, *shape), numbers(rng, U8, *taps)
    x[0], weight[0] = 255, 255
    arrays = [x, weight, np.array(1, U8)]
    weights = {1: weight} if fixed else {}
    proto = model("ConvInteger", arrays, weights, kinds=[INT32], **attributes)
    (found,) = run(proto, feeds(arrays, weights), backend)
    np.testing.assert_array_equal(found, runtime(proto, feeds(arrays, weights))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_qlinear_conv_by_channels_with_bias(backend: str) -> None:
    """Not held against ONNX Runtime: its sums saturate at int16 on processors without VNNI."""
    rng = np.random.default_rng(4)
    x, weight = numbers(rng, U8, 2, 3, 6, 5), numbers(rng, I8, 4, 3, 3, 3)
    sx, sy = np.array(0.02, np.float32), np.array(0.9, np.float32)
    sw = rng.uniform(0.01, 0.03, 4).astype(np.float32)
    zx, zw, zy = np.array(7, U8), np.zeros(4, I8), np.array(128, U8)
    bias = rng.integers(-2000, 2000, 4).astype(np.int32)
    arrays = [x, sx, zx, weight, sw, zw, sy, zy, bias]
    fixed = {i: arrays[i] for i in range(1, 9)}
    proto = model("QLinearConv", arrays, fixed, kinds=[UINT8], pads=[1, 1, 1, 1])
    (found,) = run(proto, feeds(arrays, fixed), backend)
    sums = oracle.conv2d(x.astype(np.int64) - zx, weight, bias, padding=(1, 1, 1, 1))
    np.testing.assert_array_equal(found, turned(sums, (sx * sw / sy)[:, None, None], zy))


def test_types_that_no_gpu_has_are_the_hosts() -> None:
    """16 bits, as an attribute says."""
    x = np.array([-1e6, -1.5, 0, 0.5, 2.5, 1e6], np.float32)
    arrays = [x, np.array(0.5, np.float32)]
    kind = onnx.TensorProto.INT16
    proto = model("QuantizeLinear", arrays, kinds=[kind], output_dtype=kind)
    session = glnn.InferenceSession(proto.SerializeToString(), "feedback")
    (found,) = session.run(None, feeds(arrays))
    np.testing.assert_array_equal(found, np.array([-32768, -3, 0, 1, 5, 32767], np.int16))
    assert any("int16 is the host's" in one for one in session.hosted)


QUANTIZED = {
    **{name: np.iinfo(name) for name in ("int8", "uint8", "int16", "uint16")},
    **{name: ml_dtypes.iinfo(name) for name in ("int4", "uint4", "int2", "uint2")},
}
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("backend", ("cpu", *BACKENDS))
@pytest.mark.parametrize("given", [np.dtype(np.float32), *HALVES], ids=str)
def test_what_is_beyond_the_type_is_its_end(backend: str, given: np.dtype[Any]) -> None:
    """Infinity, numbers beyond int32, both ends of each type, by several scales, in one model."""
    powers = [2.0**bits + step for bits in (3, 4, 7, 8, 15, 16, 31, 32, 63) for step in (0, -1)]
    with np.errstate(over="ignore"):
        x = np.array([0.5, 1.5, np.inf, 3e9, 1e10, 1e38, *powers]).astype(given)
    x, nodes, fixed, made, expected = np.concatenate([x, -x]), [], [], [], []
    for (name, ends), scale in product(QUANTIZED.items(), (1.0, 0.5, 3.0)):
        for zero in dict.fromkeys((0, int(ends.min), int(ends.max))):
            called, code = f"{name} {scale} {zero}", helper.np_dtype_to_tensor_dtype(ends.dtype)
            fixed += [
                numpy_helper.from_array(np.array(scale, given), f"scale {called}"),
                numpy_helper.from_array(np.array(zero, ends.dtype), f"zero {called}"),
            ]
            operands = ["x", f"scale {called}", f"zero {called}"]
            nodes.append(helper.make_node("QuantizeLinear", operands, [called]))
            made.append(helper.make_tensor_value_info(called, code, x.shape))
            with np.errstate(over="ignore"):
                quotient = x.astype(np.float32) / np.array(scale, given).astype(np.float32)
                quotient = quotient.astype(given).astype(np.float64)
            right = np.clip(np.rint(quotient) + zero, int(ends.min), int(ends.max))
            expected.append((called, right.astype(ends.dtype)))
    code = helper.np_dtype_to_tensor_dtype(given)
    inputs = [helper.make_tensor_value_info("x", code, x.shape)]
    graph = helper.make_graph(nodes, "ends", inputs, made, fixed)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    session = glnn.InferenceSession(proto.SerializeToString(), backend)
    for (called, right), found in zip(expected, session.run(None, {"x": x}), strict=True):
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found.astype(int), right.astype(int), called)


def round_trip(steps: list[onnx.NodeProto], x: Any, initializers: list[Any]) -> onnx.ModelProto:
    """Return a model of `steps` from x, of an open first size, to y."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    value = helper.make_tensor_value_info("x", kind, ["n", *x.shape[1:]])
    result = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(steps, "steps", [value], [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("backend", ("cpu", *BACKENDS))
@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_a_network_with_activations_of_16_bits_stays_on_the_gpu(backend: str, dtype: type) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 6)).astype(np.float32) * 2
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    scale, zero = np.float32(1e-4), dtype(1000)
    initializers = [
        numpy_helper.from_array(np.asarray(one), name)
        for name, one in (("s", scale), ("z", zero), ("w", weight))
    ]
    steps = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "s", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    proto = round_trip(steps, x, initializers)
    session = glnn.InferenceSession(proto.SerializeToString(), backend)
    limits = np.iinfo(dtype)

    def rounded(numbers: Any) -> Any:
        integers = np.clip(np.rint(numbers / np.float64(scale)) + zero, limits.min, limits.max)
        return (integers - zero) * np.float64(scale)

    for count in (5, 3):
        (found,) = session.run(None, {"x": x[:count]})
        expected = rounded(rounded(x[:count].astype(np.float64)) @ weight.astype(np.float64))
        assert (np.abs(expected) >= 2.9).any()  # some are beyond the type
        np.testing.assert_allclose(found, expected, 0, 1.01 * scale)
        assert (np.abs(found - expected) < 0.01 * scale).mean() > 0.8
    assert session.hosted == ()


@pytest.mark.parametrize("backend", ("cpu", *BACKENDS))
@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.uint32, ml_dtypes.int4])
def test_casts_to_types_of_the_hosts_change_what_is_beyond_these(backend: str, dtype: Any) -> None:
    """Numbers of int32 that wrap around: no cast may be left out."""
    x = np.array([[-1, 70_000], [40_000, 5], [-40_000, -9]], np.int32)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    steps = [
        helper.make_node("Cast", ["x"], ["q"], to=kind),
        helper.make_node("Cast", ["q"], ["y"], to=FLOAT),
    ]
    proto = round_trip(steps, x, [])
    session = glnn.InferenceSession(proto.SerializeToString(), backend)
    (found,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(found, runtime(proto, {"x": x})[0])
