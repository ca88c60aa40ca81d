"""Operators in float64, float16 and bfloat16 beside ONNX Runtime's float32 of the same numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import glnn
from glnn.errors import DeviceError
from tests.onnx.conformance import run, unexpected_of_type
from tests.onnx.gpu_cases import cases
from tests.onnx.retyped import DTYPES, rounded_float32, through
from tests.onnx.runtime import node_model

BACKENDS = ("cpu", "compute", "feedback")
CASES = {
    *(f"test_clip_default_{end}" for end in ("min", "max")),
    *("test_group_normalization_epsilon", "test_group_normalization_example"),
    *("test_mvn", "test_batchnorm_example_training_mode", "test_gelu_tanh_2"),
    *("test_layer_normalization_4d_axis1", "test_layer_normalization_4d_axis_negative_3"),
    *("test_rms_normalization_3d_axis1_epsilon", "test_split_to_sequence_1"),
    *("test_maxpool_with_argmax_2d_precomputed_pads", "test_averagepool_2d_pads"),
    "test_attention_4d_diff_heads_with_past_and_present_mask4d",
}
SHARE = 12
"""One case in so many, beside those of CASES."""


@pytest.mark.parametrize("name", DTYPES)
def test_cases_of_the_suite(name: str) -> None:
    """The suite's cases with another type in the place of float32; `make check-types` has all."""
    found = [
        run(kind, case, "cpu", DTYPES[name])
        for number, (kind, case) in enumerate(cases(["node"]))
        if number % SHARE == 0 or case.name in CASES
    ]
    assert {one.name for one in found} >= CASES
    assert sum(one.status in ("gpu", "host") for one in found) > len(found) / 3
    assert not unexpected_of_type(found, name)


def test_weights_and_operands_are_rounded_alike() -> None:
    """What float32 is given for comparison: its own tensors rounded, others as they are."""
    third, dtype = np.array([1 / 3, 2.0], np.float32), DTYPES["float16"]
    model = node_model("Add", [third, third], known=(1,))
    wide = numpy_helper.to_array(through(model, dtype).graph.initializer[0])
    assert wide.dtype == np.float32 and wide[0] == np.float32(np.float16(1 / 3))
    np.testing.assert_array_equal(rounded_float32(third, dtype), wide)
    narrow = third.astype(np.float16)
    for other in (narrow, third.astype(np.float64), np.array([3]), np.array(["a"])):
        assert rounded_float32(other, dtype) is other  # as CastLike's second operand
    (first, second), texts = rounded_float32([[third, narrow], ["b"]], dtype)
    assert first.dtype == np.float32 and second is narrow and texts == ["b"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *DTYPES.values()], ids=str)
@pytest.mark.parametrize("version", [6, 21])
def test_clip_without_ends_leaves_no_infinity(
    backend: str, dtype: np.dtype[Any], version: int
) -> None:
    """ONNX's defaults are the type's least and greatest number. NaN stays."""
    if version < 13 and dtype == ml_dtypes.bfloat16:
        pytest.skip("ONNX has no such Clip")
    ends = ml_dtypes.finfo(dtype)
    x = np.array([np.inf, -np.inf, np.nan, 1.5, -1.5, ends.max, ends.min]).astype(dtype)
    right = np.array([ends.max, ends.min, np.nan, 1.5, -1.5, ends.max, ends.min]).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(dtype)
    given, made = (helper.make_tensor_value_info(n, code, x.shape) for n in ("x", "y"))
    nodes = [helper.make_node("Clip", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "clip", [given], [made])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8
    )
    try:
        session = glnn.InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    (found,) = session.run(None, {"x": x})
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float64), right.astype(np.float64))
