"""Tensors that stay on the device from run to run: what is read is what was there before."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.backends.compute import Compute
from glnn.backends.feedback import Feedback
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import DeviceError, LimitError, ModelError, ShapeError
from glnn.gl import Device
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Reshape, Transpose
from tests import oracle

pytestmark = pytest.mark.usefixtures("poisoned")
SIZES = (1, 3, 7, 127, 129)
MINIMUM = "es31-minimum"
X, Y, Z = Arg(0), Arg(1), Arg(2)


@pytest.fixture(scope="module")
def minimum():
    device = Device(limits=MINIMUM)
    yield device
    device.close()


def named(name: str) -> Backend:
    try:
        return open_backend(name)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["compute", "feedback", "cpu", f"compute {MINIMUM}", f"feedback {MINIMUM}"])
def backend(request) -> Backend:
    name, _, least = request.param.partition(" ")
    if not least:
        return named(name)
    device = request.getfixturevalue("minimum")
    kind = Compute if name == "compute" else Feedback
    if reason := kind.why_not_device(device):
        pytest.skip(reason)
    return kind(device)


class Step:
    """A graph being made of inputs, and what states are updated by."""

    def __init__(self) -> None:
        self.builder = Builder("step")
        self.updates: dict[str, str] = {}
        self.ends: list[Value] = []

    def given(self, name: str, shape: Shape, dtype: DType = DType.float32) -> Value:
        return self.builder.input(name, TensorType(shape, dtype))

    def of(self, name: str, expr: Expr, *values: Value) -> Value:
        return self.builder.add(Pointwise(expr), *values, name=name)[0]

    def update(self, state: str, value: Value) -> None:
        self.updates[state] = value.name
        self.ends.append(value)

    def graph(self, *outputs: Value) -> Graph:
        return self.builder.graph(list(dict.fromkeys((*outputs, *self.ends))))

    def plan(self, states: States, shapes: Mapping[str, Shape] | None = None, *outputs) -> Plan:
        graph = self.graph(*outputs)
        return Plan(graph, states.backend, shapes or {}, states=states, updates=self.updates)


def holding(backend: Backend, **arrays: Array) -> States:
    states = States(backend)
    for name, array in arrays.items():
        states.add(name, array)
    return states


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(states: States, expected: Mapping[str, Array], rtol: float = 1e-6) -> None:
    for name, found in states.read(expected).items():
        np.testing.assert_allclose(found, expected[name], rtol, 1e-6, err_msg=name)
        assert found.dtype == states[name].type.dtype.numpy


@pytest.mark.parametrize("size", [0, *SIZES])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_counter_counts(backend, size, dtype) -> None:
    start = np.arange(size, dtype=dtype)
    states, step = holding(backend, count=start), Step()
    count = step.given("count", (size,), DType.from_array(start))
    step.update(
        "count",
        step.of(
            "next", call("add", X, Y), count, step.given("x", (size,), DType.from_array(start))
        ),
    )
    plan = step.plan(states, {"x": (size,)})
    for i in range(5):
        assert plan.run({"x": np.full(size, i, dtype)}, ()) == {}
        check(states, {"count": start + sum(range(i + 1))})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_readable_state_is_read_while_the_next_run_is_computed(backend, size, dtype) -> None:
    start = np.arange(size, dtype=dtype)
    states, step = States(backend), Step()
    states.add("count", start, readable=True)
    count = step.given("count", (size,), DType.from_array(start))
    x = step.given("x", (size,), DType.from_array(start))
    step.update("count", step.of("next", call("add", X, Y), count, x))
    plan, sums = step.plan(states, {"x": (size,)}), [start]
    for i in range(5):
        sums.append(sums[-1] + dtype(i))

    def runs() -> list[Array]:
        found, before = [], None
        for i in range(5):
            run = plan.begin({"x": np.full(size, i, dtype)}, ("next",))
            found += [] if before is None else [before.results()["next"]]
            before = run
        return [*found, before.results()["next"]]

    found = backend.perform(runs)
    np.testing.assert_array_equal(found, sums[1:])
    assert found[0].dtype == dtype
    check(states, {"count": sums[-1]})
    with pytest.raises(ModelError, match=r"'count' is state 'count': it is read by "):
        plan.run({"x": start}, ("count",))


def test_a_copy_of_states_has_their_memory_and_more(backend) -> None:
    states = holding(backend, a=floats(3))
    copied = states.copy()
    copied.add("b", floats(2))
    copied.write({"a": floats(3, seed=1)})
    check(states, {"a": floats(3, seed=1)})
    assert states.names == ("a",) and copied.names == ("a", "b")


@pytest.mark.parametrize("size", SIZES)
def test_two_states_are_swapped(backend, size) -> None:
    a, b = floats(size), floats(size, seed=1)
    states, step = holding(backend, a=a, b=b), Step()
    first, second = step.given("a", (size,)), step.given("b", (size,))
    step.update("a", second)
    step.update("b", first)
    plan = step.plan(states)
    for i in range(5):
        plan.run({}, ())
        check(states, {"a": (b, a)[i % 2], "b": (a, b)[i % 2]})


@pytest.mark.parametrize("size", SIZES)
def test_states_that_read_one_another(backend, size) -> None:
    a, b, c = (floats(size, seed=i) for i in range(3))
    states, step = holding(backend, a=a, b=b, c=c), Step()
    given = {name: step.given(name, (size,)) for name in "abc"}
    step.update("a", step.of("a'", call("sub", X, Y), given["a"], given["b"]))
    step.update("b", step.of("b'", call("mul", X, Y), given["c"], given["a"]))
    step.update("c", step.of("c'", call("add", X, call("mul", 0.5, Y)), given["b"], given["c"]))
    plan = step.plan(states)
    for _ in range(3):
        plan.run({}, ())
        a, b, c = a - b, c * a, b + np.float32(0.5) * c
        check(states, {"a": a, "b": b, "c": c}, 1e-5)


def test_one_value_is_the_content_of_two_states(backend) -> None:
    states, step = holding(backend, a=floats(7), b=floats(7, seed=1), c=floats(7, seed=2)), Step()
    twice = step.of("twice", call("mul", X, 2.0), step.given("a", (7,)))
    for name in "abc":
        step.update(name, twice)
    plan = step.plan(states)
    for i in range(3):
        plan.run({}, ())
        check(states, dict.fromkeys("abc", floats(7) * np.float32(2 ** (i + 1))))


def test_a_state_takes_an_input_a_constant_and_a_view(backend) -> None:
    states = holding(backend, a=floats(6), b=floats(6), c=floats(2, 3), d=floats(6, seed=3))
    step = Step()
    x = step.given("x", (6,))
    step.update("a", x)
    step.update("b", constant(np.arange(6, dtype=np.float32)))
    step.update("c", step.builder.add(Reshape((2, 3)), step.given("d", (6,)), name="view")[0])
    plan = step.plan(states, {"x": (6,)})
    fed = floats(6, seed=5)
    plan.run({"x": fed}, ())
    expected = {"a": fed.copy(), "b": np.arange(6), "c": floats(6, seed=3).reshape(2, 3)}
    fed[:] = 0
    check(states, expected)
    states.write({"d": floats(6)})
    check(states, expected)


def test_one_that_no_node_reads_is_written(backend) -> None:
    states, step = holding(backend, loss=np.array(3, np.float32)), Step()
    step.update("loss", step.of("sum", call("add", X, Y), step.given("x", ()), step.given("y", ())))
    plan = step.plan(states, {"x": (), "y": ()})
    plan.run({"x": np.array(1, np.float32), "y": np.array(4, np.float32)}, ())
    check(states, {"loss": np.array(5)})


ORDERS = list(permutations(range(4)))


@pytest.mark.parametrize("order", ORDERS[::5])
def test_the_order_of_nodes_does_not_matter(backend, order) -> None:
    """A weight that products read, and that is updated by one of them."""
    w, m, x = floats(7, 5), floats(7, 5, seed=1), floats(3, 7, seed=2)
    states, step = holding(backend, w=w, m=m), Step()
    weight, momentum, given = (
        step.given("w", (7, 5)),
        step.given("m", (7, 5)),
        step.given("x", (3, 7)),
    )
    add = step.builder.add
    turned = {
        value: add(Transpose((1, 0)), value, name=f"{value.name} turned")[0]
        for value in (given, weight)
    }
    (forward,) = add(Matmul(), given, turned[weight], name="forward")
    (columns,) = add(Transpose((1, 0)), forward, name="columns")
    (gradient,) = add(Matmul(), turned[given], columns, name="gradient")
    moved = step.of("m'", call("add", call("mul", 0.5, X), Y), momentum, gradient)
    made = {
        "w'": lambda: step.of("w'", call("sub", X, call("mul", 0.125, Y)), weight, moved),
        "m'": lambda: moved,
        "scaled": lambda: step.of("scaled", call("mul", 2.0, X), weight),
        "back": lambda: add(Matmul(), forward, weight, name="back")[0],
    }
    values = {name: made[name]() for name in (list(made)[i] for i in order)}
    step.update("w", values["w'"])
    step.update("m", values["m'"])
    outputs = values["scaled"], values["back"]
    plan = step.plan(states, {"x": x.shape}, *outputs)
    for _ in range(3):
        found = plan.run({"x": x})
        y = x @ w
        np.testing.assert_allclose(found["scaled"], 2 * w, 1e-5, 1e-5)
        np.testing.assert_allclose(found["back"], y @ w.T, 1e-4, 1e-4)
        m = np.float32(0.5) * m + x.T @ y
        w = w - np.float32(0.125) * m
        check(states, {"w": w, "m": m}, 1e-4)
        states.write({"w": w, "m": m})


def test_several_plans_share_states(backend) -> None:
    """Steps of two batch sizes and what only reads, in any order."""
    states = holding(backend, w=floats(5, 7), seen=np.zeros((), np.int32))
    expected = {"w": floats(5, 7), "seen": np.array(0, np.int32)}

    def stepping(batch: int) -> Plan:
        step = Step()
        x, w = step.given("x", (batch, 7)), step.given("w", (5, 7))
        seen = step.given("seen", (), DType.int32)
        (y,) = step.builder.add(Matmul(), x, w, name="y")
        add = step.builder.add
        turned = [add(Transpose((1, 0)), value, name=f"{value.name}'")[0] for value in (y, x)]
        (gradient,) = add(Matmul(), *turned, name="gradient")
        step.update("w", step.of("next", call("sub", X, call("mul", 0.01, Y)), w, gradient))
        step.update("seen", step.of("more", call("add", X, batch), seen))
        return step.plan(states, {"x": (batch, 7)})

    evaluation = Step()
    x, w = evaluation.given("x", (3, 7)), evaluation.given("w", (5, 7))
    (scores,) = evaluation.builder.add(Matmul(), x, w, name="scores")
    scoring = evaluation.plan(states, {"x": (3, 7)}, scores)
    plans = {batch: stepping(batch) for batch in (4, 3)}
    fed = floats(3, 7, seed=4)
    for i, batch in enumerate((4, 4, 3, 4, 3, 3)):
        x = floats(batch, 7, seed=i)
        plans[batch].run({"x": x}, ())
        weight = expected["w"]
        expected["w"] = weight - np.float32(0.01) * (x @ weight.T).T @ x
        expected["seen"] = expected["seen"] + np.int32(batch)
        found = scoring.run({"x": fed})["scores"]
        np.testing.assert_allclose(found, fed @ expected["w"].T, 1e-4, 1e-4)
    check(states, expected, 1e-4)


def test_written_between_runs(backend) -> None:
    states, step = holding(backend, a=floats(9)), Step()
    step.update("a", step.of("twice", call("mul", X, 2.0), step.given("a", (9,))))
    plan = step.plan(states)
    for i in range(4):
        plan.run({}, ())
        fresh = floats(9, seed=i)
        states.write({"a": fresh})
        fresh[:] = np.nan
        plan.run({}, ())
        check(states, {"a": 2 * floats(9, seed=i)})


def test_what_was_read_stays(backend) -> None:
    states, step = holding(backend, a=floats(9)), Step()
    step.update("a", step.of("twice", call("mul", X, 2.0), step.given("a", (9,))))
    plan = step.plan(states)
    found = []
    for _ in range(4):
        plan.run({}, ())
        found.append(states.read()["a"])
    for i, array in enumerate(found):
        np.testing.assert_array_equal(array, floats(9) * np.float32(2 ** (i + 1)))


def test_inputs_are_given_while_a_run_is_under_way(backend) -> None:
    """Each run adds up its own input, of which the host changes the array at once."""
    size = 1 << 16
    states, step = holding(backend, sum=np.zeros(size, np.float32)), Step()
    added = step.of(
        "added", call("add", X, Y), step.given("sum", (size,)), step.given("x", (size,))
    )
    step.update("sum", added)
    plan = step.plan(states, {"x": (size,)})
    x = np.empty(size, np.float32)
    for i in range(40):
        x[:] = i
        plan.run({"x": x}, ())
    check(states, {"sum": np.full(size, sum(range(40)))})


def test_outputs_come_back_beside_updates(backend) -> None:
    states, step = holding(backend, a=floats(7)), Step()
    a = step.given("a", (7,))
    grown = step.of("grown", call("add", X, 1.0), a)
    step.update("a", grown)
    seen = step.builder.add(Reshape((1, 7)), grown, name="seen")[0]
    plan = step.plan(states, {}, seen, step.of("before", call("mul", X, 3.0), a))
    assert plan.outputs == ("seen", "before")
    for i in range(3):
        found = plan.run({})
        assert list(found) == ["seen", "before"]
        np.testing.assert_allclose(found["seen"], floats(1, 7) + i + 1, 1e-6, 1e-6)
        np.testing.assert_allclose(found["before"], 3 * (floats(7) + i), 1e-6, 1e-6)
    check(states, {"a": floats(7) + 3})


def test_a_view_is_the_new_content(backend) -> None:
    x = floats(3, 4)
    states, step = holding(backend, a=np.zeros(12, np.float32)), Step()
    made = step.of("made", call("mul", X, 2.0), step.given("x", x.shape))
    step.update("a", step.builder.add(Reshape((12,)), made, name="row")[0])
    plan = step.plan(states, {"x": x.shape})
    for _ in range(2):
        plan.run({"x": x}, ())
        assert states.read()["a"].shape == (12,)
    check(states, {"a": 2 * x.reshape(-1)})


def test_states_are_not_read_by_a_plan(backend) -> None:
    """Which memory has a state's content depends on the backend, and on the runs of other plans."""
    states, step = holding(backend, a=floats(7)), Step()
    step.update("a", step.of("grown", call("add", X, 1.0), step.given("a", (7,))))
    plan = step.plan(states)
    plan.run({}, ())
    for name in ("a", "grown"):
        with pytest.raises(ModelError, match="it is read by"):
            plan.value(name)
        with pytest.raises(ModelError, match="it is read by"):
            plan.run({}, (name,))
    check(states, {"a": floats(7) + 1})


