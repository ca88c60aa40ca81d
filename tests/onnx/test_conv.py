"""Convolutions from ONNX models: what the conformance suite leaves out, against ONNX Runtime."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from glnn.errors import DeviceError, GlnnError
from glnn.session import InferenceSession
from tests.onnx.runtime import BACKENDS, check, node_model, results_of


def numbers(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


CONV: list[tuple[int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (1, (1, 1, 7), (3, 1, 3), {"auto_pad": "SAME_LOWER", "strides": [2]}),
    (7, (2, 3, 13), (5, 3, 1), {}),
    (11, (2, 4, 7, 5), (6, 2, 3, 2), {"group": 2, "pads": [2, 0, 1, 3], "dilations": [2, 1]}),
    (
        22,
        (2, 4, 5, 7, 3),
        (6, 2, 3, 2, 1),
        {"group": 2, "pads": [1, 2, 0, 3, 0, 1], "dilations": [2, 1, 1], "strides": [1, 2, 3]},
    ),
    (22, (1, 3, 4, 5, 6), (2, 3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [3, 2, 1]}),
    (22, (3, 1, 1, 1, 1), (1, 1, 1, 1, 1), {}),
]


@pytest.mark.parametrize(("opset", "x", "weight", "attributes"), CONV)
def test_conv(opset, x, weight, attributes) -> None:
    operands = numbers(x, weight, weight[:1])
    check(node_model("Conv", operands, opset=opset, known=(1, 2), **attributes), operands)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [(), (1,), (2, 1), (1, 2), (3,)])
def test_biases_are_a_number_for_each_channel(op: str, bias: tuple[int, ...]) -> None:
    operands = numbers((1, 2, 4, 4), (2, 2, 3, 3), bias)
    message = rf"the bias must be \(2,\), got float32 {re.escape(str(bias))}"
    with pytest.raises(GlnnError, match=message):
        InferenceSession(node_model(op, operands, known=(1, 2)).SerializeToString(), "cpu")


TRANSPOSED: list[tuple[int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (1, (1, 1, 3), (1, 2, 3), {"strides": [2], "output_padding": [1]}),
    (
        11,
        (2, 4, 3, 5),
        (4, 3, 3, 2),
        {"group": 2, "strides": [3, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]},
    ),
    (11, (1, 2, 3, 3), (2, 1, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    (11, (1, 2, 3, 3), (2, 1, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    (11, (1, 2, 3, 3), (2, 1, 3, 3), {"output_shape": [6, 8], "strides": [2, 3]}),
    (
        22,
        (1, 4, 2, 3, 2),
        (4, 1, 3, 2, 3),
        {"group": 2, "strides": [2, 1, 2], "output_padding": [1, 0, 1], "pads": [0, 1, 1, 1, 0, 2]},
    ),
]


@pytest.mark.parametrize(("opset", "x", "weight", "attributes"), TRANSPOSED)
def test_conv_transpose(opset, x, weight, attributes) -> None:
    bias = (weight[1] * attributes.get("group", 1),)
    operands = numbers(x, weight, bias)
    check(node_model("ConvTranspose", operands, opset=opset, known=(1,), **attributes), operands)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_infinities_reach_as_far_as_the_phases_of_a_transposed_convolution(kernel, backend) -> None:
    """A whole number of strides, behind the kernel's end as NaN."""
    x, weight = numbers((1, 2, 8, 9), (2, 4, kernel, kernel))
    x[0, 1, 1, 2], x[0, 0, 5, 6] = np.inf, -np.inf
    model = node_model("ConvTranspose", [x, weight], known=(1,), strides=[2, 2])
    (expected,) = results_of(model.SerializeToString(), [x])
    try:
        session = InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    (got,) = session.run(None, {model.graph.input[0].name: x})
    reached = np.zeros(expected.shape, bool)
    taps = kernel + kernel % 2
    for row, column in ((1, 2), (5, 6)):
        reached[:, :, 2 * row : 2 * row + taps, 2 * column : 2 * column + taps] = True
    assert not np.isnan(expected).any()
    right = np.isclose(got, expected, 1e-4, 1e-4)
    assert (right | (reached & np.isnan(got) & np.isfinite(expected))).all()
    assert right.all() == (kernel % 2 == 0)


def test_halves_are_computed_in_float32() -> None:
    operands = numbers((1, 3, 4, 5, 4), (2, 3, 2, 3, 3), (2,))
    halves = [one.astype(np.float16) for one in operands]
    expected = check(node_model("Conv", operands), [one.astype(np.float32) for one in halves])
    model = node_model("Conv", halves, kinds=[np.float16])
    check(model, halves, [expected[0].astype(np.float16)], tolerance=1e-3)


