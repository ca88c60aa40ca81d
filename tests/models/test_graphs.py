"""Graphs made by hand: several results, indices, steps of the host, nothing at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import ClassVar

import numpy as np
import pytest

from glnn.backends import NAMES, Backend, open_backend
from glnn.compiler import Executor, Plan
from glnn.core.types import Array, DType, TensorType
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.operators import (
    Concat,
    Flip,
    Gather,
    Matmul,
    Pointwise,
    Reduce,
    Slice,
    Split,
    Transpose,
)
from glnn.layers import BatchNorm2d
from glnn.model import Model
from glnn.session import InferenceSession


@dataclass(frozen=True)
class Sorted(Operator):
    """The rows of x sorted, and where each number was: nothing on a GPU does that here."""

    name: ClassVar[str] = "sorted"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        return x, TensorType(x.dims, DType.int32)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        return np.sort(x, 1), np.argsort(x, 1).astype(np.int32)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@pytest.fixture(params=NAMES)
def backend(request) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))


def everything(weight: Array) -> Graph:
    builder = Builder("everything")
    x = builder.input("x", TensorType(("N", 7)))
    picks = builder.input("picks", TensorType((3,), DType.int32))
    left, right = builder.add(Split((3, 4), 1), x, name="split", outputs=("left", "right"))
    (product,) = builder.add(Matmul(), right, constant(weight), name="product")
    (found,) = builder.add(Gather(1), product, picks, name="found")
    (sums,) = builder.add(Pointwise(call("add", Arg(0), Arg(1))), found, left, name="sums")
    ranked, places = builder.add(Sorted(), sums, name="ranked", outputs=("ranked", "places"))
    (nothing,) = builder.add(Slice((0,), (0,), (1,), (1,)), x, name="nothing")
    (last,) = builder.add(Pointwise(call("tanh", Arg(0))), ranked, name="last")
    (whole,) = builder.add(Concat(1), last, nothing, name="whole")
    return builder.graph((whole, places, nothing))


def test_several_results_indices_a_step_of_the_host_and_nothing(backend, rng) -> None:
    weight, x = rng((5, 4)), rng((6, 7))
    picks = np.array([4, 0, 2], np.int32)
    plan = Plan(everything(weight), backend, {"x": x.shape, "picks": picks.shape})
    for _ in range(2):
        got = plan.run({"x": x, "picks": picks})
        sums = (x[:, 3:].astype("f8") @ weight.T.astype("f8"))[:, picks] + x[:, :3]
        np.testing.assert_allclose(got["whole"], np.tanh(np.sort(sums, 1)), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got["places"], np.argsort(sums, 1))
        assert got["places"].dtype == np.int32 and got["nothing"].shape == (6, 0)
        x, picks = rng((6, 7)), picks[::-1].copy()
    places = {step.name: step.host for step in plan.steps}
    assert places.pop("ranked")
    assert not any(places.values())


def test_only_what_is_asked_for_comes_back(backend, rng, monkeypatch) -> None:
    feeds = {"x": rng((2, 7)), "picks": np.array([1, 1, 1], np.int32)}
    executor = Executor(everything(rng((5, 4))), backend.name)
    executor.run(feeds)
    plan = executor.plan({name: array.shape for name, array in feeds.items()})
    read: list[str] = []
    found = plan._array
    monkeypatch.setattr(plan, "_array", lambda *asked: read.append(asked[0].name) or found(*asked))
    assert set(executor.run(feeds, ["places"])) == {"places"} and read == ["places"]


def test_types_of_what_is_built() -> None:
    graph = everything(np.zeros((5, 4), np.float32))
    types = {value.name: str(value.type) for node in graph.nodes for value in node.outputs}
    assert types["left"] == "float32 (N, 3)" and types["found"] == "float32 (N, 3)"
    assert types["places"] == "int32 (N, 3)" and types["nothing"] == "float32 (N, 0)"
    bound = graph.infer_types({"x": TensorType((2, 7)), "picks": TensorType((3,), DType.int32)})
    assert {str(bound[value]) for value in graph.outputs} == {
        "float32 (2, 3)",
        "int32 (2, 3)",
        "float32 (2, 0)",
    }


def test_parts_have_names_of_their_own(backend) -> None:
    """Though a user's tensor is called as the first of them would be."""
    builder = Builder("parts")
    x = builder.input("x", TensorType((2, 3)))
    (first,) = builder.add(Pointwise(call("neg", Arg(0))), x, name="cat: part 1")
    others = [
        builder.add(Pointwise(call("add", Arg(0), float(i))), x, name=f"n{i}")[0] for i in range(39)
    ]
    (out,) = builder.add(Concat(1), first, *others, name="cat")
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = Plan(builder.graph((out, first)), backend, {"x": (2, 3)}).run({"x": given})
    np.testing.assert_array_equal(got["cat"], np.hstack([-given, *(given + i for i in range(39))]))
    np.testing.assert_array_equal(got["cat: part 1"], -given)


