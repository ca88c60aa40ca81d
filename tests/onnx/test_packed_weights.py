"""Weights that are quantised by blocks: they stay packed on the device, and results are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import glnn
from glnn.backends import open_backend
from glnn.errors import DeviceError, GlnnError
from glnn.graph.operators import Matmul, QuantizedMatmul, QuantizedRows
from tests import oracle
from tests.onnx.single import BACKENDS

EVERYWHERE = ("cpu", *BACKENDS)
DTYPES = {
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
}
OPSETS = range(21, onnx.defs.onnx_opset_version() + 1)
Feeds = Mapping[str, np.ndarray]
ROWS = 32 << 10
"""Bytes by which a texture may be larger than what is in it."""


@dataclass(frozen=True)
class Quantized:
    """A tensor of integers with scales, and its numbers in float64."""

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    attributes: Mapping[str, int]
    numbers: np.ndarray

    def nodes(self, name: str, **more: int) -> tuple[list[Any], list[Any]]:
        """The node that makes `name`, and its initialisers."""
        arrays = {f"{name}.values": self.values, f"{name}.scale": self.scale}
        if self.zero is not None:
            arrays[f"{name}.zero"] = self.zero
        attributes = {**self.attributes, **more}
        node = helper.make_node("DequantizeLinear", list(arrays), [name], **attributes)
        return [node], [numpy_helper.from_array(a, n) for n, a in arrays.items()]


def quantized(
    shape: tuple[int, ...],
    axis: int,
    block: int,
    dtype: str = "int4",
    zeros: bool = False,
    scale: Any = np.float32,
    seed: int = 0,
) -> Quantized:
    """A random one. block: 0 for a scale at each place of `axis`, -1 for one in all."""
    rng, bits = np.random.default_rng(seed), int(dtype.removeprefix("u").removeprefix("int"))
    low = 0 if dtype[0] == "u" else -(1 << bits - 1)
    values = rng.integers(low, low + (1 << bits), shape)
    if block < 0:
        of_scale: tuple[int, ...] = ()
    elif block == 0:
        of_scale = shape[axis : axis + 1]
    else:
        of_scale = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
    scales = rng.uniform(0.01, 0.02, of_scale).astype(scale)
    points = rng.integers(low, low + (1 << bits), of_scale)
    numbers = np.zeros(shape)
    for place in np.ndindex(shape):
        at: tuple[int, ...] = () if block < 0 else place[axis : axis + 1]
        if block > 0:
            at = (*place[:axis], place[axis] // block, *place[axis + 1 :])
        numbers[place] = float(scales[at]) * (int(values[place]) - int(points[at]) * zeros)
    attributes = {"axis": axis} if block >= 0 else {}
    attributes |= {"block_size": block} if block > 0 else {}
    kind = DTYPES[dtype]
    zero = points.astype(kind) if zeros else None
    return Quantized(values.astype(kind), scales, zero, attributes, numbers)


def model(
    nodes: list[Any],
    fixed: list[Any],
    given: Feeds,
    opset: int = 21,
    kind: int = onnx.TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model of inputs as `given` and the output y."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    made = [helper.make_tensor_value_info("y", kind, None)]
    graph = helper.make_graph(nodes, "packed", inputs, made, fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def session_of(proto: onnx.ModelProto, backend: str, **options: Any) -> glnn.InferenceSession:
    """A session; skips a backend that does not open."""
    try:
        return glnn.InferenceSession(proto.SerializeToString(), backend, **options)
    except DeviceError as error:
        pytest.skip(str(error))


def check(
    proto: onnx.ModelProto,
    given: Feeds,
    expected: np.ndarray,
    backend: str,
    packed: type | None = QuantizedMatmul,
    tolerance: float = 1e-5,
) -> glnn.InferenceSession:
    """Hold the result against `expected`; `packed`, or nothing, reads packed weights on a GPU."""
    session = session_of(proto, backend)
    (found,) = session.run(None, dict(given))
    assert found.shape == expected.shape
    assert oracle.error(found, expected) <= tolerance
    assert not session.hosted
    steps = session.plan({name: array.shape for name, array in given.items()}).steps
    read = {type(one.op) for one in steps} & {QuantizedMatmul, QuantizedRows}
    assert read == ({packed} if packed and backend != "cpu" else set())
    return session


def peer(proto: onnx.ModelProto, given: Feeds) -> np.ndarray:
    """ONNX Runtime's result, node by node: what it fuses rounds x to int8."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    found: np.ndarray = session.run(None, dict(given))[0]
    return found


