"""Models: what a graph must keep to, shapes, and calling one."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from glnn.errors import ModelError, ShapeError
from glnn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sigmoid, Softmax
from glnn.model import Model, Node, TensorInfo

X = TensorInfo("x", ("N", 3))


def test_sequential_infers_every_shape() -> None:
    layers = [Conv2d(1, 6, 5, padding=2), MaxPool2d(2), Flatten(), Linear(6 * 14 * 14, 10)]
    model = Model.sequential(layers, (1, 28, 28))
    assert [node.name for node in model.nodes] == ["conv2d1", "maxpool2d1", "flatten1", "linear1"]
    assert {name: info.shape for name, info in model.tensors.items()} == {
        "input": ("N", 1, 28, 28),
        "conv2d1": ("N", 6, 28, 28),
        "maxpool2d1": ("N", 6, 14, 14),
        "flatten1": ("N", 1176),
        "linear1": ("N", 10),
    }
    assert model.infer({"input": (7, 1, 28, 28)})["linear1"] == (7, 10)


def test_fixed_batch_stays() -> None:
    model = Model((Node("a", ReLU(), ("x",), "y"),), (TensorInfo("x", (2, 3)),), ("y",))
    assert model.tensors["y"].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"input 'x' must have shape \(2, 3\), got \(1, 3\)"):
        model.infer({"x": (1, 3)})


def test_branches() -> None:
    nodes = (Node("a", ReLU(), ("x",), "r"), Node("b", Sigmoid(), ("x",), "s"))
    model = Model(nodes, (X,), ("s", "r"))
    assert [model.tensors[name].shape for name in model.outputs] == [("N", 3), ("N", 3)]
    with pytest.raises(ModelError, match="1 inputs and 2 outputs: use an InferenceSession"):
        model(np.zeros((1, 3), np.float32), backend="cpu")


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "message"),
    [
        ([("a", ("z",), "y")], [X], ["y"], "layer 'a': .* makes the tensor 'z'"),
        ([("a", ("x",), "x")], [X], ["x"], "layer 'a': the tensor 'x' is already there"),
        ([("a", ("x",), "y"), ("a", ("y",), "z")], [X], ["z"], "name of its own, got 'a'"),
        ([("", ("x",), "y")], [X], ["y"], "name of its own, got ''"),
        ([("a", ("x", "x"), "y")], [X], ["y"], "layer 'a' takes 1 inputs, got 2"),
        ([("a", ("x",), "y")], [X], ["q"], "no layer makes the output 'q'"),
        ([("a", ("x",), "y")], [X, X], ["y"], "two inputs are called 'x'"),
        ([("a", ("x",), "y")], [], ["y"], "needs an input and an output"),
        ([("a", ("x",), "y")], [X], [], "needs an input and an output"),
    ],
)
def test_graph_that_does_not_hold_together(
    nodes: list[tuple[str, tuple[str, ...], str]],
    inputs: list[TensorInfo],
    outputs: list[str],
    message: str,
) -> None:
    made = tuple(Node(name, ReLU(), reads, output) for name, reads, output in nodes)
    with pytest.raises(ModelError, match=message):
        Model(made, tuple(inputs), tuple(outputs))


def test_layers_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match="layer 'second': "):
        Model.sequential([Linear(3, 4), Linear(5, 1)], (3,), names=["first", "second"])


@pytest.mark.parametrize("shape", [(), ("N", 0), ("N", "N"), ("N", -1), ("M", 3), ("N", True)])
def test_wrong_tensor_shape(shape: tuple[int | str, ...]) -> None:
    with pytest.raises(ModelError, match="tensor 'x': a shape must be positive integers"):
        TensorInfo("x", shape)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, "missing input 'input': small takes 'input'"),
        ({"input": (1, 3), "y": (1,)}, "unknown input 'y': small takes 'input'"),
        ({"input": (0, 3)}, r"input 'input' must not be empty, got shape \(0, 3\)"),
        ({"input": (3,)}, r"input 'input' must have 2 dimensions, \(N, 3\), got \(3,\)"),
        ({"input": (1, 4)}, r"input 'input' must have shape \(N, 3\), got \(1, 4\)"),
    ],
)
def test_wrong_input_shapes(small: Model, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        small.infer(shapes)


def test_call_by_hand(small: Model) -> None:
    x = np.array([[1, 2, 3], [5, 0, 1]], np.float32)
    assert small(x, backend="cpu").tolist() == [[0, 1], [4.5, 7]]


def test_call_sees_a_new_parameter(small: Model) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    assert small(x, backend="cpu").tolist() == [[0, 1]]
    linear = small.nodes[0].layer
    assert isinstance(linear, Linear)
    linear.bias = np.array([10, 20], np.float32)
    assert small(x, backend="cpu").tolist() == [[8, 24]]


def test_copies_compute_the_same(small: Model) -> None:
    x = np.array([[1, 2, 3]], np.float32)
    small(x, backend="cpu")
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert twin(x, backend="cpu").tolist() == [[0, 1]]


def test_parameters_are_named_after_their_layers(small: Model) -> None:
    assert {name: array.shape for name, array in small.parameters().items()} == {
        "affine.weight": (2, 3),
        "affine.bias": (2,),
    }


def test_summary() -> None:
    model = Model.sequential([Linear(3, 4), Softmax()], (3,), name="tiny")
    assert str(model).splitlines() == [
        "tiny: input (N, 3) -> softmax1, 16 parameters",
        "layer     kind     output  parameters",
        "linear1   Linear   (N, 4)          16",
        "softmax1  Softmax  (N, 4)           0",
        "random weights: none were loaded or trained",
    ]
    model["linear1"].bias = np.ones(4, np.float32)
    assert "random" not in str(model)
