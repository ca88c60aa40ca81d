"""Steps of decoders for few tokens that become one, against ONNX Runtime and float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.exported_decoder import FloatWeights, write_decoder
from glnn import DeviceArray, InferenceSession
from glnn.backends import programs
from glnn.errors import DeviceError
from glnn.generation.architectures import Config, Rope
from glnn.gl import Device
from glnn.kernels.architecture import architecture
from tests import oracle

F = TensorProto.FLOAT
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    """A device; a software renderer takes kernels as a board does, as products alone are faster by
    textures there.
    """
    try:
        device = Device()
    except DeviceError as error:
        pytest.skip(str(error))
    with device:
        if device.capabilities.software:
            board = {"vendor": "Mesa", "renderer": "Mali-G610"}
            device.capabilities = replace(device.capabilities, **board)
        yield device


def opened(device: Device, model: Any, **options: Any) -> InferenceSession:
    """A session of a ModelProto or a file on `device`."""
    source = model if isinstance(model, str) else model.SerializeToString()
    return InferenceSession(source, "compute", device=device, **options)


def operators(session: InferenceSession, feeds: dict[str, Any]) -> Counter[str]:
    """How many steps of each operator the plan for these inputs has."""
    plan = session.plan({name: array.shape for name, array in feeds.items()}, feeds=feeds)
    return Counter(step.op.name for step in plan.steps)


class Block:
    """Rows normalised, and what reads them."""

    def __init__(self, rng: Any, rows: Any, width: int = 36) -> None:
        self.rng, self.width = rng, width
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []
        self.x = helper.make_tensor_value_info("x", F, [*rows, width])
        square = self.node("Mul", "x", "x")
        mean = self.node("ReduceMean", square, self.array(np.array([-1])), keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.array(np.float32(1e-5))))
        normed = self.node("Div", "x", root)
        self.normed = self.node("Mul", normed, self.array(1 + rng((width,)) / 2))

    def node(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    def array(self, array: Any) -> str:
        name = f"array_{len(self.initialisers)}"
        self.initialisers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def product(self, count: int, x: str = "", depth: int = 0, out: str = "") -> str:
        weight = self.array(self.rng((depth or self.width, count)))
        return self.node("MatMul", x or self.normed, weight, out=out)

    def model(self, *outputs: str) -> Any:
        infos = [helper.make_tensor_value_info(name, F, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "block", [self.x], infos, self.initialisers)
        opset = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def check(device: Device, model: Any, feeds: dict[str, Any]) -> Counter[str]:
    """Hold a session's outputs against ONNX Runtime's; return the operators of its plan."""
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = opened(device, model)
    for got, one in zip(session.run(None, feeds), expected, strict=True):
        assert oracle.error(got, one.astype(np.float64)) <= TOLERANCE
    return operators(session, feeds)


@pytest.mark.parametrize("rows", [(1, 1), (3, 1), (1, 4), (2,)])
def test_products_normalise_for_themselves(device, rng, rows) -> None:
    block = Block(rng, rows)
    bias = block.array(rng((40,)))
    block.node("Add", block.product(40), bias, out="y")
    block.product(8, out="z")
    found = check(device, block.model("y", "z"), {"x": rng((*rows, 36))})
    assert found == {"normed_matmul": 2}


@pytest.fixture(scope="module")
def nvidia() -> Iterator[Device]:
    """A device that is taken for one of NVIDIA's, whose kernels normalise by layers as well."""
    try:
        device = Device()
    except DeviceError as error:
        pytest.skip(str(error))
    with device:
        named = {"vendor": "NVIDIA Corporation", "renderer": "NVIDIA", "multiprocessors": 100}
        device.capabilities = replace(device.capabilities, **named)
        yield device


class LayerBlock(Block):
    """Rows normalised as layers have it, with a weight and perhaps a bias."""

    def __init__(self, rng: Any, rows: Any, width: int = 36, *, biased: bool = True) -> None:
        super().__init__(rng, rows, width)
        self.nodes.clear()
        operands = [self.array(1 + rng((width,)) / 2)]
        operands += [self.array(rng((width,)))] if biased else []
        self.normed = self.node("LayerNormalization", "x", *operands, axis=-1)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [(1, 67), (3, 5), (130,)])
