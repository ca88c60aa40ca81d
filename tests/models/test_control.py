"""Branches and loops: bodies are planned as any graph is, and between them the host decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import Executor, Plan
from glnn.compiler import run as compile_run
from glnn.core.types import Array, DType, TensorType
from glnn.errors import DeviceError, ModelError, ShapeError, UnsupportedOpError
from glnn.gl import Buffer, Device
from glnn.gl.command_buffer import BoundCommands
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.control_flow import Scan, branch, loop, number
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Concat, Conv2d, Flip, If, Loop, Matmul, Pointwise, Reduce, Reshape
from glnn.model import Model
from glnn.profiling import profile, verify
from glnn.session import InferenceSession
from tests.oracle import error
from tests.recurrent import Recurrent
from tests.references import results

FLAG, COUNT = TensorType((), DType.bool), TensorType((), DType.int32)
ADD, MUL = call("add", Arg(0), Arg(1)), call("mul", Arg(0), Arg(1))
DOUBLE, NEGATED = call("mul", Arg(0), 2.0), call("neg", Arg(0))


@pytest.fixture(params=["cpu", "compute", "feedback", "compute smallest", "feedback smallest"])
def backend(request) -> Backend:
    name, *smallest = request.param.split()
    return opened(name, limits="es31-minimum" if smallest else None)


def opened(name: str, **options: Any) -> Backend:
    """The backend; skips the test where it does not open."""
    try:
        return open_backend(name, **options)
    except DeviceError as error:
        pytest.skip(str(error))


def put(builder: Builder, expr, *values: Value, name: str) -> Value:
    return builder.add(Pointwise(expr), *values, name=name)[0]


def body(builder: Builder, *carried: Value, name: str = "body") -> tuple[Builder, list[Value]]:
    """The builder of a loop's body, and its inputs."""
    inside = builder.body(name)
    inputs = [inside.input("i", COUNT), inside.input("going", FLAG)]
    return inside, inputs + [inside.input(v.name, v.type) for v in carried]


def run(graph: Graph, backend: Backend, **feeds: Array) -> dict[str, Array]:
    """Twice, as what a run leaves must not disturb the next."""
    plan = Plan(graph, backend, {name: array.shape for name, array in feeds.items()})
    first, again = plan.run(feeds), plan.run(feeds)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    return first


def two_ways() -> Graph:
    """2x where the sum of x is above 0, else w - x; and x or its sum."""
    builder = Builder("two ways")
    x = builder.input("x", TensorType(("N", 3)))
    (total,) = builder.add(Reduce("sum", (0, 1), True), x, name="total")
    above = put(builder, call("greater", Arg(0), 0.0), total, name="above")
    then, otherwise = builder.body("then"), builder.body("otherwise")
    doubled = put(then, DOUBLE, x, name="doubled")
    rest = put(otherwise, call("sub", 1.0, Arg(0)), x, name="rest")
    both = branch(builder, above, (then, [doubled, x]), (otherwise, [rest, rest]), name="if")
    return builder.graph([put(builder, call("add", Arg(0), 1.0), both[0], name="out"), both[1]])


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch(backend, rng, count, sign) -> None:
    x = np.abs(rng((count, 3))) * np.float32(sign)
    got = run(two_ways(), backend, x=x)
    chosen, other = (2 * x, x) if sign > 0 else (1 - x, 1 - x)
    np.testing.assert_array_equal(got["out"], chosen + 1)
    np.testing.assert_array_equal(got["if.1"], other)


