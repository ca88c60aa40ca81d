"""What joins what, and that nothing but rounding changes by it."""

from __future__ import annotations

from itertools import permutations
from math import prod

import numpy as np
import pytest

from glnn.core.tensor_info import BATCH, TensorInfo
from glnn.core.types import Array, TensorType
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph, Node
from glnn.graph.operators import Reshape, Transpose
from glnn.graph.passes import BackendTraits, optimize, split_concats
from glnn.graph.passes.simplification import prune_dead_nodes
from glnn.layers import (
    GELU,
    Add,
    BatchNorm2d,
    Bias,
    Concat,
    Conv1d,
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
from glnn.model.node import Node as LayerNode
from tests import oracle
from tests.graph.nets import Net
from tests.references import results

MOST = 3  # operands


def model(nodes: list[tuple[str, Layer, str]], *outputs: str, size: int | tuple = 3) -> Model:
    """A model of layers, each making the tensor it is named after; what it reads is spaced out."""
    made = tuple(LayerNode(name, layer, tuple(read.split()), name) for name, layer, read in nodes)
    shape = size if isinstance(size, tuple) else (size,)
    return Model(made, (TensorInfo("input", (BATCH, *shape)),), outputs)


def passed(given: Model, batch: int = 2) -> Graph:
    """The graph of a model, everything joined that can be."""
    graph = given.graph
    types = graph.infer_types({v.name: v.type.bound({BATCH: batch}) for v in graph.inputs})
    return optimize(graph, types, BackendTraits(MOST))


def chain(*layers: Layer, shape: tuple[int, ...] = (3,)) -> list[Node]:
    return steps(passed(Model.sequential(layers, shape)))


def steps(graph: Graph) -> list[Node]:
    """The nodes that a run computes."""
    return [node for node in graph.nodes if node.outputs[0] not in graph.fixed]


def structure(node: Node) -> str:
    """An operator and its epilogue, or the expression that it is."""
    expr = getattr(node.operator, "expr", None)
    if expr is not None:
        return str(expr.structure)
    return node.operator.name + (f" {node.epilogue.structure}" if node.epilogue else "")


BIASED_TEXT = "add(#0, #1)"


@pytest.mark.parametrize(
    ("layer", "name"), [(ReLU(), "relu"), (Sigmoid(), "sigmoid"), (Tanh(), "tanh")]
)
def test_an_activation_joins_its_producer(layer, name) -> None:
    linear = Linear(3, 2)
    (node,) = chain(linear, layer)
    assert structure(node) == f"matmul {name}({BIASED_TEXT}) channel"
    assert node.name == f"linear1 + {name}1" and node.outputs[0].name == f"{name}1"
    assert [v.name for v in node.reads] == ["input", "linear1.weight", "linear1.bias"]
    assert [origin.name for origin in node.origins] == ["linear1", f"{name}1"]
    (node,) = chain(Conv2d(1, 2, 3), layer, shape=(1, 5, 5))
    assert structure(node) == f"conv2d {name}({BIASED_TEXT}) channel"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((Linear(3, 2, bias=False), Bias(2), ReLU()), [f"matmul relu({BIASED_TEXT}) channel"]),
        ((Linear(3, 2), Bias(2)), [f"matmul {BIASED_TEXT} channel"]),
        ((Linear(3, 2), ReLU(), Tanh()), [f"matmul tanh(relu({BIASED_TEXT})) channel"]),
        (
            (Linear(3, 2), Softmax(), ReLU()),
            [f"matmul {BIASED_TEXT} channel", "softmax", "relu(#0)"],
        ),
        ((ReLU(), Linear(3, 2, bias=False)), ["matmul"]),  # the activation is its prologue
        ((Bias(3), ReLU(), Tanh()), [f"tanh(relu({BIASED_TEXT}))"]),
        ((Linear(3, 2), Flatten(), ReLU()), [f"matmul relu({BIASED_TEXT}) channel"]),
    ],
)
def test_pointwise_work_joins(layers, expected) -> None:
    assert [structure(node) for node in chain(*layers)] == expected


def test_an_activation_does_not_pass_over_a_pool() -> None:
    fused = chain(Conv2d(1, 2, 3, bias=False), MaxPool2d(2), ReLU(), shape=(1, 6, 6))
    assert [structure(node) for node in fused] == ["conv2d", "pool2d", "relu(#0)"]


def test_a_tensor_with_two_readers_stays() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", ReLU(), "a"), ("c", Tanh(), "a")]
    fused = steps(passed(model(nodes, "b", "c")))
    assert [(node.name, structure(node)) for node in fused] == [
        ("a", f"matmul {BIASED_TEXT} channel"),
        ("b", "relu(#0)"),
        ("c", "tanh(#0)"),
    ]