def test_products_normalise_by_layers(nvidia, rng, rows, biased) -> None:
    """The bias of the norm goes into that of the product, or becomes it."""
    block = LayerBlock(rng, rows, biased=biased)
    bias = block.array(rng((40,)))
    block.node("Relu", block.node("Add", block.product(40), bias), out="y")
    block.product(8, out="z")
    twice = block.array(rng((24,)))
    added = block.node("Add", block.product(24), twice)
    block.node("Mul", added, twice, out="w")
    x = rng((*rows, 36)) + 3
    assert check(nvidia, block.model("y", "z", "w"), {"x": x}) == {"normed_matmul": 3}


@pytest.mark.parametrize("rows", [(1, 1), (4,), (2, 1)])
def test_few_rows_by_layers(device, rng, rows) -> None:
    """By any kernel for few rows, not NVIDIA's alone."""
    block = LayerBlock(rng, rows)
    block.node("Add", block.product(40), block.array(rng((40,))), out="y")
    block.product(8, out="z")
    x = 1e3 + rng((*rows, 36))
    assert check(device, block.model("y", "z"), {"x": x}) == {"normed_matmul": 2}


def test_rows_that_others_read_are_normalised_before(nvidia, rng) -> None:
    block = LayerBlock(rng, (1, 67))
    block.node("Add", block.product(36), block.normed, out="y")
    found = check(nvidia, block.model("y"), {"x": rng((1, 67, 36))})
    assert found == {"normalize": 1, "matmul": 1}


def test_many_rows_are_normalised_once(nvidia, rng) -> None:
    """Each workgroup along the columns would normalise them anew."""
    block = LayerBlock(rng, (6000,), 512)
    block.product(1040, out="y")
    session = opened(nvidia, block.model("y"))
    found = operators(session, {"x": rng((6000, 512))})
    assert found == {"normalize": 1, "matmul": 1}


def test_a_norm_of_each_head_stays_before_a_product_of_all(device, rng) -> None:
    """The product's rows are heads side by side, each of which is normalised by itself."""
    block = Block(rng, (1, 1, 4), 16)
    heads = block.node("Reshape", block.normed, block.array(np.array([1, 1, 64])))
    block.product(48, heads, 64, out="y")
    found = check(device, block.model("y"), {"x": rng((1, 1, 4, 16))})
    assert found["normed_matmul"] == 0 and found["matmul"] == 1


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("first", ["gate", "up"])
def test_both_products_of_a_gate_are_one(device, rng, gate, first) -> None:
    block = Block(rng, (1, 1))
    up = block.product(44) if first == "up" else ""
    a = block.product(44)
    if gate == "silu":
        opened_gate = block.node("Mul", a, block.node("Sigmoid", a))
    else:
        block.nodes.append(helper.make_node("Gelu", [a], ["gelu"], approximate="tanh"))
        opened_gate = "gelu"
    both = opened_gate, up or block.product(44)
    made = block.node("Mul", *(both if first == "gate" else both[::-1]))
    block.product(36, made, 44, out="y")
    model = block.model("y")
    if gate == "gelu":
        model.opset_import[0].version = 20
    assert check(device, model, {"x": rng((1, 1, 36))}) == {"normed_matmul": 1, "matmul": 1}


def test_what_others_read_is_normalised_once(device, rng) -> None:
    """Rows that are an output, or read by anything but a product, and too many rows."""
    feeds = {"x": rng((1, 1, 36))}
    block = Block(rng, (1, 1))
    block.product(40, out="y")
    found = check(device, block.model("y", block.normed), feeds)
    assert found["normed_matmul"] == 0
    block = Block(rng, (1, 1))
    block.product(40, out="y")
    block.node("Tanh", block.normed, out="z")
    assert check(device, block.model("y", "z"), feeds)["normed_matmul"] == 0
    block = Block(rng, (1, 37))
    block.product(40, out="y")
    assert check(device, block.model("y"), {"x": rng((1, 37, 36))})["normed_matmul"] == 0
    block = Block(rng, (1, 1))  # a gate whose other factor is read by others, too
    a, b = block.product(40), block.product(40)
    block.node("Mul", block.node("Mul", a, block.node("Sigmoid", a)), b, out="y")
    block.node("Tanh", b, out="z")
    assert check(device, block.model("y", "z"), feeds)["normed_matmul"] == 2


def test_weights_of_halves_stay_halves(device, rng) -> None:
    block = Block(rng, (1, 1))
    a, b = block.product(40), block.product(40)
    block.node("Mul", block.node("Mul", a, block.node("Sigmoid", a)), b, out="y")
    model, feeds = block.model("y"), {"x": rng((1, 1, 36))}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    session = opened(device, model, precision="float16")
    assert oracle.error(session.run(None, feeds)[0], expected.astype(np.float64)) <= 2e-3
    (step,) = session.plan({"x": (1, 1, 36)}).steps
    assert set(step.fp16) >= {"weight", "up"}