def test_one_plan_takes_either_branch(backend, rng) -> None:
    executor = Executor(two_ways(), backend.name)
    x = np.abs(rng((2, 3)))
    for sign in (1, -1, 1):
        given = x * np.float32(sign)
        expected = 1 + (2 * given if sign > 0 else 1 - given)
        np.testing.assert_array_equal(executor.run({"x": given})["out"], expected)
    assert len(executor.range_plans) == 1 and not executor._plans


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_fibonacci(backend, rng, trips) -> None:
    """Values change places, and one goes by unchanged; each place of the results is as it was."""
    builder = Builder("fibonacci")
    x, y = (builder.input(name, TensorType(("N", 3))) for name in "xy")
    inside, (i, going, a, b) = body(builder, x, y)
    place = put(inside, call("cast_float32", Arg(0)), i, name="place")
    raised = put(inside, ADD, a, place, name="raised")
    outputs = [going, b, put(inside, ADD, a, b, name="sum"), a, raised]
    found = loop(builder, (inside, outputs), x, y, trips=number(trips), name="loop")
    graph = builder.graph(found)
    assert [str(v.type) for v in found[2:]] == [f"float32 ({trips}, N, 3)"] * 2
    for count in (1, 5):
        given = [rng((count, 3)), rng((count, 3))]
        first, second = given
        rows: list[Array] = []
        for _ in range(trips):
            rows.append(first)
            first, second = second, first + second
        got = list(run(graph, backend, x=given[0], y=given[1]).values())
        np.testing.assert_array_equal(got[0], first)
        np.testing.assert_array_equal(got[1], second)
        empty = np.empty((0, count, 3), np.float32)
        np.testing.assert_array_equal(got[2], np.stack(rows) if rows else empty)
        raised_rows = [row + np.float32(i) for i, row in enumerate(rows)]
        np.testing.assert_array_equal(got[3], np.stack(raised_rows) if rows else empty)


def counted(trips: int) -> Graph:
    """x plus the number of each iteration."""
    builder = Builder("counted")
    x = builder.input("x", TensorType((3,)))
    inside, (i, going, a) = body(builder, x)
    place = put(inside, call("cast_float32", Arg(0)), i, name="place")
    total = put(inside, ADD, a, place, name="total")
    found = loop(builder, (inside, [going, total]), x, trips=number(trips), name="loop")
    return builder.graph(found)


@pytest.mark.parametrize("name", ["compute", "feedback"])
def test_numbers_are_not_written_to_memory_that_the_device_may_still_read(
    name, rng, monkeypatch
) -> None:
    """Iterations are not waited for: only GL puts a write behind commands that read."""
    backend = opened(name)
    monkeypatch.setattr(
        Buffer, "_write_to_host_memory", lambda *arguments: pytest.fail("written by the host")
    )
    x = rng((3,))
    (got,) = run(counted(7), backend, x=x).values()
    np.testing.assert_allclose(got, x + 21, rtol=1e-6)


@pytest.mark.parametrize("name", ["compute", "feedback"])
def test_numbers_wait_for_the_device_where_the_driver_writes_them_too_early(
    name, rng, monkeypatch
) -> None:
    with Device() as device:
        told = replace(device.capabilities, vendor="NVIDIA Corporation")
        monkeypatch.setattr(device, "capabilities", told)
        plan = Plan(counted(5), opened(name, device=device), {"x": (3,)})
        events: list[str] = []

        def noted(owner: type, function: str, event: str) -> None:
            original = getattr(owner, function)

            def call(self: object, *arguments: object) -> object:
                events.append(event)
                return original(self, *arguments)

            monkeypatch.setattr(owner, function, call)

        noted(Device, "wait", "wait")
        noted(Device, "write_buffer", "write")
        noted(BoundCommands, "__call__", "launch")
        x = rng((3,))
        (got,) = plan.run({"x": x}).values()
        np.testing.assert_allclose(got, x + 10, rtol=1e-6)
        begun = events.index("launch", 1)
        launches = [i for i, event in enumerate(events) if event == "launch"]
        writes = [i for i in range(begun, len(events)) if events[i] == "write"]
        assert len(launches) >= 5 and len(writes) >= 4
        for write in writes:
            since = max(i for i in launches if i < write)
            assert "wait" in events[since:write]


