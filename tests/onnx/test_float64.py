"""Nodes of float64: right in 64 bits where a float32 node is, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import glnn
from glnn.errors import GlnnError
from glnn.graph.compose.recurrent import MOST_STEPS
from tests.onnx.runtime import node_model, runtime

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS = {
    "LSTM": ["Sigmoid", "Relu", "Softsign"],
    "GRU": ["HardSigmoid", "Relu"],
    "RNN": ["Relu"],
}


def wide(operands: list[Any]) -> list[Any]:
    return [
        one.astype(np.float64) if one is not None and one.dtype == np.float32 else one
        for one in operands
    ]


def check(op: str, operands: list[Any], outputs: int = 1, known: tuple[int, ...] = (), **more: Any):
    """Hold the float64 node on the cpu backend against ONNX Runtime's float32 one."""
    right = runtime(node_model(op, operands, outputs, known=known, **more), operands)
    model = node_model(
        op, wide(operands), outputs, known=known, kinds=(np.float64,) * outputs, **more
    )
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    given = {
        f"x{i}": one for i, one in enumerate(wide(operands)) if one is not None and i not in known
    }
    found = session.run(None, given)
    for got, expected in zip(found, right, strict=True):
        assert got.dtype == np.float64 and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, 1e-4, 1e-5, err_msg=str((op, more)))
    return found


