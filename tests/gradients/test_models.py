"""Gradients of whole layers and of ONNX's operators that are made of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn import layers as nn
from glnn.backends import Backend
from glnn.compiler import Plan
from glnn.core.tensor_info import BATCH, TensorInfo
from glnn.core.types import DType, TensorType
from glnn.graph.builder import constant
from glnn.graph.expression import SUM, formula
from glnn.graph.gradients.differentiation import differentiate
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Pointwise, Reduce
from glnn.graph.passes import expand_composites
from glnn.layers import (
    GELU,
    BatchNorm2d,
    Conv2d,
    Embedding,
    Flatten,
    LayerNorm,
    Linear,
    MaxPool2d,
    MultiheadAttention,
    ReLU,
    Softmax,
)
from glnn.model import Model as Layers
from glnn.model.load import load_bytes
from glnn.model.node import Node as LayerNode
from glnn.training.step_graph import Forward
from tests.gradients.case import wide

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A graph of inputs of these numbers, with the sum of its results times random numbers."""

    graph: Graph
    feeds: Mapping[str, Array]

    @classmethod
    def of(cls, graph: Graph, feeds: Mapping[str, Array]) -> Model:
        random = np.random.default_rng(5)
        nodes, total = list(graph.nodes), None
        floats = [value for value in graph.outputs if value.type.dtype is DType.float32]
        for i, value in enumerate(floats):
            weights = constant(random.standard_normal(value.type.shape, np.float32))
            axes = tuple(range(len(value.type.dims)))
            sum_ = Value(f"sum {i}", TensorType(()))
            reduce = Reduce("sum", axes, False, formula("a * b"))
            nodes.append(Node(sum_.name, reduce, (value, weights), (sum_,)))
            if total is not None:
                both = Value(f"total {i}", TensorType(()))
                nodes.append(Node(both.name, Pointwise(SUM), (total, sum_), (both,)))
                sum_ = both
            total = sum_
        assert total is not None
        return cls(Graph(tuple(nodes), graph.inputs, (total,)), feeds)

    @property
    def by(self) -> tuple[Value, ...]:
        """The inputs that gradients are by."""
        return tuple(v for v in self.graph.inputs if v.type.dtype is DType.float32)

    @property
    def backward(self) -> Graph:
        """A gradient for each of them."""
        made, found = differentiate(self.graph, self.graph.outputs[0], self.by)
        return whole(Graph(made.nodes, made.inputs, found))

    def expected(self) -> dict[str, Array]:
        """The gradients in float64, by input, after they were held against central differences."""
        given = wide(self.feeds[value.name] for value in self.graph.inputs)
        found, forward = self.backward.reference(*given), whole(self.graph)
        random = np.random.default_rng(6)
        for value, gradient in zip(self.by, found, strict=True):
            place = self.graph.inputs.index(value)
            for _ in range(3):
                direction = random.standard_normal(gradient.shape)
                both = []
                for step in (1e-6, -1e-6):
                    there = [*given]
                    there[place] = given[place] + step * direction
                    both += forward.reference(*there)
                slope = (both[0] - both[1]) / 2e-6
                np.testing.assert_allclose((gradient * direction).sum(), slope, 1e-5, 1e-6)
        return {value.name: one for value, one in zip(self.by, found, strict=True)}

    def on(self, backend: Backend) -> dict[str, Array]:
        """The same by a backend."""
        plan = Plan(self.backward, backend, {n: a.shape for n, a in self.feeds.items()})
        found = plan.run(self.feeds)
        outputs = zip(self.by, self.backward.outputs, strict=True)
        return {value.name: found[output.name] for value, output in outputs}


def whole(graph: Graph, feeds: Mapping[str, Array] | None = None) -> Graph:
    """`graph` without composites, for inputs of their own sizes, or as those of `feeds`."""
    types = {
        v.name: TensorType.from_array(feeds[v.name]) if feeds else v.type for v in graph.inputs
    }
    return expand_composites(graph, types)


