"""int64: on the GPU as int32 where every number is proved to be one, else with the host; exact."""

from __future__ import annotations

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.backends import Backend, open_backend
from glnn.compiler import Plan
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError, ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operators import (
    ArgReduce,
    Concat,
    Gather,
    Matmul,
    Pointwise,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from glnn.graph.passes import Pass
from glnn.layers import Embedding
from glnn.model import Model
from glnn.model.node import Node

BACKENDS = ("cpu", "compute", "feedback")
GPU = BACKENDS[1:]
WIDE = TensorType(("N", 5), DType.int64)


def opened(name: str) -> Backend:
    """Skips where this context has no such backend."""
    try:
        return open_backend(name)
    except DeviceError as error:
        pytest.skip(str(error))


def planned(graph: Graph, name: str, rows: int = 3) -> Plan:
    shapes = {value.name: (rows, 5) for value in graph.inputs}
    return Plan(graph, opened(name), shapes, without=frozenset({Pass.LEAVE}))


def by_hosts(plan: Plan) -> dict[str, bool]:
    """Whether the host computes each step."""
    return {step.name: step.kernel == "numpy" for step in plan.steps}


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(3).integers(-(2**31), 2**31, (3, 5))


def mixed() -> Graph:
    """Some values fit by proof, others do not, and one does again."""
    builder = Builder("mixed")
    x = builder.input("x", WIDE)
    steps = constant(np.array([1, 2, 3, 4, -5]), "steps")
    (rest,) = builder.add(Pointwise(call("remainder", Arg(0), 7)), x, name="rest")
    (few,) = builder.add(Pointwise(call("mul", Arg(0), Arg(1))), rest, steps, name="few")
    (large,) = builder.add(Pointwise(call("mul", Arg(0), 10**12)), few, name="large")
    (square,) = builder.add(Pointwise(call("mul", Arg(0), Arg(0))), x, name="square")
    (turned,) = builder.add(Transpose((1, 0)), large, name="turned")
    (again,) = builder.add(Pointwise(call("div", Arg(0), 10**11)), large, name="again")
    (parity,) = builder.add(Pointwise(call("bitwise_and", Arg(0), 1)), again, name="parity")
    joined = few  # all of it is one expression, until a kernel is looked for
    for i, function in enumerate(("mul", "mul", "div", "remainder", "add")):
        joined, *_ = builder.add(Pointwise(call(function, Arg(0), 10**9 + i)), joined, name=f"j{i}")
    return builder.graph([rest, few, large, square, turned, again, parity, joined])


@pytest.mark.parametrize("name", BACKENDS)
def test_values_beyond_int32_are_exact(name, numbers) -> None:
    plan = planned(mixed(), name)
    found = plan.run({"x": numbers})
    whole = [[int(n) for n in row] for row in numbers]
    few = [[n % 7 * s for n, s in zip(row, (1, 2, 3, 4, -5), strict=True)] for row in whole]
    assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}
    assert found["few"].tolist() == few
    assert found["large"].tolist() == [[n * 10**12 for n in row] for row in few]
    assert found["square"].tolist() == [[n * n for n in row] for row in whole]
    assert found["turned"].tolist() == [list(row) for row in zip(*found["large"], strict=True)]
    assert found["again"].tolist() == [[n * 10 for n in row] for row in few]
    assert found["parity"].tolist() == [[0] * 5] * 3
    wrapped = [[n * 10**9 * (10**9 + 1) for n in row] for row in few]
    wrapped = [[(n + 2**63) % 2**64 - 2**63 for n in row] for row in wrapped]
    over = [[abs(n) // (10**9 + 2) * (1 if n > 0 else -1) for n in row] for row in wrapped]
    assert found["j4"].tolist() == [[n % (10**9 + 3) + 10**9 + 4 for n in row] for row in over]
    if name != "cpu":
        hosts = by_hosts(plan)
        assert not hosts["rest"] and not hosts["few"] and not hosts["parity"]
        assert hosts["large"] and hosts["square"] and hosts["turned"] and hosts["again"]


def tokens() -> Model:
    """Token ids to rows of a table."""
    inputs = (TensorInfo("ids", ("N", 6), "tensor(int64)"),)
    return Model((Node("rows", Embedding(11, 4, seed=1), ("ids",), "rows"),), inputs, ("rows",))


@pytest.mark.parametrize("name", BACKENDS)
def test_token_ids(name) -> None:
    model = tokens()
    session = InferenceSession(model, opened(name).name)
    ids = np.random.default_rng(0).integers(0, 11, (2, 6))
    (found,) = session.run(None, {"ids": ids})
    np.testing.assert_array_equal(found, session.model.nodes[0].layer.weight[ids])
    assert session.get_inputs()[0].type == "tensor(int64)"
    if name != "cpu":
        assert not any(by_hosts(session.plan({"ids": (2, 6)})).values())
        ids[1, 4] = 2**31
        with pytest.raises(ShapeError, match=r"input 'ids' must .* got 2147483648 at \[1, 4\]"):
            session.run(None, {"ids": ids})
    with pytest.raises(ShapeError, match="must be an int64 NumPy array, got int32"):
        session.run(None, {"ids": ids.astype(np.int32)})


@pytest.mark.parametrize("name", GPU)
def test_shape_arithmetic_and_where_the_most_is(name, numbers) -> None:
    """Everything on the GPU: nothing of it can leave int32."""
    builder = Builder("places")
    x = builder.input("x", TensorType(("N", 5)))
    (place,) = builder.add(ArgReduce("max", 1), x, name="place")
    (wide,) = builder.add(Pointwise(call("cast_int64", Arg(0))), place, name="wide")
    rows = constant(np.array([3, 5]), "rows")
    (size,) = builder.add(Slice((1,), (2,), (0,), (1,)), rows, name="size")
    (last,) = builder.add(
        Pointwise(call("sub", call("sub", Arg(0), 1), Arg(1))), size, wide, name="last"
    )
    (both,) = builder.add(Concat(0), wide, last, name="both")
    (tall,) = builder.add(Reshape((2, -1)), both, name="tall")
    (found,) = builder.add(Gather(0), constant(np.arange(5) * 100, "t"), tall, name="found")
    (total,) = builder.add(Reduce("sum", (1,)), found, name="total")
    plan = planned(builder.graph([wide, last, tall, found, total]), name, 4)
    x = np.vstack([numbers, numbers[:1] // 2]).astype(np.float32)
    got = plan.run({"x": x})
    at = x.argmax(1)
    tall = np.stack([at, 4 - at])
    assert all(array.dtype == np.int64 for array in got.values())
    for called, expected in (
        *(("wide", at), ("last", 4 - at), ("tall", tall)),
        *(("found", tall * 100), ("total", (tall * 100).sum(1))),
    ):
        np.testing.assert_array_equal(got[called], expected)
    assert not any(by_hosts(plan).values()), by_hosts(plan)


@pytest.mark.parametrize("name", BACKENDS)
def test_float64_stays_with_the_host(name) -> None:
    """What float32 has not is not lost."""
    builder = Builder("double")
    x = builder.input("x", TensorType(("N", 5), DType.float64))
    third = constant(np.array([1 / 3]), "third")
    (y,) = builder.add(Pointwise(call("mul", Arg(0), Arg(1))), x, third, name="y")
    (z,) = builder.add(Pointwise(call("cast_float32", Arg(0))), y, name="z")
    (w,) = builder.add(Pointwise(call("relu", Arg(0))), z, name="w")
    x = np.random.default_rng(1).standard_normal((3, 5))
    found = planned(builder.graph([y, w]), name).run({"x": x})
    assert found["y"].dtype == np.float64 and found["w"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], x * (1 / 3))
    np.testing.assert_array_equal(found["w"], np.maximum((x * (1 / 3)).astype(np.float32), 0))


@pytest.mark.parametrize("name", GPU)
def test_floats_to_int64(name) -> None:
    """Clipped ones are known to fit; others are the host's, and exact."""
    builder = Builder("casts")
    x = builder.input("x", TensorType(("N", 5)))
    clipped = call("cast_int64", call("clip", Arg(0), 0.0, 100.0))
    (near,) = builder.add(Pointwise(clipped), x, name="near")
    (far,) = builder.add(Pointwise(call("cast_int64", Arg(0))), x, name="far")
    plan = planned(builder.graph([near, far]), name, 1)
    x = np.array([[1e12, -5.7, np.nan, 7.9, -1e18]], np.float32)
    found = plan.run({"x": x})
    assert found["near"].tolist() == [[100, 0, 0, 7, 0]]
    assert found["far"].tolist() == [[int(np.float32(1e12)), -5, 0, 7, int(np.float32(-1e18))]]
    assert by_hosts(plan) == {"near": False, "far": True}


@pytest.mark.parametrize("name", GPU)
def test_constants_are_uploaded_once(name) -> None:
    """For all plans of a session, though the graph is narrowed for each."""
    builder = Builder("shared")
    x = builder.input("x", WIDE)
    table = constant(np.arange(5), "table")
    (y,) = builder.add(Pointwise(call("maximum", Arg(0), Arg(1))), x, table, name="y")
    session_of = builder.graph([y])
    backend = opened(name)
    first = Plan(session_of, backend, {"x": (2, 5)})
    second = Plan(session_of, backend, {"x": (3, 5)}, weights=first._weights)
    assert len(first._weights._device_weights) == 1
    x = np.arange(15).reshape(3, 5) - 7
    np.testing.assert_array_equal(second.run({"x": x})["y"], np.maximum(x, np.arange(5)))


@pytest.mark.parametrize("name", BACKENDS)
def test_int64_between_what_a_gpu_has(name) -> None:
    """What is fused is taken apart again where int64 stands in its midst."""
    builder, large = Builder("between"), 10**10
    x = builder.input("x", WIDE)
    (size,) = builder.add(Pointwise(call("abs", Arg(0))), x, name="size")
    (rest,) = builder.add(Pointwise(call("remainder", Arg(0), 13)), size, name="rest")
    (small,) = builder.add(Pointwise(call("cast_int32", Arg(0))), rest, name="small")
    scaled = call("cast_int32", call("div", call("mul", Arg(0), large), large // 2))
    twice = Reduce("sum", (1,), False, call("cast_int64", Arg(0)), scaled)
    (total,) = builder.add(twice, small, name="total")
    (given,) = builder.add(Pointwise(call("cast_float32", Arg(0))), small, name="given")
    weight = constant(np.eye(5, dtype=np.float32), "weight")
    (product,) = builder.add(Matmul(), given, weight, name="product")
    (whole,) = builder.add(Pointwise(call("cast_int64", Arg(0))), product, name="whole")
    (huge,) = builder.add(Pointwise(call("mul", Arg(0), large)), whole, name="huge")
    (floats,) = builder.add(Pointwise(call("cast_float32", Arg(0))), huge, name="floats")
    numbers = np.array([[-(2**31), 2**31 - 1, -1, 0, 40]] * 3)
    found = planned(builder.graph([total, floats]), name).run({"x": numbers})
    expected = np.abs(numbers) % 13
    np.testing.assert_array_equal(found["total"], 2 * expected.sum(1))
    np.testing.assert_array_equal(found["floats"], (expected * large).astype(np.float32))
