"""STFT and DFT in narrow types beside NumPy's in float64; scalars of shape (1,)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import glnn
from tests import oracle
from tests.onnx.runtime import BACKENDS, check, node_model, results_of, runtime

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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(24))
def test_dft_of_any_axis(backend: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    version = 20 if seed % 2 else 17
    half, inverse = int(rng.integers(2)), int(rng.integers(2))
    parts = (2 if inverse else 1) if half else int(rng.integers(1, 3))
    shape = (*rng.integers(1, 7, rng.integers(1, 4)).tolist(), parts)
    axis = int(rng.integers(len(shape) - 1))
    shape = tuple(int(rng.choice([2, 5, 16, 60])) if i == axis else n for i, n in enumerate(shape))
    x = rng.standard_normal(shape).astype(np.float32)
    n = 2 * (shape[axis] - 1) if half and inverse else shape[axis]
    # Of another length ONNX Runtime's inverse of one half is none (docs/onnx.md).
    if rng.integers(2) and not (half and inverse):
        n = int(rng.choice([1, 4, 9, 32]))
    operands: list[Any] = [x, np.array(n)]
    more: dict[str, Any] = {"onesided": half, "inverse": inverse}
    if version == 20:
        operands.append(np.array(axis))
    else:
        more["axis"] = axis
    known = range(1, len(operands))
    model = node_model("DFT", operands, opset=version, known=known, **more)
    opened = glnn.InferenceSession(model.SerializeToString(), backend)
    (got,) = opened.run(None, {"x0": x})
    assert opened.hosted == ()
    (right,) = runtime(model, operands)
    assert got.shape == right.shape
    assert oracle.error(got, right) <= 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(24))
def test_stft_of_any_frames(backend: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = int(rng.integers(2))
    parts = 1 if half else int(rng.integers(1, 3))
    size, hop = int(rng.choice([1, 5, 8, 40, 100])), int(rng.choice([1, 3, 8, 40, 150]))
    batch, n = int(rng.integers(1, 4)), size + int(rng.integers(300))
    x = rng.standard_normal((batch, n, parts)).astype(np.float32)
    window = rng.uniform(0.1, 1, size).astype(np.float32) if seed % 3 else None
    length = np.array(size) if window is None or seed % 2 else None
    operands = [x, np.array(hop), window, length]
    known = [i for i in (1, 2, 3) if operands[i] is not None and (i != 2 or seed % 5)]
    model = node_model("STFT", operands, opset=17, known=known, onesided=half)
    opened = glnn.InferenceSession(model.SerializeToString(), backend)
    feeds = {f"x{i}": v for i, v in enumerate(operands) if v is not None and i not in known}
    (got,) = opened.run(None, feeds)
    assert opened.hosted == ()
    (right,) = runtime(model, operands)
    assert got.shape == right.shape
    assert oracle.error(got, right) <= 1e-5


MEL = """<ir_version: 10, opset_import: ["" : 17]>
g (float[B, N] x) => (float[B, F, 20] y) {
    step = Constant<value_int = 40>()  size = Constant<value_int = 128>()
    bands = Constant<value_int = 20>()  rate = Constant<value_int = 8000>()
    low = Constant<value_float = 20.0>()  high = Constant<value_float = 4000.0>()
    window = HannWindow(size)  last = Constant<value_ints = [2]>()
    signal = Unsqueeze(x, last)
    s = STFT(signal, step, window, size)
    energy = ReduceSumSquare<axes = [3], keepdims = 0>(s)
    mel = MelWeightMatrix(bands, size, rate, low, high)
    e = MatMul(energy, mel)
    y = Log(e)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_mel_bands_of_any_length_are_the_gpus(backend: str) -> None:
    model = onnx.parser.parse_model(MEL)
    opened = glnn.InferenceSession(model.SerializeToString(), backend)
    for batch, n in ((1, 1000), (1, 1001), (2, 700), (1, 128), (1, 5000), (3, 555)):
        x = np.random.default_rng(n).standard_normal((batch, n)).astype(np.float32)
        (got,) = opened.run(None, {"x": x})
        (right,) = results_of(model.SerializeToString(), [x])
        assert got.shape == right.shape
        assert oracle.error(got, right) <= 1e-5
        assert opened.hosted == ()


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_many_numbers_are_transformed_on_the_host(backend: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 5000, 1)).astype(np.float32)
    operands = [x, np.array(5000), np.array(1)]
    model = node_model("DFT", operands, opset=20, known=(1, 2), onesided=1)
    opened = glnn.InferenceSession(model.SerializeToString(), backend)
    (got,) = opened.run(None, {"x0": x})
    right = np.fft.rfft(x[0, :, 0].astype(np.float64))
    assert oracle.error(got[0], np.stack([right.real, right.imag], -1)) <= 1e-6
    (hosted,) = opened.hosted
    assert "DFT of 5000 numbers has 25010000 factors, a product takes at most 8388608" in hosted