@pytest.mark.parametrize("trips", [3, 40, 90])
def test_int64_is_exact_however_large_it_becomes(backend, trips) -> None:
    """Nobody knows where what a body is given lies, so the host computes it."""
    builder = Builder("fibonacci of int64")
    x, y = (builder.input(name, TensorType(("N",), DType.int64)) for name in "xy")
    inside, (_, going, a, b) = body(builder, x, y)
    outputs = [going, b, put(inside, ADD, a, b, name="sum"), a]
    found = loop(builder, (inside, outputs), x, y, trips=number(trips), name="loop")
    first, second = np.array([0, 1, -7], np.int64), np.array([1, 1, 5], np.int64)
    got = list(run(builder.graph(found), backend, x=first, y=second).values())
    rows = []
    for _ in range(trips):
        rows.append(first)
        first, second = second, first + second
    for array, expected in zip(got, (first, second, np.stack(rows)), strict=True):
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, expected)


def newton(size: int, bounded: bool) -> Graph:
    """The inverse of a matrix by Newton's iteration, X (2 - A X), until it is one."""
    builder = Builder("newton")
    a = builder.input("a", TensorType((size, size)))
    start = builder.input("start", TensorType((size, size)))
    one = constant(np.eye(size, dtype=np.float32), "one")
    eye = put(builder, ADD, one, constant(np.zeros((size, size), np.float32)), name="eye")
    inside, (_, _, x) = body(builder, start)
    turned = inside.add(Flip((0,)), inside.add(Flip((0,)), a, name="flip")[0], name="back")[0]
    (product,) = inside.add(Matmul(), x, turned, name="product")  # x a^T, for a symmetric a
    rest = put(inside, call("sub", call("mul", Arg(0), 2.0), Arg(1)), eye, product, name="rest")
    (better,) = inside.add(Matmul(), rest, x, name="better")
    far = put(inside, call("sub", Arg(0), Arg(1)), product, eye, name="far")
    (most,) = inside.add(Reduce("max", (0, 1), False, call("abs", Arg(0))), far, name="most")
    going = put(inside, call("greater", Arg(0), 1e-3), most, name="again")
    found = loop(
        builder,
        (inside, [going, better]),
        start,
        trips=number(50) if bounded else None,
        condition=constant(np.array(True), "begin"),
        name="loop",
    )
    return builder.graph(found)


@pytest.mark.parametrize(("size", "bounded"), [(3, True), (17, False)])
def test_newtons_iteration_until_it_is_there(backend, rng, size, bounded) -> None:
    """The body takes a computed value, a constant one and an input of the graph around it."""
    half = rng((size, size)).astype(np.float64)
    a = half @ half.T / size + np.eye(size)
    start = np.eye(size) / np.linalg.norm(a)
    got = run(newton(size, bounded), backend, a=a.astype("f4"), start=start.astype("f4"))
    assert error(got["loop"], np.linalg.inv(a)) <= 1e-4


def counting(condition: Value | None, trips: Value | None, limit: float) -> Graph:
    """x + 1 again and again, as long as it is below `limit` where there is a condition."""
    builder = Builder("counting")
    x = builder.input("x", TensorType((1,)))
    inputs = []
    for value in (condition, trips):
        if value is not None and value.data is None:
            value = builder.input(value.name, value.type)
        inputs.append(value)
    inside, (_, _, a) = body(builder, x)
    more = put(inside, call("add", Arg(0), 1.0), a, name="more")
    below = put(inside, call("less", Arg(0), limit), more, name="below")
    (same,) = inside.add(Reshape(()), below, name="same")
    outputs = (inside, [same, more])
    return builder.graph(
        loop(builder, outputs, x, condition=inputs[0], trips=inputs[1], name="loop")
    )


@pytest.mark.parametrize(
    ("begin", "trips", "expected"),
    [(True, 9, 4), (True, 2, 2), (False, 9, 0), (True, None, 4), (None, 9, 9), (True, -1, 0)],
)
def test_a_loop_ends_by_its_condition_or_its_trips(backend, begin, trips, expected) -> None:
    """Without a condition nobody asks the body whether to go on."""
    begins = None if begin is None else Value("begin", TensorType((1,), DType.bool))
    often = None if trips is None else Value("trips", COUNT)
    feeds = {"x": np.zeros(1, np.float32)}
    feeds |= {} if begin is None else {"begin": np.array([begin])}
    feeds |= {} if trips is None else {"trips": np.array(trips, np.int32)}
    assert run(counting(begins, often, 4.0), backend, **feeds)["loop"] == expected


