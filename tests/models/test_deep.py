"""VGG-16, and branches: memory is shared, reorders are at the edges, nothing is lost on the way."""

from __future__ import annotations

import os

import numpy as np
import pytest

import glnn
from glnn import layers
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError
from glnn.model.load import vgg16
from glnn.model.model import Model, Node
from tests.oracle import error

LIMITS = [None, "es31-minimum"]


def open_session(model: Model, **arguments) -> glnn.InferenceSession:
    try:
        return glnn.InferenceSession(model, "compute", **arguments)
    except DeviceError as closed:
        pytest.skip(str(closed))


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, np.float32)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.skipif("MESA_GLES_VERSION_OVERRIDE" in os.environ, reason="once is enough")
def test_vgg16_whole(limits, monkeypatch) -> None:
    """As fast as it can be and, on the least of devices, in little memory: tensors share it, so
    that besides the weights 1.2 times the two largest neighbours do: for smaller images, but
    in `make check-exhaustive`.
    """
    size = 224 if limits is None or "GLNN_EXHAUSTIVE" in os.environ else 64
    model, x = vgg16(size=size), image(1, 3, size, size)
    packed = sum(array.nbytes for array in model.parameters().values())
    allowed = int(1.001 * packed + 1.2 * 2 * 4 * 64 * size * size)
    if limits is not None:
        monkeypatch.setenv("GLNN_MEMORY", str(allowed))
    session = open_session(model, limits=limits)
    plan = session.plan({"input": x.shape})
    assert (plan.outline.peak <= allowed) is (limits is not None)
    programs = plan.backend.device.programs
    expected, compiled = model(x, backend="cpu"), len(programs)
    for _ in range(2):
        (got,) = session.run(None, {"input": x})
        assert error(got, expected) <= 1e-5
    assert session.plan({"input": x.shape}) is plan and len(programs) == compiled
    moved = [step.name for step in plan.steps if step.op.name == "reorder"]
    *first, last = moved  # some devices read the picture as it comes
    assert last == "pool5 to R" and first in ([], ["input to nhwC4c"])


@pytest.mark.parametrize("kernel", ["implicit_gemm", "winograd_2", "winograd_4", "im2col_morton"])
@pytest.mark.parametrize("limits", LIMITS)
def test_small_vgg16_by_every_way(kernel, limits) -> None:
    model, x = vgg16(size=32, classes=10), image(2, 3, 32, 32)
    session = open_session(model, limits=limits, kernels={"conv2d": kernel})
    (got,) = session.run(None, {"input": x})
    assert error(got, model(x, backend="cpu")) <= 1e-5


def residual_network(width: int) -> Model:
    """Two branches that are added, as in a ResNet's block, and a third that joins them."""
    conv = {
        name: layers.Conv2d(c, o, k, stride, padding, seed=i)
        for i, (name, c, o, k, stride, padding) in enumerate(
            [
                ("stem", 3, width, 3, 1, 1),
                ("a", width, width, 3, 2, 1),
                ("b", width, width, 3, 1, 1),
                ("short", width, width, 1, 2, 0),
                ("side", width, width, 1, 1, 0),
            ]
        )
    }
    graph = [
        ("stem", conv["stem"], ["input"]),
        ("relu0", layers.ReLU(), ["stem"]),
        ("a", conv["a"], ["relu0"]),
        ("relu1", layers.ReLU(), ["a"]),
        ("short", conv["short"], ["relu0"]),
        ("b", conv["b"], ["relu1"]),
        ("add", layers.Add(), ["b", "short"]),
        ("relu2", layers.ReLU(), ["add"]),
        ("side", conv["side"], ["relu2"]),
        ("join", layers.Concat(2), ["relu2", "side"]),
        ("pool", layers.AdaptiveAvgPool2d(1), ["join"]),
        ("flatten", layers.Flatten(), ["pool"]),
        ("fc", layers.Linear(2 * width, 5), ["flatten"]),
    ]
    nodes = tuple(Node(name, layer, tuple(reads), name) for name, layer, reads in graph)
    return Model(nodes, (TensorInfo("input", ("N", 3, 13, 11)),), ("fc",), "residual")


@pytest.mark.parametrize("width", [6, 36])
@pytest.mark.parametrize("limits", LIMITS)
def test_branches(width, limits) -> None:
    model, x = residual_network(width), image(3, 3, 13, 11)
    session = open_session(model, limits=limits)
    for _ in range(2):
        (got,) = session.run(None, {"input": x})
        assert error(got, model(x, backend="cpu")) <= 1e-5
    names = [step.name for step in session.plan({"input": x.shape}).steps]
    assert any(name.startswith("b + add + relu2") for name in names)
    assert not any(name == "add" for name in names)
