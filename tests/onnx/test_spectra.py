"""STFT and DFT in narrow types beside NumPy's in float64; scalars of shape (1,)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import glnn
from tests.onnx.runtime import check, node_model

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("operator", ["STFT", "DFT"])
def test_narrow_types_are_rounded_once(operator: str, dtype: np.dtype[Any]) -> None:
    """Products with a window are summed in more digits than the operands have."""
    signal = np.arange(128, dtype=dtype).reshape(1, 128, 1)
    window = np.hanning(17)[:-1].astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(dtype)
    feeds = {"x": signal}
    wide = signal.astype(np.float64)[0, :, 0]
    if operator == "STFT":
        feeds |= {"step": np.array(8), "window": window}
        frames = np.stack([wide[i : i + 16] for i in range(0, 113, 8)])
        right = np.fft.rfft(frames * window.astype(np.float64))
    else:
        right = np.fft.fft(wide)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    node = helper.make_node(operator, [*feeds], ["y"], **({} if len(feeds) > 1 else {"axis": 1}))
    output = helper.make_tensor_value_info("y", code, None)
    graph = helper.make_graph([node], operator, inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (found,) = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, feeds)
    assert found.dtype == dtype
    pairs = found[0].astype(np.float64)
    expected = np.stack([right.real, right.imag], -1)
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    assert np.all(np.abs(pairs - expected) <= unit * np.abs(expected) + 1e-3)


SIGNAL = np.random.default_rng(8).standard_normal((1, 32, 1)).astype(np.float32)
SCALARS: dict[str, list[Any]] = {
    "DFT": [SIGNAL, np.array(20), np.array(1)],
    "STFT": [SIGNAL, np.array(8), np.hanning(16).astype(np.float32), np.array(16)],
    "MelWeightMatrix": [np.array(6), np.array(32), np.array(8192), np.float32(0), np.float32(2000)],
}


@pytest.mark.parametrize("operator", SCALARS)
def test_scalars_of_one_dimension(operator: str) -> None:
    """ONNX Runtime takes an array of shape (1,) for a scalar."""
    operands = [np.asarray(one) for one in SCALARS[operator]]
    operands = [one.reshape(1) if not one.ndim else one for one in operands]
    check(node_model(operator, operands), operands, backends=["cpu"], tolerance=1e-4)
