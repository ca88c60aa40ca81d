"""Models as ONNX Runtime's quantizers write them, before and after its optimizer, beside itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import glnn

pytest.importorskip("onnxruntime.quantization")
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType

SHAPE = (2, 3, 10, 10)


def network() -> onnx.ModelProto:
    """A network of an operator of each kind that the quantizers know."""
    rng, node = np.random.default_rng(0), helper.make_node

    def weight(*shape: int) -> np.ndarray:
        wide = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return np.asarray(wide, np.float32)

    weights = {"c1": weight(16, 3, 3, 3), "b1": weight(16), "c2": weight(16, 16, 3, 3)}
    weights |= {"b2": weight(16), "c3": weight(32, 32, 1, 1), "g": weight(32, 48)}
    weights |= {"gb": weight(48), "m": weight(48, 32)}
    nodes = [
        node("Conv", ["x", "c1", "b1"], ["c"], pads=[1] * 4),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "c2", "b2"], ["d"], pads=[1] * 4),
        node("Add", ["d", "r"], ["sum"]),
        node("Concat", ["sum", "r"], ["joined"], axis=1),
        node("LeakyRelu", ["joined"], ["leaky"], alpha=0.1),
        node("AveragePool", ["leaky"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pooled", "c3"], ["e"]),
        node("Sigmoid", ["e"], ["gate"]),
        node("Mul", ["e", "gate"], ["gated"]),
        node("GlobalAveragePool", ["gated"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
        node("Gemm", ["flat", "g", "gb"], ["linear"]),
        node("MatMul", ["linear", "m"], ["scores"]),
        node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["N", *SHAPE[1:]]), ("y", ["N", 32]))
    ]
    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Four inputs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        drawn = (rng.standard_normal(SHAPE).astype(np.float32) for _ in range(4))
        self._samples = iter([{"x": x} for x in drawn])

    def get_next(self) -> Any:
        return next(self._samples, None)


U8, I8 = QuantType.QUInt8, QuantType.QInt8
KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {"weight_type": I8},
    "dynamic by channel": {"weight_type": U8, "per_channel": True},
    **{
        f"{format.name} {activation.name} {weight.name}": {
            "quant_format": format,
            "activation_type": activation,
            "weight_type": weight,
            "per_channel": weight is I8,
        }
        for format in (QuantFormat.QDQ, QuantFormat.QOperator)
        for activation, weight in ((U8, I8), (I8, I8), (U8, U8))
    },
}


def quantized(kind: str, folder: Path, *, optimized: bool) -> Path:
    """Write the network quantized, as ONNX Runtime's optimizer leaves it if `optimized`."""
    source, path = folder / "network.onnx", folder / "quantized.onnx"
    onnx.save(network(), source)
    if kind.startswith("dynamic"):
        quantization.quantize_dynamic(source, path, **KINDS[kind])
    else:
        quantization.quantize_static(source, path, Samples(), **KINDS[kind])
    if not optimized:
        return path
    options = _options(onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(path, options)
    return folder / "optimized.onnx"


def _options(level: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 3, level
    return options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimized", [False, True])
def test_the_numbers_are_those_of_onnx_runtime(kind: str, optimized: bool, tmp_path: Path) -> None:
    """But for a step of the last result, which QuantizeLinear of floats may round to another."""
    path = quantized(kind, tmp_path, optimized=optimized)
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    plain = _options(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    # What saturates at 16 bits on some processors is computed otherwise then.
    plain.add_session_config_entry("session.x64quantprecision", "1")
    (wanted,) = onnxruntime.InferenceSession(path, plain).run(None, {"x": x})
    integers = "QOperator" in kind
    for backend in ("cpu", "compute"):
        session = glnn.InferenceSession(path, backend)
        (found,) = session.run(None, {"x": x})
        most = 0.0 if integers else 1e-6 if kind.startswith("dynamic") else 1.01 / 256
        assert np.abs(found - wanted).max() <= most, backend
        assert not session.hosted
