"""Inputs of 8 and 16 bits go up as NumPy has them; what reads them gets the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import glnn
from glnn.backends import Backend, open_backend
from glnn.compiler.plan import Plan
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError
from glnn.gl import Buffer
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Gather, Matmul, Pointwise, Reduce, Reshape, Transpose
from glnn.graph.passes import Pass
from glnn.layers import Flatten, Linear
from glnn.layers import Pointwise as Function
from glnn.model import Model, load
from glnn.model.model import Node

NAMES = ["cpu", "compute", "feedback"]
WIDEN = Pointwise(call("cast_float32", Arg(0)))
SCALE = Pointwise(call("div", Arg(0), 256.0))  # exact everywhere
SIZES = [1, 3, 5, 7, 127, 129]


@pytest.fixture(scope="module", params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as closed:
        pytest.skip(str(closed))


def some(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Any numbers of `dtype`, those of float16 finite."""
    bits = np.random.default_rng(sum(shape)).integers(0, 1 << 16, shape, np.uint16)
    if dtype is DType.float16:
        halves = bits.view(np.float16)
        return np.where(np.isfinite(halves), halves, np.float16(6e-8))
    return bits % 2 == 1 if dtype is DType.bool else bits.astype(np.uint8).view(dtype.numpy)


def chain(dtype: DType, dims: tuple[int | str, ...], *ops: tuple[Operator, str]) -> Graph:
    """One operator after another, all of their values outputs."""
    builder = Builder("chain")
    value = builder.input("x", TensorType(dims, dtype))
    made: list[Value] = []
    for op, name in ops:
        (value,) = builder.add(op, value, name=name)
        made.append(value)
    return builder.graph(made)


@pytest.mark.parametrize("dtype", [DType.uint8, DType.int8, DType.bool, DType.float16])
@pytest.mark.parametrize("fused", [True, False])
def test_numbers_are_those_of_numpy(backend, dtype, fused) -> None:
    graph = chain(dtype, ("N", "M"), (WIDEN, "wide"), (SCALE, "scaled"))
    scaled = Graph(graph.nodes, graph.inputs, graph.outputs[1:], "scaled")
    for size in SIZES:
        for batch in (1, 2, 5):
            x = some(dtype, (batch, size))
            plan = Plan(
                scaled, backend, {"x": x.shape}, without=frozenset() if fused else frozenset(Pass)
            )
            for feed in (x, np.flip(x)):
                got = plan.run({"x": feed})["scaled"]
                np.testing.assert_array_equal(got, feed.astype(np.float32) / 256)
                given = plan.value("x")
                np.testing.assert_array_equal(given, feed)
                assert given.dtype == x.dtype
            if backend.device is None:
                continue
            assert len(plan.steps) == (1 if fused else 2)
            assert plan.outline.schedule.tensors["x"].layout.name == "packed"
            words = -(-x.size // 4) * x.itemsize  # whole fours of numbers
            assert plan.outline.blocks[plan.outline.arena.block["x"]] == 4 * backend.capacity(words)


def test_special_halves(backend) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 6e-8, -6e-8, -0.0, 65504], np.float16)
    got = Plan(chain(DType.float16, ("N",), (WIDEN, "y")), backend, {"x": (7,)}).run({"x": x})["y"]
    np.testing.assert_array_equal(got, x.astype(np.float32))
    assert np.signbit(got[5])


@pytest.mark.parametrize("dtype", [DType.uint8, DType.int8, DType.bool, DType.float16])
def test_who_takes_nothing_packed_is_given_words(backend, dtype) -> None:
    """Views stay packed, and come back so; moves, sums and what the host does get their own."""
    builder = Builder("readers")
    x = builder.input("x", TensorType(("N", 3, 7), dtype))
    (flat,) = builder.add(Reshape((-1,)), x, name="flat")
    (turned,) = builder.add(Transpose((2, 0, 1)), x, name="turned")
    (again,) = builder.add(Transpose((1, 0, 2)), x, name="again")
    (most,) = builder.add(Reduce("max", (2,)), x, name="most")
    outputs = [x, flat, turned, again, most]
    if dtype is not DType.bool:
        (wide,) = builder.add(WIDEN, flat, name="wide")
        outputs.append(wide)
    a = some(dtype, (5, 3, 7))
    got = Plan(builder.graph(outputs), backend, {"x": a.shape}).run({"x": a})
    expected = {"x": a, "flat": a.reshape(-1), "turned": a.transpose(2, 0, 1)}
    expected |= {"again": a.transpose(1, 0, 2), "most": a.max(2), "wide": a.reshape(-1)}
    for name, array in got.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == (np.float32 if name == "wide" else a.dtype)