def recurrent(op: str, seed: int, directions: int = 1) -> list[Any]:
    rng = np.random.default_rng(seed)
    rows = GATES[op] * UNITS
    shapes = (
        (STEPS, BATCH, FEATURES),
        (directions, rows, FEATURES),
        (directions, rows, UNITS),
        (directions, 2 * rows),
    )
    return [rng.uniform(-0.7, 0.7, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("way", ["lengths", "clip", "activations", "reverse", "bidirectional"])
def test_recurrent_nodes(op: str, way: str) -> None:
    directions = 2 if way == "bidirectional" else 1
    operands: list[Any] = recurrent(op, len(way), directions)
    more: dict[str, Any] = {"hidden_size": UNITS, "opset": 14}
    if way == "lengths":
        operands.append(np.array([5, 2, 3], np.int32))
    elif way == "clip":
        more["clip"] = 0.3
    elif way == "activations":
        more["activations"] = ACTIVATIONS[op]
    else:
        more["direction"] = way
    check(op, operands, 2, (1, 2, 3), **more)
    check(op, operands, 2, **more)  # weights that are inputs


def test_a_forget_gate_that_is_the_inputs() -> None:
    operands = recurrent("LSTM", 1)
    check("LSTM", operands, 3, (1, 2, 3), hidden_size=UNITS, input_forget=1, opset=14)


def test_an_rnn_has_64_bits() -> None:
    x, weight, recurrence, bias = wide(recurrent("RNN", 2))
    x += np.random.default_rng(3).uniform(0, 1e-9, x.shape)  # float32 has nothing of it
    operands = [x, weight, recurrence, bias]
    model = node_model(
        "RNN", operands, 2, kinds=(np.float64,) * 2, known=(1, 2, 3), hidden_size=UNITS, opset=14
    )
    _, got = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x0": x})
    state = np.zeros((BATCH, UNITS))
    both = bias[0, :UNITS] + bias[0, UNITS:]
    for step in x:
        state = np.tanh(step @ weight[0].T + state @ recurrence[0].T + both)
    np.testing.assert_allclose(got[0], state, 1e-13, 1e-13)


@pytest.mark.parametrize("seed", range(12))
def test_random_attributes(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x = floats(2, 4, 7, 9)
    pads = [int(n) for n in rng.integers(0, 2, 4)]
    strides = [int(n) for n in rng.integers(1, 3, 2)]
    ceil = int(rng.integers(2))
    window = {"kernel_shape": [2, 3], "pads": pads, "strides": strides, "opset": 19}
    check("Conv", [x, floats(6, 2, 2, 3), floats(6)], group=2, **window)
    check("ConvTranspose", [x, floats(4, 3, 2, 3)], group=2, **window)
    check("AveragePool", [x], count_include_pad=int(rng.integers(2)), ceil_mode=ceil, **window)
    check("LpPool", [x], p=int(rng.integers(1, 4)), ceil_mode=ceil, **window)
    check("LRN", [x], size=3, alpha=0.3, beta=0.7, bias=1.5)
    axis = int(rng.integers(-4, 4))
    check("LogSoftmax", [x], axis=axis)
    check("Softmax", [x], axis=axis, opset=13)
    check("InstanceNormalization", [x, floats(4), floats(4)], epsilon=0.01)
    check("GroupNormalization", [x, floats(4), floats(4)], num_groups=2, opset=21)
    check("Gemm", [floats(5, 4), floats(6, 5), floats(6)], transA=1, transB=1, alpha=0.3, beta=2.0)
    mode = ["linear", "nearest", "cubic"][seed % 3]
    scales = np.array([1, 1, 1.5, 0.7], np.float32)
    way = ["half_pixel", "asymmetric", "pytorch_half_pixel"][seed // 3 % 3]
    model = node_model(
        "Resize",
        [x, None, scales],
        known=(2,),
        opset=18,
        mode=mode,
        coordinate_transformation_mode=way,
    )
    (right,) = runtime(model, [x, None, scales])
    operands = [x.astype(np.float64), None, scales]
    model = node_model(
        "Resize",
        operands,
        known=(2,),
        kinds=[np.float64],
        opset=18,
        mode=mode,
        coordinate_transformation_mode=way,
    )
    (got,) = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x0": operands[0]})
    np.testing.assert_allclose(got, right, 1e-4, 1e-5)


@pytest.mark.parametrize("op", GATES)
def test_what_the_reference_ignores_is_refused(op: str) -> None:
    """More steps than glnn writes out: `onnx.reference` would ignore the lengths."""
    x = np.zeros((MOST_STEPS + 1, 2, FEATURES), np.float32)
    operands = [x, *recurrent(op, 1)[1:], np.array([1, 2], np.int32)]
    model = node_model(op, operands, 2, known=(1, 2, 3), hidden_size=UNITS, opset=14)
    with pytest.raises(GlnnError, match=f"{op}.*steps"):
        session = glnn.InferenceSession(model.SerializeToString(), "cpu")
        session.run(None, {"x0": x, "x4": operands[4]})


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.uint16, np.float64])
@pytest.mark.parametrize("op", ["Add", "Mul", "Less"])
def test_old_broadcasting_from_an_axis_is_right_or_refused(op: str, dtype: Any) -> None:
    """onnx.reference ignores `axis`: [10, 20] from axis 0 on are rows of 10 and of 20."""
    a, b = np.array([[0, 1], [2, 3]], dtype), np.array([10, 20], dtype)
    function = {"Add": np.add, "Mul": np.multiply, "Less": np.less}[op]
    kinds = (np.bool_,) if op == "Less" else (dtype,)
    model = node_model(op, [a, b], 1, kinds=kinds, opset=6, broadcast=1, axis=0)
    try:
        session = glnn.InferenceSession(model.SerializeToString(), "cpu")
        (found,) = session.run(None, {"x0": a, "x1": b})
    except GlnnError as error:
        assert dtype not in (np.float32, np.int32) and op in str(error)
    else:
        np.testing.assert_array_equal(found, function(a, b[:, None]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_have_64_bits(op: str, periodic: int, known: bool) -> None:
    size = np.array(17, np.int64)
    more = {"output_datatype": 11, "periodic": periodic, "known": (0,) if known else ()}
    model = node_model(op, [size], kinds=[np.float64], opset=17, **more)
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    (found,) = session.run(None, {} if known else {"x0": size})
    turns = 2 * np.pi * np.arange(17) / (16 + periodic)
    right = {
        "HannWindow": np.sin(turns / 2) ** 2,
        "HammingWindow": 25 / 46 - 21 / 46 * np.cos(turns),
        "BlackmanWindow": 0.42 - 0.5 * np.cos(turns) + 0.08 * np.cos(2 * turns),
    }[op]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, right, 1e-12, 1e-12)


def cubic(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    x = np.abs(distance)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "way", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_crop_and_resize"]
)
def test_resize_has_64_bits(way: str, mode: str) -> None:
    """By a matrix of weights along each axis, as ONNX's text has places."""
    x = np.random.default_rng(0).normal(size=(1, 2, 7, 5))
    sizes = np.array([1, 2, 10, 3], np.int64)
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 1.3, 0.7]) if way.startswith("tf") else None
    right = x
    for axis, count in ((2, 10), (3, 3)):
        size, at = x.shape[axis], np.arange(count, dtype=np.float64)
        scale = count / size
        places = {
            "half_pixel": (at + 0.5) / scale - 0.5,
            "pytorch_half_pixel": (at + 0.5) / scale - 0.5,
            "asymmetric": at / scale,
            "align_corners": at * (size - 1) / (count - 1),
        }.get(way)
        if roi is not None:
            start, end = roi[axis], roi[4 + axis]
            places = start * (size - 1) + at * (end - start) * (size - 1) / (count - 1)
        weights = np.zeros((size, count))
        for i, place in enumerate(places):
            for j in range(int(np.floor(place)) - 1, int(np.floor(place)) + 3):
                distance = place - j
                part = cubic(distance) if mode == "cubic" else max(0.0, 1 - abs(distance))
                weights[min(max(j, 0), size - 1), i] += part
        right = np.moveaxis(np.moveaxis(right, axis, -1) @ weights, -1, axis)
        if roi is not None:
            outside = (places < 0) | (places > size - 1)
            rows = np.moveaxis(right, axis, 0)
            rows[outside] = 2.5
    more = {"extrapolation_value": 2.5} if roi is not None else {}
    model = node_model(
        "Resize",
        [x, roi, None, sizes],
        known=(1, 3),
        kinds=[np.float64],
        opset=18,
        mode=mode,
        coordinate_transformation_mode=way,
        **more,
    )
    (found,) = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x0": x})
    np.testing.assert_allclose(found, right, 1e-12, 1e-12)


def modified(kind: int, where: str) -> onnx.GraphProto:
    """A body that adds the places' distances to scores, or halves the shares, of ONNX's type."""
    value, made = (helper.make_tensor_value_info(n, kind, ["B", "H", "L", "S"]) for n in "xy")
    names = {"zero": 0, "one": 1, "two": 2, "three": 3}
    constants = [helper.make_tensor(n, TensorProto.INT64, [], [i]) for n, i in names.items()]
    constants += [
        helper.make_tensor("rows", TensorProto.INT64, [2], [-1, 1]),
        helper.make_tensor("half", kind, [], [0.5]),
    ]
    if where == "prob_mod":
        nodes = [helper.make_node("Mul", ["x", "half"], ["y"])]
        return helper.make_graph(nodes, where, [value], [made], constants)
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["l"]),
        helper.make_node("Gather", ["shape", "three"], ["s"]),
        helper.make_node("Range", ["zero", "l", "one"], ["queries"]),
        helper.make_node("Reshape", ["queries", "rows"], ["query"]),
        helper.make_node("Range", ["zero", "s", "one"], ["keys"]),
        helper.make_node("Sub", ["query", "keys"], ["apart"]),
        helper.make_node("Cast", ["apart"], ["distance"], to=kind),
        helper.make_node("Mul", ["distance", "half"], ["bias"]),
        helper.make_node("Add", ["x", "bias"], ["y"]),
    ]
    return helper.make_graph(nodes, where, [value], [made], constants)


