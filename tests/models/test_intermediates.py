"""Tensors inside a model, by name: held against the layers written out in NumPy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from glnn.backends import NAMES, open_backend
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.layers import BatchNorm2d, Conv2d, Flatten, Linear, ReLU
from glnn.model import Model, Node, TensorInfo
from glnn.model.npz import save_arrays
from glnn.session import InferenceSession
from tests.oracle import error


@pytest.fixture(params=NAMES)
def backend(request) -> str:
    try:
        open_backend(request.param)
    except DeviceError as closed:
        pytest.skip(str(closed))
    return request.param


@pytest.fixture
def net(rng) -> Model:
    """A convolution of 1 x 1, its normalisation folded into it, and a product, both with a ReLU."""
    conv, norm, linear = Conv2d(3, 4, 1, bias=False), BatchNorm2d(4), Linear(36, 5)
    norm.running_mean, norm.running_var = rng((4,)), np.abs(rng((4,))) + np.float32(0.5)
    layers = [conv, norm, ReLU(), Flatten(), linear, ReLU()]
    return Model.sequential(layers, (3, 3, 3), name="net", names=["a", "b", "c", "d", "e", "f"])


def forward(model: Model, x: np.ndarray) -> dict[str, np.ndarray]:
    """Every layer's result in float64."""
    kept = {name: array.astype(np.float64) for name, array in model.parameters().items()}
    found = {"input": x.astype(np.float64)}
    found["a"] = np.einsum("nchw,kc->nkhw", found["input"], kept["a.weight"][:, :, 0, 0])
    shape = (1, 4, 1, 1)
    names = ("running_mean", "running_var", "weight", "bias")
    mean, var, weight, bias = (kept[f"b.{name}"].reshape(shape) for name in names)
    found["b"] = (found["a"] - mean) / np.sqrt(var + 1e-5) * weight + bias
    found["c"] = np.maximum(found["b"], 0)
    found["d"] = found["c"].reshape(len(x), -1)
    found["e"] = found["d"] @ kept["e.weight"].T + kept["e.bias"]
    found["f"] = np.maximum(found["e"], 0)
    return found


def test_every_layer(net: Model, rng, backend: str) -> None:
    x = rng((2, 3, 3, 3))
    session = InferenceSession(net, backend)
    expected = forward(net, x)
    found = session.intermediates({"input": x})
    assert set(expected) <= set(found)
    for name, array in expected.items():
        assert found[name].shape == array.shape and error(found[name], array) < 1e-5, name
    for name in expected:  # one alone leaves more joined, and is the same
        (one,) = session.intermediates({"input": x}, [name]).values()
        assert error(one, expected[name]) < 1e-5, name
    assert error(session.run(None, {"input": x})[0], expected["f"]) < 1e-5


def test_names_and_patterns(net: Model, rng) -> None:
    session, x = InferenceSession(net, "cpu"), rng((1, 3, 3, 3))
    assert list(session.intermediates({"input": x}, ["f", "[ab]", "input"])) == [
        *("f", "a", "b", "input")
    ]
    assert session.intermediates({"input": x}, []) == {}
    with pytest.raises(ModelError, match="no tensor or layer of net is called 'conv1': it has "):
        session.intermediates({"input": x}, ["conv1"])
    with pytest.raises(ModelError, match="names must be a list of tensors' names, got 'a'"):
        session.intermediates({"input": x}, "a")
    with pytest.raises(ShapeError, match="input 'input'"):
        session.intermediates({"input": x[0]}, ["a"])


def test_a_layer_whose_tensor_has_another_name(rng) -> None:
    nodes = (Node("relu", ReLU(), ("x",), "y"),)
    model = Model(nodes, (TensorInfo("x", ("N", 3)),), ("y",))
    x = rng((2, 3))
    found = InferenceSession(model, "cpu").intermediates({"x": x}, ["relu", "y", "re*"])
    assert list(found) == ["relu", "y"]
    for array in found.values():
        np.testing.assert_array_equal(array, np.maximum(x, 0))


def test_weights_are_shared_and_runs_stay_as_they_were(net: Model, rng, backend: str) -> None:
    session, x = InferenceSession(net, backend), rng((2, 3, 3, 3))
    before = session.run(None, {"input": x})[0]
    session.intermediates({"input": x}, ["e"])
    layer = net.nodes[4].layer
    layer.bias = layer.bias + np.float32(1)
    found = session.intermediates({"input": x}, ["e"])["e"]
    assert error(found, forward(net, x)["e"]) < 1e-5
    layer.bias = layer.bias - np.float32(1)
    np.testing.assert_allclose(session.run(None, {"input": x})[0], before, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_is_asked_for_elsewhere(net: Model, rng) -> None:
    """What lies behind the tensors that are asked for is planned, too."""
    session = InferenceSession(net, "cpu", kernels={"matmul": "numpy"})
    x = rng((1, 3, 3, 3))
    assert error(session.intermediates({"input": x}, ["a"])["a"], forward(net, x)["a"]) < 1e-5


def test_any_name_can_be_saved(tmp_path: Path) -> None:
    """`np.savez` would take no array called `file`, and cut another's name at its zero byte."""
    arrays = {
        name: np.arange(i, dtype=np.int64) for i, name in enumerate(["file", "a/b:0", "é [1]"])
    }
    arrays["x\x00y"] = np.zeros((2, 0, 3), bool)
    save_arrays(tmp_path / "t.npz", arrays)
    with np.load(tmp_path / "t.npz") as archive:
        assert archive.files == ["file", "a/b:0", "é [1]", "x\\x00y"]
        for name, array in zip(archive.files, arrays.values(), strict=True):
            np.testing.assert_array_equal(archive[name], array)
            assert archive[name].dtype == array.dtype


@pytest.mark.parametrize("path", ["gone/t.npz", "", "t.npz/t.npz", "pipe", "a\0b"])
def test_where_nothing_can_be_saved(tmp_path: Path, path: str) -> None:
    (tmp_path / "t.npz").write_bytes(b"kept")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match="cannot be written: "):
        save_arrays(f"{tmp_path}/{path}", {"a": np.zeros(3)})
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "t.npz").read_bytes() == b"kept"


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "t.npz"
    save_arrays(path, {"a": np.ones(3)})
    old = path.read_bytes()
    mark_written = []

    def interrupted(stream, array, **options) -> None:
        if mark_written:
            raise KeyboardInterrupt
        mark_written.append(stream.write(b"half"))

    monkeypatch.setattr("glnn.model.npz.npy.write_array", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_arrays(path, {"a": np.zeros(3), "b": np.zeros(3)})
    assert mark_written and path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
