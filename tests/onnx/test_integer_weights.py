"""Models of int8: their weights are int8 on the device, and nothing is computed by the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import glnn
from tests import oracle

FLOAT, U8, I8 = np.float32, np.uint8, np.int8
MARGIN = 2048
"""Bytes beside the weights: scales, zero points, biases."""


@dataclass(frozen=True)
class Case:
    """A model of the input x, and how many numbers its weight has."""

    proto: onnx.ModelProto
    x: np.ndarray
    weights: int
    floats: bool = False
    """True where results are floats, not integers."""


def case(
    nodes: list[Any], x: np.ndarray, fixed: Mapping[str, np.ndarray], kind: int, weight: str = "w"
) -> Case:
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    made = [helper.make_tensor_value_info("y", kind, None)]
    arrays = [numpy_helper.from_array(array, name) for name, array in fixed.items()]
    graph = helper.make_graph(nodes, "integers", inputs, made, arrays)
    opsets = [helper.make_opsetid("", 21)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return Case(proto, x, fixed[weight].size, kind == TensorProto.FLOAT)


def by_scale(value: float) -> np.ndarray:
    return np.array(value, FLOAT)


def random_integers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Numbers as weights have them: few are large."""
    wide = np.rint(rng.standard_normal(shape) * 30) + (128 if dtype is U8 else 0)
    ends = np.iinfo(dtype)
    return np.clip(wide, ends.min, ends.max).astype(dtype)


def products(dtype: Any, *, by_column: bool, k: int = 300, n: int = 65) -> dict[str, Case]:
    """Products of a quantised model. k: 3000 is beyond what float32 sums up exactly."""
    rng, node = np.random.default_rng(k), helper.make_node
    shape = (n,) if by_column else ()
    fixed = {
        "w": random_integers(rng, dtype, k, n),
        "wz": rng.integers(120, 136, shape).astype(U8) if dtype is U8 else np.zeros(shape, I8),
        "ws": rng.uniform(0.01, 0.02, shape).astype(FLOAT),
        "xs": by_scale(0.02),
        "xz": np.array(131, U8),
        "ys": by_scale(0.3),
        "yz": np.array(120, U8),
    }
    bytes_in = rng.integers(0, 256, (5, k)).astype(U8)
    floats_in = rng.standard_normal((5, k)).astype(FLOAT)
    integer = node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])
    dynamic = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        node("Mul", ["s", "ws"], ["sc"]),
        node("Mul", ["c", "sc"], ["y"]),
    ]
    linear = node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])

    def some(names: str) -> dict[str, np.ndarray]:
        return {name: fixed[name] for name in names.split()}

    return {
        "MatMulInteger": case([integer], bytes_in, some("w xz wz"), TensorProto.INT32),
        "dynamic": case(dynamic, floats_in, some("w wz ws"), TensorProto.FLOAT),
        "QLinearMatMul": case([linear], bytes_in, fixed, TensorProto.UINT8),
    }


def convolutions(
    dtype: Any, *, pixels: int = 7, rank: int = 2, channels: int = 48
) -> dict[str, Case]:
    """Convolutions of a quantised model, 3 x 3."""
    rng, node = np.random.default_rng(rank), helper.make_node
    fixed = {
        "w": random_integers(rng, dtype, channels, channels, *(3,) * rank),
        "wz": np.full(channels, 128 if dtype is U8 else 0, dtype),
        "wz1": np.array(128 if dtype is U8 else 0, dtype),
        "ws": rng.uniform(0.01, 0.02, channels).astype(FLOAT),
        "xs": by_scale(0.02),
        "xz": np.array(128, U8),
        "ys": by_scale(0.3),
        "yz": np.array(120, U8),
        "b": rng.integers(-1000, 1000, channels).astype(np.int32),
        "bs": rng.uniform(0.001, 0.002, channels).astype(FLOAT),
    }
    shape = (1, channels, *(pixels,) * rank)
    bytes_in = rng.integers(0, 256, shape).astype(U8)
    floats_in = rng.standard_normal(shape).astype(FLOAT)
    pads = {"pads": [1] * (2 * rank)}
    integer = node("ConvInteger", ["x", "w", "xz", "wz1"], ["y"], **pads)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    pairs = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0),
        node("Conv", ["d", "wd", "bd"], ["c"], **pads),
        node("Relu", ["c"], ["y"]),
    ]
    linear = node("QLinearConv", names, ["y"], **pads)
    return {
        "ConvInteger": case([integer], bytes_in, fixed, TensorProto.INT32),
        "QLinearConv": case([linear], bytes_in, fixed, TensorProto.UINT8),
        "pairs": case(pairs, floats_in, fixed, TensorProto.FLOAT),
    }


def expected(one: Case) -> np.ndarray:
    """ONNX Runtime's result, node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # What processors without VNNI saturate at 16 bits it computes in 7 bits and 8 then.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(one.proto.SerializeToString(), options)
    found: np.ndarray = session.run(None, {"x": one.x})[0]
    return found


def check(one: Case, backend: str, *, kept: bool) -> None:
    """Hold results against ONNX Runtime, and the bytes of a GPU's weights against `kept`."""
    session = glnn.InferenceSession(one.proto.SerializeToString(), backend)
    (found,) = session.run(None, {"x": one.x})
    wanted = expected(one)
    if one.floats:
        assert oracle.error(found, wanted) <= 1e-5
    else:
        np.testing.assert_array_equal(found, wanted)
    assert not session.hosted
    if backend != "cpu":
        taken = sum(s.nbytes[1] + s.fixed_copies for s in session.plan({"x": one.x.shape}).steps)
        if kept:
            assert one.weights <= taken <= 1.15 * one.weights + MARGIN
        else:
            assert taken >= 4 * one.weights


