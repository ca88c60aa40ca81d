"""Which layers become one op, and which stay alone."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compile.fuse import FusedNode, fuse
from glnn.layers import (
    Add,
    BatchNorm2d,
    Bias,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    Subsample2d,
    Tanh,
)
from glnn.model import Model
from glnn.model.model import Node
from glnn.model.tensor import BATCH, TensorInfo
from tests import oracle


def chain(*layers: Layer, shape: tuple[int, ...] = (3,)) -> tuple[FusedNode, ...]:
    return fuse(Model.sequential(layers, shape))


def kinds(fused: tuple[FusedNode, ...]) -> list[tuple[str, str]]:
    return [(node.op.name, getattr(node.op, "activation", "")) for node in fused]


def graph(nodes: list[tuple[str, Layer, str]], *outputs: str) -> Model:
    """A model of layers, each making the tensor it is named after; what it reads is spaced out."""
    made = tuple(Node(name, layer, tuple(read.split()), name) for name, layer, read in nodes)
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


def normed(rng, channels: int, eps: float = 1e-3) -> BatchNorm2d:
    layer = BatchNorm2d(channels, eps)
    for name in layer.shapes:
        setattr(layer, name, rng((channels,)))
    layer.running_var = layer.running_var**2
    return layer


def normalised(x: np.ndarray, norm: BatchNorm2d) -> np.ndarray:
    return oracle.batch_norm(x, *norm.parameters.values(), norm.eps)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda bias: Linear(3, 4, bias), (3,)),
        (lambda bias: Conv2d(3, 4, (2, 3), bias=bias), (3, 5, 4)),
        (lambda bias: Conv2d(4, 4, 3, groups=2, bias=bias), (4, 5, 4)),
    ],
)
def test_a_batch_norm_is_folded_into_weights(rng, make, shape, bias) -> None:
    layer, norm, x = make(bias), normed(rng, 4), rng((2, *shape))
    (node,) = chain(layer, norm, ReLU(), shape=shape)
    assert node.op == layer.op.with_activation("relu")
    assert {array.dtype for array in node.parameters.values()} == {np.dtype(np.float32)}
    wide = {"x": x.astype("f8"), **{k: v.astype("f8") for k, v in layer.parameters.items()}}
    expected = oracle.activation(normalised(layer.op.compute(wide), norm), "relu")
    got = node.op.compute({"x": x.astype("f8"), **node.parameters})
    assert oracle.error(got, expected) <= 1e-7  # the parameters were rounded once


def test_a_folded_batch_norm_is_rounded_once(rng) -> None:
    layer, norm = Linear(3, 4), normed(rng, 4)
    (node,) = chain(layer, norm)
    scale, shift = norm.scale_and_shift()
    np.testing.assert_array_equal(
        node.parameters["weight"], (scale[:, None] * layer.weight).astype(np.float32)
    )
    np.testing.assert_array_equal(
        node.parameters["bias"], (scale * layer.bias + shift).astype(np.float32)
    )


def test_a_batch_norm_that_cannot_be_folded_stays_with_its_activation(rng) -> None:
    norm = normed(rng, 2)
    fused = chain(Conv2d(1, 2, 3), ReLU(), norm, Tanh(), shape=(1, 5, 5))
    assert kinds(fused) == [("conv2d", "relu"), ("batch_norm", "tanh")]
    assert set(fused[1].parameters) == {"scale", "shift"}
    nodes = [("a", Linear(3, 2), "input"), ("b", norm, "a"), ("c", Tanh(), "a")]
    assert [node.op.name for node in fuse(graph(nodes, "b", "c"))] == [
        "matmul",
        "batch_norm",
        "activation",
    ]


def test_an_activation_joins_add_and_subsample() -> None:
    nodes = [("a", Linear(3, 3), "input"), ("b", Add(), "a input"), ("c", ReLU(), "b")]
    fused = fuse(graph(nodes, "c"))
    assert kinds(fused) == [("matmul", "identity"), ("add", "relu")]
    assert fused[1].inputs == ("a", "input") and fused[1].output == "c"
    assert kinds(chain(Subsample2d(1, 2), Sigmoid(), shape=(1, 4, 4))) == [("subsample", "sigmoid")]


def test_a_dropout_is_no_op() -> None:
    (node,) = chain(Linear(3, 2), Dropout(), Dropout(0.1), ReLU())
    assert (node.op.name, node.inputs, node.output) == ("matmul", ("input",), "relu1")
    nodes = [("a", Dropout(), "input"), ("b", Tanh(), "a"), ("c", Add(), "a b")]
    fused = fuse(graph(nodes, "c"))
    assert [(n.name, n.inputs) for n in fused] == [("b", ("input",)), ("c", ("input", "b"))]
    assert [n.name for n in fuse(graph(nodes, "c"), enabled=False)] == ["a", "b", "c"]


def test_a_dropout_that_is_an_output_stays() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", Dropout(), "a"), ("c", ReLU(), "b")]
    fused = fuse(graph(nodes, "b", "c"))
    assert [(n.op.name, n.output) for n in fused] == [
        ("matmul", "a"),
        ("dropout", "b"),
        ("activation", "c"),
    ]


@pytest.mark.parametrize("count", range(2, 14))
@pytest.mark.parametrize("enabled", [False, True])
def test_long_concatenations_are_split(rng, count, enabled) -> None:
    inputs = tuple(TensorInfo(f"i{k}", (BATCH, k + 1)) for k in range(count))
    names = tuple(info.name for info in inputs)
    model = Model((Node("all", Concat(count), names, "all"),), inputs, ("all",))
    fused = fuse(model, enabled=enabled)
    assert all(len(node.inputs) == node.op.count <= 3 for node in fused)
    assert len(fused) == -(-(count - 1) // 2) and len({node.name for node in fused}) == len(fused)
    tensors = {info.name: rng((2, k + 1)) for k, info in enumerate(inputs)}
    expected = np.concatenate(list(tensors.values()), axis=1)
    for node in fused:
        operands = {k: tensors[v] for k, v in zip(node.op.inputs, node.inputs, strict=True)}
        tensors[node.output] = node.op.compute(operands)
    np.testing.assert_array_equal(tensors["all"], expected)