def test_outputs_of_one_name() -> None:
    builder = Builder("named")
    x = builder.input("x", TensorType((2,)))
    one, other = constant(np.ones(2, np.float32)), constant(np.zeros(2, np.float32))
    with pytest.raises(ModelError, match="two inputs or outputs are called 'constant'"):
        builder.graph((x, one, other))


def test_graphs_that_do_not_hold_together() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((2, 3)))
    (a,) = builder.add(Pointwise(call("tanh", Arg(0))), x, name="a")
    (b,) = builder.add(Pointwise(call("tanh", Arg(0))), a, name="b")
    first, second = builder.graph([b]).nodes
    with pytest.raises(ModelError, match="'b' reads 'a' before it is made"):
        Graph((second, first), (x,), (b,))
    with pytest.raises(ModelError, match="'a' is made twice"):
        Graph((first, Node("again", first.operator, (x,), (a,))), (x,), (a,))
    with pytest.raises(ModelError, match="nothing makes the output 'b'"):
        Graph((first,), (x,), (b,))
    with pytest.raises(ShapeError, match="must agree in their last dimension"):
        builder.add(Matmul(), x, constant(np.zeros((2, 2), np.float32)), name="c")
    with pytest.raises(ShapeError, match="the operand weight is missing"):
        builder.add(Matmul(), x, name="d")


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "deep"])
def test_constants_of_many_constants(shared) -> None:
    """Neither takes twice the time for each node that reads one twice, nor a call for each."""
    builder = Builder("constants")
    x, w = builder.input("x", TensorType((2, 3))), constant(np.ones((2, 3), np.float32))
    twice = Pointwise(call("maximum", Arg(0), Arg(1)))
    for i in range(60 if shared else 1500):
        op, read = (twice, (w, w)) if shared else (Flip((0,)), (w,))
        (w,) = builder.add(op, *read, name=f"w{i}")
    (out,) = builder.add(Pointwise(call("add", Arg(0), Arg(1))), x, w, name="out")
    got = Executor(builder.graph((out,)), "cpu").run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(got["out"], np.full((2, 3), 2.0))


@pytest.mark.parametrize("dtype", [DType.int32, DType.uint8, DType.bool])
def test_integers_are_reduced(backend, dtype) -> None:
    """By the host, where no kernel takes them: sums wrap around."""
    x = (np.arange(30).reshape(5, 6) * 37).astype(dtype.numpy)
    builder = Builder("reduced")
    value = builder.input("x", TensorType((5, 6), dtype))
    (most,) = builder.add(Reduce("max", (1,)), value, name="most")
    (total,) = builder.add(Reduce("sum", (0,)), value, name="total")
    got = Plan(builder.graph((most, total)), backend, {"x": x.shape}).run({"x": x})
    expected = x.any(0) if dtype is DType.bool else x.sum(0, dtype=x.dtype)
    np.testing.assert_array_equal(got["most"], x.max(1))
    np.testing.assert_array_equal(got["total"], expected)
    assert got["total"].dtype == x.dtype


def test_a_tensor_of_no_dimensions_is_moved(backend) -> None:
    builder = Builder("moved")
    x = builder.input("x", TensorType((2,)))
    (turned,) = builder.add(Transpose(()), constant(np.array(3, np.float32)), name="turned")
    (out,) = builder.add(Pointwise(call("mul", Arg(0), Arg(1))), x, turned, name="out")
    got = Plan(builder.graph((out, turned)), backend, {"x": (2,)}).run({"x": np.ones(2, "f4")})
    np.testing.assert_array_equal(got["out"], [3, 3])
    assert got["turned"].shape == ()


def test_a_number_that_is_none_of_the_operands() -> None:
    builder = Builder("numbers")
    x = builder.input("x", TensorType((2,), DType.uint8))
    with pytest.raises(ShapeError, match="add: 300 is no uint8"):
        builder.add(Pointwise(call("add", Arg(0), 300)), x, name="out")


def test_an_operand_that_a_compiler_may_drop(backend) -> None:
    """x - x may be 0 to it, and then it has no x."""
    builder = Builder("dropped")
    x = builder.input("x", TensorType((4,)))
    (doubled,) = builder.add(Pointwise(call("relu", Arg(0))), x, name="doubled")
    (out,) = builder.add(Pointwise(call("sub", Arg(0), Arg(1))), doubled, doubled, name="out")
    got = Plan(builder.graph((out,)), backend, {"x": (4,)}).run({"x": np.ones(4, np.float32)})
    np.testing.assert_array_equal(got["out"], np.zeros(4))


def test_weights_assigned_before_two_threads_run_are_new_to_both() -> None:
    layers = [BatchNorm2d(64) for _ in range(60)]
    session = InferenceSession(Model.sequential(layers, (64, 1, 1)), "cpu")
    (info,) = session.get_inputs()
    barrier = Barrier(2)

    def last(x: Array) -> float:
        barrier.wait()
        return float(session.run(None, {info.name: x})[0].flat[0])

    with ThreadPoolExecutor(2) as pool:
        for turn in range(10):
            for layer in layers:
                layer.bias = np.full(64, turn, np.float32)
            got = list(pool.map(last, [np.ones((n, 64, 1, 1), np.float32) for n in (1, 2)]))
            assert got[0] == got[1]
