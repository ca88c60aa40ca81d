"""Finding models, and what comes with glnn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import glnn
from glnn import data
from glnn.errors import ModelError


def test_unknown_model() -> None:
    with pytest.raises(
        ModelError,
        match=r"unknown model 'alexnet': expected a \.json or \.onnx file, or one of lenet",
    ):
        glnn.load("alexnet")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"net\.json: no such file"):
        glnn.load(tmp_path / "net.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ModelError, match=r"folder\.json: is not a file"):
        glnn.load(tmp_path / "folder.json")


def test_digits() -> None:
    images, labels = data.digits()
    assert images.shape == (1000, 28, 28)
    assert images.dtype == np.uint8
    assert labels.shape == (1000,)
    assert set(labels.tolist()) == set(range(10))
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # as MNIST's test set begins


def test_lenet_knows_digits() -> None:
    images, labels = data.digits()
    x = (images.astype(np.float32) / 255)[:, None]
    predictions = glnn.load("lenet")(x, backend="cpu").argmax(axis=1)
    assert (predictions == labels).mean() >= 0.98


def test_lenet_is_the_network_that_it_says() -> None:
    """Against LeNet-5 written out from its definition, in float64."""
    model = glnn.load("lenet")
    p = {name: array.astype(np.float64) for name, array in model.parameters().items()}

    def conv(x: np.ndarray, name: str) -> np.ndarray:
        windows = sliding_window_view(x, (5, 5), axis=(2, 3))
        sums = np.einsum("ncyxij,ocij->noyx", windows, p[f"{name}.weight"])
        return sigmoid(sums + p[f"{name}.bias"][:, None, None])

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-x)))

    def halve(x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        return np.asarray(x.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5)))

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ p[f"{name}.weight"].T + p[f"{name}.bias"])

    images = data.digits()[0][:5, None].astype(np.float32) / np.float32(255)
    x = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)))
    x = halve(conv(halve(conv(x, "c1")), "c3")).reshape(5, 400)
    x = dense(sigmoid(dense(sigmoid(dense(x, "c5")), "f6")), "out")
    expected = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    error = np.linalg.norm(model(images, backend="cpu") - expected) / np.linalg.norm(expected)
    assert error < 1e-5


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_import_is_light() -> None:
    heavy = ["numpy", "moderngl", "glfw", "glnn.gl", "PIL"]
    assert run(f"import sys, glnn; print([m for m in {heavy} if m in sys.modules])") == "[]"


def test_cpu_needs_no_gl() -> None:
    code = (
        "import sys, glnn; glnn.InferenceSession('lenet', 'cpu'); print('moderngl' in sys.modules)"
    )
    assert run(code) == "False"


def test_public_names() -> None:
    for name in glnn.__all__:
        assert getattr(glnn, name) is not None
    assert sorted(glnn.__all__) == sorted(dir(glnn))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        glnn.nothing  # noqa: B018
