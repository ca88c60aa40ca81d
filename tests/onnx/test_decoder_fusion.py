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
from glnn import InferenceSession
from glnn.errors import DeviceError
from glnn.generation.architectures import Config, Rope
from glnn.gl import Device
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


def test_a_decoder_with_growing_caches(device, tmp_path: Path) -> None:
    """Ten steps as ONNX Runtime has them, and the launches of a layer."""
    config = Config("llama", 2, 48, 6, 2, 16, 96, 512, 1e-5, Rope(10000.0))
    path = tmp_path / "model.onnx"
    write_decoder(path, config, FloatWeights(config, 80))
    onnx.checker.check_model(str(path))
    reference = onnxruntime.InferenceSession(str(path))
    session = opened(device, str(path))
    names = [f"{i}.{part}" for i in range(2) for part in ("key", "value")]
    caches = {name: np.zeros((1, 2, 0, 16), np.float32) for name in names}
    mine = dict(caches)
    tokens, length = np.array([[3, 1, 4, 1, 5, 9, 2]]), 0
    for _ in range(10):
        length += tokens.shape[1]
        feeds = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length - tokens.shape[1], length)[None],
        }
        past = {f"past_key_values.{name}": array for name, array in caches.items()}
        expected, *others = reference.run(None, {**feeds, **past})
        past = {f"past_key_values.{name}": array for name, array in mine.items()}
        got, *ours = session.run(None, {**feeds, **past})
        for one, other in zip((got, *ours), (expected, *others), strict=True):
            assert oracle.error(one, other.astype(np.float64)) <= 2e-5
        caches, mine = dict(zip(names, others, strict=True)), dict(zip(names, ours, strict=True))
        tokens = expected[:, -1:].argmax(-1)
    found = Counter(step.op.name for step in session._executor._latest[1].steps)
    assert found["cache_append"] == 4
    assert found["normed_matmul"] == 2 * 2 + 1
    assert found["normalize"] == 0
    assert found["rotary"] == 2