EVERYWHERE = ("cpu", "compute", "feedback")


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("name", ["MatMulInteger", "dynamic", "QLinearMatMul"])
def test_products_read_int8(backend: str, name: str, dtype: Any, by_column: bool) -> None:
    check(products(dtype, by_column=by_column)[name], backend, kept=True)


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize("name", ["MatMulInteger", "dynamic", "QLinearMatMul"])
def test_products_beyond_what_float32_sums_up(backend: str, name: str) -> None:
    """Parts of the weight are packed by themselves, and int32 adds up their products."""
    check(products(I8, by_column=False, k=6000, n=33)[name], backend, kept=True)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("name", ["ConvInteger", "QLinearConv", "pairs"])
def test_convolutions_read_int8(backend: str, name: str, dtype: Any) -> None:
    """Kernels of transform feedback have floats."""
    check(convolutions(dtype)[name], backend, kept=backend == "compute")


@pytest.mark.parametrize("name", ["ConvInteger", "QLinearConv", "pairs"])
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(name: str, rank: int) -> None:
    """Of more dimensions than two they are sums of products, of floats."""
    one = convolutions(I8, rank=rank, pixels=40 if rank == 1 else 4, channels=64)[name]
    check(one, "compute", kept=rank == 1)


@pytest.mark.parametrize("zero", [0, 60, 255])
@pytest.mark.parametrize("name", ["MatMulInteger", "QLinearConv"])
def test_numbers_beyond_int8(name: str, zero: int) -> None:
    """As those of uint8 whose zero point is not in the middle: convolutions have them as floats,
    products unpack integers with zero points.
    """
    product = name == "MatMulInteger"
    one = (products(U8, by_column=True) if product else convolutions(U8))[name]
    rng = np.random.default_rng(zero)
    for tensor in one.proto.graph.initializer:
        if tensor.name in ("w", "wz"):
            array = numpy_helper.to_array(tensor)
            some = rng.integers(0, 256, array.shape).astype(U8)
            some = some if tensor.name == "w" else np.full_like(array, zero)
            tensor.CopyFrom(numpy_helper.from_array(some, tensor.name))
    check(one, "compute", kept=product)


def test_large_images_keep_winograd() -> None:
    """Its transforms are of floats, and save more than the bytes of few weights cost."""
    check(convolutions(I8, pixels=24)["pairs"], "compute", kept=False)


@pytest.mark.parametrize("name", ["MatMulInteger", "ConvInteger"])
def test_plans_share_a_weight(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is uploaded once, though each range of sizes has a plan."""
    one = (products(U8, by_column=True) | convolutions(I8))[name]
    one.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    session = glnn.InferenceSession(one.proto.SerializeToString(), "compute")
    with caplog.at_level("DEBUG", "glnn.compiler.weights"):
        for n in (1, 2, 9, 40):
            x = np.resize(one.x, (n, *one.x.shape[1:]))
            (found,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(found[:1], expected(one)[:1])
    sizes = [int(text.split()[-2]) for text in caplog.messages if text.startswith("uploaded")]
    assert len([size for size in sizes if size >= one.weights]) == 1


def test_a_pass_may_be_left_out() -> None:
    """Weights are floats then."""
    one = convolutions(I8)["QLinearConv"]
    session = glnn.InferenceSession(one.proto.SerializeToString(), "compute", without=["packed"])
    np.testing.assert_array_equal(session.run(None, {"x": one.x})[0], expected(one))
    steps = session.plan({"x": one.x.shape}).steps
    assert sum(s.nbytes[1] + s.fixed_copies for s in steps) >= 4 * one.weights


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_numbers_quantised_in_a_run_stay_on_the_gpu(backend: str) -> None:
    """Two layers of a dynamically quantised net: what is between them has a range of its own."""
    rng, node = np.random.default_rng(5), helper.make_node
    nodes, fixed, name = [], {}, "x"
    for i, (k, n) in enumerate(((96, 120), (120, 90))):
        fixed |= {f"w{i}": random_integers(rng, I8, k, n), f"s{i}": by_scale(0.01)}
        nodes += [
            node("DynamicQuantizeLinear", [name], [f"q{i}", f"qs{i}", f"qz{i}"]),
            node("MatMulInteger", [f"q{i}", f"w{i}", f"qz{i}"], [f"i{i}"]),
            node("Cast", [f"i{i}"], [f"c{i}"], to=TensorProto.FLOAT),
            node("Mul", [f"qs{i}", f"s{i}"], [f"f{i}"]),
            node("Mul", [f"c{i}", f"f{i}"], [f"y{i}"]),
            node("Relu", [f"y{i}"], [name := f"t{i}" if i == 0 else "y"]),
        ]
    x = rng.standard_normal((7, 96)).astype(FLOAT)
    one = case(nodes, x, fixed, TensorProto.FLOAT, "w0")
    session = glnn.InferenceSession(one.proto.SerializeToString(), backend)
    (found,) = session.run(None, {"x": x})
    assert not session.hosted
    assert not any(step.host for step in session.plan({"x": x.shape}).steps)
    assert oracle.error(found, expected(one)) <= 1e-5


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("name", ["MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"])
def test_integers_are_exact_whatever_the_precision_of_floats(precision: str, name: str) -> None:
    """Sums of products are no halves, which end at 65504."""
    one = (products(I8, by_column=False) | convolutions(I8))[name]
    session = glnn.InferenceSession(one.proto.SerializeToString(), "compute", precision=precision)
    np.testing.assert_array_equal(session.run(None, {"x": one.x})[0], expected(one))