def test_a_thousand_runs_take_no_more_memory(backend) -> None:
    states, step = holding(backend, a=np.zeros(7, np.float32), b=floats(7)), Step()
    a, b, x = (step.given(name, (7,)) for name in "abx")
    step.update("a", step.of("a'", call("add", X, Y), a, x))
    step.update("b", step.of("b'", call("maximum", X, Y), b, a))
    plan = step.plan(states, {"x": (7,)})
    ones = np.ones(7, np.float32)
    for _ in range(10):
        plan.run({"x": ones}, ())
    states.read()
    gc.collect()
    held, objects = states.nbytes, len(gc.get_objects())
    for _ in range(990):
        plan.run({"x": ones}, ())
    check(states, {"a": 1000 * ones, "b": np.maximum(floats(7), 999)})
    gc.collect()
    assert states.nbytes == held
    assert len(gc.get_objects()) - objects < 200


def test_a_trained_bias_is_added_in_the_product(backend) -> None:
    """As a number for each column, as one for all, and behind a view."""
    if backend.device is None:
        pytest.skip("the cpu computes node by node")
    for shape, view in (((5,), None), ((1,), None), ((5,), (1, 5)), ((1, 5), None)):
        states, step = holding(backend, w=floats(5, 7), bias=floats(*shape, seed=1)), Step()
        x, w = step.given("x", (6, 7)), step.given("w", (5, 7))
        bias = step.given("bias", shape)
        seen = step.builder.add(Reshape(view), bias, name="seen")[0] if view else bias
        (y,) = step.builder.add(Matmul(), x, w, name="y")
        relu = step.of("relu", call("relu", call("add", X, Y)), y, seen)
        step.update("bias", step.of("more", call("add", X, 1.0), bias))
        plan = step.plan(states, {"x": (6, 7)}, relu)
        assert [one.op.name for one in plan.steps if one.op.name != "reorder"].count(
            "pointwise"
        ) == 1
        fed = floats(6, 7, seed=2)
        for i in range(2):
            found = plan.run({"x": fed})["relu"]
            wanted = np.maximum(fed @ floats(5, 7).T + floats(*shape, seed=1) + i, 0)
            np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
