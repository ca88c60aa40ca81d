"""Graphs with branches: residual blocks, concatenations of branches, normalisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.errors import DeviceError
from glnn.layers import (
    AdaptiveAvgPool2d,
    Add,
    BatchNorm2d,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Subsample2d,
)
from glnn.model import Model
from glnn.model.model import Node
from glnn.model.plan import Plan
from glnn.model.tensor import BATCH, TensorInfo
from tests.oracle import error


@pytest.fixture(params=["compute", "cpu"])
def backend(request):
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


@pytest.fixture
def model(rng) -> Model:
    """Every layer that reads several inputs or normalises, with parameters at random."""
    layers: list[tuple[str, Layer, str]] = [
        ("stem", Conv2d(3, 6, 3, padding=1, bias=False), "image"),
        ("norm", BatchNorm2d(6), "stem"),
        ("relu", ReLU(), "norm"),
        ("a", Conv2d(6, 6, 3, padding=1), "relu"),
        ("a norm", BatchNorm2d(6), "a"),
        ("sum", Add(), "a norm|relu"),
        ("sum relu", ReLU(), "sum"),
        ("response", LocalResponseNorm(3, 0.5), "sum relu"),
        ("b1", Conv2d(6, 1, 1), "response"),
        ("b2", Conv2d(6, 4, 3, padding=1), "response"),
        ("b3", MaxPool2d(3, 1, 1), "response"),
        ("b4", BatchNorm2d(6), "response"),
        ("b5", Conv2d(6, 2, 1), "response"),
        ("all", Concat(5), "b1|b2|b3|b4|b5"),
        ("drop", Dropout(), "all"),
        ("half", Subsample2d(19, 2), "drop"),
        ("half relu", ReLU(), "half"),
        ("mean", AdaptiveAvgPool2d(1), "half relu"),
        ("flat", Flatten(), "mean"),
        ("drop 2", Dropout(), "flat"),
        ("scores", Linear(19, 5), "drop 2"),
        ("scores norm", BatchNorm2d(5), "scores"),
    ]
    for _, layer, _ in layers:
        for name, shape in layer.shapes.items():
            values = rng(shape)
            setattr(layer, name, values**2 + np.float32(0.5) if name == "running_var" else values)
    nodes = tuple(Node(name, layer, tuple(read.split("|")), name) for name, layer, read in layers)
    return Model(nodes, (TensorInfo("image", (BATCH, 3, 9, 7)),), ("scores norm",), "blocks")


def computed(model: Model, x: np.ndarray) -> np.ndarray:
    """Layer by layer, each by its reference in float64."""
    tensors = {"image": x.astype(np.float64)}
    for node in model.nodes:
        operands = dict(zip(node.layer.op.inputs, (tensors[i] for i in node.inputs), strict=False))
        operands |= {name: array.astype(np.float64) for name, array in node.layer.operands.items()}
        tensors[node.output] = node.layer.op.reference(operands)
    return tensors[model.outputs[0]]


@pytest.mark.parametrize("fused", [True, False])
def test_branches(rng, backend, model, fused) -> None:
    x = rng((3, 3, 9, 7))
    plan = Plan(model, backend, {"image": x.shape}, fused=fused)
    (got,) = plan.run({"image": x}).values()
    assert error(got, computed(model, x)) <= 1e-5
    ops = [step.op.name for step in plan.steps if step.op.name != "repack"]
    assert ops.count("concat") == 2 and "dropout" not in ops
    assert ops.count("batch_norm") == (1 if fused else 4)
    assert ("activation" in ops) is not fused


def test_a_saved_model_is_the_same(rng, model, tmp_path: Path) -> None:
    model.save(tmp_path / "blocks.json")
    again, x = glnn.load(tmp_path / "blocks.json"), rng((2, 3, 9, 7))
    assert [node.inputs for node in again.nodes] == [node.inputs for node in model.nodes]
    assert [repr(node.layer) for node in again.nodes] == [repr(n.layer) for n in model.nodes]
    np.testing.assert_array_equal(again(x, backend="cpu"), model(x, backend="cpu"))


def test_a_new_parameter_of_a_folded_norm_is_noticed(rng, model) -> None:
    x = rng((1, 3, 9, 7))
    before = model(x, backend="cpu")
    norm = model.nodes[-1].layer
    assert isinstance(norm, BatchNorm2d)
    norm.bias = norm.bias + np.float32(1)
    np.testing.assert_allclose(model(x, backend="cpu"), before + 1, rtol=1e-5)