def test_deform_conv_beyond_the_image() -> None:
    """Against loops: ONNX Runtime has none."""
    x, weight, offset, mask = numbers((2, 4, 5, 3), (4, 2, 2, 3), (2, 24, 3, 2), (2, 12, 3, 2))
    offset *= 4
    operands = [x, weight, offset, None, mask]
    attributes = {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 0, 1]}
    expected = np.zeros((2, 4, 3, 2))

    def met(n: int, channel: int, y: float, at: float) -> float:
        total = 0.0
        for row in (int(np.floor(y)), int(np.floor(y)) + 1):
            for column in (int(np.floor(at)), int(np.floor(at)) + 1):
                if 0 <= row < 5 and 0 <= column < 3:
                    share = (1 - abs(y - row)) * (1 - abs(at - column))
                    total += share * x[n, channel, row, column]
        return total

    for n, o, i, j, c, ky, kx in np.ndindex(2, 4, 3, 2, 2, 2, 3):
        channel = o // 2 * 2 + c
        tap = channel // 2 * 6 + ky * 3 + kx
        y = i * 2 - 1 + ky + offset[n, 2 * tap, i, j]
        at = j + kx + offset[n, 2 * tap + 1, i, j]
        share = weight[o, c, ky, kx] * mask[n, tap, i, j]
        expected[n, o, i, j] += share * met(n, channel, y, at)
    model = node_model("DeformConv", operands, **attributes)
    check(model, operands, [expected.astype(np.float32)])


@pytest.mark.parametrize("ends", [(0.0, None), (None, 0.5), (0.0, 0.5), (None, None)])
@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
def test_a_clip_behind_it_is_one_step_with_it(
    backend: str, ends: tuple[float | None, float | None]
) -> None:
    """Also where an end is left out, which is the type's greatest or least number then."""
    x, weight = numbers((1, 4, 6, 6), (8, 4, 3, 3))
    given = {n: end for n, end in zip(("low", "high"), ends, strict=True) if end is not None}
    names = [name if name in given else "" for name in ("low", "high")]
    weights = {"w": weight, **{name: np.array(end, np.float32) for name, end in given.items()}}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Clip", ["c", *names], ["y"]),
    ]
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x.shape), ("y", (1, 8, 4, 4)))
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "clipped", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    try:
        session = InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    (found,) = session.run(None, {"x": x})
    np.testing.assert_allclose(found, results_of(model.SerializeToString(), [x])[0], 1e-5, 1e-5)
    steps = [step.op.name for step in session.plan({"x": x.shape}).steps]
    assert [name for name in steps if name != "reorder"] == ["conv2d"]


def test_a_residual_behind_1_by_1_is_seen_as_rows() -> None:
    """One that is computed and one that is known, where a kernel of products takes them."""
    x, first, second, bias, known = numbers(
        (2, 16, 9, 7), (24, 16, 1, 1), (24, 24, 1, 1), (24,), (2, 24, 9, 7)
    )
    nodes = [
        helper.make_node("Conv", ["x", "first", "bias"], ["a"]),
        helper.make_node("Conv", ["a", "second"], ["b"]),
        helper.make_node("Add", ["b", "a"], ["c"]),
        helper.make_node("Conv", ["c", "second"], ["d"]),
        helper.make_node("Add", ["known", "d"], ["y"]),
    ]
    weights = {"first": first, "second": second, "bias": bias, "known": known}
    graph = helper.make_graph(
        nodes,
        "residuals",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    try:
        session = InferenceSession(
            model.SerializeToString(), "compute", kernels={"conv2d": "pointwise_residual"}
        )
    except DeviceError as error:
        pytest.skip(str(error))

    def by(weight: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        return np.einsum("oi,nihw->nohw", weight[:, :, 0, 0].astype(np.float64), pixels)

    a = by(first, x) + bias[:, None, None]
    expected = by(second, by(second, a) + a) + known
    (got,) = session.run(None, {"x": x})
    assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)
    steps = [step.op.name for step in session.plan({"x": x.shape}).steps]
    assert steps.count("matmul") == 3 and "pointwise" not in steps


@pytest.mark.parametrize("gate", [np.nan, np.inf])
def test_zeros_of_the_padding_are_not_scaled_by_a_gate(gate: float) -> None:
    """Windows of a squeeze-and-excitation that end in the padding stay finite."""
    x, gates, weight = numbers((1, 2, 10, 11), (1, 2, 1, 1), (3, 2, 3, 3))
    gates[0, 1], weight[0, 0, 0] = gate, 3
    nodes = [
        helper.make_node("Mul", ["x0", "x1"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "weight"], ["y"], pads=[1, 3, 2, 4], strides=[1, 3]),
    ]
    inputs = {"x0": x, "x1": gates}
    graph = helper.make_graph(
        nodes,
        "gated",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    check(model, list(inputs.values()))
