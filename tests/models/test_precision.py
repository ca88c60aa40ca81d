"""Weights of float16: the same roundings everywhere, what they save, and what they do not hold."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import glnn
from glnn.backends import NAMES, Backend, open_backend
from glnn.compiler import Plan
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError, GlnnError, ShapeError
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.graph.passes import Pass
from glnn.layers import (
    Conv2d,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
)
from glnn.model import Model, Node, TensorInfo
from glnn.profiling import verify
from tests import oracle
from tests.references import results


def small_vgg() -> Model:
    """As VGG is made, with channels by groups and one by one besides."""
    layers: list[Layer] = []
    for c, o, kernel, groups in ((3, 8, 3, 1), (8, 32, 3, 1), (32, 32, 3, 32), (32, 36, 1, 1)):
        layers += [Conv2d(c, o, kernel, padding=kernel // 2, groups=groups), ReLU()]
    layers += [MaxPool2d(2), Conv2d(36, 12, 3, stride=2, groups=3), ReLU(), Flatten()]
    layers += [Linear(12 * 3 * 3, 67), ReLU(), Linear(67, 10)]
    return Model.sequential(layers, (3, 15, 15), name="small vgg")


def words() -> Model:
    ids = TensorInfo("ids", ("N", 6), "tensor(int32)")
    nodes = (
        Node("words", Embedding(37, 9), ("ids",), "words"),
        Node("norm", LayerNorm(9), ("words",), "norm"),
        Node("flat", Flatten(), ("norm",), "flat"),
        Node("scores", Linear(54, 5), ("flat",), "scores"),
    )
    return Model(nodes, (ids,), ("scores",), "words")


def session(model: Model, backend: str, **options) -> glnn.InferenceSession:
    try:
        return glnn.InferenceSession(model, backend, **options)
    except DeviceError as closed:
        pytest.skip(str(closed))


def opened_backend(name: str) -> Backend:
    try:
        return open_backend(name)
    except DeviceError as closed:
        pytest.skip(str(closed))


def rounded(model: Model) -> Model:
    """`model` after the weights of its contractions and tables were rounded, one by one."""
    for node in model.nodes:
        if isinstance(node.layer, (Conv2d, Linear, Embedding)):
            node.layer.weight = node.layer.weight.astype(np.float16).astype(np.float32)
    return model


def inputs(model: Model, count: int = 5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    (info,) = model.inputs
    if info.dtype is DType.int32:
        return {info.name: generator.integers(0, 37, info.with_batch(count)).astype(np.int32)}
    return {info.name: generator.standard_normal(info.with_batch(count), np.float32)}


@pytest.mark.parametrize("limits", [None, "es31-minimum"])
@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("make", [small_vgg, words, lambda: glnn.load("lenet")])
def test_a_net_has_the_roundings_of_its_weights_and_no_others(make, backend, limits) -> None:
    feeds, unrounded = inputs(make()), make().graph
    (name,) = (value.name for value in unrounded.outputs)
    whole, same = results(unrounded, feeds)[name], results(rounded(make()).graph, feeds)[name]
    options = {"limits": limits, "precision": "float16", "without": ["halves"]}
    (got,) = session(make(), backend, **options).run(None, feeds)
    assert oracle.error(got, same) <= 1e-5
    assert 1e-5 < oracle.error(got, whole) <= min(2e-3, 1.5 * oracle.error(same, whole))


@pytest.mark.parametrize("backend", NAMES)
def test_every_step_is_near_the_weights_as_they_were(backend) -> None:
    model = small_vgg()
    feeds = inputs(model)
    plan = session(model, backend, precision="float16").plan({"input": (5, 3, 15, 15)}, keep=True)
    assert verify(plan, feeds, 2e-3).first_divergence is None
    assert verify(plan, feeds).first_divergence is not None


@pytest.mark.parametrize("backend", NAMES)
def test_lenet_is_as_right_as_before(backend) -> None:
    images, labels = glnn.data.digits()
    x = (images[:, None] / np.float32(255)).astype(np.float32)
    model = glnn.load("lenet")
    right = {}
    for precision in ("float32", "float16"):
        (scores,) = session(model, backend, precision=precision).run(None, {"input": x})
        right[precision] = (scores.argmax(1) == labels).mean()
    assert right["float16"] >= right["float32"] - 0.001 > 0.98


@pytest.mark.parametrize("backend", NAMES)
def test_what_it_saves(backend) -> None:
    model = small_vgg()
    shapes = {"input": (5, 3, 15, 15)}
    floats = session(model, backend).plan(shapes).outline
    halves = session(model, backend, precision="float16").plan(shapes).outline
    total = floats.parameters + floats.copies - halves.parameters - halves.copies
    assert floats.saved == 0 and halves.saved == total
    stored = {name for step in halves.steps for name in step.fp16}
    if backend == "cpu":  # it keeps what was rounded as float32
        assert not stored and halves.saved == 0
        return
    assert stored == ({"weight", "weights"} if backend == "compute" else {"weight"})
    (weights,) = ([n.layer.weight for n in model.nodes if hasattr(n.layer, "weight")],)
    assert halves.saved >= 2 * sum(weight.size for weight in weights if weight is not None)


@pytest.mark.parametrize("backend", NAMES)
def test_what_float16_does_not_hold_is_said(backend) -> None:
    model = Model.sequential([Linear(3, 2)], (3,), names=["affine"])
    layer, x = model.nodes[0].layer, np.ones((1, 3), np.float32)
    assert isinstance(layer, Linear)
    layer.weight = np.array([[1, 2, 65519], [4, -np.inf, 6]], np.float32)  # rounded to 65504
    opened = session(model, backend, precision="float16")
    np.testing.assert_array_equal(
        opened.run(None, {"input": x})[0] - layer.bias, [[65507, -np.inf]]
    )
    layer.weight = np.array([[1, 2, 3], [4, -65520, 6]], np.float32)
    for _ in range(2):  # nothing of before is used instead
        message = r"affine\.weight has the number -65520, float16 holds up to 65504"
        with pytest.raises(ShapeError, match=message):
            opened.run(None, {"input": x})
    with pytest.raises(ShapeError, match=r"affine\.weight has the number"):
        session(model, backend, precision="float16").run(None, {"input": x})
    layer.weight = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(opened.run(None, {"input": x})[0], 3 + layer.bias[None], rtol=1e-6)


@pytest.mark.parametrize("precision", ["half", "bfloat16", "int4", None, 16, np.float16])
def test_a_wrong_precision_is_refused(precision) -> None:
    with pytest.raises(GlnnError, match="precision must be float32, float16 or int8, got"):
        glnn.InferenceSession(small_vgg(), "cpu", precision=precision)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("backend", NAMES)
def test_values_of_float16_are_those_of_numpy(backend, fused) -> None:
    """Casts round and overflow as NumPy's; inputs and outputs are float16 where they say so."""
    opened = opened_backend(backend)
    builder = Builder("casts")
    x = builder.input("x", TensorType(("N", 7)))
    y = builder.input("y", TensorType(("N", 7), DType.float16))
    (cast,) = builder.add(Pointwise(call("cast_float16", Arg(0))), x, name="cast")
    (product,) = builder.add(Pointwise(call("mul", Arg(0), Arg(1))), cast, y, name="product")
    (wide,) = builder.add(Pointwise(call("cast_float32", Arg(0))), product, name="wide")
    graph = builder.graph([cast, product, wide])
    generator = np.random.default_rng(1)
    a = generator.standard_normal((5, 7), np.float32) * 100
    a[0] = [7e4, -1e30, np.nan, 65519.9, 65520, 1e-7, -0.0]
    b = generator.standard_normal((5, 7)).astype(np.float16)
    with np.errstate(all="ignore"):
        expected = {"cast": a.astype(np.float16)}
        expected["product"] = expected["cast"] * b
        expected["wide"] = expected["product"].astype(np.float32)
    got = Plan(
        graph,
        opened,
        {"x": a.shape, "y": b.shape},
        without=frozenset() if fused else frozenset(Pass),
    ).run({"x": a, "y": b})
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("backend", NAMES)
def test_a_feed_of_float16(backend) -> None:
    info = TensorInfo("x", ("N", 3), "tensor(float16)")
    model = Model((Node("relu", ReLU(), ("x",), "y"),), (info,), ("y",), "halves")
    opened = session(model, backend)
    x = np.array([[1.5, -2, 65504], [-0.1, np.inf, 3]], np.float16)
    (y,) = opened.run(None, {"x": x})
    assert y.dtype == np.float16 and opened.get_outputs()[0].type == "tensor(float16)"
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    with pytest.raises(ShapeError, match="input 'x' must be a float16 NumPy array, got float32"):
        opened.run(None, {"x": x.astype(np.float32)})


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("factor", [1e-8, 1e-4, 0.1, 1e7])
def test_a_factor_that_is_folded_in_takes_no_weight_beyond_float16(backend, image, factor) -> None:
    """The weights' own numbers are float16's; their products with the factor may not be."""
    rng = np.random.default_rng(8)
    shape, wide = ((2, 4, 6, 6), (5, 4, 1, 1)) if image else ((3, 32), (32, 24))
    x = (rng.standard_normal(shape) / factor).astype(np.float32)
    weight = (rng.standard_normal(wide) / 8).astype(np.float16).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Conv" if image else "MatMul", ["scaled", "weight"], ["y"]),
    ]
    constants = {"factor": np.float32(factor), "weight": weight}
    graph = helper.make_graph(
        nodes,
        "folded",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    try:
        session = glnn.InferenceSession(model.SerializeToString(), backend, precision="float16")
    except DeviceError as error:
        pytest.skip(str(error))
    (found,) = session.run(None, {"x": x})
    wide_x, wide_weight = (x.astype(np.float64) * np.float32(factor), weight.astype(np.float64))
    if image:
        expected = np.einsum("nchw,oc->nohw", wide_x, wide_weight[:, :, 0, 0])
    else:
        expected = wide_x @ wide_weight
    assert np.linalg.norm(found - expected) <= 5e-4 * np.linalg.norm(expected)