def test_an_output_of_the_model_stays() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", ReLU(), "a")]
    assert [n.outputs[0].name for n in steps(passed(model(nodes, "a", "b")))] == ["a", "b"]
    assert [n.outputs[0].name for n in steps(passed(model(nodes, "b")))] == ["b"]


def residual(order: str) -> Model:
    """A residual block with a convolution on both ways, its nodes in this order."""
    nodes = {
        "a": ("a", Conv2d(4, 4, 3, padding=1, seed=1), "input"),
        "n": ("n", BatchNorm2d(4), "a"),
        "r": ("r", ReLU(), "n"),
        "b": ("b", Conv2d(4, 4, 3, padding=1, bias=False, seed=2), "r"),
        "s": ("s", Conv2d(4, 4, 1, seed=3), "input"),
        "t": ("t", Add(), "b s"),
        "u": ("u", ReLU(), "t"),
    }
    return model([nodes[name] for name in order], "u", size=(4, 6, 5))


def test_the_same_graph_gives_the_same_steps_in_any_order() -> None:
    orders = [
        "".join(order)
        for order in permutations("anrbstu")
        if all(order.index(x) < order.index(y) for x, y in ("an", "nr", "rb", "bt", "st", "tu"))
    ]
    assert len(orders) > 4
    found = [[(n.name, structure(n)) for n in steps(passed(residual(o)))] for o in orders]
    assert found == found[:1] * len(orders)
    assert found[0] == [
        ("a + n + r", f"conv2d relu({BIASED_TEXT}) channel"),
        ("s", f"conv2d {BIASED_TEXT} channel"),
        ("b + t + u", "conv2d relu(add(#0, #1)) full"),
    ]


def test_what_is_joined_computes_the_same(rng) -> None:
    given, x = residual("anrbstu"), {"input": rng((2, 4, 6, 5))}
    (got,), (expected,) = results(passed(given), x).values(), results(given.graph, x).values()
    assert oracle.error(got, expected) <= 1e-7  # the weights were rounded once


def test_work_goes_before_a_view() -> None:
    nodes = [("a", Sigmoid(), "input"), ("b", Flatten(), "a"), ("c", Tanh(), "b")]
    fused = steps(passed(model(nodes, "c", size=(2, 3))))
    assert [structure(node) for node in fused] == ["tanh(sigmoid(#0))", "reshape"]


def test_expressions_take_no_more_operands_than_they_may() -> None:
    names = [f"b{i}" for i in range(6)]
    nodes = [(name, Tanh(), "input") for name in names]
    last = "b0"
    for i, name in enumerate(names[1:]):
        nodes.append((f"s{i}", Add(), f"{last} {name}"))
        last = f"s{i}"
    fused = steps(passed(model(nodes, *names, last)))
    assert all(len(node.inputs) <= MOST for node in fused)
    assert sum(node.name.startswith("s") for node in fused) == 3


def normed(rng, channels: int, eps: float = 1e-3) -> BatchNorm2d:
    layer = BatchNorm2d(channels, eps)
    for name in layer.shapes:
        setattr(layer, name, rng((channels,)))
    layer.running_var = layer.running_var**2
    return layer


def normalised(x: Array, norm: BatchNorm2d) -> Array:
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
    layer, norm, x = make(bias), normed(rng, 4), {"input": rng((2, *shape))}
    graph = passed(Model.sequential([layer, norm, ReLU()], shape))
    (node,) = steps(graph)
    assert structure(node) == f"{layer.op.name} relu({BIASED_TEXT}) channel"
    plain = results(Model.sequential([layer], shape).graph, x)[
        "linear1" if len(shape) == 1 else "conv2d1"
    ]
    expected = oracle.activation(normalised(plain, norm), "relu")
    (got,) = results(graph, x).values()
    assert oracle.error(got, expected) <= 1e-7  # the parameters were rounded once


def test_a_folded_batch_norm_is_rounded_once(rng) -> None:
    layer, norm = Linear(3, 4), normed(rng, 4)
    graph = passed(Model.sequential([layer, norm], (3,)))
    (node,) = steps(graph)
    weight, bias = (evaluated(constant(graph, value, {})) for value in node.reads[1:])
    wide = {name: array.astype("f8") for name, array in norm.parameters.items()}
    scale = wide["weight"] / np.sqrt(wide["running_var"] + norm.eps)
    shift = wide["bias"] - wide["running_mean"] * scale
    np.testing.assert_array_equal(weight, (scale[:, None] * layer.weight).astype(np.float32))
    np.testing.assert_array_equal(bias, (scale * layer.bias + shift).astype(np.float32))


