"""Which layers become one op, and which stay alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from glnn.compile.fuse import FusedNode, fuse
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import MOST_CALLS
from glnn.kernels.problem import Problem
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


BIAS = "add(#0, #1)"


def kinds(fused: tuple[FusedNode, ...]) -> list[tuple[str, str]]:
    """Each op, and its epilogue's expression."""
    return [(n.op.name, n.epilogue.expr.text() if n.epilogue else "") for n in fused]


def graph(
    nodes: list[tuple[str, Layer, str]], *outputs: str, shape: tuple[int, ...] = (3,)
) -> Model:
    """A model of layers, each making the tensor it is named after; what it reads is spaced out."""
    made = tuple(Node(name, layer, tuple(read.split()), name) for name, layer, read in nodes)
    return Model(made, (TensorInfo("input", (BATCH, *shape)),), outputs)


@pytest.mark.parametrize(
    ("layer", "function"), [(ReLU(), "relu"), (Sigmoid(), "sigmoid"), (Tanh(), "tanh")]
)
def test_an_activation_joins_its_producer(layer, function) -> None:
    linear, conv = Linear(3, 2), Conv2d(1, 2, 3)
    (node,) = chain(linear, layer)
    assert kinds((node,)) == [("matmul", f"{function}({BIAS})")]
    assert (node.inputs, node.output) == (("input",), f"{function}1")
    assert node.name == f"linear1 + {function}1"
    assert node.parameters["e1"] is linear.bias
    assert kinds(chain(conv, layer, shape=(1, 5, 5))) == [("conv2d", f"{function}({BIAS})")]
    assert linear.epilogue == BIASED  # the layer itself stays as it was


@pytest.mark.parametrize(
    ("producer", "shape"),
    [(Linear(3, 2, bias=False), (3,)), (Conv2d(1, 2, 3, bias=False), (1, 5, 5))],
)
def test_a_bias_and_then_an_activation_join(producer, shape) -> None:
    bias = Bias(2)
    bias.bias = np.array([1, 2], np.float32)
    (node,) = chain(producer, bias, ReLU(), shape=shape)
    assert node.op == producer.op and kinds((node,))[0][1] == f"relu({BIAS})"
    assert node.parameters == {"weight": producer.weight, "e1": bias.bias}
    assert node.name.endswith("1 + bias1 + relu1") and node.output == "relu1"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((Linear(3, 2), Bias(2)), [("matmul", BIAS), ("bias", "")]),
        ((Linear(3, 2, bias=False), ReLU(), Bias(2)), [("matmul", "relu(#0)"), ("bias", "")]),
        (
            (Linear(3, 2), Softmax(), ReLU()),
            [("matmul", BIAS), ("softmax", ""), ("activation", "")],
        ),
        (
            (Linear(3, 2), Flatten(), ReLU()),
            [("matmul", BIAS), ("flatten", ""), ("activation", "")],
        ),
        ((ReLU(), Linear(3, 2)), [("activation", ""), ("matmul", BIAS)]),
        ((Bias(3), ReLU()), [("bias", ""), ("activation", "")]),
    ],
)
def test_what_has_no_place_in_an_epilogue_stays(layers, expected) -> None:
    assert kinds(chain(*layers)) == expected


def test_functions_follow_one_another_in_an_epilogue() -> None:
    assert kinds(chain(Linear(3, 2), ReLU(), Tanh())) == [("matmul", f"tanh(relu({BIAS}))")]
    longest = chain(Linear(3, 2), *[ReLU()] * MOST_CALLS)
    assert [name for name, _ in kinds(longest)] == ["matmul", "activation"]


def test_a_residual_joins_a_convolution_and_its_bias() -> None:
    nodes = [("a", Conv2d(3, 3, 1), "input"), ("b", Add(), "input a"), ("c", ReLU(), "b")]
    (node,) = fuse(graph(nodes, "c", shape=(3, 4, 4)))
    assert kinds((node,)) == [("conv2d", f"relu(add({BIAS}, #2))")]
    assert (node.inputs, dict(node.extras)) == (("input", "input"), {"e2": "input"})
    assert node.epilogue is not None and node.epilogue.extents == ("channel", "full")


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
    assert [n.epilogue for n in fused[:2]] == [BIASED] * 2


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


def computed(op, x: np.ndarray, fixed: Mapping[str, Any], epilogue) -> np.ndarray:
    """What an op and its epilogue make of x, in float64."""
    wide = {"x": x.astype("f8"), **{k: v.astype("f8") for k, v in fixed.items()}}
    shapes = {name: array.shape for name, array in wide.items()}
    return Problem.of(op, shapes, {}, epilogue).compute(wide)


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
    assert node.op == layer.op and kinds((node,))[0][1] == f"relu({BIAS})"
    assert {array.dtype for array in node.parameters.values()} == {np.dtype(np.float32)}
    expected = normalised(computed(layer.op, x, layer.operands, layer.epilogue), norm)
    expected = oracle.activation(expected, "relu")
    got = computed(node.op, x, node.parameters, node.epilogue)
    assert oracle.error(got, expected) <= 1e-7  # the parameters were rounded once


def test_a_folded_batch_norm_is_rounded_once(rng) -> None:
    layer, norm = Linear(3, 4), normed(rng, 4)
    (node,) = chain(layer, norm)
    scale, shift = norm.scale_and_shift()
    np.testing.assert_array_equal(
        node.parameters["weight"], (scale[:, None] * layer.weight).astype(np.float32)
    )
    np.testing.assert_array_equal(
        node.parameters["e1"], (scale * layer.bias + shift).astype(np.float32)
    )


def test_a_batch_norm_that_cannot_be_folded_stays_with_its_activation(rng) -> None:
    norm = normed(rng, 2)
    fused = chain(Conv2d(1, 2, 3), ReLU(), norm, Tanh(), shape=(1, 5, 5))
    assert kinds(fused) == [("conv2d", f"relu({BIAS})"), ("batch_norm", "tanh(#0)")]
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
    assert kinds(fused) == [("matmul", BIAS), ("add", "relu(#0)")]
    assert fused[1].inputs == ("a", "input") and fused[1].output == "c"
    subsampled = chain(Subsample2d(1, 2), Sigmoid(), shape=(1, 4, 4))
    assert kinds(subsampled) == [("subsample", "sigmoid(#0)")]


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
