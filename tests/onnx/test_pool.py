"""Pooling from ONNX models: what the conformance suite leaves out, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from glnn import InferenceSession
from glnn.errors import DeviceError
from tests.onnx.runtime import check, node_model, runtime


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).uniform(-1, 1, shape).astype(np.float32)


CASES: list[tuple[str, int, tuple[int, ...], dict[str, Any]]] = [
    ("MaxPool", 1, (1, 1, 7), {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}),
    ("MaxPool", 10, (2, 3, 7, 5), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 1]}),
    ("MaxPool", 12, (1, 2, 5, 4), {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}),
    ("MaxPool", 22, (2, 2, 5, 7, 6), {"kernel_shape": [3, 2, 2], "pads": [1, 1, 0, 1, 0, 1]}),
    ("AveragePool", 7, (1, 3, 8), {"kernel_shape": [3], "pads": [1, 1]}),
    ("AveragePool", 7, (1, 1, 5, 5), {"kernel_shape": [3, 3], "pads": [2, 2, 2, 2]}),
    (
        "AveragePool",
        11,
        (1, 2, 4, 6, 5),
        {"kernel_shape": [2, 3, 3], "strides": [2, 2, 1], "count_include_pad": 1, "pads": [1] * 6},
    ),
    (
        "AveragePool",
        10,
        (1, 1, 4, 4),
        {"kernel_shape": [3] * 2, "strides": [2] * 2, "ceil_mode": 1},
    ),
    ("AveragePool", 19, (1, 2, 9, 7), {"kernel_shape": [3, 2], "dilations": [2, 3]}),
    ("LpPool", 2, (1, 2, 5, 7), {"kernel_shape": [3, 2], "p": 3, "strides": [2, 1]}),
    ("LpPool", 11, (1, 1, 6), {"kernel_shape": [4], "p": 1, "pads": [1, 1]}),
    ("GlobalLpPool", 2, (2, 3, 5, 1), {"p": 3}),
    ("GlobalAveragePool", 1, (2, 3, 5), {}),
    ("GlobalMaxPool", 1, (2, 3, 2, 3, 4), {}),
]


@pytest.mark.parametrize(("op", "opset", "shape", "attributes"), CASES)
def test_pool(op, opset, shape, attributes) -> None:
    operands = [numbers(*shape)]
    check(node_model(op, operands, opset=opset, **attributes), operands)


HANGING: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 6), {"kernel_shape": [4], "strides": [3], "pads": [3, 2]}),
    ((1, 1, 9), {"kernel_shape": [4], "strides": [2], "pads": [1, 3]}),
    ((1, 1, 7), {"kernel_shape": [2], "strides": [3], "pads": [0, 1]}),
    ((1, 1, 10), {"kernel_shape": [2], "strides": [4], "pads": [1, 1]}),
    ((1, 1, 7), {"kernel_shape": [4], "strides": [2], "pads": [3, 3]}),
    ((2, 3, 6, 6), {"kernel_shape": [4, 4], "strides": [3, 3], "pads": [3, 3, 2, 2]}),
    ((1, 2, 5, 9), {"kernel_shape": [3, 2], "strides": [1, 5], "pads": [2, 1, 2, 1]}),
    (
        (1, 2, 6, 5, 9),
        {"kernel_shape": [4, 3, 4], "strides": [3, 2, 2], "pads": [3, 0, 1, 2, 2, 3]},
    ),
]
"""Windows of which the last would begin in the padding behind the images: it is left out."""


@pytest.mark.parametrize(("shape", "windows"), HANGING)
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {}),
        ("AveragePool", {}),
        ("AveragePool", {"count_include_pad": 1}),
        ("LpPool", {"p": 2}),
    ],
)
def test_windows_begin_before_the_end(op, attributes, shape, windows) -> None:
    x = numbers(*shape)
    check(node_model(op, [x], opset=22, ceil_mode=1, **attributes, **windows), [x])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_windows_of_open_sizes_begin_before_the_end(op, backend) -> None:
    windows = {"kernel_shape": [4, 4], "strides": [3, 2], "pads": [3, 1, 2, 3], "ceil_mode": 1}
    model = node_model(op, [numbers(1, 2, 6, 6)], **windows)
    for axis, name in ((2, "H"), (3, "W")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    try:
        session = InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    for h, w in ((6, 7), (7, 6), (8, 9), (9, 8), (10, 30), (31, 11)):
        x = numbers(1, 2, h, w)
        (expected,) = runtime(model, [x])
        (found,) = session.run(None, {"x0": x})
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 7), {"kernel_shape": [3], "pads": [1, 0], "strides": [2]}),
        ((1, 2, 5, 7), {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "dilations": [1, 2]}),
        ((2, 1, 4, 3, 5), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 2], "ceil_mode": 1}),
    ],
)
def test_where_the_greatest_is(shape, attributes, order) -> None:
    x = np.round(3 * numbers(*shape))  # several are the greatest
    kinds = [np.float32, np.int64]
    model = node_model("MaxPool", [x], 2, kinds=kinds, storage_order=order, **attributes)
    check(model, [x])


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_bytes(kind) -> None:
    x = np.random.default_rng(2).integers(-128, 128, (1, 3, 7, 5)).astype(kind)
    for attributes in ({"kernel_shape": [3, 2]}, {"kernel_shape": [2, 2], "pads": [1, 0, 1, 1]}):
        check(node_model("MaxPool", [x], kinds=[kind], **attributes), [x])


def test_unpool_puts_each_number_back() -> None:
    x = numbers(2, 3, 6, 8)
    pools: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    kinds = [np.float32, np.int64]
    y, places = check(node_model("MaxPool", [x], 2, kinds=kinds, **pools), [x])
    back = check(node_model("MaxUnpool", [y, places], opset=11, **pools), [y, places])[0]
    found = np.zeros(x.size, np.float32)
    found[places.ravel()] = y.ravel()
    np.testing.assert_array_equal(back, found.reshape(x.shape))


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_a_window_of_many_pixels(backend, op) -> None:
    """A vertex computes 16 numbers of 32,000 pixels each: llvmpipe's loops have 65,535 turns."""
    ends = [helper.make_tensor_value_info(one, 1, ["N", 4, "H", "W"]) for one in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).standard_normal((5, 4, 200, 160), np.float32) + 1
    expected = x.mean((2, 3), keepdims=True, dtype="f8")
    if op == "GlobalMaxPool":
        expected = x.max((2, 3), keepdims=True)
    try:
        session = InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