def test_indices_masks_and_images_in_groups(backend) -> None:
    """Of uint8 and bool, where a lookup, a product and a convolution's result meet them."""
    builder = Builder("met")
    x = builder.input("x", TensorType(("N", 3, 9, 7), DType.uint8))
    mask = builder.input("mask", TensorType(("N", 5, 7, 5), DType.bool))
    half = builder.input("half", TensorType(("N", 5), DType.float16))
    generator = np.random.default_rng(3)
    taps, weight, table = (
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((5, 3, 3, 3), (4, 5), (256, 3))
    )
    (wide,) = builder.add(WIDEN, x, name="wide")
    (scaled,) = builder.add(SCALE, wide, name="scaled")
    (image,) = builder.add(Conv2d(), scaled, constant(taps, "taps"), name="image")
    (kept,) = builder.add(Pointwise(call("where", Arg(0), Arg(1), -1.0)), mask, image, name="kept")
    (long,) = builder.add(Pointwise(call("cast_int32", Arg(0))), x, name="long")
    (row,) = builder.add(Gather(0), constant(table, "table"), long, name="row")
    (product,) = builder.add(Matmul(), half, constant(weight, "weight"), name="product")
    (below,) = builder.add(Pointwise(call("less", Arg(0), 0.0)), image, name="below")
    (turned,) = builder.add(Transpose((0, 2, 3, 1)), below, name="turned")
    feeds = {
        "x": some(DType.uint8, (2, 3, 9, 7)),
        "mask": some(DType.bool, (2, 5, 7, 5)),
        "half": generator.standard_normal((2, 5)).astype(np.float16),
    }
    graph = builder.graph([kept, row, product, turned])
    plan = Plan(graph, backend, {k: v.shape for k, v in feeds.items()})
    got = plan.run(feeds)
    for name, given in feeds.items():  # half went up in padded rows
        np.testing.assert_array_equal(plan.value(name), given)
        assert plan.value(name).dtype == given.dtype
    exact, pixels = np.zeros((2, 5, 7, 5)), feeds["x"] / 256
    for i in range(3):
        for j in range(3):
            seen = pixels[:, :, i : i + 7, j : j + 5]
            exact += np.einsum("ncyx,oc->noyx", seen, taps[:, :, i, j].astype(np.float64))
    np.testing.assert_allclose(got["kept"], np.where(feeds["mask"], exact, -1), atol=1e-5)
    np.testing.assert_array_equal(got["row"], table[feeds["x"]])
    product = feeds["half"].astype(np.float64) @ weight.T
    np.testing.assert_allclose(got["product"], product, atol=1e-5)
    np.testing.assert_array_equal(got["turned"], exact.transpose(0, 2, 3, 1) < 0)


def photographs(channels: int = 3) -> Model:
    """Bytes scaled, then a layer: what a model that takes an image file's pixels is."""
    nodes = (
        Node("wide", Function("cast_float32"), ("x",), "wide"),
        Node("scaled", Function("div", [255.0]), ("wide",), "scaled"),
        Node("flat", Flatten(), ("scaled",), "flat"),
        Node("out", Linear(channels * 35, 3, seed=0), ("flat",), "out"),
    )
    info = TensorInfo("x", ("N", channels, 5, 7), "tensor(uint8)")
    return Model(nodes, (info,), ("out",), "photographs")


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_of_bytes(name, tmp_path) -> None:
    model = photographs()
    model.save(tmp_path / "net.json")
    model = load(tmp_path / "net.json")
    try:
        opened = glnn.InferenceSession(model, name)
    except DeviceError as closed:
        pytest.skip(str(closed))
    assert opened.get_inputs()[0].type == "tensor(uint8)"
    layer = model.nodes[3].layer
    feeds = [some(DType.uint8, (batch, 3, 5, 7)) for batch in (1, 2, 3, 4, 5)]
    runs = [opened.run_async(None, {"x": x}) for x in feeds]  # two of them in flight
    for x, run in zip(feeds, runs, strict=True):
        wide = (x.astype(np.float64) / 255).reshape(len(x), -1)
        expected = wide @ layer.weight.T.astype(np.float64) + layer.bias
        for (got,) in (opened.run(None, {"x": x}), run.result()):
            np.testing.assert_allclose(got, expected, atol=1e-5)
        found = opened.intermediates({"x": x}, ["scaled"])["scaled"]
        np.testing.assert_allclose(found.reshape(len(x), -1), wide, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16, np.float32])
def test_large_arrays_go_up_in_parts(dtype, monkeypatch) -> None:
    """Several MiB, of a count that fills no last word, in memory that the host shares."""
    backend = open_backend("auto")
    if backend.device is None:
        pytest.skip("no device")
    count = 5 * 2**20 // np.dtype(dtype).itemsize + 3
    x = np.random.default_rng(0).integers(0, 2, count).astype(dtype)
    graph = chain(DType.from_array(x), ("N",), (Pointwise(Arg(0)), "y"))
    plan = Plan(graph, backend, {"x": x.shape})
    for feed in (x, x[::-1]):
        np.testing.assert_array_equal(plan.run({"x": feed})["y"], feed)
    store = plan.buffers.store("x")
    assert isinstance(store, Buffer) and store.nbytes <= x.nbytes + 4 * backend.capacity(4)

    def read_back() -> np.ndarray:
        store.mark_written()
        return store.fetch()

    np.testing.assert_array_equal(backend.perform(read_back), x[::-1])