def uniform(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def node(op: str, operands: Sequence[Any], results: int = 1, **attributes: Any) -> Model:
    """A model of one operator of ONNX."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.onnx.runtime import node_model

    proto = node_model(op, operands, results, opset=23, **attributes)
    feeds = {f"x{i}": one for i, one in enumerate(operands) if one is not None}
    graph = load_bytes(proto.SerializeToString()).graph
    return Model.of(whole(graph, feeds), feeds)


def recurrent(op: str, gates: int, directions: int, **attributes: Any) -> Model:
    """A recurrent layer of two steps, two samples, three features and five units."""
    t, b, i, h, d = 2, 2, 3, 5, directions
    operands = [uniform(t, b, i), uniform(d, gates * h, i), uniform(d, gates * h, h)]
    operands += [uniform(d, 2 * gates * h), attributes.pop("lengths", None), uniform(d, b, h)]
    results = 2
    if op == "LSTM":
        operands += [uniform(d, b, h + 1)[..., :h].copy(), uniform(d, 3 * h)]
        results = 3
    return node(op, operands, results, hidden_size=h, **attributes)


LENGTHS = np.array([2, 1], np.int32)


def of_layers(net: Layers, x: Array) -> Model:
    """That of a model of layers in training, by its parameters, too."""
    found = Forward.build(net, len(x), (), 0)
    return Model.of(found.graph, {"input": x, **found.initial})


def encoder() -> Model:
    """Self-attention of three heads."""
    attention = MultiheadAttention(6, 3, batch_first=True)
    node = LayerNode("attend", attention, ("input",) * 3, "attend")
    net = Layers((node,), (TensorInfo("input", (BATCH, 3, 6)),), ("attend",))
    return of_layers(net, uniform(2, 3, 6))


def words() -> Model:
    """An embedding, a layer normalisation, a GELU and a softmax."""
    kinds = (Embedding(7, 6), LayerNorm(6), Linear(6, 5), GELU(), Softmax(-1))
    names = ("words", "norm", "linear", "gelu", "softmax")
    nodes = tuple(
        LayerNode(name, layer, (before,), name)
        for before, name, layer in zip(("input", *names), names, kinds, strict=False)
    )
    net = Layers(nodes, (TensorInfo("input", (BATCH, 3), "tensor(int32)"),), ("softmax",))
    return of_layers(net, np.array([[0, 6, 2], [2, 2, 5]], np.int32))


def images() -> Model:
    """A convolution, the batch's normalisation, a ReLU, a pool and a product."""
    kinds = (Conv2d(2, 3, 3), BatchNorm2d(3), ReLU(), MaxPool2d(2), Flatten(), Linear(12, 4))
    return of_layers(Layers.sequential(kinds, (2, 6, 7)), uniform(3, 2, 6, 7))


def lines() -> Model:
    """Windows of one dimension, and what lies around them."""
    kinds: tuple[nn.Layer, ...] = (
        nn.ReflectionPad1d((2, 1)),
        nn.Conv1d(2, 4, 3, padding="same", groups=2),
    )
    kinds += (nn.MaxPool1d(2, 1, 1), nn.ConvTranspose1d(4, 3, 3, 2, 1), nn.LPPool1d(2, 2, 1))
    kinds += (nn.CircularPad1d(2), nn.AdaptiveAvgPool1d(4), nn.AvgPool1d(2, 1))
    return of_layers(Layers.sequential(kinds, (2, 5)), uniform(2, 2, 5))


def volumes() -> Model:
    """Windows of three dimensions."""
    kinds: tuple[nn.Layer, ...] = (nn.Conv3d(2, 2, 2, (1, 1, 2), 1, bias=False), nn.MaxPool3d(2, 1))
    kinds += (nn.ConvTranspose3d(2, 2, (1, 2, 2), (2, 1, 1)), nn.AvgPool3d(2, 1, 1, True, False))
    kinds += (nn.ReplicationPad3d(1), nn.AdaptiveMaxPool3d((2, 3, 2)))
    return of_layers(Layers.sequential(kinds, (2, 2, 3, 4)), uniform(2, 2, 2, 3, 4))


def moved() -> Model:
    """What moves numbers of images, and takes them between four."""
    kinds: tuple[nn.Layer, ...] = (
        nn.Bias(8),
        nn.PixelShuffle(2),
        nn.ChannelShuffle(2),
        nn.Unfold((2, 3), 1, 1, 2),
    )
    kinds += (
        nn.Fold((4, 6), (2, 3), 1, 1, 2),
        nn.PixelUnshuffle(2),
        nn.ConstantPad2d((1, -1, 0, 0), 3),
    )
    kinds += (nn.Upsample((3, 5), mode="bicubic"),)
    return of_layers(Layers.sequential(kinds, (8, 2, 3)), uniform(2, 8, 2, 3))


MODELS: Mapping[str, Callable[[], Model]] = {
    "lstm": lambda: recurrent("LSTM", 4, 2, direction="bidirectional"),
    "gru": lambda: recurrent("GRU", 3, 2, direction="bidirectional"),
    "gru reset late": lambda: recurrent("GRU", 3, 1, linear_before_reset=1, direction="reverse"),
    "rnn": lambda: recurrent("RNN", 1, 1, lengths=LENGTHS),
    "attention": lambda: node(
        "Attention",
        [uniform(2, 3, 8), uniform(2, 5, 8), uniform(2, 5, 6)],
        q_num_heads=2,
        kv_num_heads=2,
        is_causal=1,
        softcap=2.0,
    ),
    "attention biased": lambda: node(
        "Attention",
        [uniform(1, 2, 3, 4), uniform(1, 2, 5, 4), uniform(1, 2, 5, 3), uniform(3, 5)],
    ),
    "greatest numbers": lambda: node(
        "TopK", [uniform(4, 7), np.array([3])], 2, known=(1,), kinds=(np.float32, np.int64), axis=0
    ),
    "multi-head attention": encoder,
    "words": words,
    **{"images": images, "lines": lines, "volumes": volumes, "moved": moved},
}


@cache
def model(name: str) -> Model:
    return MODELS[name]()


@cache
def expected(name: str) -> dict[str, Array]:
    return model(name).expected()


@pytest.mark.parametrize("name", MODELS)
def test_on_the_cpu(name: str, cpu: Backend) -> None:
    agrees(model(name), name, cpu)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("volumes", "moved")])