@pytest.mark.parametrize(("batch", "prompt", "apart"), [(1, 7, True), (3, 1, False), (2, 2, True)])
def test_a_decoder_with_growing_caches(
    device, tmp_path: Path, monkeypatch, batch, prompt, apart
) -> None:
    """Ten steps as ONNX Runtime has them, by beams that change places, and the launches of a
    layer.

    apart: whether sizes that two products have programs for are no reason to write uniforms.
    """
    architectures = (architecture(device.capabilities),) if apart else ()
    monkeypatch.setattr(programs, "FIXED_UNIFORMS", architectures)
    config = Config("llama", 2, 48, 6, 2, 16, 96, 512, 1e-5, Rope(10000.0))
    path = tmp_path / "model.onnx"
    write_decoder(path, config, FloatWeights(config, 80))
    onnx.checker.check_model(str(path))
    reference = onnxruntime.InferenceSession(str(path))
    session = opened(device, str(path))
    names = [f"{i}.{part}" for i in range(2) for part in ("key", "value")]
    caches = {name: np.zeros((batch, 2, 0, 16), np.float32) for name in names}
    mine: dict[str, Any] = dict(caches)
    tokens, length = np.arange(batch * prompt).reshape(batch, prompt) * 7 % 96, 0
    for step in range(10):
        length += tokens.shape[1]
        places = np.arange(length - tokens.shape[1], length)
        feeds = {
            "input_ids": tokens,
            "attention_mask": np.ones((batch, length), np.int64),
            "position_ids": places + 3 * np.arange(batch)[:, None],
        }
        past = {f"past_key_values.{name}": array for name, array in caches.items()}
        expected, *others = reference.run(None, {**feeds, **past})
        past = {f"past_key_values.{name}": array for name, array in mine.items()}
        run = session.run if step % 3 else lambda *given: session.run_async(*given).result(60)
        got, *ours = run(None, {**feeds, **past})
        for one, other in zip((got, *ours), (expected, *others), strict=True):
            assert oracle.error(one, other.astype(np.float64)) <= 2e-5
        beams = np.arange(batch)[::-1] if step % 2 else np.zeros(batch, int) + step % batch
        caches = {name: one[beams] for name, one in zip(names, others, strict=True)}
        mine = {name: one[beams] for name, one in zip(names, ours, strict=True)}
        tokens = expected[beams, -1:].argmax(-1) + np.arange(batch)[:, None]
    found = Counter(step.op.name for step in session._executor._latest.plan.steps)
    assert found["cache_append"] == 4
    assert found["normed_matmul"] == 2 * 2 + 1
    assert found["normalize"] == 0
    assert found["rotary"] == 2
    commands = session._executor._latest.plan.executable.commands.commands
    assert any(name == "uniform" for name, *_ in commands) is not apart


class Caches:
    """Two caches that rows of x are multiplied for, and what else reads what is around them."""

    WIDTH, HEADS = 16, 2

    def __init__(self, rng: Any, *others: Any, dtype: Any = np.float32) -> None:
        """others: nodes whose results are outputs, besides present0 and present1."""
        self.rng, self.dtype, size = rng, dtype, self.HEADS * self.WIDTH
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        info = helper.make_tensor_value_info
        inputs, nodes = [info("x", kind, ["rows", 1, 16])], []
        self.weights: list[Any] = []
        initialisers = [numpy_helper.from_array(np.array([0, -1, self.HEADS, self.WIDTH]), "shape")]
        for i in range(2):
            self.weights.append(np.asarray(8 * rng((16, size)), dtype))
            initialisers.append(numpy_helper.from_array(self.weights[i], f"w{i}"))
            inputs.append(info(f"past{i}", kind, ["rows", self.HEADS, f"p{i}", self.WIDTH]))
            nodes += [
                helper.make_node("MatMul", ["x", f"w{i}"], [f"k{i}"]),
                helper.make_node("Reshape", [f"k{i}", "shape"], [f"r{i}"]),
                helper.make_node("Transpose", [f"r{i}"], [f"t{i}"], perm=[0, 2, 1, 3]),
                helper.make_node("Concat", [f"past{i}", f"t{i}"], [f"present{i}"], axis=2),
            ]
        names = ["present0", "present1", *(one.output[0] for one in others)]
        outputs = [info(name, kind, None) for name in names]
        graph = helper.make_graph([*nodes, *others], "caches", inputs, outputs, initialisers)
        opset = [helper.make_opsetid("", 18)]
        self.model = helper.make_model(graph, opset_imports=opset, ir_version=8)

    def feeds(self, rows: int, *tokens: int) -> dict[str, Any]:
        """Inputs of so many rows; tokens: in each cache."""
        shapes = {"x": (rows, 1, 16)}
        shapes |= {f"past{i}": (rows, self.HEADS, n, self.WIDTH) for i, n in enumerate(tokens)}
        return {name: np.asarray(8 * self.rng(one), self.dtype) for name, one in shapes.items()}


