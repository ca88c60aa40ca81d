"""Arithmetic of int64 inputs is the GPU's as long as their numbers are small, and exact beyond."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import glnn
from glnn.errors import DeviceError, ShapeError
from tests.onnx.single import BACKENDS

INT64 = onnx.TensorProto.INT64


def position_ids() -> onnx.ModelProto:
    """CumSum(mask) - 1 + 1000, as models of text have their positions."""
    one, most = (helper.make_tensor(n, INT64, (), [v]) for n, v in (("one", 1), ("most", 1000)))
    axis = helper.make_tensor("axis", INT64, (), [1])
    nodes = [
        helper.make_node("CumSum", ["mask", "axis"], ["sums"]),
        helper.make_node("Sub", ["sums", "one"], ["before"]),
        helper.make_node("Add", ["before", "most"], ["y"]),
    ]
    given, made = (helper.make_tensor_value_info(n, INT64, ("N", 7)) for n in ("mask", "y"))
    graph = helper.make_graph(nodes, "positions", [given], [made], [one, most, axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_small_and_large(backend: str) -> None:
    try:
        session = glnn.InferenceSession(position_ids().SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    rng = np.random.default_rng(0)
    for times in (1, 3):  # from the second on by the arrays' types alone, unless they are larger
        for most, hosted in ((2, False), (2**31, True), (2**7, False), (2**21, True)):
            for _ in range(times):
                x = rng.integers(-most, most, (3, 7))
                x[-1, -1] = most - 1
                (found,) = session.run(None, {"mask": x})
                np.testing.assert_array_equal(found, np.cumsum(x, 1) - 1 + 1000)
                (found,) = session.run_async(None, {"mask": x}).result()
                np.testing.assert_array_equal(found, np.cumsum(x, 1) - 1 + 1000)
                assert bool(session.hosted) == hosted
    with pytest.raises(ShapeError, match="from -1048576 to 1048576 for this plan"):
        session.plan({"mask": (3, 7)}).run({"mask": x})