def test_on_the_gpu(name: str, gl: Backend) -> None:
    agrees(model(name), name, gl)


def agrees(model: Model, name: str, backend: Backend) -> None:
    found = model.on(backend)
    for by, gradient in expected(name).items():
        np.testing.assert_allclose(found[by], gradient, rtol=1e-3, atol=1e-4, err_msg=by)


@pytest.mark.parametrize("place", [2, -5])
def test_the_padding_of_an_embedding_is_not_trained(place: int) -> None:
    net = Layers(
        (LayerNode("words", Embedding(7, 6, place), ("input",), "words"),),
        (TensorInfo("input", (BATCH, 3), "tensor(int32)"),),
        ("words",),
    )
    x = np.array([[0, 6, 2], [2, -5, 5]], np.int32)
    found = of_layers(net, x)
    (gradient,) = found.backward.reference(*(found.feeds[v.name] for v in found.graph.inputs))
    rows = np.abs(gradient).sum(1) > 0
    assert rows.tolist() == [True, False, False, False, False, True, True]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_against_pytorch(kind: str) -> None:
    """Weights as PyTorch exports them: a GRU resets late, gates are in another order."""
    torch = pytest.importorskip("torch")
    gates, order = {"LSTM": (4, [0, 3, 1, 2]), "GRU": (3, [1, 0, 2]), "RNN": (1, [0])}[kind]
    layer = getattr(torch.nn, kind)(3, 5).double()
    late = {"linear_before_reset": 1} if kind == "GRU" else {}
    found = recurrent(kind, gates, 1, **late)

    def turned(array: Any) -> Any:
        return array.reshape(gates, 5, -1)[order].reshape(gates * 5, -1)

    arrays = dict(found.feeds)
    if kind == "LSTM":
        arrays["x7"] = np.zeros_like(arrays["x7"])  # PyTorch has no peepholes
    own = [p.detach().numpy() for p in layer.parameters()]
    arrays["x1"], arrays["x2"] = (turned(one)[None].astype(np.float32) for one in own[:2])
    biases = np.concatenate([turned(one).reshape(-1) for one in own[2:]])
    arrays["x3"] = biases[None].astype(np.float32)
    given = {n: torch.tensor(a.astype(np.float64), requires_grad=True) for n, a in arrays.items()}
    with torch.no_grad():
        back = np.argsort(order)
        for p, name in zip(layer.parameters(), ("x1", "x2", "x3", "x3"), strict=True):
            halves = arrays[name][0].reshape(2, -1) if name == "x3" else [arrays[name][0]]
            half = halves[1 if p is list(layer.parameters())[3] else 0]
            p.copy_(torch.tensor(half.reshape(gates, -1)[back].reshape(p.shape)))
    hidden = (given["x5"], given["x6"]) if kind == "LSTM" else given["x5"]
    y, ends = layer(given["x0"], hidden)
    results = (y[:, None], *(ends if kind == "LSTM" else (ends,)))
    random = np.random.default_rng(5)
    weights = [random.standard_normal(tuple(one.shape), np.float32) for one in results]
    sum((one * torch.tensor(w)).sum() for one, w in zip(results, weights, strict=True)).backward()
    got = dict(
        zip(
            (value.name for value in found.by),
            found.backward.reference(*wide(arrays[v.name] for v in found.graph.inputs)),
            strict=True,
        )
    )
    by = {name: given[name].grad.numpy() for name in ("x0", "x5")}
    grads = [p.grad.numpy() for p in layer.parameters()]
    by |= {"x1": turned(grads[0])[None], "x2": turned(grads[1])[None]}
    by["x3"] = np.concatenate([turned(one).reshape(-1) for one in grads[2:]])[None]
    for name, wanted in by.items():
        np.testing.assert_allclose(got[name], wanted, 1e-6, 1e-8, err_msg=name)
