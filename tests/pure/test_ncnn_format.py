"""ncnn's files of a small network: the lines and numbers that its format asks for."""

from pathlib import Path

import numpy as np
import pytest

from glnn.errors import GlnnError

ROOT = Path(__file__).resolve().parents[2]
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not part of the package"
)


def _model(nodes: list, **weights: np.ndarray):
    helper, kinds = onnx.helper, onnx.TensorProto
    given = helper.make_tensor_value_info("in", kinds.FLOAT, ["N", 4, 6, 5])
    taken = helper.make_tensor_value_info("out", kinds.FLOAT, None)
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    return helper.make_model(helper.make_graph(nodes, "g", [given], [taken], tensors))


def test_layers_and_weights(tmp_path: Path) -> None:
    """An activation is a part of its convolution, what two read is split, weights come in order."""
    from benchmarks.ncnn_format import Writer

    node, draw = onnx.helper.make_node, np.random.default_rng(1)
    w1 = draw.random((4, 1, 3, 2)).astype(np.float32)
    w2 = draw.random((8, 4, 1, 1)).astype(np.float32)
    b1, b3 = (draw.random(count).astype(np.float32) for count in (4, 3))
    w3 = draw.random((3, 16)).astype(np.float32)
    low, high = np.float32(0), np.float32(6)
    asked = {"pads": [1, 0, 2, 3], "strides": [2, 1], "group": 4}
    nodes = [
        node("Identity", ["low"], ["zero"]),
        node("Conv", ["in", "w1", "b1"], ["c1"], **asked),
        node("Clip", ["c1", "zero", "high"], ["a1"]),
        node("Conv", ["a1", "w2"], ["c2"]),
        node("Conv", ["a1", "w2"], ["c3"], dilations=[1, 1]),
        node("Relu", ["c3"], ["r3"]),
        node("Concat", ["c2", "r3"], ["both"], axis=1),
        node("GlobalAveragePool", ["both"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
        node("Gemm", ["flat", "w3", "b3"], ["out"], transB=1),
    ]
    model = _model(nodes, w1=w1, b1=b1, w2=w2, w3=w3, b3=b3, low=low, high=high)
    param, weights = Writer(model, (4, 6, 5)).save(tmp_path, "net")
    conv = "5=0 6=32 1=1 11=1 3=1 13=1 4=0 15=0 14=0 16=0 2=1 12=1"
    assert param.read_text().splitlines() == [
        "7767517",
        "9 10",
        "Input l0 0 1 in 0=5 1=6 2=4",
        "ConvolutionDepthWise l1 1 1 in a1 0=4 5=1 6=24 1=2 11=3 3=1 13=2 4=0 15=3 14=1 16=2"
        " 2=1 12=1 7=4 9=3 -23310=2,0,6",
        "Split l2 1 2 a1 a1_0 a1_1",
        f"Convolution l3 1 1 a1_1 c2 0=8 {conv}",
        f"Convolution l4 1 1 a1_0 r3 0=8 {conv} 9=1",
        "Concat l5 2 1 c2 r3 both 0=0",
        "Pooling l6 1 1 both mean 0=1 4=1",
        "Flatten l7 1 1 mean flat",
        "InnerProduct l8 1 1 flat out 0=3 1=1 2=48",
    ]
    flag = np.zeros(1, np.float32)
    written = [flag, w1, b1, flag, w2, flag, w2, flag, w3, b3]
    numbers = np.concatenate([array.ravel() for array in written])
    np.testing.assert_array_equal(np.fromfile(weights, np.float32), numbers)


def test_what_is_not_known_is_said() -> None:
    from benchmarks.ncnn_format import Writer

    with pytest.raises(GlnnError, match="no layer of ncnn is known here for Erf"):
        Writer(_model([onnx.helper.make_node("Erf", ["in"], ["out"])]), (4, 6, 5))
