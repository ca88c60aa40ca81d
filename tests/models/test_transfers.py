"""Plans whose inputs and outputs lie in plain, mapped or staged memory: bit for bit the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends import Backend, gl, open_backend
from glnn.backends.backend import Transfer
from glnn.compiler import Plan
from glnn.compiler.emit import host_transfers
from glnn.core.types import Array, DType, TensorType
from glnn.errors import DeviceError
from glnn.gl import BufferBlock, Device, MappedBlock, StagedBlock, transfer
from glnn.gl.probe import moves_mapped_buffers
from glnn.gl.transfer import COPY_POOL
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.control_flow import branch, loop, number
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operators import Concat, Matmul, Pointwise, Reduce, Reshape, Slice
from glnn.graph.passes import Pass
from glnn.runtime.buffer_set import BufferSet

KINDS = {"plain": BufferBlock, "mapped": MappedBlock, "staged": StagedBlock}
ADD, MUL = call("add", Arg(0), Arg(1)), call("mul", Arg(0), Arg(1))
DOUBLE = call("mul", Arg(0), 2.0)
Found = dict[str, Array]


@pytest.fixture(params=["compute", "feedback"])
def backends(request, monkeypatch) -> Iterator[dict[str, Backend]]:
    """The backend with each kind of memory, on devices of their own; all is copied in parts."""
    monkeypatch.setattr(gl, "STAGED", dict.fromkeys(Transfer, 0))
    monkeypatch.setattr(transfer, "MIN_PART", 1024)
    monkeypatch.setattr(COPY_POOL, "most", 3)
    found: dict[str, Backend] = {}
    for name in KINDS:
        try:
            device = Device()
            offers = device.capabilities
            if name != "plain" and not offers.buffer_storage:
                continue
            if name == "staged" and not offers.compute:
                continue
            if name != "plain" and device.perform(lambda d=device: moves_mapped_buffers(d)):
                continue  # ANGLE: what is copied to mapped memory may be lost there
            device.capabilities = replace(
                offers, buffer_storage=name != "plain", dedicated_memory=name == "staged"
            )
            found[name] = open_backend(request.param, device)
        except DeviceError as error:
            pytest.skip(str(error))
    yield found
    for backend in found.values():
        assert backend.device is not None
        backend.device.close()


def tangled() -> tuple[Graph, Any]:
    """Outputs that are inputs, views of them, read by others, empty, fixed, bools and integers."""
    builder = Builder("tangled")
    x = builder.input("x", TensorType(("N", 5, 7)))
    ids = builder.input("ids", TensorType(("N",), DType.int64))
    small = builder.input("small", TensorType(("N", 3), DType.uint8))
    weight = np.random.default_rng(1).standard_normal((35, 6), np.float32)
    fixed = np.arange(6, dtype=np.float32)

    (flat,) = builder.add(Reshape((-1, 35)), x, name="flat")
    (double,) = builder.add(Pointwise(DOUBLE), flat, name="double")
    (view,) = builder.add(Reshape((-1, 7)), double, name="view")
    (product,) = builder.add(Matmul(), double, constant(weight.T.copy(), "weight"), name="product")
    (shifted,) = builder.add(Pointwise(ADD), product, constant(fixed, "fixed"), name="shifted")
    (empty,) = builder.add(Slice((0,), (0,), (1,), (1,)), flat, name="empty")
    (above,) = builder.add(Pointwise(call("greater", Arg(0), 0.0)), flat, name="above")
    (more,) = builder.add(Pointwise(call("greater", Arg(0), 3)), ids, name="more")
    (ints,) = builder.add(Pointwise(call("cast_int32", Arg(0))), small, name="ints")
    outputs = [x, flat, double, view, shifted, empty, above, more, ids, ints, small]

    def expected(feeds: Found) -> Found:
        rows = feeds["x"].reshape(-1, 35)
        wide = (2 * rows).astype(np.float64) @ weight.astype(np.float64) + fixed
        return {
            "x": feeds["x"],
            "flat": rows,
            "double": 2 * rows,
            "view": (2 * rows).reshape(-1, 7),
            "shifted": wide,
            "empty": rows[:, :0],
            "above": rows > 0,
            "more": feeds["ids"] > 3,
            "ids": feeds["ids"],
            "ints": feeds["small"].astype(np.int32),
            "small": feeds["small"],
        }

    return builder.graph(outputs), expected


def given(count: int, seed: int = 0) -> Found:
    rng = np.random.default_rng(seed + 10 * count)
    return {
        "x": rng.standard_normal((count, 5, 7), np.float32),
        "ids": rng.integers(-(2**30), 2**30, count),
        "small": rng.integers(0, 256, (count, 3), np.uint8),
    }


def check(found: Found, expected: Found) -> None:
    for name, array in found.items():
        assert array.shape == expected[name].shape, name
        if name == "shifted":
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-4)
        else:
            assert array.dtype == expected[name].dtype, name
            np.testing.assert_array_equal(array, expected[name])


def same(one: Found, other: Found) -> None:
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.dtype == other[name].dtype and array.tobytes() == other[name].tobytes(), name


def shapes(feeds: Found) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feeds.items()}


@pytest.mark.parametrize("count", [1, 3, 127])
def test_outputs_of_every_kind(backends: dict[str, Backend], count: int) -> None:
    graph, expected = tangled()
    first: Found = {}
    for kind, backend in backends.items():
        plan = Plan(graph, backend, shapes(given(count)))
        blocks = host_transfers(plan.outline)
        kinds = {type(plan.buffers._memories[i]) for i in blocks}
        assert kinds == {KINDS[kind]}
        for seed in (0, 1):
            feeds = given(count, seed)
            found = plan.run(feeds)
            check(found, expected(feeds))
            one = {name: plan.run(feeds, [name])[name] for name in expected(feeds)}
            same(one, found)
            left = {name: plan.value(name) for name in expected(feeds)}
            same(left, found)
            out = {name: np.full_like(array, 1) for name, array in found.items()}
            for name, array in plan.run(feeds, None, out).items():
                assert array is out[name]
            same(out, found)
            gaps = np.zeros((count, 70), np.float32)[:, ::2]
            view = np.zeros((7, count * 5), np.float32).T
            plan.run(feeds, ["view", "double"], {"double": gaps, "view": view})
            same({"double": gaps, "view": view}, {k: found[k] for k in ("double", "view")})
            for array in plan.run(feeds).values():  # what is given back is the caller's own
                array[...] = 0
            same(plan.run(feeds), found)
        first = first or found
        same(found, first)


def test_runs_that_were_begun_and_what_comes_between(backends: dict[str, Backend]) -> None:
    """Two BufferSets; `upload`, `launch` and `value` take none from a run that is under way."""
    graph, expected = tangled()
    for backend in backends.values():
        feeds = [given(7, seed) for seed in range(5)]
        plan = Plan(graph, backend, shapes(feeds[0]))
        alone = [plan.run(one) for one in feeds]

        def work(plan: Plan = plan, feeds: Any = feeds, alone: Any = alone) -> None:
            runs = [plan.begin(one, None) for one in feeds[:4]]  # more than there are BufferSets
            same({"double": plan.value("double")}, {"double": alone[3]["double"]})
            same(plan.run_on_thread(feeds[4], None), alone[4])
            for run, one in zip(runs, alone, strict=False):
                same(run.results(), one)
            runs = [plan.begin(one, ("shifted", "x")) for one in feeds[:2]]
            plan.upload(feeds[2])
            plan.launch()
            for run, one in zip(runs, alone, strict=False):
                same(run.results(), {k: one[k] for k in ("shifted", "x")})
            same(plan.download(), alone[2])

        backend.perform(work)
        assert len(plan._sets) == 2
        check(alone[0], expected(feeds[0]))


def test_a_run_that_cannot_be_taken_out_tells_who_asked(backends: dict[str, Backend]) -> None:
    """Whoever has its room next gets results of its own; what is left there is no result."""
    graph, _ = tangled()
    feeds = [given(7, seed) for seed in range(4)]
    for backend in backends.values():
        plan = Plan(graph, backend, shapes(feeds[0]))
        alone = [plan.run(one) for one in feeds]

        def fail(name: str) -> Array:
            raise MemoryError(name)

        def work(plan: Plan = plan, alone: Any = alone, fail: Any = fail) -> None:
            runs = [plan.begin(one, None) for one in feeds[:2]]
            take, runs[0]._fetch = runs[0]._fetch, fail
            runs += [plan.begin(one, None) for one in feeds[2:]]
            runs[0]._fetch = take
            with pytest.raises(MemoryError):
                runs[0].results()
            for run, one in zip(runs[1:], alone[1:], strict=True):
                same(run.results(), one)

        backend.perform(work)


@pytest.mark.parametrize("copies", [False, True])
def test_a_second_lane_within_a_budget(copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where textures are copies, those of what it reads are its own, too."""
    try:
        backend = open_backend("feedback", limits="es31-minimum")
    except DeviceError as error:
        pytest.skip(str(error))
    builder = Builder("sums")
    x = builder.input("x", TensorType(("N", 64)))
    (sums,) = builder.add(Reduce("sum", (1,)), x, name="sums")
    (double,) = builder.add(Pointwise(DOUBLE), sums, name="double")
    plan = Plan(builder.graph([double]), backend, {"x": (2, 64)}, without=frozenset(Pass))
    ends = sum(plan.outline.blocks[i] for i in host_transfers(plan.outline))
    first = plan.steps[0].nbytes[2]
    assert first == 2 * 64 * 4
    enough = plan.nbytes + ends + first
    monkeypatch.setenv("GLNN_MEMORY", str(enough if copies else enough - 1))
    xs = [np.full((2, 64), i, np.float32) for i in range(3)]

    def work() -> list[Array]:
        runs = [plan.begin({"x": x}, None) for x in xs]
        return [run.results()["double"] for run in runs]

    for i, found in enumerate(backend.perform(work)):
        assert (found == 128 * i).all()
    assert len(plan._sets) == 1 + copies