def test_a_trained_bias_of_channels(backend, kernel) -> None:
    weight, bias, x = floats(6, 3, *kernel), floats(6, seed=1), floats(2, 3, 7, 5, seed=2)
    states, step = holding(backend, weight=weight, bias=bias), Step()
    given = step.given("x", x.shape)
    own = step.given("weight", weight.shape), step.given("bias", bias.shape)
    (y,) = step.builder.add(Conv2d(), given, own[0], name="y")
    seen = step.builder.add(Reshape((6, 1, 1)), own[1], name="seen")[0]
    both = step.of("both", call("add", X, Y), y, seen)
    step.update("bias", step.of("more", call("add", X, 1.0), own[1]))
    plan = step.plan(states, {"x": x.shape}, both)
    for i in range(3):
        wanted = oracle.conv2d(x, weight) + (bias + i)[:, None, None]
        np.testing.assert_allclose(plan.run({"x": x})["both"], wanted, 1e-4, 1e-4)


def test_in_place_where_the_backend_can() -> None:
    backend = named("compute")
    states, step = holding(backend, a=floats(7), b=floats(7)), Step()
    a, b = step.given("a", (7,)), step.given("b", (7,))
    step.update("a", step.of("a'", call("add", X, Y), a, b))  # before b' as they are added
    step.update("b", step.of("b'", call("mul", X, 2.0), b))
    plan = step.plan(states)
    assert states.nbytes == 2 * states["a"].words * 4
    assert plan.nbytes == states.nbytes
    assert [step.output for step in plan.steps] == ["a'", "b'"]


