"""Names that users give tensors and kernels never meet those that plans make up."""

from __future__ import annotations

import numpy as np
import pytest

import glnn
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError, UnsupportedOpError
from glnn.layers import Concat, Conv2d, ReLU
from glnn.model.model import Model, Node
from tests.oracle import error


def run(model: Model, **arguments) -> None:
    x = np.random.default_rng(2).standard_normal((2, 8, 6, 6), np.float32)
    try:
        session = glnn.InferenceSession(model, "compute", **arguments)
    except DeviceError as closed:
        pytest.skip(str(closed))
    expected = glnn.InferenceSession(model, "cpu").run(None, {"x": x})
    for got, value in zip(session.run(None, {"x": x}), expected, strict=True):
        assert error(got, value) <= 1e-5


def model(*nodes: Node) -> Model:
    inputs = (TensorInfo("x", ("N", 8, 6, 6)),)
    return Model(nodes, inputs, tuple(node.output for node in nodes))


def test_a_tensor_called_as_a_copy() -> None:
    run(
        model(
            Node("r", ReLU(), ("x",), "x as nhwC4c"),
            Node("c", Conv2d(8, 32, 3, padding=1), ("x",), "z"),
        )
    )


def test_a_tensor_called_as_a_stage() -> None:
    run(
        model(
            Node("r", ReLU(), ("x",), "z: tiles"),
            Node("c", Conv2d(8, 32, 3, padding=1), ("x",), "z"),
            Node("d", Conv2d(8, 32, 3, padding=1), ("z: tiles",), "y"),
        ),
        kernels={"conv2d": "winograd_2"},
    )


def test_a_tensor_called_as_a_part() -> None:
    run(
        model(
            Node("j part 1", ReLU(), ("x",), "j part 1"),
            Node("j", Concat(5), ("x", "j part 1", "x", "x", "x"), "j"),
        )
    )


@pytest.mark.parametrize(
    ("kernel", "says"), [("nosuch", "no kernel 'nosuch'"), ("gemv", "can compute no step")]
)
def test_a_kernel_that_is_not_taken_is_an_error(kernel, says) -> None:
    one = model(Node("c", Conv2d(8, 32, 3, padding=1), ("x",), "z"))
    with pytest.raises(UnsupportedOpError, match=says):
        run(one, kernels={"conv2d": "winograd_2", "matmul": kernel})