def test_trips_of_64_bits(backend) -> None:
    graph = counting(None, constant(np.array([3], np.int64)), 0.0)
    assert run(graph, backend, x=np.zeros(1, np.float32))["loop"] == 3


def test_images_keep_their_layout_inside_a_body(backend, rng) -> None:
    """Results are row major at its edge, whatever its kernels leave."""
    weight = rng((4, 4, 3, 3)) / 6
    builder = Builder("images")
    x = builder.input("x", TensorType(("N", 4, 6, 5)))
    inside, (_, going, a) = body(builder, x)
    kernel = constant(weight, "weight")
    (one,) = inside.add(Conv2d(padding=(1, 1, 1, 1)), a, kernel, name="one")
    (two,) = inside.add(
        Conv2d(padding=(1, 1, 1, 1)),
        put(inside, call("relu", Arg(0)), one, name="relu"),
        kernel,
        name="two",
    )
    found = loop(builder, (inside, [going, two, one]), x, trips=number(2), name="loop")
    graph, given = builder.graph(found), rng((2, 4, 6, 5))
    expected = results(graph, {"x": given})
    for name, got in run(graph, backend, x=given).items():
        assert error(got, expected[name]) <= 1e-5


def test_a_weight_in_a_body_is_assigned_anew(backend, rng) -> None:
    layer = Recurrent(5, 4)
    session = InferenceSession(Model.sequential([layer], (5,)), backend.name)
    x = rng((3, 5))
    for sign in (1, -1, 1):
        layer.weight = rng((5, 5))
        given = np.abs(x) * np.float32(sign)
        (got,) = session.run(None, {"input": given})
        assert error(got, layer.expected(given)) <= 1e-5


def test_what_no_run_changes_is_made_in_the_body(backend, rng) -> None:
    """A weight that is computed, as the layout of a product's weight; and one handed back."""
    weight = rng((4, 4))
    builder = Builder("fixed")
    x = builder.input("x", TensorType(("N", 4)))
    (flipped,) = builder.add(Flip((0,)), constant(weight, "weight"), name="flipped")
    inside, (_, going, a) = body(builder, x)
    (product,) = inside.add(Matmul(), a, flipped, name="product")
    found = loop(builder, (inside, [going, product, flipped]), x, trips=number(2), name="loop")
    graph, given = builder.graph(found), rng((3, 4))
    plan = Plan(graph, backend, {"x": given.shape})
    ((_, outline),) = list(plan.outline.walk())[1:]
    assert len(outline.graph.inputs) == 3 and [s.op.name for s in outline.steps] == ["matmul"]
    got = plan.run({"x": given})
    assert error(got["loop"], given @ weight[::-1].T @ weight[::-1].T) <= 1e-5
    np.testing.assert_array_equal(got["loop.1"], [weight[::-1]] * 2)


@pytest.mark.parametrize("count", [0, 2])
def test_a_loop_that_begins_with_a_constant(backend, rng, count) -> None:
    """Also of nothing at all."""
    weight = rng((3, 1))
    builder = Builder("begins")
    x = builder.input("x", TensorType(("N", 3)))
    start = builder.add(Flip((0,)), constant(weight, "weight"), name="start")[0]
    inside, (_, going, a, b) = body(builder, x, start)
    outputs = [going, put(inside, DOUBLE, a, name="more"), put(inside, NEGATED, b, name="less"), a]
    found = loop(builder, (inside, outputs), x, start, trips=number(3), name="loop")
    given = rng((count, 3))
    got = list(run(builder.graph(found), backend, x=given).values())
    np.testing.assert_array_equal(got[0], 8 * given)
    np.testing.assert_array_equal(got[1], -weight[::-1])
    np.testing.assert_array_equal(got[2], np.stack([given, 2 * given, 4 * given]))


