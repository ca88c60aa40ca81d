"""Products and the layer normalisations that alone read their rows, against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from glnn import InferenceSession
from glnn.errors import DeviceError
from glnn.gl import Device
from tests import oracle

TOLERANCE = 1e-5
K, N = 20, 36


@pytest.fixture(scope="module")
def nvidia() -> Iterator[Device]:
    """A device that is taken for one of NVIDIA's, whose kernels normalise what they multiply."""
    try:
        device = Device()
    except DeviceError as error:
        pytest.skip(str(error))
    with device:
        named = {"vendor": "NVIDIA Corporation", "renderer": "NVIDIA", "multiprocessors": 100}
        device.capabilities = replace(device.capabilities, **named)
        yield device


class Graph:
    """An ONNX graph of x (…, K) and r (…, N) that is built node by node."""

    def __init__(self, rng: Any, rows: tuple[int, ...]) -> None:
        self.rng, self.rows = rng, rows
        self.nodes: list[Any] = []
        self.initialisers: list[Any] = []

    def node(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        out = out or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    def array(self, *shape: int) -> str:
        name = f"array_{len(self.initialisers)}"
        self.initialisers.append(numpy_helper.from_array(self.rng(shape), name))
        return name

    def product(self, x: str = "x") -> str:
        return self.node("MatMul", x, self.array(K if x == "x" else N, N))

    def norm(self, x: str, out: str = "", *, biased: bool = True, **attributes: Any) -> str:
        operands = [self.array(N)] * 2 if biased else [self.array(N)]
        return self.node("LayerNormalization", x, *operands, out=out, axis=-1, **attributes)

    def check(self, device: Device, *outputs: str) -> Counter[str]:
        """Hold the outputs against ONNX Runtime's; return the operators of the plan."""
        float32 = TensorProto.FLOAT
        inputs = {"x": (*self.rows, K), "r": (*self.rows, N)}
        infos = [helper.make_tensor_value_info(n, float32, s) for n, s in inputs.items()]
        results = [helper.make_tensor_value_info(name, float32, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "graph", infos, results, self.initialisers)
        opset = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        feeds = {name: self.rng(shape) for name, shape in inputs.items()}
        expected = onnxruntime.InferenceSession(model).run(None, feeds)
        session = InferenceSession(model, "compute", device=device)
        for _ in range(2):
            for got, one in zip(session.run(None, feeds), expected, strict=True):
                assert oracle.error(got, one.astype(np.float64)) <= TOLERANCE
        plan = session.plan(inputs, feeds=feeds)
        return Counter(step.op.name for step in plan.steps if step.op.name != "move")


@pytest.mark.parametrize("rows", [(1, 5), (3, 67), (130,)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_normalise_their_rows(nvidia, rng, rows, biased) -> None:
    graph = Graph(rng, rows)
    first = graph.node("Add", graph.product(), graph.array(N)) if biased else graph.product()
    normed = graph.norm(graph.node("Add", first, "r"), biased=biased)
    added = graph.node("Add", normed, graph.product(normed))
    graph.norm(added, "y", biased=biased)
    assert graph.check(nvidia, "y") == {"matmul_normalize": 2}


def test_each_has_counts_of_its_own(nvidia, rng) -> None:
    """Both may run at once."""
    graph = Graph(rng, (70,))
    for name in ("y", "z"):
        graph.norm(graph.product(), name)
    assert graph.check(nvidia, "y", "z") == {"matmul_normalize": 2}


def test_rows_that_others_read_are_stored(nvidia, rng) -> None:
    graph = Graph(rng, (70,))
    product = graph.node("Add", graph.product(), "r", out="z")
    graph.norm(product, "y")
    assert graph.check(nvidia, "y", "z") == {"matmul": 1, "normalize": 1}


@pytest.mark.parametrize("between", ["Relu", "Mul"])
def test_other_work_before_the_norm(nvidia, rng, between) -> None:
    graph = Graph(rng, (70,))
    operands = ("r",) if between == "Mul" else ()
    graph.norm(graph.node(between, graph.product(), *operands), "y")
    assert "matmul_normalize" not in graph.check(nvidia, "y")


def test_a_norm_of_more_than_rows(nvidia, rng) -> None:
    graph = Graph(rng, (3, 7))
    scale = graph.array(7, N)
    graph.node("LayerNormalization", graph.product(), scale, out="y", axis=-2)
    assert graph.check(nvidia, "y") == {"matmul": 1, "normalize": 1}


def test_a_residual_of_one_row(nvidia, rng) -> None:
    """A sum with what is no bias and of no shape of the result is none that the kernel adds."""
    graph = Graph(rng, (4, 7))
    graph.norm(graph.node("Add", graph.product(), graph.array(4, 1, N)), "y")
    assert "matmul_normalize" not in graph.check(nvidia, "y")