def test_what_plans_and_states_need_together(monkeypatch) -> None:
    backend = named("compute")
    monkeypatch.setenv("GLNN_MEMORY", "1M")
    states = holding(backend, a=floats(1 << 17))  # half of it
    with pytest.raises(LimitError, match=r"state 'b' needs 786432 bytes .*, 524288 are free"):
        states.add("b", floats(3 << 16))
    assert states.names == ("a",)

    def doubling(more: int) -> Plan:
        step = Step()
        a = step.given("a", (1 << 17,))
        x = step.given("x", (more,))
        step.update("a", step.of("twice", call("mul", X, 2.0), a))
        return step.plan(states, {"x": (more,)}, step.of("negative", call("neg", X), x))

    plan = doubling(1 << 15)
    assert plan.nbytes == states.nbytes + 2 * (4 << 15)
    with pytest.raises(LimitError, match=r"512\.0 KiB are free"):
        doubling(1 << 17)


def test_what_does_not_fit_is_refused(backend) -> None:
    states = holding(backend, a=floats(7), n=np.zeros((), np.int32))
    with pytest.raises(ModelError, match="there is a state 'a' already"):
        states.add("a", floats(7))
    with pytest.raises(ShapeError, match="state 'b' must be a float32 or int32 array, got float64"):
        states.add("b", np.zeros(3))
    with pytest.raises(ModelError, match=r"there is no state 'c', there are \['a', 'n'\]"):
        states.read(["c"])
    with pytest.raises(ModelError, match="there is no state 'c'"):
        states.write({"c": floats(7)})
    with pytest.raises(ShapeError, match=r"state 'a' is .*, got a float32 array of shape \(8,\)"):
        states.write({"a": floats(8)})
    with pytest.raises(ShapeError, match=r"state 'n' is .*, got a float32 array of shape \(\)"):
        states.write({"n": np.array(1, np.float32)})
    check(states, {"a": floats(7), "n": np.array(0)})


