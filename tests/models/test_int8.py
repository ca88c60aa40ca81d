"""Weights of int8: which layers have them, the same roundings everywhere, and what they save."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import glnn
from glnn.core.types import TensorType
from glnn.errors import DeviceError
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operators.quantize import QuantizedWeight, RoundedWeight, WeightScales
from glnn.graph.passes.quantization import batch_size_of
from glnn.layers import Conv2d, Flatten, Layer, Linear, ReLU
from glnn.model import Model
from glnn.profiling import verify
from tests import oracle

SHAPES = {"input": (2, 5, 8, 8)}


def net() -> Model:
    """Images of 64 and of 16 pixels: all but the first weight are worth it."""
    layers: list[Layer] = [Conv2d(5, 33, 1), ReLU(), Conv2d(33, 257, 1, stride=2), ReLU()]
    layers += [Flatten(), Linear(257 * 16, 67), ReLU(), Linear(67, 127)]
    return Model.sequential(layers, SHAPES["input"][1:])


def product() -> bytes:
    """An ONNX model: x (batch, 129) by weights (129, 67)."""
    weight = np.random.default_rng(3).standard_normal((129, 67)).astype(np.float32)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 129), ("y", 67))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def session(model: Model | bytes, backend: str, **options) -> glnn.InferenceSession:
    try:
        return glnn.InferenceSession(model, backend, precision="int8", **options)
    except DeviceError as closed:
        pytest.skip(str(closed))


def by_hand(weight: np.ndarray) -> np.ndarray:
    """The weights of each channel as the nearest of 255 multiples of its greatest / 127."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    step = (np.abs(rows).max(1, keepdims=True) / 127).astype(np.float32).astype(np.float64)
    known = np.where(step == 0, 1, step)
    return (np.rint(rows / known) * step).reshape(weight.shape)


def feeds(count: int = 2) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    return {"input": generator.standard_normal((count, *SHAPES["input"][1:]), np.float32)}


@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_a_net_has_the_roundings_of_its_weights_and_no_others(backend) -> None:
    rounded = net()
    for node in rounded.nodes:
        if isinstance(node.layer, Conv2d | Linear):
            weight = node.layer.weight
            large = weight.size >= 8192
            node.layer.weight = (by_hand(weight) if large else weight.astype(np.float16)).astype(
                np.float32
            )
    (expected,) = glnn.InferenceSession(rounded, "cpu").run(None, feeds())
    (whole,) = glnn.InferenceSession(net(), "cpu").run(None, feeds())
    (got,) = session(net(), backend).run(None, feeds())
    assert oracle.error(got, expected) <= 1e-5
    assert 1e-4 < oracle.error(got, whole) <= 2e-2


def test_what_lies_as_int8_and_what_it_saves() -> None:
    model = net()
    outline = session(model, "compute").plan(SHAPES).outline
    packed = [step for step in outline.steps if step.int8]
    assert [step.op.name for step in packed] == ["conv2d", "matmul", "matmul"]
    assert all(step.layouts["weight"].startswith("packed ") for step in packed)
    assert [step.fp16 for step in outline.steps if step.fp16] == [("weight",)]
    weights = [n.layer.weight.size for n in model.nodes if isinstance(n.layer, Conv2d | Linear)]
    floats = glnn.InferenceSession(model, "compute").plan(SHAPES).outline
    assert outline.saved >= 2 * weights[0] + 3 * sum(weights[1:])
    scales = outline.parameters + outline.saved - floats.parameters
    assert 4 * (257 + 67 + 127) <= scales < 4 * (257 + 67 + 127) + 64


def test_which_layers_they_are_does_not_depend_on_the_batch() -> None:
    opened = session(net(), "compute")
    onnx = session(product(), "compute")  # it is taken apart once sizes are known
    for count in (1, 129):
        (step,) = onnx.plan({"x": (count, 129)}).outline.steps
        assert step.int8 == ("weight",)
        steps = opened.plan({"input": (count, *SHAPES["input"][1:])}).outline.steps
        assert sum(bool(step.int8) for step in steps) == 3
    for dims, shape, samples in (
        ((7, "N", 3), (7, 5, 3), 5),
        (("batch", 3), (4, 3), 4),
        ((2, "length"), (2, 9), 1),
    ):
        graph = Graph((), (Value("x", TensorType(dims), Kind.INPUT),), (), "none")
        assert batch_size_of(graph, {"x": shape}) == samples


def test_every_step_is_near_what_its_weights_are() -> None:
    plan = session(net(), "compute").plan(SHAPES, keep=True)
    assert verify(plan, feeds(), 2e-3).first_divergence is None