@pytest.mark.parametrize("value", [True, False])
def test_a_known_condition_takes_its_branch_before_any_run(backend, rng, value) -> None:
    """Of other shapes than the other one; what is known in it is taken, too, and work joins."""
    builder = Builder("known")
    x = builder.input("x", TensorType(("N", 3)))
    known = constant(np.array([value]), "known")
    flag = put(builder, call("logical_not", Arg(0)), known, name="flag")
    then, otherwise = builder.body("then"), builder.body("otherwise")
    inner, other = then.body("inner"), then.body("other")
    inverted = put(inner, DOUBLE, x, name="a")
    nested = branch(then, flag, (inner, [inverted]), (other, [x]), name="nested")
    (flat,) = otherwise.add(Reshape((-1,)), put(otherwise, NEGATED, x, name="b"), name="flat")
    (wide,) = otherwise.add(Reshape((1, -1)), flat, name="wide")
    (y,) = branch(builder, flag, (then, nested), (otherwise, [wide]), name="if")
    graph = builder.graph([put(builder, call("add", Arg(0), 1.0), y, name="out")])
    given = rng((2, 3))
    plan = Plan(graph, backend, {"x": (2, 3)})
    (got,) = plan.run({"x": given}).values()
    np.testing.assert_array_equal(got, 1 - given.reshape(1, -1) if value else 1 + 2 * given)
    assert not plan.outline.bodies
    assert value or [step.op.name for step in plan.steps] == ["pointwise"]


@pytest.mark.parametrize("count", [1, 4])
def test_a_scan(backend, rng, count) -> None:
    """Sums so far of one value along its second axis times another's place, and a captured one."""
    builder = Builder("scan")
    x = builder.input("x", TensorType((3, "N")))
    y = builder.input("y", TensorType(("N",)))
    zero = builder.input("zero", TensorType((3,)))
    scan = Scan(builder, [zero], [x, y], [1, 0], name="scan")
    (state,), (column, factor) = scan.states, scan.slices
    scaled = put(scan.body, MUL, column, factor, name="scaled")
    total = put(scan.body, ADD, state, scaled, name="total")
    found = scan.results([total], [put(scan.body, ADD, total, zero, name="seen")])
    assert str(found[1].type) == "float32 (N, 3)"
    x_, y_ = rng((3, count)), rng((count,))
    got = run(builder.graph(found), backend, x=x_, y=y_, zero=np.zeros(3, np.float32))
    sums = np.cumsum((x_ * y_).astype("f8"), axis=1)
    assert error(got["scan"], sums[:, -1]) <= 1e-6 and error(got["scan.1"], sums.T) <= 1e-6


def random_loop(seed: int) -> tuple[Graph, dict[str, Array]]:
    """A loop around a branch around pointwise work on a few values, chosen by `seed`."""
    chance = np.random.default_rng(seed)
    builder, shape = Builder("random"), tuple(int(n) for n in chance.integers(1, 6, 2))
    inputs = [builder.input(f"x{i}", TensorType(shape)) for i in range(3)]
    inside, (_, going, *carried) = body(builder, *inputs[:2])

    def work(of: Builder, values: list[Value], name: str) -> list[Value]:
        for i in range(int(chance.integers(1, 4))):
            picked = [values[int(k)] for k in chance.integers(0, len(values), 2)]
            function = ("add", "sub", "maximum")[int(chance.integers(3))]
            values = [*values, put(of, call(function, Arg(0), Arg(1)), *picked, name=f"{name}{i}")]
        return values

    values = work(inside, [*carried, inputs[2]], "w")
    (total,) = inside.add(Reduce("mean", (0, 1), False), values[-1], name="mean")
    above = put(inside, call("greater", Arg(0), 0.0), total, name="above")
    then, otherwise = inside.body("then"), inside.body("otherwise")
    ways = [(b, work(b, values, n)[-2:]) for b, n in ((then, "t"), (otherwise, "o"))]
    values += branch(inside, above, *ways, name="if")
    picked = [values[int(k)] for k in chance.integers(0, len(values), 3)]
    trips = number(int(chance.integers(0, 4)))
    found = loop(builder, (inside, [going, *picked]), *inputs[:2], trips=trips, name="loop")
    feeds = {v.name: chance.standard_normal(shape, np.float32) for v in inputs}
    return builder.graph(found), feeds