def product(
    weight: Quantized, way: str, x: np.ndarray, seed: int = 1
) -> tuple[list[Any], list[Any], np.ndarray]:
    """Nodes and initialisers of x times `weight` in one of WAYS, and the result in float64."""
    nodes, fixed = weight.nodes("w")
    wide = weight.numbers if way in ("matmul", "gemm") else weight.numbers.T
    expected = x.astype(np.float64) @ wide
    if way.startswith("gemm"):
        bias = np.random.default_rng(seed).standard_normal(wide.shape[1]).astype(x.dtype)
        fixed.append(numpy_helper.from_array(bias, "bias"))
        turned = {"transB": 1} if way == "gemm transposed" else {}
        nodes.append(helper.make_node("Gemm", ["x", "w", "bias"], ["y"], alpha=2.0, **turned))
        return nodes, fixed, 2 * expected + bias
    if way == "transposed":
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "t" if way == "transposed" else "w"], ["y"]))
    return nodes, fixed, expected


WAYS = ("matmul", "transposed", "gemm", "gemm transposed")
SIZES = [
    # k, n, block; no more than 4,096 numbers are constants of the graph
    *((1, 4099, 16), (7, 601, 32), (127, 37, 16), (129, 70, 64), (131, 65, 256), (192, 33, 96)),
    *((288, 37, 32), (520, 33, 128), (1367, 3, 512), (4099, 1, 256)),
]


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_products(backend: str, dtype: str, zeros: bool, way: str) -> None:
    for k, n, block in SIZES:
        rng = np.random.default_rng(k)
        turned = "transposed" in way
        weight = quantized((n, k) if turned else (k, n), int(turned), block, dtype, zeros)
        x = rng.standard_normal((1 + k % 5, k)).astype(np.float32)
        nodes, fixed, expected = product(weight, way, x)
        proto = model(nodes, fixed, {"x": x})
        check(proto, {"x": x}, expected, backend)
        assert oracle.error(peer(proto, {"x": x}), expected) <= 1e-5


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_scales_of_rows_and_of_all(backend: str, dtype: str, zeros: bool, way: str) -> None:
    turned = "transposed" in way
    for k, n, block in ((131, 37, 0), (64, 67, 0), (300, 33, -1)):
        shape = (n, k) if turned else (k, n)
        weight = quantized(shape, int(not turned), block, dtype, zeros)
        x = np.random.default_rng(k).standard_normal((3, k)).astype(np.float32)
        nodes, fixed, expected = product(weight, way, x)
        check(model(nodes, fixed, {"x": x}), {"x": x}, expected, backend)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize(
    "shape", [(2, 3, 165), (0, 3, 165), (2, 1, 4, 165), (165,), (0, 165), (1, 165)]
)
def test_shapes_of_the_other_factor(backend: str, shape: tuple[int, ...]) -> None:
    weight = quantized((165, 34), 0, 32, "uint4", zeros=True)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    nodes, fixed, expected = product(weight, "matmul", x)
    check(
        model(nodes, fixed, {"x": x}),
        {"x": x},
        expected,
        backend,
        None if 0 in shape else QuantizedMatmul,
    )


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_set(backend: str, opset: int) -> None:
    """From 23 on the result may be said to be float32 where scales are float16."""
    half = opset >= 23
    weight = quantized((160, 33), 0, 32, "uint4", True, np.float16 if half else np.float32)
    x = np.random.default_rng(0).standard_normal((2, 160)).astype(np.float32)
    said = {"output_dtype": onnx.TensorProto.FLOAT} if half else {}
    nodes, fixed = weight.nodes("w", **said)
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    proto = model(nodes, fixed, {"x": x}, opset)
    check(proto, {"x": x}, x.astype(np.float64) @ weight.numbers, backend)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", ["int4", "uint8"])
def test_half_models(backend: str, dtype: str) -> None:
    """Weights are not rounded to float16, as ONNX Runtime's are; x and the result are."""
    weight = quantized((300, 33), 0, 64, dtype, True, np.float16)
    x = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float16)
    nodes, fixed, expected = product(weight, "gemm", x)
    proto = model(nodes, fixed, {"x": x}, kind=onnx.TensorProto.FLOAT16)
    check(proto, {"x": x}, expected, backend, tolerance=1e-3)
    assert oracle.error(peer(proto, {"x": x}), expected) <= 2e-3