def test_plans_whose_states_do_not_fit(backend) -> None:
    states = holding(backend, a=floats(7), n=np.zeros((), np.int32))

    def plan(shape: Shape, updates: Mapping[str, str], *, given: States | None = states) -> None:
        step = Step()
        a = step.given("a", shape)
        whole = step.of("whole", call("cast_int32", X), a)
        graph = step.graph(step.of("next", call("add", X, 1.0), a), whole)
        Plan(graph, backend, {"a": shape} if given is None else {}, states=given, updates=updates)

    plan((7,), {"a": "next"})
    for shape, updates, error, said in (
        ((7,), {"b": "next"}, ModelError, "updates: there is no state 'b'"),
        ((7,), {"a": "last"}, ModelError, r"updates\['a'\]: step has no output 'last'"),
        ((8,), {"a": "next"}, ShapeError, "state 'a' is"),
        ((7,), {"a": "whole"}, ShapeError, "state 'a' is .*, its update 'whole' is"),
        ((7,), {"n": "whole"}, ShapeError, "state 'n' is .*, its update 'whole' is"),
    ):
        with pytest.raises(error, match=said):
            plan(shape, updates)
    with pytest.raises(ModelError, match="updates: there is no state 'a'"):
        plan((7,), {"a": "next"}, given=None)
    with pytest.raises(ModelError, match="states of another backend"):
        plan((7,), {}, given=States(open_backend("cpu", None)))


