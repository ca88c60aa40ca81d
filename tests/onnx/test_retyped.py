"""Operators in float64, float16 and bfloat16 beside what float32 gives for the same numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import glnn
from glnn import onnx_backend
from glnn.errors import DeviceError
from tests.onnx.conformance import data, difference
from tests.onnx.gpu_cases import cases
from tests.onnx.retyped import DTYPES, as_float32, retyped, rounded

BACKENDS = ("cpu", "compute", "feedback")
CASES = (
    *(f"test_clip_default_{end}" for end in ("min", "max")),
    *("test_group_normalization_epsilon", "test_group_normalization_example"),
    *(
        "test_mvn",
        "test_layer_normalization_4d_axis1",
        "test_layer_normalization_4d_axis_negative_3",
    ),
    *("test_rms_normalization_3d_axis1_epsilon", "test_batchnorm_example_training_mode"),
    *("test_attention_4d_diff_heads_with_past_and_present_mask4d", "test_split_to_sequence_1"),
    *(
        "test_maxpool_with_argmax_2d_precomputed_pads",
        "test_averagepool_2d_pads",
        "test_gelu_tanh_2",
    ),
)


@pytest.mark.parametrize("name", CASES)
def test_cases_of_the_suite(name: str) -> None:
    """Results of the suite's operators, rounded, are those of float32."""
    ((_, case),) = cases(["node"], f"^{name}$")
    for dtype in DTYPES.values():
        for model, inputs, _ in data(case):
            other = retyped(model, dtype)
            if other is None:
                continue  # ONNX has no such operator of that type
            given = [rounded(one, dtype) for one in inputs]
            wide = [as_float32(one, dtype) for one in given]
            right = list(onnx_backend.prepare(model, backend="cpu").run(wide))
            found = list(onnx_backend.prepare(other, backend="cpu").run(given))
            right = [
                r if getattr(f, "dtype", None) == np.float32 else rounded(r, dtype)
                for f, r in zip(found, right, strict=True)
            ]
            assert not difference(found, right), (name, dtype)


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
