"""`glnn.filters.sobel`: images in, gradients out, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.backends import Backend, open_backend
from glnn.compiler import Plan
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError, ShapeError, UnsupportedOpError
from glnn.filters import sobel
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise, Sobel
from glnn.layers.layer import ANY, Layer
from glnn.model import Model
from glnn.model.model import Node
from tests.backends.test_sobel import gradients, image


@pytest.fixture(scope="module", params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as closed:
        pytest.skip(str(closed))


def test_any_image(backend) -> None:
    for number in range(0, 200, 9):
        x = image(number)
        for seen in (x, x.T, x[::-1]):
            dx, dy = sobel(seen, backend)
            assert dx.dtype == dy.dtype == np.int8
            np.testing.assert_array_equal([dx, dy], gradients(seen))


def test_a_kernel_by_name(backend) -> None:
    x = image(66)
    kernel = {"cpu": None, "compute": "char16_swizzle", "feedback": "feedback_2xchar8"}
    np.testing.assert_array_equal(sobel(x, backend, kernel[backend.name]), gradients(x))
    with pytest.raises(UnsupportedOpError, match="char32"):
        sobel(x, backend, "char32")
    with pytest.raises(UnsupportedOpError, match="a kernel must be a name, got 7"):
        sobel(x, backend, 7)


def test_out_keeps_its_border(backend) -> None:
    x = image(64)
    assert min(x.shape) > 2
    wide = np.full((x.shape[0], 3 * x.shape[1]), 77, np.int8)
    out = wide[:, ::3], wide[:, 1::3]  # side by side, and neither has a number of the other
    dx, dy = sobel(x, backend, out=out)
    assert dx is out[0] and dy is out[1]
    expected = np.full((2, *x.shape), 77)
    expected[:, 1:-1, 1:-1] = gradients(x)[:, 1:-1, 1:-1]
    np.testing.assert_array_equal([dx, dy], expected)
    assert (wide[:, 2::3] == 77).all()


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((3, 4), np.float32), "image must be an uint8 NumPy array, got float32 array"),
        (np.zeros((3, 4), np.int8), "image must be an uint8 NumPy array, got int8 array"),
        (
            np.zeros((3, 4, 3), np.uint8),
            r"image must be H x W, neither of them 0, got shape \(3, 4, 3\)",
        ),
        (np.zeros(3, np.uint8), r"image must be H x W, .* got shape \(3,\)"),
        (np.zeros((0, 4), np.uint8), r"neither of them 0, got shape \(0, 4\)"),
        ([[1], [2, 3]], "sobel: image must be an uint8 NumPy array, got list"),
    ],
)
def test_what_is_no_image(x, said) -> None:
    for out in (None, (np.zeros((3, 4), np.int8), np.zeros((3, 4), np.int8))):
        with pytest.raises(ShapeError, match=said):
            sobel(x, "cpu", out=out)


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (np.zeros((3, 4), np.int8), "out must be two arrays"),
        ((np.zeros((3, 4), np.int8),), "out must be two arrays"),
        ((np.zeros((3, 4), np.int8), None), r"out's dy must be int8 \(3, 4\), got NoneType"),
        (
            (np.zeros((3, 4), np.uint8), np.zeros((3, 4), np.int8)),
            r"out's dx must be int8 \(3, 4\), got uint8 \(3, 4\)",
        ),
        (
            (np.zeros((3, 4), np.int8), np.zeros((4, 3), np.int8)),
            r"out's dy must be int8 \(3, 4\), got int8 \(4, 3\)",
        ),
        ((np.broadcast_to(np.int8(0), (3, 4)), np.zeros((3, 4), np.int8)), "writeable"),
        ((np.zeros((3, 4), np.int8),) * 2, "two that share memory"),
        (
            (
                np.zeros((3, 4), np.int8),
                np.lib.stride_tricks.as_strided(np.zeros(9, np.int8), (3, 4), (1, 1)),
            ),
            "out's dy overlaps itself",
        ),
    ],
)
def test_what_is_no_out(out, said) -> None:
    with pytest.raises(ShapeError, match=said):
        sobel(np.zeros((3, 4), np.uint8), "cpu", out=out)


@pytest.mark.parametrize("width", [32, 37])
@pytest.mark.parametrize("computed", [False, True])
def test_in_a_graph(backend, width, computed) -> None:
    """Of an input or of what a kernel made, with rows of whole sixteens or not."""
    builder = Builder("edges")
    x = value = builder.input("x", TensorType((9, width), DType.uint8))
    if computed:
        (value,) = builder.add(Pointwise(call("maximum", Arg(0), 100)), x, name="bright")
    (found,) = builder.add(Sobel(), value, name="found")
    steep = call("abs", call("cast_float32", Arg(0)))
    (size,) = builder.add(Pointwise(steep), found, name="size")
    given = np.random.default_rng(width).integers(0, 256, (9, width), np.uint8)
    plan = Plan(builder.graph([found, size]), backend, {"x": given.shape})
    got = plan.run({"x": given})
    moved = [step.name for step in plan.steps if step.host]  # what makes bytes of words
    assert len(moved) == (computed and backend.device is not None)
    expected = gradients(np.maximum(given, 100) if computed else given)
    np.testing.assert_array_equal(got["found"], expected)
    np.testing.assert_array_equal(got["size"], np.abs(expected))


class Gradients(Layer):
    """Both, as a layer of a model."""

    takes = ANY

    def __init__(self) -> None:
        super().__init__(Sobel())

    def config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("width", [32, 37])
def test_in_a_session(backend, width) -> None:
    nodes = (Node("edges", Gradients(), ("x",), "edges"),)
    model = Model(nodes, (TensorInfo("x", (9, width), "tensor(uint8)"),), ("edges",), "edges")
    session = InferenceSession(model, backend.name)
    for x in np.random.default_rng(width).integers(0, 256, (2, 9, width), np.uint8):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], gradients(x))
    if backend.device is not None:
        (step,) = session.plan({"x": (9, width)}).steps  # no other moves bytes
        assert step.op == Sobel()
