"""Tensors that may be missing, between nodes; ONNX Runtime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import glnn
from tests.onnx.runtime import IR_VERSION, runtime


@pytest.mark.parametrize("shape", [(2, 3), ("a", "b"), None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint16, np.bool_])
@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_what_is_got_is_a_tensor(backend: str, dtype: Any, shape: Any) -> None:
    """It is an output of its type, and nodes read it."""
    x = np.arange(6).reshape(2, 3).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [
        helper.make_node("Optional", ["x0"], ["q"]),
        helper.make_node("OptionalHasElement", ["q"], ["there"]),
        helper.make_node("OptionalGetElement", ["q"], ["y"]),
        helper.make_node("Equal", ["y", "x0"], ["z"]),
    ]
    inputs = [helper.make_tensor_value_info("x0", code, shape)]
    outputs = [
        helper.make_tensor_value_info("y", code, None),
        helper.make_tensor_value_info("z", TensorProto.BOOL, None),
        helper.make_tensor_value_info("there", TensorProto.BOOL, None),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    found = glnn.InferenceSession(model.SerializeToString(), backend).run(None, {"x0": x})
    right = [x, np.ones((2, 3), bool), np.array(True)]
    if dtype is not np.uint16:  # of which ONNX Runtime compares none
        right = runtime(model, [x])
    for got, expected in zip(found, right, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