def test_states_of_a_device_that_is_closed() -> None:
    device = Device()
    states, step = holding(Feedback(device), a=floats(7)), Step()
    step.update("a", step.of("twice", call("mul", X, 2.0), step.given("a", (7,))))
    plan = step.plan(states)
    device.close()
    for work in (states.read, lambda: states.write({"a": floats(7)}), lambda: plan.run({}, ())):
        with pytest.raises(DeviceError):
            work()


def doubled(backend: Backend, columns: int) -> Plan:
    """Products of 2 x, as it lies and turned, with a weight that is a state."""
    states, step = holding(backend, w=floats(8, columns)), Step()
    add, x, w = step.builder.add, step.given("x", (6, columns)), step.given("w", (8, columns))
    twice = step.of("twice", call("mul", X, 2.0), x)
    (first,) = add(Matmul(), twice, w, name="first")
    (turned,) = add(Transpose((1, 0)), twice, name="turned")
    (second,) = add(Matmul(), turned, turned, name="second")
    step.update("w", step.of("more", call("add", X, 1.0), w))
    return step.plan(states, {"x": (6, columns)}, first, second)


@pytest.mark.parametrize("columns", [1, 3, 10, 127])
def test_what_products_read_is_made_in_padded_rows(backend, columns) -> None:
    plan, x = doubled(backend, columns), floats(6, columns, seed=2)
    for i in range(2):
        found, w = plan.run({"x": x}), floats(8, columns) + i
        np.testing.assert_allclose(found["first"], 2 * x @ w.T, 1e-4, 1e-4)
        np.testing.assert_allclose(found["second"], 4 * x.T @ x, 1e-4, 1e-4)


