"""Small work between steps of the host's: who does it, and what goes to the device and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler.cpu_fallback import LEFT
from glnn.compiler.plan import Plan
from glnn.core.types import Array, TensorType
from glnn.errors import DeviceError
from glnn.gl import Buffer
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.operators import Matmul, Pointwise, Reshape, Softmax
from glnn.graph.passes import Pass
from glnn.runtime.store import HostStore, Store

SHAPE = (4, 6)


@dataclass(frozen=True)
class Backwards(Operator):
    """Its operand from the last number to the first, which no kernel does."""

    name: ClassVar[str] = "backwards"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        (type,) = types
        assert type is not None
        return (type,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = arrays
        assert x is not None
        return (np.ascontiguousarray(x.ravel()[::-1].reshape(x.shape)),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def between(weight: Array, islands: int = 3) -> Graph:
    """A product; then by turns a step of the host's and small work; and a product again."""
    builder = Builder("between")
    x = builder.input("x", TensorType(SHAPE))
    w = constant(weight, "w")
    (last,) = builder.add(Matmul(), x, w, name="first")
    for i in range(islands):
        (turned,) = builder.add(Backwards(), last, name=f"turned{i}")
        (wide,) = builder.add(Reshape((2, 12)), turned, name=f"wide{i}")
        (half,) = builder.add(Softmax(1), wide, name=f"soft{i}")
        (last,) = builder.add(Pointwise(call("mul", Arg(0), 3.0)), half, name=f"more{i}")
        (last,) = builder.add(Reshape(SHAPE), last, name=f"back{i}")
    (turned,) = builder.add(Backwards(), last, name="end")
    (made,) = builder.add(Matmul(), turned, w, name="last")
    (again,) = builder.add(Matmul(), made, w, name="again")
    return builder.graph([again])


def expected(x: Array, weight: Array, islands: int = 3) -> Array:
    x, weight = x.astype("f8"), weight.astype("f8")
    last = x @ weight.T
    for _ in range(islands):
        wide = last.ravel()[::-1].reshape(2, 12)
        powers = np.exp(wide - wide.max(1, keepdims=True))
        last = (3 * powers / powers.sum(1, keepdims=True)).reshape(SHAPE)
    return last.ravel()[::-1].reshape(SHAPE) @ weight.T @ weight.T


def stores(plan: Plan) -> dict[str, Store]:
    """The tensors of `plan`, where its last run has them."""
    return {name: plan.buffers.store(name) for name in plan.executable.slots}


def moved(plan: Plan) -> tuple[int, int]:
    """How often tensors of `plan` went to the device, and came back."""
    buffers = {id(b): b for b in stores(plan).values() if isinstance(b, Buffer)}
    return sum(b.pushes for b in buffers.values()), sum(b.pulls for b in buffers.values())


@pytest.fixture(params=["compute", "feedback"])
def gpu(request) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))


def test_small_work_stays_with_the_host(gpu, rng) -> None:
    weight, x = rng((6, 6)), rng(SHAPE)
    graph, shapes = between(weight), {"x": SHAPE}
    left = Plan(graph, gpu, shapes)
    asked = Plan(graph, gpu, shapes, without=frozenset({Pass.LEAVE}))
    for plan in (left, asked):
        for scale in (1, 2):
            (found,) = plan.run({"x": scale * x}).values()
            np.testing.assert_allclose(found, expected(scale * x, weight), rtol=2e-5, atol=1e-5)
    hosted = {step.name: step.host for step in left.steps}
    assert not hosted["first"] and not hosted["again"]
    whys = {step.name: step.why for step in left.steps if "soft" in step.name}
    assert set(whys.values()) == {LEFT}
    assert [step.name for step in asked.steps if step.host] == [
        "turned0",
        "turned1",
        "turned2",
        "end",
    ]
    before = moved(left)
    left.run({"x": x})
    pushed, pulled = (now - then for now, then in zip(moved(left), before, strict=True))
    assert (pushed, pulled) == (2, 2)  # the input, what `end` gives; `first`, the output
    found = stores(left)
    assert isinstance(found["turned1"], HostStore) and isinstance(found["first"], Buffer)


def test_large_work_does_not(gpu, rng) -> None:
    """It would take NumPy longer than the way there and back."""
    builder = Builder("large")
    x = builder.input("x", TensorType((512, 512)))
    (one,) = builder.add(Backwards(), x, name="one")
    (product,) = builder.add(Matmul(), one, constant(rng((512, 512)), "w"), name="product")
    (two,) = builder.add(Backwards(), product, name="two")
    plan = Plan(builder.graph([two]), gpu, {"x": (512, 512)})
    assert {step.name: step.host for step in plan.steps}["product"] is False


def test_without_steps_of_the_hosts_all_stays_on_the_device(gpu, rng) -> None:
    builder = Builder("tiny")
    x = builder.input("x", TensorType(SHAPE))
    (soft,) = builder.add(Softmax(1), x, name="soft")
    plan = Plan(builder.graph([soft]), gpu, {"x": SHAPE})
    assert not plan.hosted and not any(step.host for step in plan.steps)


def test_inputs_and_outputs_of_the_hosts_steps_alone(gpu, rng) -> None:
    """They never see the device, and the caller's arrays stay as they are."""
    builder = Builder("all")
    x = builder.input("x", TensorType(SHAPE))
    (one,) = builder.add(Backwards(), x, name="one")
    graph = builder.graph([one, x])
    plan, given = Plan(graph, gpu, {"x": SHAPE}), rng(SHAPE)
    kept, out = given.copy(), np.empty(SHAPE, np.float32)
    found = plan.run({"x": given}, out={"x": out})
    np.testing.assert_array_equal(found["one"], kept[::-1, ::-1])
    found["one"][...] = 0
    assert np.array_equal(out, kept) and np.array_equal(given, kept)
    assert moved(plan) == (0, 0)


@pytest.mark.parametrize("keep", [False, True])
def test_any_tensor_can_be_asked_for(gpu, rng, keep: bool) -> None:
    weight, x = rng((6, 6)), rng(SHAPE)
    plan = Plan(between(weight, 1), gpu, {"x": SHAPE}, keep=keep)
    plan.run({"x": x})
    first = x.astype("f8") @ weight.T.astype("f8")
    np.testing.assert_allclose(plan.value("turned0"), first[::-1, ::-1], rtol=2e-5, atol=1e-5)
