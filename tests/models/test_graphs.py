"""Graphs made by hand: several results, indices, steps of the host, nothing at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from glnn.backends import NAMES, Backend, open_backend
from glnn.compile import Executor, Plan
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node
from glnn.graph.operator import Cost, Known, Operator, Types
from glnn.graph.operators import Concat, Gather, Matmul, Pointwise, Slice, Split
from glnn.types import Array, DType, TensorType


@dataclass(frozen=True)
class Sorted(Operator):
    """The rows of x sorted, and where each number was: nothing on a GPU does that here."""

    name: ClassVar[str] = "sorted"

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
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
    value = plan._value
    monkeypatch.setattr(plan, "_value", lambda name: read.append(name) or value(name))
    assert set(executor.run(feeds, ["places"])) == {"places"} and read == ["places"]


def test_types_of_what_is_built() -> None:
    graph = everything(np.zeros((5, 4), np.float32))
    types = {value.name: str(value.type) for node in graph.nodes for value in node.outputs}
    assert types["left"] == "float32 (N, 3)" and types["found"] == "float32 (N, 3)"
    assert types["places"] == "int32 (N, 3)" and types["nothing"] == "float32 (N, 0)"
    bound = graph.bind({"x": TensorType((2, 7)), "picks": TensorType((3,), DType.int32)})
    assert {str(bound[value]) for value in graph.outputs} == {
        "float32 (2, 3)",
        "int32 (2, 3)",
        "float32 (2, 0)",
    }


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