def long(size: int) -> tuple[Graph, Array]:
    """x times a rotation, twelve times, and plus x: it is read by the last step."""
    rotation = np.roll(np.eye(size, dtype=np.float32), 1, axis=1)
    builder = Builder("long")
    x = builder.input("x", TensorType(("N", size)))
    value = x
    for i in range(12):
        (value,) = builder.add(Matmul(), value, constant(rotation, f"r{i}"), name=f"turned{i}")
    (y,) = builder.add(Pointwise(ADD), value, x, name="y")
    return builder.graph([y]), rotation


@pytest.mark.parametrize("waits", [False, True])
def test_inputs_are_not_overwritten_while_they_are_read(
    backends: dict[str, Backend], waits: bool
) -> None:
    """waits: the run itself waits for the device at first, as for a condition of a loop.

    llvmpipe computes when it is asked to, so that the order is looked at, too.
    """
    graph, rotation = long(256)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(-8, 9, (256, 256)).astype(np.float32)} for _ in range(4)]
    turned = np.linalg.matrix_power(rotation.astype(np.float64).T, 12)
    expected = [one["x"] @ turned + one["x"] for one in feeds]
    for backend in backends.values():
        plan, device = Plan(graph, backend, shapes(feeds[0])), backend.device
        assert device is not None

        def work(buffers: BufferSet = plan._sets[0], device: Device = device) -> list[Array]:
            arrangement = buffers._arrangement
            assert arrangement is not None
            commands, wait, put = arrangement.commands, device.wait, buffers.store("x").put
            wait_for = device.wait_for
            arrangement.commands = lambda: (waits and device.finish(), commands())[1]
            order: list[str] = []
            device.wait = lambda: order.append("wait") or wait()  # type: ignore[func-returns-value, method-assign]
            device.wait_for = lambda segment: order.append("wait") or wait_for(segment)  # type: ignore[func-returns-value, method-assign]
            buffers.store("x").put = lambda array: order.append("put") or put(array)  # type: ignore[method-assign]
            kept = []
            for one in feeds:
                buffers.upload(one)
                buffers.launch()
                order.append("launch")
                store: Any = buffers.result("y")
                kept.append(device.context.buffer(reserve=store.nbytes))
                device.context.copy_buffer(kept[-1], store.push(device), store.nbytes)
            round = ["put", *["wait"] * waits, "launch", "wait"]
            assert order == (round * len(feeds))[:-1]
            flat = [np.frombuffer(one.read(), np.float32)[: 256 * 256] for one in kept]
            return [store.layout.unpack(one, (256, 256)) for one in flat]

        for found, right in zip(backend.perform(work), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def controlled() -> Graph:
    """A branch of x by its sum, a loop of three trips, and int64 that only the host computes."""
    builder = Builder("controlled")
    x = builder.input("x", TensorType(("N", 4)))
    ids = builder.input("ids", TensorType(("N",), DType.int64))
    (total,) = builder.add(Reduce("sum", (0, 1), True), x, name="total")
    (above,) = builder.add(Pointwise(call("greater", Arg(0), 0.0)), total, name="above")
    then, otherwise = builder.body("then"), builder.body("otherwise")
    (doubled,) = then.add(Pointwise(DOUBLE), x, name="doubled")
    (one,) = branch(builder, above, (then, [doubled]), (otherwise, [x]), name="if")
    inside = builder.body("inside")
    inside.input("i", TensorType((), DType.int32))
    going = inside.input("going", TensorType((), DType.bool))
    carried = inside.input("carried", one.type)
    (added,) = inside.add(Pointwise(ADD), carried, x, name="added")
    looped, stacked = loop(
        builder, (inside, [going, added, carried]), one, trips=number(3), name="loop"
    )
    (square,) = builder.add(Pointwise(MUL), ids, ids, name="square")
    (both,) = builder.add(Concat(1), looped, one, name="both")
    return builder.graph([looped, stacked, square, x, both])


@pytest.mark.parametrize("sign", [1, -1])
def test_branches_loops_and_what_the_host_computes(backends: dict[str, Backend], sign: int) -> None:
    graph, rng = controlled(), np.random.default_rng(3)
    large = np.array([2**31 - 1, -(2**31), 3, 46341, 0], np.int64)
    for kind, backend in backends.items():
        plan = Plan(graph, backend, {"x": (5, 4), "ids": (5,)})
        for _ in range(2):
            x = sign * np.abs(rng.integers(-9, 9, (5, 4)).astype(np.float32)) - sign * 0.25
            one = 2 * x if x.sum() > 0 else x
            stacked = [one, one + x, one + 2 * x]
            found = plan.run({"x": x, "ids": large})
            for got, right in zip(
                found.values(),
                (one + 3 * x, stacked, large * large, x, np.hstack([one + 3 * x, one])),
                strict=True,
            ):
                np.testing.assert_array_equal(got, right, err_msg=kind)
            np.testing.assert_array_equal(plan.value("loop"), one + 3 * x)
            (alone,) = plan.run({"x": x, "ids": large}, ["square"]).values()
            assert alone.dtype == np.int64 and (alone == large * large).all()


def test_constants_that_are_outputs_are_the_callers_own(backends: dict[str, Backend]) -> None:
    builder = Builder("fixed")
    x = builder.input("x", TensorType(("N", 2)))
    (y,) = builder.add(Pointwise(DOUBLE), x, name="y")
    graph = builder.graph([y, constant(np.arange(3, dtype=np.float32), "fixed")])
    for backend in (*backends.values(), open_backend("cpu")):
        plan = Plan(graph, backend, {"x": (1, 2)})
        for _ in range(2):
            found = plan.run({"x": np.ones((1, 2), np.float32)})["fixed"]
            assert found.tolist() == [0, 1, 2] and found.flags.writeable
            found[:] = 7
