"""ONNX Runtime and what stands in for it: every test is of both, where both are there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.onnxruntime.models import I64, F, proto


@pytest.fixture(scope="session")
def model() -> Any:
    """y = x + w, j = i, z = relu(y), and what a file can say of itself."""
    nodes = [
        helper.make_node("Add", ["x", "w"], ["y"]),
        helper.make_node("Identity", ["i"], ["j"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    inputs = [("x", F, ["N", 3]), ("i", I64, [None, 2])]
    outputs = [("y", F, ["N", 3]), ("j", I64, None), ("z", F, ["M", 3])]
    weights = [helper.make_tensor("w", F, [3], [1, 2, 3])]
    told = {"producer_name": "a producer", "domain": "a domain", "doc_string": "a model"}
    found = proto(nodes, inputs, outputs, initializer=weights, **told)
    found.model_version = 7
    found.graph.doc_string = "what it does"
    found.metadata_props.add(key="labels", value="a,b")
    return found


@pytest.fixture(scope="session")
def content(model) -> bytes:
    return model.SerializeToString()


@pytest.fixture(scope="module", autouse=True)
def backend() -> Iterator[None]:
    """What `auto` means in these tests: they are of names, not of which device is the fastest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLNN_BACKEND", "compute")
        yield


@pytest.fixture(scope="session", params=["glnn.onnxruntime", "onnxruntime"])
def ort(request) -> ModuleType:
    """Both modules, one after the other."""
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    found = import_module(request.param)
    found.set_default_logger_severity(4)
    return found


@pytest.fixture(scope="session")
def ours() -> ModuleType:
    return import_module("glnn.onnxruntime")


@pytest.fixture(scope="session")
def states(ort) -> ModuleType:
    """The module that has the exceptions."""
    return import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")


@pytest.fixture(scope="session")
def session(ort, content) -> Any:
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"])


@pytest.fixture
def feeds() -> dict[str, Any]:
    return {
        "x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3),
        "i": np.array([[1, 2]], np.int64),
    }


@pytest.fixture
def y(feeds) -> Any:
    """What the model makes of `feeds`."""
    return feeds["x"] + np.array([1, 2, 3], np.float32)