@pytest.mark.parametrize("seed", range(12))
def test_a_random_loop(backend, seed) -> None:
    graph, feeds = random_loop(seed)
    expected = results(graph, feeds)
    for name, got in run(graph, backend, **feeds).items():
        np.testing.assert_allclose(got, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_bodies_are_verified_and_timed(backend, rng) -> None:
    graph = Model.sequential([Recurrent(5, 4)], (5,)).graph
    plan, feeds = Plan(graph, backend, {"input": (3, 5)}, keep=True), {"input": rng((3, 5))}
    assert verify(plan, feeds).first_divergence is None
    assert [step.op for step in profile(plan, feeds, repeat=1).layers] == ["loop"]
    assert plan.steps[0].cost.flops > 0
    with pytest.raises(UnsupportedOpError, match="conv2d: recurrent has no op of that name"):
        Plan(
            Graph(graph.nodes, graph.inputs, graph.outputs, "recurrent"),
            backend,
            {"input": (3, 5)},
            {"conv2d": "direct"},
        )


def of_unknown_size() -> Graph:
    """A branch of other sizes, a loop that grows a value, and one that ends by itself.

    With weights, constants and pointwise work before and behind them.
    """
    builder = Builder("unknown")
    x = builder.input("x", TensorType(("N", 3)))
    doubled = put(builder, DOUBLE, x, name="doubled")
    (total,) = builder.add(Reduce("sum", (0, 1), False), doubled, name="total")
    above = put(builder, call("greater", Arg(0), 0.0), total, name="above")
    then, otherwise = builder.body("then"), builder.body("otherwise")
    (less,) = otherwise.add(Reduce("sum", (0,), True), doubled, name="less")
    (some,) = branch(builder, above, (then, [doubled]), (otherwise, [less]), name="if")
    bent = put(builder, call("tanh", Arg(0)), some, name="bent")
    inside, (_, going, grown) = body(builder, bent, name="grow")
    longer = inside.add(Concat(0), grown, bent, name="longer")[0]
    (grown,) = loop(builder, (inside, [going, longer]), bent, trips=number(2), name="grown")
    inside, (_, _, sum_) = body(builder, total, name="until")
    more = put(inside, call("add", Arg(0), 1.0), sum_, name="more")
    below = put(inside, call("less", Arg(0), 2.5), more, name="below")
    begin = constant(np.array(True), "begin")
    last, steps = loop(builder, (inside, [below, more, more]), total, condition=begin, name="count")
    weight = constant(np.arange(9, dtype=np.float32).reshape(3, 3), "weight")
    (turned,) = builder.add(Flip((0,)), weight, name="turned")
    (product,) = builder.add(Matmul(), grown, turned, name="product")
    return builder.graph([doubled, product, put(builder, DOUBLE, steps, name="steps"), last])


@pytest.mark.parametrize("sign", [1, -1])
def test_sizes_that_only_a_run_tells(backend, sign) -> None:
    """What comes behind is planned when they are known, for other sizes anew."""
    graph, executor = of_unknown_size(), Executor(of_unknown_size(), backend.name)
    assert str(graph.outputs[1].type) == "float32 (?, 3)"
    for count in (2, 3, 2):
        x = np.full((count, 3), 0.125 * sign, np.float32)
        some = np.tanh(2 * x if sign > 0 else 2 * x.sum(0, keepdims=True))
        weight = np.arange(9.0).reshape(3, 3)[::-1]
        total, steps = 2 * x.sum(), []
        while not steps or total < 2.5:
            total += 1
            steps.append(2 * total)
        expected = [2 * x, np.vstack([some] * 3) @ weight.T, steps, total]
        for found in (executor.run({"x": x}), compile_run(graph, {"x": x}, backend)):
            for name, array in zip(found, expected, strict=True):
                np.testing.assert_allclose(found[name], array, rtol=1e-5, err_msg=name)
    assert list(executor.run({"x": x}, ["steps"])) == ["steps"]
    values = {v.name: v for node in executor.graph.nodes for v in node.outputs}
    inside = executor.values({"x": x}, (values["bent"], values["grown"], values["turned"]))
    assert list(inside) == ["bent", "grown", "turned"]
    for name, array in zip(inside, (some, np.vstack([some] * 3), weight), strict=True):
        np.testing.assert_allclose(inside[name], array, rtol=1e-5, err_msg=name)
    with pytest.raises(UnsupportedOpError, match="'if' of unknown has sizes that only a run tells"):
        executor.plan({"x": (2, 3)})
    with pytest.raises(UnsupportedOpError, match=r"the sizes of 'if', .*known only once"):
        Plan(graph, backend, {"x": (2, 3)})
    with pytest.raises(UnsupportedOpError, match="so no kernels can be asked for"):
        Executor(graph, backend.name, kernels={"matmul": "gemm_blocked"}).run({"x": x})


def test_a_body_with_sizes_that_only_a_run_tells(backend) -> None:
    """Though those of its results are known before: each row's sum, of the row or of 2 of it."""
    builder = Builder("rows")
    x = builder.input("x", TensorType(("N", 3)))
    scan = Scan(builder, [], [x], name="scan")
    (row,) = scan.slices
    (total,) = scan.body.add(Reduce("sum", (0,), False), row, name="total")
    above = put(scan.body, call("greater", Arg(0), 0.0), total, name="above")
    then, otherwise = scan.body.body("then"), scan.body.body("otherwise")
    (twice,) = then.add(Concat(0), row, row, name="twice")
    (some,) = branch(scan.body, above, (then, [twice]), (otherwise, [row]), name="if")
    (sum_,) = scan.body.add(Reduce("sum", (0,), False), some, name="sum")
    graph = builder.graph(scan.results([], [sum_]))
    given = np.array([[1, 2, 3], [-1, -2, -3], [0, 0, 0.5]], np.float32)
    (got,) = compile_run(graph, {"x": given}, backend).values()
    np.testing.assert_allclose(got, [12, -6, 1])


def test_bodies_that_do_not_fit() -> None:
    builder = Builder("wrong")
    x = builder.input("x", TensorType((2, 3)))
    flag = builder.input("flag", FLAG)
    then, otherwise = builder.body("then"), builder.body("otherwise")
    number_of = put(otherwise, call("cast_int32", Arg(0)), x, name="whole")
    with pytest.raises(ShapeError, match="result 0 must have one dtype in both branches"):
        branch(builder, flag, (then, [x]), (otherwise, [number_of]), name="if")
    with pytest.raises(ShapeError, match="condition must be one bool, got float32"):
        branch(builder, x, (then, [x]), (then, [x]), name="if")
    with pytest.raises(ModelError, match="branches have as many outputs, got 1 and 2"):
        If(then.graph([x]), then.graph([x, constant(np.ones(1, np.float32))]))
    inside, (_, going, a) = body(builder, x)
    whole = put(inside, call("cast_int32", Arg(0)), a, name="whole")
    with pytest.raises(ShapeError, match="value 0 must keep its dtype"):
        loop(builder, (inside, [going, whole]), x, trips=number(2), name="loop")
    with pytest.raises(ShapeError, match="trips or a condition must be there"):
        loop(builder, (inside, [going, a]), x, name="loop")
    with pytest.raises(ShapeError, match="the first output of 'body' must be one bool"):
        loop(builder, (inside, [a, a]), x, trips=number(2), name="loop")
    with pytest.raises(ModelError, match="must have at least 4 inputs and 3 outputs, got 3 and 2"):
        Loop(inside.graph([going, a]), 2)
    with pytest.raises(ModelError, match="reads 'x' before it is made"):
        Graph((builder.add(Flip((0,)), x, name="f") and builder.graph([]).nodes[-1],), (), ())