def test_it_is_copied_for_none_of_them() -> None:
    """As a classifier's gradient, of ten columns, is read."""
    steps = doubled(named("compute"), 10).steps
    assert "twice" in {name for step in steps for name in step.inputs}
    assert not [step for step in steps if step.op.name == "move"]


@pytest.mark.parametrize("size", [1, 3, 6, 127])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_one_row_of_weights_whose_padding_holds_anything(backend, rows, size) -> None:
    states, step = holding(backend, w=floats(1, size)), Step()
    x, w = step.given("x", (rows, size)), step.given("w", (1, size))
    (y,) = step.builder.add(Matmul(), x, w, name="y")
    step.update("w", step.of("more", call("add", X, 1.0), w))
    plan, fed = step.plan(states, {"x": (rows, size)}, y), floats(rows, size, seed=3)
    for i in range(2):
        wanted = fed @ (floats(1, size) + i).T
        np.testing.assert_allclose(plan.run({"x": fed})["y"], wanted, 1e-4, 1e-4)


def test_an_epilogue_that_would_be_reordered_is_left_apart(backend) -> None:
    """Rows of seven numbers lie densely in a state, and padded where a product leaves them."""
    states, step = holding(backend, m=floats(5, 7)), Step()
    x, y = step.given("x", (5, 9)), step.given("y", (7, 9))
    (product,) = step.builder.add(Matmul(), x, y, name="product")
    m = step.given("m", (5, 7))
    step.update("m", step.of("m'", call("add", call("mul", 0.5, X), Y), m, product))
    plan = step.plan(states, {"x": (5, 9), "y": (7, 9)})
    given, wanted = {"x": floats(5, 9, seed=1), "y": floats(7, 9, seed=2)}, floats(5, 7)
    for _ in range(3):
        plan.run(given, ())
        wanted = np.float32(0.5) * wanted + given["x"] @ given["y"].T
        check(states, {"m": wanted}, 1e-4)
    if backend.name == "compute":
        assert "m as R4" not in {name for one in plan.steps for name in one.inputs}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_operand_in_the_results_memory_is_the_old_content(backend, order) -> None:
    """Where storage blocks are few an operand of an epilogue is copied to the result's memory: no
    other one may be there.
    """
    states, step = holding(backend, m=floats(5, 8)), Step()
    x, y = step.given("x", (5, 9)), step.given("y", (8, 9))
    (product,) = step.builder.add(Matmul(), x, y, name="product")
    beside = step.given("m", (5, 8)), step.given("z", (5, 8))
    last = call("sub", call("mul", 0.5, Arg(1 + order[0])), call("mul", X, Arg(1 + order[1])))
    values = product, *(beside[i] for i in order)
    step.update("m", step.of("m'", last, *values))
    plan = step.plan(states, {"x": (5, 9), "y": (8, 9), "z": (5, 8)})
    given = {"x": floats(5, 9, seed=1), "y": floats(8, 9, seed=2), "z": floats(5, 8, seed=3)}
    wanted = floats(5, 8).astype(np.float64)
    for _ in range(3):
        plan.run(given, ())
        wanted = 0.5 * wanted - given["x"].astype(np.float64) @ given["y"].T * given["z"]
        check(states, {"m": wanted.astype(np.float32)}, 1e-4)


def test_barriers_are_as_few_as_what_waits_for_what() -> None:
    backend = named("compute")
    names = [f"s{i}" for i in range(6)]
    states, step = holding(backend, **{name: floats(7) for name in names}), Step()
    for name in names:
        old = step.given(name, (7,))
        step.update(name, step.of(f"next {name}", call("add", X, 1.0), old))
    plan = step.plan(states)
    plan.run({}, ())
    asked = [name for name, *_ in plan.executable.commands.commands]
    assert asked.count("barrier") == 1  # behind all of them
    check(states, {name: floats(7) + 1 for name in names})
