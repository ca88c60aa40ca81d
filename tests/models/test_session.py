"""Sessions: names, outputs, bad input, and when plans are built anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.layers import Linear, ReLU, Sigmoid
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession

X = np.array([[1, 2, 3], [5, 0, 1]], np.float32)


@pytest.fixture
def session(small: Model) -> InferenceSession:
    return InferenceSession(small, "cpu")


def test_inputs_and_outputs(session: InferenceSession) -> None:
    (given,), (got,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("input", ("N", 3), "tensor(float)")
    assert (got.name, got.shape, got.type) == ("relu", ("N", 2), "tensor(float)")
    assert session.backend.name == "cpu"


def test_run_by_hand(session: InferenceSession) -> None:
    (result,) = session.run(None, {"input": X})
    assert result.dtype == np.float32
    assert result.tolist() == [[0, 1], [4.5, 7]]
    assert session.run(["relu"], {"input": X[:1]})[0].tolist() == [[0, 1]]
    assert session.run([], {"input": X})[0].tolist() == [[0, 1], [4.5, 7]]


def test_several_outputs_come_in_the_order_asked() -> None:
    nodes = (Node("a", ReLU(), ("x",), "r"), Node("b", Sigmoid(), ("x",), "s"))
    session = InferenceSession(Model(nodes, (TensorInfo("x", ("N", 2)),), ("r", "s")), "cpu")
    s, r = session.run(["s", "r"], {"x": np.array([[-1, 0]], np.float32)})
    assert r.tolist() == [[0, 0]]
    assert s[0] == pytest.approx([0.26894143, 0.5])


def test_nan_is_computed_as_numpy_would(session: InferenceSession) -> None:
    (result,) = session.run(None, {"input": np.array([[np.nan, 0, 0]], np.float32)})
    assert np.isnan(result).all()


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "missing input 'input': small takes 'input'"),
        ({"x": X}, "missing input 'input': small takes 'input', got 'x'"),
        ({"input": X, "x": X}, "unknown input 'x': small takes 'input'"),
        ({"input": X.astype(np.float64)}, "input 'input' must be a float32 NumPy array"),
        ({"input": X.tolist()}, "input 'input' must be a float32 NumPy array, got list"),
        ({"input": X[0]}, r"input 'input' must have 2 dimensions, \(N, 3\), got \(3,\)"),
        ({"input": X[:, :2]}, r"input 'input' must have shape \(N, 3\), got \(2, 2\)"),
        ({"input": X[:0]}, r"input 'input' must not be empty, got shape \(0, 3\)"),
    ],
)
def test_wrong_feeds(session: InferenceSession, feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        session.run(None, feeds)
    assert "\n" not in str(caught.value)


def test_unknown_output(session: InferenceSession) -> None:
    with pytest.raises(ModelError, match="unknown output 'affine': small has 'relu'"):
        session.run(["affine"], {"input": X})


def test_unknown_backend(small: Model) -> None:
    with pytest.raises(GlnnError, match="unknown backend 'vulkan'"):
        InferenceSession(small, "vulkan")


def test_unknown_kernel(small: Model) -> None:
    with pytest.raises(GlnnError, match="nonesuch"):
        InferenceSession(small, "cpu", kernels={"matmul": "nonesuch"}).run(None, {"input": X})


def test_plan_is_built_once_for_each_shape(session: InferenceSession) -> None:
    plan = session.plan({"input": (2, 3)})
    assert session.plan({"input": (2, 3)}) is plan
    assert session.plan({"input": (1, 3)}) is not plan
    for batch in range(3, 7):
        session.plan({"input": (batch, 3)})
    assert session.plan({"input": (2, 3)}) is not plan  # only the last few are kept


def test_plan_is_built_anew_for_a_new_parameter(session: InferenceSession) -> None:
    session.run(None, {"input": X})
    linear = session.model.nodes[0].layer
    assert isinstance(linear, Linear)
    linear.weight = np.zeros((2, 3), np.float32)
    assert session.run(None, {"input": X})[0].tolist() == [[0.5, 0], [0.5, 0]]


def test_model_by_path(saved: Path) -> None:
    for source in (saved, str(saved)):
        (result,) = InferenceSession(source, "cpu").run(None, {"input": X})
        assert result.tolist() == [[0, 1], [4.5, 7]]


def test_model_as_bytes(tmp_path: Path, saved: Path, network: Path) -> None:
    Model.sequential([ReLU()], (3,)).save(tmp_path / "relu.json")
    session = InferenceSession((tmp_path / "relu.json").read_bytes(), "cpu")
    assert session.run(None, {"input": -X})[0].tolist() == np.zeros((2, 3)).tolist()
    with pytest.raises(ModelError, match="model given as bytes: it names the file 'small"):
        InferenceSession(saved.read_bytes(), "cpu")
    with pytest.raises(ModelError, match="model given as bytes: an AffineLayer names files"):
        InferenceSession(network.read_bytes(), "cpu")
    says = r"model given as bytes: (not an ONNX|reading ONNX needs)"  # the latter without onnx
    with pytest.raises(ModelError, match=says):
        InferenceSession(b"\x08\x07onnx", "cpu")
