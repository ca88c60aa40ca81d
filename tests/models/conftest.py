"""Models small enough to be worked out by hand, and one of every kind of layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.backends.compute import Compute
from glnn.core.tensor_info import BATCH, TensorInfo
from glnn.errors import DeviceError
from glnn.gl import Device
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
from tests.files import name_weights_plainly


@pytest.fixture(scope="module", params=["", "es31-minimum"])
def compute(request):
    """The backend of compute shaders, also with the least limits."""
    try:
        device = Device(limits=request.param or None)
    except DeviceError as error:
        pytest.skip(str(error))
    if reason := Compute.why_not_device(device):
        pytest.skip(reason)
    yield Compute(device)
    device.close()


@pytest.fixture
def small() -> Model:
    """relu(x @ [[1, 0, -1], [2, 1, 0]].T + [0.5, -3]) for x of shape (n, 3)."""
    linear = Linear(3, 2)
    linear.weight = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
    linear.bias = np.array([0.5, -3], np.float32)
    return Model.sequential([linear, ReLU()], (3,), name="small", names=["affine", "relu"])


@pytest.fixture
def blocks(rng) -> Model:
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


@pytest.fixture
def saved(small: Model, tmp_path: Path) -> Path:
    """The .json file of `small`, with its .npz file, `small.npz`, beside it."""
    small.save(tmp_path / "small.json")
    return name_weights_plainly(tmp_path / "small.json")


@pytest.fixture
def edit(saved: Path) -> Callable[[Callable[[Any], object]], Path]:
    """Change the document in the .json file of `small`."""

    def change(how: Callable[[Any], object]) -> Path:
        document = json.loads(saved.read_text())
        how(document)
        saved.write_text(json.dumps(document))
        return saved

    return change


NETWORK: dict[str, Any] = {
    "layers": [
        {"layer": "AffineLayer", "weights": "1_w.json", "biases": "1_b.json"},
        {"layer": "SigmoidLayer"},
        {"layer": "AffineLayer", "weights": "2_w.json", "biases": "2_b.json"},
        {"layer": "ReLULayer"},
    ],
    "size": 4,
}
MATRICES: dict[str, list[list[float]]] = {
    "1_w": [[1, 0, -1], [2, 1, 0]],
    "1_b": [[0.5], [-3]],
    "2_w": [[1, -1], [4, 2], [-1, 0]],
    "2_b": [[0], [-1], [0.25]],
}


@pytest.fixture
def matrices() -> dict[str, list[list[float]]]:
    """The matrices of `network`, by their names."""
    return MATRICES


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """The Network Definition of a perceptron 3-2-3, with its matrices."""
    for name, rows in MATRICES.items():
        text = "\n".join(",".join(map(str, row)) for row in rows) + "\n"
        (tmp_path / f"{name}.csv").write_text(text)
        definition = {
            "rows": len(rows),
            "data_type": "csv",
            "file": f"{name}.csv",
            "cols": len(rows[0]),
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(definition))
    (tmp_path / "net.json").write_text(json.dumps(NETWORK))
    return tmp_path / "net.json"
