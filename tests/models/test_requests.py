"""Runs that nobody waits for at once: their order, their errors, their end; batches joined."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.backends import NAMES
from glnn.compiler.executor import PlanKey
from glnn.errors import DeviceError, GlnnError, LimitError, ModelError, ShapeError
from glnn.gl import Device
from glnn.gl.window import WindowContext
from glnn.layers import Concat, Embedding, Linear, ReLU
from glnn.model import Model, Node, TensorInfo
from glnn.runtime import requests
from glnn.session import InferenceSession
from tests.models.test_threads import GL, available, in_threads

Array = NDArray[Any]
Futures = list[Future[list[Array]]]
SECONDS = 60  # after which something hangs


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def own(name: str) -> Iterator[Device | None]:
    """A device that a test may lose, None for the cpu."""
    if name == "cpu":
        yield None
        return
    device = Device()
    if device.capabilities.platform == WindowContext.what:
        pytest.skip("the next window would have to be opened in the main thread")
    yield device
    device.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Requests wait until it is set: all that was asked for before is there then."""
    event, answered = threading.Event(), requests._answered

    def held(*arguments: Any) -> Any:
        assert event.wait(SECONDS)
        requests._receive(arguments[0], arguments[1], False)
        return answered(*arguments)

    monkeypatch.setattr(requests, "_answered", held)
    yield event
    event.set()


def affine(seed: int = 0) -> Model:
    """relu(x a + b) of 3 and x itself, joined: 8 outputs of 5 inputs."""
    linear = Linear(5, 3, seed=seed)
    nodes = (
        Node("linear", linear, ("x",), "y"),
        Node("relu", ReLU(), ("y",), "z"),
        Node("both", Concat(2), ("z", "x"), "both"),
    )
    return Model(nodes, (TensorInfo("x", ("N", 5)),), ("both", "z"), "affine")


def layer(model: Model) -> Linear:
    found: Any = model.nodes[0].layer
    return found


def expected(model: Model, x: Array) -> Array:
    linear = layer(model)
    y = x.astype(np.float64) @ linear.weight.T.astype(np.float64) + linear.bias
    return np.hstack([np.maximum(y, 0), x])


def batches(*counts: int) -> list[Array]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((count, 5), np.float32) for count in counts]


def ask(session: InferenceSession, xs: list[Array]) -> Futures:
    return [session.run_async(None, {"x": x}) for x in xs]


def request_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glnn requests"]