def test_a_batch_norm_that_cannot_be_folded_is_pointwise(rng) -> None:
    norm = normed(rng, 2)
    (node,) = chain(Conv2d(1, 2, 3), ReLU(), norm, Tanh(), shape=(1, 5, 5))
    assert structure(node) == (
        f"conv2d tanh(add(mul(relu({BIASED_TEXT}), #2), #3)) channel channel channel"
    )
    nodes = [("a", Linear(3, 2), "input"), ("b", norm, "a"), ("c", Tanh(), "a")]
    fused = steps(passed(model(nodes, "b", "c")))
    assert [structure(node) for node in fused[1:]] == ["add(mul(#0, #1), #2)", "tanh(#0)"]


def test_an_activation_joins_a_sum_and_a_subsampling() -> None:
    nodes = [("a", Linear(3, 3), "input"), ("b", Add(), "a input"), ("c", ReLU(), "b")]
    (node,) = steps(passed(model(nodes, "c")))
    assert structure(node) == "matmul relu(add(add(#0, #1), #2)) channel full"
    (node,) = chain(Subsample2d(1, 2), Sigmoid(), shape=(1, 4, 4))
    assert structure(node) == "subsample sigmoid(#0)"


def test_a_dropout_is_no_step() -> None:
    (node,) = chain(Linear(3, 2), Dropout(), Dropout(0.1), ReLU())
    assert (
        structure(node) == f"matmul relu({BIASED_TEXT}) channel" and node.outputs[0].name == "relu1"
    )
    nodes = [("a", Dropout(), "input"), ("b", Tanh(), "a"), ("c", Add(), "a b")]
    (node,) = steps(passed(model(nodes, "c")))
    assert structure(node) == "add(#0, tanh(#0))"
    nodes = [("a", Linear(3, 2), "input"), ("b", Dropout(), "a"), ("c", ReLU(), "b")]
    fused = steps(passed(model(nodes, "b", "c")))
    assert [node.outputs[0].name for node in fused] == ["a", "b", "c"]


def test_images_are_not_seen_otherwise_on_the_way(rng) -> None:
    """A convolution of one dimension is one of two: between two of them an image stays as it is."""
    fused = chain(Conv1d(4, 8, 3), GELU(), Conv1d(8, 4, 3), shape=(4, 9))
    first, last = (node for node in fused if node.operator.name == "conv2d")
    assert last.inputs[0] is first.outputs[0]
    given, x = (
        Model.sequential([Conv1d(4, 8, 3), Conv1d(8, 4, 3)], (4, 9)),
        {"input": rng((2, 4, 9))},
    )
    (got,), (expected,) = results(passed(given), x).values(), results(given.graph, x).values()
    assert oracle.error(got, expected) <= 1e-7


@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (2, 8, 1, 5), (2, 8, 5, 1)])
def test_channels_of_an_image_are_last_before_it_is_seen_as_rows(rng, shape) -> None:
    """So a layout that has them last already makes the transposition free."""
    net, rows = Net(0), prod(shape[2:])
    image = net.builder.input("x", TensorType(shape))
    seen = net(Transpose((0, 2, 1)), net(Reshape((shape[0], shape[1], rows)), image))
    graph = net.builder.graph([net.of("a * a", seen)])
    short = optimize(graph, graph.infer_types({"x": TensorType(shape)}), BackendTraits(MOST))
    assert [node.operator for node in short.nodes if isinstance(node.operator, Transpose)] == [
        Transpose((0, 2, 3, 1))
    ]
    x = rng(shape)
    np.testing.assert_array_equal(short.reference(x)[0], graph.reference(x)[0])


def test_what_no_output_needs_goes() -> None:
    nodes = [("a", Linear(3, 2), "input"), ("b", ReLU(), "a"), ("c", Tanh(), "a")]
    assert [n.name for n in prune_dead_nodes(model(nodes, "c").graph).nodes] == ["a", "a", "c"]


@pytest.mark.parametrize("count", range(2, 14))
def test_long_concatenations_are_split(rng, count) -> None:
    inputs = tuple(TensorInfo(f"i{k}", (BATCH, k + 1)) for k in range(count))
    names = tuple(info.name for info in inputs)
    given = Model((LayerNode("all", Concat(count), names, "all"),), inputs, ("all",))
    feeds = {info.name: rng((2, k + 1)) for k, info in enumerate(inputs)}
    types = given.graph.infer_types({name: TensorType(x.shape) for name, x in feeds.items()})
    graph = split_concats(given.graph, types, MOST)
    assert all(len(node.inputs) <= MOST for node in graph.nodes)
    assert len(graph.nodes) == -(-(count - 1) // 2)
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    expected = np.concatenate(list(feeds.values()), axis=1)
    np.testing.assert_array_equal(results(graph, feeds)["all"], expected)