@pytest.mark.parametrize(("rows", "tokens"), [(1, (5, 5)), (3, (1, 200)), (2, (9, 4))])
def test_caches_of_other_lengths_and_rows(device, rng, rows, tokens) -> None:
    caches = Caches(rng)
    found = check(device, caches.model, caches.feeds(rows, *tokens))
    assert found == {"matmul": 1, "cache_append": 2}


@pytest.mark.parametrize(
    ("node", "fused"),
    [
        (("Tanh", "present0"), 2),
        (("Tanh", "past0"), 2),
        (("Identity", "past0"), 2),
        (("Tanh", "t0"), 0),
        (("Identity", "k0"), 0),
        (("Concat", "present0", "t0"), 0),
        (("Concat", "past0", "t0"), 1),
        (("Concat", "t0", "past0"), 0),
    ],
)
def test_what_is_around_a_cache_may_be_read_by_others(device, rng, node, fused) -> None:
    """The numbers are right either way; a new token that others read, too, is a step of its own."""
    operator, *inputs = node
    attributes = {"axis": 2} if operator == "Concat" else {}
    caches = Caches(rng, helper.make_node(operator, inputs, ["y"], **attributes))
    assert check(device, caches.model, caches.feeds(2, 5, 7))["cache_append"] == fused


def test_caches_with_numbers_that_are_none(device, rng) -> None:
    caches = Caches(rng)
    feeds = caches.feeds(2, 5, 5)
    feeds["past0"][0, 1, 2, :3] = np.nan, np.inf, -np.inf
    feeds["x"][1, 0, 3] = np.nan
    expected = onnxruntime.InferenceSession(caches.model.SerializeToString()).run(None, feeds)
    session = opened(device, caches.model)
    for got, one in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-4)
    assert operators(session, feeds)["cache_append"] == 2


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16])
def test_caches_of_other_types_are_concatenated(device, rng, dtype) -> None:
    caches = Caches(rng, dtype=dtype)
    feeds = caches.feeds(2, 5, 5)
    expected = onnxruntime.InferenceSession(caches.model.SerializeToString()).run(None, feeds)
    session = opened(device, caches.model)
    for got, one in zip(session.run(None, feeds), expected, strict=True):
        assert got.dtype == one.dtype
        assert oracle.error(got, one.astype(np.float64)) <= 2e-3
    assert operators(session, feeds)["cache_append"] == 0


def test_caches_on_the_device_grow_beyond_their_memory(device, rng) -> None:
    """Two continuations of one beginning, in turn: none writes to what the other reads."""
    caches = Caches(rng)
    session = opened(device, caches.model)
    feeds = caches.feeds(2, 3, 1)
    del feeds["x"]
    ways = [(feeds, dict(feeds)) for _ in range(2)]
    for _ in range(90):
        for i, (given, wanted) in enumerate(ways):
            x = rng((2, 1, 16))
            out = {f"present{j}": DeviceArray for j in range(2)}
            present = session.run(None, {"x": x, **given}, out=out)
            for j, weight in enumerate(caches.weights):
                token = (x.astype(np.float64) @ weight).reshape(2, 1, caches.HEADS, caches.WIDTH)
                token = token.transpose(0, 2, 1, 3)
                wanted[f"past{j}"] = np.concatenate((wanted[f"past{j}"], token), axis=2)
            ways[i] = {f"past{j}": one for j, one in enumerate(present)}, wanted
    for given, wanted in ways:
        for name, array in wanted.items():
            assert oracle.error(given[name].numpy(), array) <= TOLERANCE
    shapes = {"x": (2, 1, 16), **{name: one.shape for name, one in wanted.items()}}
    assert [step.op.name for step in session.plan(shapes).steps].count("cache_append") == 2