@pytest.mark.parametrize("memory", ["", "tight"])
def test_many_in_flight_are_what_they_are_alone(
    name: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tight: of GLNN_MEMORY, so that there is room for one run at a time."""
    model = affine()
    session = InferenceSession(model, name)
    xs = batches(*([4] * 12 if memory else [4, 1, 4, 4, 7, 1, 1, 4, 2, 3, 5, 4] * 3))
    if memory:
        monkeypatch.setenv("GLNN_MEMORY", str(session.plan({"x": (4, 5)}).nbytes))
    futures = ask(session, xs)
    results = [future.result(SECONDS) for future in futures]
    for found, x in zip(results, xs, strict=True):
        one = session.run(None, {"x": x})
        for got, right in zip(found, one, strict=True):
            assert got.tobytes() == right.tobytes() and got.flags.writeable
        np.testing.assert_allclose(found[0], expected(model, x), rtol=1e-5, atol=1e-6)
    if name != "cpu":
        executor: Any = session._executor
        counts = [len(plan._sets) for plan in (*executor._plans.values(), *executor.range_plans)]
        assert max(counts) == 1 if memory else max(counts) <= 2


def test_requests_are_answered_in_the_order_they_came(name: str, gate: threading.Event) -> None:
    session, ended = InferenceSession(affine(), name), []
    for i, x in enumerate(batches(1, 3, 1, 2, 3, 3, 1)):
        session.run_async(None, {"x": x}).add_done_callback(
            lambda _, i=i: ended.append(i)  # type: ignore[misc]
        )
    last = session.run_async(["z"], {"x": batches(2)[0]})
    gate.set()
    assert last.result(SECONDS)[0].shape == (2, 3)
    assert ended == list(range(7))


def test_weights_that_are_assigned_between_requests(name: str) -> None:
    model = affine()
    session, (x,) = InferenceSession(model, name), batches(3)
    for seed in range(4):
        layer(model).weight = np.random.default_rng(seed).standard_normal((3, 5), np.float32)
        right = expected(model, x)
        for future in ask(session, [x, x]):
            np.testing.assert_allclose(future.result(SECONDS)[0], right, rtol=1e-5, atol=1e-5)


def test_a_request_that_is_wrong_is_alone_in_that(name: str, monkeypatch, gate) -> None:
    session, (x, y, z) = InferenceSession(affine(), name), batches(2, 3, 2)
    for wrong in (x[:, :4], x.astype(np.float64), x[:0]):
        with pytest.raises(ShapeError, match="input 'x' must"):
            session.run_async(None, {"x": wrong})
    with pytest.raises(ModelError, match="unknown output 'y'"):
        session.run_async(["y"], {"x": x})
    plan = session._executor._plan

    def limited(key: PlanKey, *more: Any) -> Any:
        if dict(key.shapes)["x"][0] == 3:
            raise LimitError("too much for this device")
        return plan(key, *more)

    monkeypatch.setattr(session._executor, "_plan", limited)
    futures = ask(session, [x, y, z, y, x])
    assert futures[2].cancel() and futures[2].cancelled()
    gate.set()
    for i in (1, 3):
        with pytest.raises(LimitError, match="too much for this device"):
            futures[i].result(SECONDS)
    with pytest.raises(CancelledError):
        futures[2].result(SECONDS)
    for i in (0, 4):
        assert futures[i].result(SECONDS)[0].shape == (2, 8)
    assert not futures[0].cancel()


def test_where_no_device_opens_all_are_told(name: str, monkeypatch, gate) -> None:
    session, xs = InferenceSession(affine(), name), batches(1, 2, 3)
    perform = session._executor.perform
    refuse = [True] * 2

    def work(task: Callable[[], Any]) -> Any:
        if refuse and refuse.pop():
            raise DeviceError("no device opens")
        return perform(task)

    monkeypatch.setattr(session._executor, "perform", work)
    futures = ask(session, xs)
    assert futures[0].cancel()
    gate.set()
    for future in futures[1:]:
        with pytest.raises(DeviceError, match="no device opens"):
            future.result(SECONDS)
    assert ask(session, xs)[0].result(SECONDS)[0].shape == (1, 8)


@pytest.mark.parametrize("name", GL, indirect=True)
@pytest.mark.parametrize("closed", [False, True])
def test_a_device_is_lost_while_runs_are_under_way(
    name: str, own: Device, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, xs = InferenceSession(affine(), name, device=own), batches(2, 2, 2)
    right = [session.run(None, {"x": x})[0] for x in xs]
    begin, begun = session._executor.begin, []

    def lose(*arguments: Any) -> Any:
        run = begin(*arguments)
        begun.append(run)
        if len(begun) == 2:
            if closed:
                own.close()
            else:
                own._reset_status = lambda: 0x8253
        return run

    monkeypatch.setattr(session._executor, "begin", lose)
    begun_with = threading.Event()
    session._requests.executor.perform(lambda: begun_with.set())
    futures: Futures = []
    # From inside the device's thread: nothing is begun with before both are there.
    session._executor.perform(lambda: futures.extend(ask(session, xs[:2])))
    for future in futures:
        with pytest.raises(DeviceError, match="closed" if closed else "reset by its driver"):
            future.result(SECONDS)
    if closed:
        with pytest.raises(DeviceError, match="closed"):
            ask(session, xs[2:])[0].result(SECONDS)
        return
    assert session.run_async(None, {"x": xs[2]}).result(SECONDS)[0].tobytes() == right[2].tobytes()
    assert session.run(None, {"x": xs[0]})[0].tobytes() == right[0].tobytes()
    fresh = session.backend.device
    assert fresh is not None and fresh is not own
    fresh.close()


def test_a_session_that_is_dropped_answers_and_ends(name: str, gate: threading.Event) -> None:
    before = request_threads()
    futures = ask(InferenceSession(affine(), name), batches(1, 2, 3, 2))
    (thread,) = set(request_threads()) - set(before)
    gc.collect()
    assert thread.is_alive()
    gate.set()
    assert [len(future.result(SECONDS)[0]) for future in futures] == [1, 2, 3, 2]
    del futures
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_the_end_comes_after_what_was_asked_for(name: str, gate: threading.Event) -> None:
    """At the process's end the thread is told to finish, and waited for."""
    session, before = InferenceSession(affine(), name), request_threads()
    futures = ask(session, batches(1, 2, 2))
    (thread,) = set(request_threads()) - set(before)
    ((queue, _),) = session._requests._queues.values()

    class Joined:
        def join(self, seconds: float) -> None:
            gate.set()  # nothing is begun before it has been told
            thread.join(seconds)

    end: Any = requests._end
    end(queue, Joined())
    assert not thread.is_alive() and all(future.done() for future in futures)


EXIT = """
import numpy as np
from glnn.session import InferenceSession

session = InferenceSession("lenet", {name!r}, max_batch={most})
x = np.ones((1, 1, 28, 28), np.float32)
session.run(None, {{"input": x}})
futures = [session.run_async(None, {{"input": x}}) for _ in range(20)]
futures[-1].add_done_callback(lambda future: print(len(future.result())))
"""
FORK = """
import multiprocessing
import numpy as np
from glnn.errors import DeviceError
from glnn.session import InferenceSession

session = InferenceSession("lenet", {name!r})
feeds = {{"input": np.ones((2, 1, 28, 28), np.float32)}}
right = session.run_async(None, feeds).result(60)[0]

def work(found):
    try:
        got = session.run_async(None, feeds).result(60)[0]
        found.put((got == right).all() and "the same")
    except DeviceError as error:
        found.put(str(error))

context = multiprocessing.get_context("fork")
found = context.SimpleQueue()
child = context.Process(target=work, args=(found,))
child.start()
print(found.get())
child.join()
assert child.exitcode == 0
assert (session.run_async(None, feeds).result(60)[0] == right).all()
"""


@pytest.mark.parametrize("most", [1, 8])
def test_a_process_ends_with_requests_waiting(name: str, most: int, python) -> None:
    done = python(EXIT.format(name=name, most=most))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_requests_in_a_fork(name: str, python) -> None:
    done = python(FORK.format(name=name))
    assert done.returncode == 0, done.stderr
    said = "the same" if name == "cpu" else "used GL before this one was forked from it"
    assert said in done.stdout


def test_coroutines_and_threads_at_once(name: str) -> None:
    model = affine()
    session, xs = InferenceSession(model, name, max_batch=4), batches(1, 2, 3, 1)
    right = [session.run(None, {"x": x})[0] for x in xs]

    async def coroutine() -> list[list[Array]]:
        return await asyncio.gather(*(asyncio.wrap_future(one) for one in ask(session, xs)))

    def work(thread: int) -> bool:
        for turn in range(6):
            i = (thread + turn) % len(xs)
            if thread % 3 == 0:
                got = session.run(None, {"x": xs[i]})[0]
            elif thread % 3 == 1:
                got = session.run_async(None, {"x": xs[i]}).result(SECONDS)[0]
            else:
                got = asyncio.run(coroutine())[i][0]
            np.testing.assert_allclose(got, right[i], rtol=1e-5, atol=1e-6)
        return True

    assert in_threads(work, 6) == [True] * 6


class Counted:
    """The batches that a session's runs have."""

    def __init__(self, session: InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
        begin = session._executor.begin
        self.batches: list[int] = []

        def counted(feeds: Any, *more: Any) -> Any:
            self.batches.append(len(next(iter(feeds.values()))))
            return begin(feeds, *more)

        monkeypatch.setattr(session._executor, "begin", counted)


def test_joined_requests_are_what_they_are_alone(name: str, gate, monkeypatch) -> None:
    """Those that wait, in their order, padded to powers of two or the most; too many stay alone."""
    model = affine()
    session = InferenceSession(model, name, max_batch=6)
    counted, xs = Counted(session, monkeypatch), batches(1, 2, 3, 2, 1, 9, 1, 1, 1, 4)
    futures = ask(session, xs)
    gate.set()
    for future, x in zip(futures, xs, strict=True):
        both, z = future.result(SECONDS)
        right = expected(model, x)
        np.testing.assert_allclose(both, right, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(z, right[:, :3], rtol=1e-5, atol=1e-6)
        both[...] = z[...] = 7  # nobody else's
    assert counted.batches == [6, 4, 9, 4, 4]
    for i in (8, 9):  # what was changed above was these requests' own
        assert (futures[i].result()[0] == 7).all()


def test_what_is_not_joined(name: str, gate, monkeypatch) -> None:
    """Other outputs and `out`. Other numbers of samples in one request are refused at once."""
    nodes = (Node("both", Concat(2), ("a", "b"), "y"), Node("relu", ReLU(), ("y",), "z"))
    inputs = (TensorInfo("a", ("N", 2)), TensorInfo("b", ("N", 3)))
    session = InferenceSession(Model(nodes, inputs, ("y", "z"), "two"), name, max_batch=8)
    counted = Counted(session, monkeypatch)

    def feeds(count: int, other: int | None = None) -> dict[str, Array]:
        a = -np.arange(1, 1 + 2 * count, dtype=np.float32).reshape(count, 2)
        return {"a": a, "b": np.ones((count if other is None else other, 3), np.float32)}

    out = np.zeros((1, 5), np.float32)
    asked: list[tuple[Any, ...]] = [
        (None, feeds(1)),
        (None, feeds(1)),
        (["z"], feeds(1)),
        (["z"], feeds(1)),
        (["z"], feeds(1), {"z": out}),
        (["z"], feeds(1)),
        (["z", "y"], feeds(1)),
    ]
    futures = [session.run_async(one[0], one[1], out=[*one, None][2]) for one in asked]
    with pytest.raises(ShapeError, match="inputs 'a' and 'b' must have one size N, got 1 and 2"):
        session.run_async(None, feeds(1, 2))
    gate.set()
    for i, future in enumerate(futures):
        found = future.result(SECONDS)
        right = {"y": np.array([[-1, -2, 1, 1, 1]]), "z": np.array([[0, 0, 1, 1, 1]])}
        for got, called in zip(found, asked[i][0] or ("y", "z"), strict=True):
            np.testing.assert_array_equal(got, right[called])
    assert futures[4].result()[0] is out
    assert counted.batches == [2, 2, 1, 1, 1]


def test_one_refused_value_leaves_those_it_was_joined_to(gate, monkeypatch) -> None:
    """An index beyond the table is refused, where the others are computed."""
    name = available("compute")
    table = Embedding(9, 4)
    ids = TensorInfo("ids", ("N",), "tensor(int64)")
    model = Model((Node("e", table, ("ids",), "y"),), (ids,), ("y",), "table")
    session = InferenceSession(model, name, max_batch=8)
    counted = Counted(session, monkeypatch)
    futures = [session.run_async(None, {"ids": np.array([i])}) for i in (3, 2**40, 5, 8)]
    assert futures[3].cancel()
    gate.set()
    with pytest.raises(ShapeError, match="from -9 to 8, of a table of 9, got 1099511627776"):
        futures[1].result(SECONDS)
    for i, place in ((0, 3), (2, 5)):
        np.testing.assert_array_equal(futures[i].result(SECONDS)[0], table.weight[[place]])
    assert counted.batches == [4, 1, 1, 1]


@pytest.mark.parametrize("most", [0, -1, True, 2.0, "8", None])
def test_values_of_max_batch_that_are_none(most: Any) -> None:
    with pytest.raises(GlnnError, match="max_batch must be a positive int, got "):
        InferenceSession(affine(), "cpu", max_batch=most)


def test_models_whose_requests_cannot_be_joined() -> None:
    fixed = Model((Node("relu", ReLU(), ("x",), "y"),), (TensorInfo("x", (2, 3)),), ("y",), "fixed")
    with pytest.raises(ModelError, match=r"max_batch=2 needs a batch 'N' first .*; 'x' of fixed"):
        InferenceSession(fixed, "cpu", max_batch=2)
    session = InferenceSession(fixed, "cpu", max_batch=1)
    x = np.ones((2, 3), np.float32)
    assert session.run_async(None, {"x": x}).result(SECONDS)[0].tolist() == x.tolist()


def test_requests_without_a_batch_are_none_to_join(name: str, tmp_path: Path) -> None:
    """Inputs that are one number, or have none: each request is run by itself."""
    onnx = pytest.importorskip("onnx")
    numbers, helper = onnx.TensorProto.FLOAT, onnx.helper
    inputs = [
        helper.make_tensor_value_info("one", numbers, []),
        helper.make_tensor_value_info("x", numbers, ["N", 2]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Add", ["total", "one"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", numbers, [])]
    graph = helper.make_graph(nodes, "sums", inputs, outputs)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "n.onnx")
    session = InferenceSession(tmp_path / "n.onnx", name)
    for rows, total in ((0, 3), (2, 7)):
        feeds = {"one": np.array(3, np.float32), "x": np.ones((rows, 2), np.float32)}
        futures = [session.run_async(None, feeds) for _ in range(4)]
        assert [future.result(SECONDS)[0].tolist() for future in futures] == [total] * 4


def test_results_are_their_caller_s_alone(name: str) -> None:
    """Nothing keeps them until the next run: they may be large."""
    model = Model.sequential([Linear(6, 5), ReLU()], (6,))
    session = InferenceSession(model, name)
    feeds = {session.get_inputs()[0].name: np.ones((3, 6), np.float32)}
    for _ in range(2):
        found = weakref.ref(session.run_async(None, feeds).result(SECONDS)[0])
        for _ in range(100):  # the thread lets go of it soon after the future has it
            gc.collect()
            if found() is None:
                break
            time.sleep(0.02)
        assert found() is None


def test_a_callback_that_fails_ends_nothing_else(name: str, gate: threading.Event) -> None:
    def leave(future: Future[list[Array]]) -> None:
        raise SystemExit("a callback")

    session = InferenceSession(Model.sequential([Linear(6, 5)], (6,)), name)
    feeds = {session.get_inputs()[0].name: np.ones((3, 6), np.float32)}
    session.run_async(None, feeds).add_done_callback(leave)
    second = session.run_async(None, feeds)
    gate.set()
    assert len(second.result(SECONDS)) == 1
    assert len(session.run_async(None, feeds).result(SECONDS)) == 1