@pytest.mark.parametrize("bodies", [(), ("score_mod",), ("prob_mod",), ("score_mod", "prob_mod")])
def test_flex_attention_has_64_bits(bodies: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    # ONNX's function with bodies takes the root of the scale in float32: that of 1/4 is exact.
    q, k, v = (rng.normal(size=(2, 3, n, 16)) for n in (5, 6, 6))
    more: dict[str, Any] = {name: modified(TensorProto.DOUBLE, name) for name in bodies}
    model = node_model(
        "FlexAttention", [q, k, v], opset=1, domain="ai.onnx.preview", kinds=[np.float64], **more
    )
    model.opset_import.append(helper.make_opsetid("", 26))
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    (found,) = session.run(None, {"x0": q, "x1": k, "x2": v})
    scores = q @ k.transpose(0, 1, 3, 2) / 4
    if "score_mod" in bodies:
        scores += 0.5 * (np.arange(5)[:, None] - np.arange(6))
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    shares = shares / 2 if "prob_mod" in bodies else shares
    np.testing.assert_allclose(found, shares @ v, 1e-12, 1e-12)


def test_flex_attention_of_another_type_than_its_body_is_refused() -> None:
    x = np.ones((1, 1, 2, 4))
    body = {"score_mod": modified(TensorProto.FLOAT, "score_mod")}
    model = node_model(
        "FlexAttention", [x] * 3, opset=1, domain="ai.onnx.preview", kinds=[np.float64], **body
    )
    model.opset_import.append(helper.make_opsetid("", 26))
    with pytest.raises(GlnnError, match=r"score_mod input.* type mismatch"):
        glnn.InferenceSession(model.SerializeToString(), "cpu")