def embedding(
    index: np.ndarray, dtype: str, opset: int = 21, *, turned: bool = False
) -> tuple[onnx.ModelProto, np.ndarray]:
    """Rows of a table, their function, and their products with all rows of the table."""
    weight = quantized((132, 72), 1, 32, dtype, True)
    nodes, fixed = weight.nodes("w")
    nodes += [
        helper.make_node("Gather", ["w", "i"], ["rows"], axis=0),
        helper.make_node("Tanh", ["rows"], ["h"]),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "t"], ["y"]),
    ]
    rows = np.tanh(weight.numbers[index])
    return model(nodes, fixed, {"i": index}, opset), rows @ weight.numbers.T


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_an_embedding_that_is_the_last_product_too(backend: str, dtype: str, kind: Any) -> None:
    """Both read the same packed weight."""
    index = np.array([[0, 131, 5], [-1, -132, 77]], kind)
    proto, expected = embedding(index, dtype)
    session = session_of(proto, backend)
    (found,) = session.run(None, {"i": index})
    assert found.shape == (2, 3, 132)
    assert oracle.error(found, expected) <= 1e-5
    if backend == "cpu":
        return
    plan = session.plan({"i": index.shape})
    assert [type(one.op) for one in plan.steps] == [QuantizedRows, QuantizedMatmul]
    quants = 132 * (96 if dtype.endswith("4") else 192) // 2
    scales, zeros = 132 * 3 * 4, 132 * 3
    packed = sum(-(-part // 16) * 16 for part in (quants, scales, zeros))
    assert packed <= weight_bytes(session, index) < packed + ROWS
    with pytest.raises(GlnnError, match="132"):
        session.run(None, {"i": index + 133})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_embedding_larger_than_an_operand(backend: str, dtype: str, monkeypatch: Any) -> None:
    """What is packed is read in parts, not as floats."""
    try:
        opened = open_backend(backend)
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(type(opened), "operand_bytes", property(lambda _: 5000))
    index = np.array([[0, 131, 5], [-1, -132, 77]], np.int64)
    proto, expected = embedding(index, dtype)
    session = session_of(proto, backend)
    (found,) = session.run(None, {"i": index})
    assert oracle.error(found, expected) <= 1e-5
    operators = [type(one.op) for one in session.plan({"i": index.shape}).steps]
    parts = operators.count(QuantizedRows)
    assert parts > 1 and operators.count(QuantizedMatmul) == parts
    with pytest.raises(GlnnError, match="132"):
        session.run(None, {"i": index + 133})


def weight_bytes(session: glnn.InferenceSession, x: np.ndarray) -> int:
    """The bytes of the parameters of the plan for an input like x, in buffers and textures."""
    (name,) = (one.name for one in session.get_inputs())
    steps = session.plan({name: x.shape}).steps
    return sum(one.nbytes[1] + one.fixed_copies for one in steps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "scale", "zeros", "expected"),
    [
        ("uint4", np.float32, True, 512 + 128 + 32),
        ("uint4", np.float16, True, 512 + 64 + 32),
        ("int4", np.float32, False, 512 + 128),
        ("int8", np.float32, False, 1024 + 128),
    ],
)
def test_weights_take_their_packed_bytes(
    backend: str, dtype: str, scale: Any, zeros: bool, expected: int
) -> None:
    """1024 x 1024 of them, in blocks of 32; 4 MiB as floats."""
    rng, count = np.random.default_rng(0), (32, 1024)
    values = rng.integers(0, 8, (1024, 1024)).astype(DTYPES[dtype])
    scales = rng.uniform(0.01, 0.02, count).astype(scale)
    points = rng.integers(0, 8, count).astype(DTYPES[dtype])
    weight = Quantized(
        values, scales, points if zeros else None, {"axis": 0, "block_size": 32}, values
    )
    x = rng.standard_normal((1, 1024)).astype(scale)
    nodes, fixed = weight.nodes("w")
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(scale))
    proto = model(nodes, fixed, {"x": x}, kind=kind)
    session = session_of(proto, backend)
    (found,) = session.run(None, {"x": x})
    wide = values.astype(np.float64) - (points.astype(np.float64).repeat(32, 0) if zeros else 0)
    wide *= scales.astype(np.float64).repeat(32, 0)
    assert oracle.error(found, x.astype(np.float64) @ wide) <= (
        1e-5 if scale is np.float32 else 1e-3
    )
    assert weight_bytes(session, x) == expected << 10
    plain = session_of(proto, backend, without=["packed"])
    plain.run(None, {"x": x})
    assert weight_bytes(plain, x) == 4 << 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_else_reads_a_weight_has_floats(backend: str) -> None:
    weight = quantized((96, 96), 0, 32)
    x = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
    nodes, fixed = weight.nodes("w")
    nodes += [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    expected = (x.astype(np.float64) @ weight.numbers * weight.numbers) @ weight.numbers
    session = check(model(nodes, fixed, {"x": x}), {"x": x}, expected, backend)
    expected_bytes = 96 * 48 + 96 * 3 * 4 + 4 * 96 * 96
    assert expected_bytes <= weight_bytes(session, x) < expected_bytes + 2 * ROWS


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize(
    ("shape", "axis", "block", "turned"),
    [
        ((96, 67), 1, 16, False),  # blocks along what is not summed up
        ((96, 67), 0, 8, False),  # too small
        ((96, 67), 0, 24, False),
        ((96, 67), 0, 0, False),  # a scale for each number of the sum
        ((3, 96, 67), 1, 32, False),  # a stack
        ((67, 96), 0, 32, True),
    ],
)
def test_what_cannot_be_packed_is_as_it_was(
    backend: str, shape: tuple[int, ...], axis: int, block: int, turned: bool
) -> None:
    weight = quantized(shape, axis, block, "uint4", True)
    stack = shape[:-2] if len(shape) > 2 else ()
    x = np.random.default_rng(0).standard_normal((*stack, 2, 96)).astype(np.float32)
    nodes, fixed, expected = product(weight, "transposed" if turned else "matmul", x)
    check(model(nodes, fixed, {"x": x}), {"x": x}, expected, backend, packed=None)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_weight_that_is_the_first_factor(backend: str) -> None:
    weight = quantized((67, 96), 1, 32)
    x = np.random.default_rng(0).standard_normal((96, 5)).astype(np.float32)
    nodes, fixed = weight.nodes("w")
    nodes.append(helper.make_node("MatMul", ["w", "x"], ["y"]))
    check(model(nodes, fixed, {"x": x}), {"x": x}, weight.numbers @ x, backend, packed=None)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_that_are_inputs(backend: str, dtype: str) -> None:
    weight = quantized((96, 67), 0, 32, dtype, True)
    x = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)
    nodes, fixed, expected = product(weight, "matmul", x)
    values = [one for one in fixed if one.name == "w.values"]
    given = {"x": x, "w.values": weight.values}
    proto = model(nodes, [one for one in fixed if one not in values], given)
    check(proto, given, expected, backend, packed=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_of_branches(backend: str) -> None:
    """Each has a product with the same weight, which the graph around them has."""
    weight = quantized((160, 33), 0, 32)
    nodes, fixed = weight.nodes("w")
    x = np.random.default_rng(0).standard_normal((2, 160)).astype(np.float32)
    bodies = {}
    for name, function in (("then_branch", "Relu"), ("else_branch", "Neg")):
        inner = [
            helper.make_node("MatMul", ["x", "w"], [f"{name} a"]),
            helper.make_node(function, [f"{name} a"], [f"{name} y"]),
        ]
        made = [helper.make_tensor_value_info(f"{name} y", onnx.TensorProto.FLOAT, None)]
        bodies[name] = helper.make_graph(inner, name, [], made)
    nodes.append(helper.make_node("If", ["c"], ["y"], **bodies))
    wide = x.astype(np.float64) @ weight.numbers
    for taken, expected in ((True, np.maximum(wide, 0)), (False, -wide)):
        given = {"x": x, "c": np.array(taken)}
        session = session_of(model(nodes, fixed, given), backend)
        (found,) = session.run(None, given)
        assert oracle.error(found, expected) <= 1e-5
        steps = session.plan({"x": x.shape, "c": ()}).steps
        assert not any(isinstance(one.op, Matmul) for one in steps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_open_sizes_share_the_packed_weight(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    weight = quantized((160, 33), 0, 32)
    nodes, fixed, _ = product(weight, "matmul", np.zeros((1, 160), np.float32))
    proto = model(nodes, fixed, {"x": np.zeros((1, 160), np.float32)})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    session = session_of(proto, backend)
    with caplog.at_level("DEBUG", "glnn.compiler.weights"):
        for m in (1, 2, 7, 33, 129, 3):
            x = np.random.default_rng(m).standard_normal((m, 160)).astype(np.float32)
            (found,) = session.run(None, {"x": x})
            assert oracle.error(found, x.astype(np.float64) @ weight.numbers) <= 1e-5
    assert len([one for one in caplog.messages if "w.values" in one]) == 1