def test_transform_feedback_and_few_storage_blocks_have_float16() -> None:
    """A bias and a scale are one block too many for the least that a device may have."""
    model = Model.sequential([Linear(129, 67), ReLU()], (129,))
    x = {"input": np.random.default_rng(2).standard_normal((3, 129)).astype(np.float32)}
    (expected,) = glnn.InferenceSession(model, "cpu", precision="float16").run(None, x)
    for backend, limits in (("feedback", None), ("compute", "es31-minimum")):
        opened = session(model, backend, limits=limits)
        assert not any(step.int8 for step in opened.plan({"input": (3, 129)}).outline.steps)
        (got,) = opened.run(None, x)
        assert oracle.error(got, expected) <= 1e-5


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite(number) -> None:
    """A layer that has such a weight has float16; assigned later, its channel's results are NaN."""
    model = Model.sequential([Linear(129, 67), ReLU()], (129,), names=["affine", "relu"])
    layer = model.nodes[0].layer
    assert isinstance(layer, Linear)
    x = {"input": np.ones((1, 129), np.float32)}
    weight = layer.weight.copy()
    opened = session(model, "compute")
    (before,) = opened.run(None, x)
    changed = weight.copy()
    changed[3, 5] = number
    layer.weight = changed
    (got,) = opened.run(None, x)
    assert np.isnan(got[0, 3])
    others = np.arange(67) != 3
    np.testing.assert_array_equal(got[:, others], before[:, others])
    later = session(model, "compute")
    assert not any(step.int8 for step in later.plan({"input": (1, 129)}).outline.steps)
    (got,) = later.run(None, x)
    assert not np.isfinite(got[0, 3]) and np.isfinite(got[:, others]).all()


def test_scales_and_numbers() -> None:
    """Zeros, one channel of huge numbers, one of the least, ties; -128 is never used."""
    weight = np.random.default_rng(1).standard_normal((6, 7, 3)).astype(np.float32)
    weight[1] = 0
    weight[2] *= 1e38 / np.abs(weight[2]).max()
    weight[3] = np.float32(-3.4028235e38)
    weight[4] *= 1e-30
    weight[5].reshape(-1)[:5] = 254, -254, 1, 3, -1  # a scale of 2: ties go to even
    for wide in (np.float32, np.float64):
        (found,) = QuantizedWeight().reference(weight.astype(wide))
        (scales,) = WeightScales().reference(weight.astype(wide))
        (rounded,) = RoundedWeight().reference(weight.astype(wide))
        assert found.dtype == np.int8 and scales.dtype == np.float32 and rounded.dtype == wide
        assert found.min() == -127 and not found[1].any() and scales[1] == 0
        assert (found[3] == -127).all()
        assert found[5].reshape(-1)[:5].tolist() == [127, -127, 0, 2, 0]
        made = found * scales.astype(np.float64).reshape(-1, 1, 1)
        np.testing.assert_allclose(made, by_hand(weight), rtol=1e-12)
        np.testing.assert_allclose(rounded, made, rtol=1e-6)
        assert (np.abs(made - weight) <= scales.reshape(-1, 1, 1) * (0.5 + 1e-5)).all()


def test_a_weight_that_is_assigned_has_its_own_scales() -> None:
    model = Model.sequential([Linear(129, 67)], (129,), names=["affine"])
    layer = model.nodes[0].layer
    assert isinstance(layer, Linear)
    x = np.random.default_rng(2).standard_normal((3, 129)).astype(np.float32)
    opened = session(model, "compute")
    for factor in (1, 100):
        layer.weight = layer.weight * np.float32(factor)
        (got,) = opened.run(None, {"input": x})
        assert oracle.error(got, x @ by_hand(layer.weight).T + layer.bias) <= 1e-5


def test_lenet_is_as_right_as_before() -> None:
    images, labels = glnn.data.digits()
    x = {"input": (images[:, None] / np.float32(255)).astype(np.float32)}
    model = glnn.load("lenet")
    (before,) = glnn.InferenceSession(model, "cpu").run(None, x)
    (scores,) = session(model, "cpu").run(None, x)
    right = (scores.argmax(1) == labels).mean()
    assert right >= (before.argmax(1) == labels).mean() - 0.002 > 0.98


def test_without_any_pass() -> None:
    model = Model.sequential([Linear(129, 67), ReLU()], (129,))
    x = {"input": np.random.default_rng(2).standard_normal((3, 129)).astype(np.float32)}
    (expected,) = session(model, "cpu").run(None, x)
    plain = session(model, "compute", fused=False)
    (got,) = plain.run(None, x)
    assert oracle.error(got, expected) <= 1e-5
    steps = plain.plan({"input": (3, 129)}).outline.steps
    assert len(steps) == 3 and steps[0].int8 == ("weight",)
