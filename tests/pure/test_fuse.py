"""Which layers become one op, and which stay alone."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.layers import (
    Bias,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from glnn.model import Model
from glnn.model.fuse import FusedNode, fuse
from glnn.model.model import Node
from glnn.model.tensor import BATCH, TensorInfo


def chain(*layers: Layer, shape: tuple[int, ...] = (3,)) -> tuple[FusedNode, ...]:
    return fuse(Model.sequential(layers, shape))


def kinds(fused: tuple[FusedNode, ...]) -> list[tuple[str, str]]:
    return [(node.op.name, getattr(node.op, "activation", "")) for node in fused]


def graph(nodes: list[tuple[str, Layer, str]], *outputs: str) -> Model:
    """A model of layers, each reading one tensor and making the one it is named after."""
    made = tuple(Node(name, layer, (read,), name) for name, layer, read in nodes)
    return Model(made, (TensorInfo("input", (BATCH, 3)),), outputs)


@pytest.mark.parametrize(
    ("layer", "function"), [(ReLU(), "relu"), (Sigmoid(), "sigmoid"), (Tanh(), "tanh")]
)
def test_an_activation_joins_its_producer(layer, function) -> None:
    linear, conv = Linear(3, 2), Conv2d(1, 2, 3)
    (node,) = chain(linear, layer)
    assert kinds((node,)) == [("matmul", function)]
    assert (node.inputs, node.output) == (("input",), f"{function}1")
    assert node.name == f"linear1 + {function}1"
    assert node.parameters["bias"] is linear.bias
    assert kinds(chain(conv, layer, shape=(1, 5, 5))) == [("conv2d", function)]
    assert linear.op.activation == "identity"  # the layer itself stays as it was


@pytest.mark.parametrize(
    ("producer", "shape"),
    [(Linear(3, 2, bias=False), (3,)), (Conv2d(1, 2, 3, bias=False), (1, 5, 5))],
)
def test_a_bias_and_then_an_activation_join(producer, shape) -> None:
    bias = Bias(2)
    bias.bias = np.array([1, 2], np.float32)
    (node,) = chain(producer, bias, ReLU(), shape=shape)
    assert node.op == producer.op.with_activation("relu")
    assert node.parameters == {"weight": producer.weight, "bias": bias.bias}
    assert node.name.endswith("1 + bias1 + relu1") and node.output == "relu1"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((Linear(3, 2), Bias(2)), [("matmul", "identity"), ("bias", "")]),
        ((Linear(3, 2, bias=False), ReLU(), Bias(2)), [("matmul", "relu"), ("bias", "")]),
        ((Linear(3, 2), ReLU(), Tanh()), [("matmul", "relu"), ("activation", "")]),
        (
            (Linear(3, 2), Softmax(), ReLU()),
            [("matmul", "identity"), ("softmax", ""), ("activation", "")],
        ),
        (
            (Linear(3, 2), Flatten(), ReLU()),
            [("matmul", "identity"), ("flatten", ""), ("activation", "")],
        ),
        ((ReLU(), Linear(3, 2)), [("activation", ""), ("matmul", "identity")]),
        ((Bias(3), ReLU()), [("bias", ""), ("activation", "")]),
    ],
)
def test_what_has_no_place_in_an_epilogue_stays(layers, expected) -> None:
    assert kinds(chain(*layers)) == expected


def test_an_activation_does_not_pass_over_a_pool() -> None:
    fused = chain(Conv2d(1, 2, 3), MaxPool2d(2), ReLU(), shape=(1, 6, 6))
    assert [node.op.name for node in fused] == ["conv2d", "pool2d", "activation"]


def test_a_tensor_with_two_readers_stays() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", ReLU(), "a"), ("c", Tanh(), "a")]
    fused = fuse(graph(nodes, "b", "c"))
    assert [(node.name, node.inputs) for node in fused] == [
        ("a", ("input",)),
        ("b", ("a",)),
        ("c", ("a",)),
    ]


def test_an_output_of_the_model_stays() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", ReLU(), "a")]
    assert [node.output for node in fuse(graph(nodes, "a", "b"))] == ["a", "b"]
    assert [node.output for node in fuse(graph(nodes, "b"))] == ["b"]


def test_only_the_producer_is_joined_not_whoever_comes_before() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", Linear(3, 2), "input"), ("c", ReLU(), "a")]
    fused = fuse(graph(nodes, "b", "c"))
    assert [(n.output, n.op.name) for n in fused] == [
        ("a", "matmul"),
        ("b", "matmul"),
        ("c", "activation"),
    ]
    assert [getattr(n.op, "activation", None) for n in fused[:2]] == ["identity"] * 2


def test_disabled_keeps_one_op_a_layer() -> None:
    model = Model.sequential([Linear(3, 2, bias=False), Bias(2), ReLU()], (3,))
    fused = fuse(model, enabled=False)
    assert [(n.name, n.output) for n in fused] == [(n.name, n.output) for n in model.nodes]
