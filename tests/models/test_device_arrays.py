"""Outputs that stay on the device, and inputs that are there: no byte of them crosses."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from glnn import DeviceArray, InferenceSession
from glnn.errors import (
    DeviceError,
    GlnnError,
    LimitError,
    ModelError,
    NoRoomError,
    ShapeError,
)
from glnn.gl import Device
from glnn.gl.block_pool import BlockPool
from glnn.gl.command_buffer import BoundCommands
from glnn.model.onnx_format import model_from_proto
from glnn.runtime.buffer_set import BufferSet
from tests.onnxruntime.models import I64, F, proto
from tests.traffic import Traffic, count_traffic

BACKENDS = ["compute", "feedback", "cpu"]
HALF = TensorProto.FLOAT16


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=BACKENDS[:2])
def gpu(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    with pytest.MonkeyPatch.context() as patch:
        yield count_traffic(patch)


def opened(model: Any, backend: str, **options: Any) -> InferenceSession:
    """A session of a ModelProto; skips where the backend does not open."""
    try:
        return InferenceSession(model_from_proto(model, "a model"), backend, **options)
    except DeviceError as error:
        pytest.skip(str(error))


def decoder(type: int = F) -> Any:
    """A cache that grows by x, and the sum of it all: with every step by another token."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present", "axis"], ["sum"], keepdims=0),
    ]
    axis = helper.make_tensor("axis", I64, [1], [1])
    inputs = [("past", type, ["n", "p", 4]), ("x", type, ["n", "s", 4])]
    outputs = [("sum", type, ["n", 4]), ("present", type, ["n", "t", 4])]
    return proto(nodes, inputs, outputs, initializer=[axis])


def square() -> Any:
    """y = x * x of any length."""
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    return proto([node], [("x", F, ["n"])], [("y", F, ["n"])])


def test_a_growing_cache_stays_where_it_is(backend, rng, traffic) -> None:
    session = opened(decoder(), backend)
    cache = rng((1, 40, 4))
    past, expected = DeviceArray(cache), cache.astype(np.float64)
    for step in range(60):
        x = rng((1, 1, 4))
        traffic.reset()
        total, past = session.run(None, {"past": past, "x": x}, out={"present": DeviceArray})
        expected = np.concatenate([expected, x], axis=1)
        np.testing.assert_allclose(total, expected.sum(1), rtol=1e-4, atol=1e-4)
        if step and backend != "cpu":  # x goes there, the sum comes back
            assert (traffic.up, traffic.down) == (16, 16)
    assert isinstance(past, DeviceArray)
    assert (past.shape, past.dtype, past.ndim, past.size) == ((1, 100, 4), np.float32, 3, 400)
    assert past.nbytes == 1600
    assert (past.device is None) == (backend == "cpu")
    np.testing.assert_array_equal(past.numpy(), expected.astype(np.float32))
    np.testing.assert_array_equal(np.asarray(past), past.numpy())


def test_what_is_read_and_written_is_not_copied_on_the_device_either(gpu, rng, traffic) -> None:
    session = opened(square(), gpu)
    x = 1 + rng((500,)) / 10
    (y,) = session.run(None, {"x": DeviceArray(x)}, out={"y": DeviceArray})
    for _ in range(4):
        traffic.reset()
        (y,) = session.run(None, {"x": y}, out={"y": DeviceArray})
        assert (traffic.up, traffic.down) == (0, 0)
        assert gpu == "feedback" or not traffic.there  # a texture may be a copy there
    np.testing.assert_allclose(y.numpy(), x.astype(np.float64) ** 32, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 5, 16])
def test_host_arrays_and_those_of_a_device_take_turns(backend, count) -> None:
    """Of some sizes there is less memory on a device than commands bind, so that it is copied."""
    session = opened(square(), backend)
    for number, there in [(2, True), (3, False), (4, False), (5, True), (6, False)]:
        x = np.full(count, number, np.float32)
        (y,) = session.run(None, {"x": DeviceArray(x) if there else x})
        np.testing.assert_array_equal(y, x * x)


def test_caches_that_take_turns_are_bound_once(gpu, rng, monkeypatch) -> None:
    """Two caches of several layers, dropped in whatever order, have the same memory in turn."""
    names = [f"{name}{i}" for i in range(3) for name in "kv"]
    nodes = [
        helper.make_node("Concat", [f"past.{n}", "x"], [f"present.{n}"], axis=1) for n in names
    ]
    inputs = [("x", F, ["n", "s", 4]), *((f"past.{n}", F, ["n", "p", 4]) for n in names)]
    model = proto(nodes, inputs, [(f"present.{n}", F, ["n", "t", 4]) for n in names])
    session, bound = opened(model, gpu), []
    bind = BoundCommands.bind

    def bind_and_note(self: Any, numbers: Any, host: Any = (), replaced: Any = None) -> None:
        bound.append(replaced is None or bool(replaced))
        bind(self, numbers, host, replaced)

    monkeypatch.setattr(BoundCommands, "bind", bind_and_note)
    start = {n: rng((1, 40, 4)) for n in names}
    past, expected = {f"past.{n}": DeviceArray(one) for n, one in start.items()}, dict(start)
    for step in range(12):
        x = rng((1, 1, 4))
        out = {f"present.{n}": DeviceArray for n in names}
        present = session.run(None, {"x": x, **past}, out=out)
        order = names[step % 5 :] + names[: step % 5]  # who drops what first is the program's
        for n in order:
            past[f"past.{n}"] = present[names.index(n)]
        del present
        expected = {n: np.concatenate([one, x], axis=1) for n, one in expected.items()}
    for n in names:
        np.testing.assert_array_equal(past[f"past.{n}"].numpy(), expected[n])
    assert bound[-8:] == [False] * 8


@pytest.mark.usefixtures("poisoned")
def test_further_runs_leave_what_somebody_has(backend, rng) -> None:
    session = opened(square(), backend)
    arrays = [rng((n,)) for n in (7, 7, 129, 3, 129)]
    kept = [session.run(None, {"x": x}, out={"y": DeviceArray})[0] for x in arrays]
    again = [session.run(None, {"x": y}, out={"y": DeviceArray})[0] for y in kept]
    plain = [session.run(None, {"x": x})[0] for x in arrays]
    for x, y, z, p in zip(arrays, kept, again, plain, strict=True):
        np.testing.assert_array_equal(y.numpy(), x * x)
        np.testing.assert_array_equal(p, x * x)
        np.testing.assert_array_equal(z.numpy(), (x * x) * (x * x))


def test_the_array_that_it_was_made_of_may_change(backend) -> None:
    session, x = opened(square(), backend), np.array([1, 2, 3], np.float32)
    there = DeviceArray(x)
    x[:] = 9
    np.testing.assert_array_equal(session.run(None, {"x": there})[0], [1, 4, 9])
    there.numpy()[:] = 9
    np.testing.assert_array_equal(there.numpy(), [1, 2, 3])


@pytest.mark.parametrize("first", BACKENDS)
def test_other_sessions_backends_and_devices(first, backend, rng) -> None:
    x = rng((5,))
    (y,) = opened(square(), first).run(None, {"x": x}, out={"y": DeviceArray})
    gc.collect()  # the session is gone
    with Device() as other:
        device = None if backend == "cpu" else other
        session = opened(square(), backend, device=device)
        for _ in range(2):
            (z,) = session.run(None, {"x": y}, out={"y": DeviceArray})
            np.testing.assert_array_equal(z.numpy(), (x * x) ** 2)
    back = opened(square(), first)
    if backend != "cpu":  # it went with the device to which it was moved
        with pytest.raises(DeviceError, match=r"numbers of .*float32 \(5,\) are lost: its device"):
            back.run(None, {"x": y})
        with pytest.raises(DeviceError, match="are lost"):
            z.numpy()
        with pytest.raises(DeviceError, match="are lost"):
            z.wait()
    else:
        np.testing.assert_array_equal(back.run(None, {"x": y})[0], (x * x) ** 2)


def test_threads(backend, rng) -> None:
    sessions = [opened(square(), backend) for _ in range(2)]
    x = rng((33,))
    shared, wrong = DeviceArray(x), list[Any]()

    def work(session: InferenceSession) -> None:
        try:
            for _ in range(20):
                (y,) = session.run(None, {"x": shared}, out={"y": DeviceArray})
                (z,) = session.run(None, {"x": y})
                np.testing.assert_array_equal(z, (x * x) ** 2)
                np.testing.assert_array_equal(y.numpy(), x * x)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(sessions[i % 2],)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong


@pytest.mark.usefixtures("poisoned")
def test_outputs_that_are_inputs_constants_and_each_other(backend, rng) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Mul", ["x", "x"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
        helper.make_node("Reshape", ["y", "flat"], ["line"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Greater", ["x", "y"], ["more"]),
    ]
    constants = [
        helper.make_tensor("flat", I64, [1], [-1]),
        helper.make_tensor("w", F, [2], [1, 2]),
    ]
    names = {"same": F, "y": F, "again": F, "line": F, "fixed": F, "sizes": I64}
    outputs = [(name, type, None) for name, type in {**names, "more": TensorProto.BOOL}.items()]
    session = opened(proto(nodes, [("x", F, ["n", 3])], outputs, initializer=constants), backend)
    for rows in (2, 5, 5):
        x = rng((rows, 3))
        expected = [x, x * x, x * x, (x * x).ravel(), [1, 2], [rows, 3], x > x * x]
        there = dict.fromkeys(session._names, DeviceArray)
        for feed in (x, DeviceArray(x)):
            results = session.run(None, {"x": feed}, out=there)
            more = session.run(None, {"x": rng((rows, 3))}, out=there)
            assert len(more) == len(results)
            for got, wanted, info in zip(results, expected, session.get_outputs(), strict=True):
                assert isinstance(got, DeviceArray)
                assert got.dtype == info.dtype.numpy
                np.testing.assert_array_equal(got.numpy(), wanted)


def test_a_cache_of_halves_stays_there_too(backend, rng, traffic) -> None:
    session = opened(decoder(HALF), backend)
    past, x = rng((1, 30, 4)).astype(np.float16), rng((1, 1, 4)).astype(np.float16)
    there, expected = DeviceArray(past), past
    for step in range(40):
        traffic.reset()
        total, there = session.run(None, {"past": there, "x": x}, out={"present": DeviceArray})
        expected = np.concatenate([expected, x], axis=1)
        assert (there.dtype, total.dtype) == (np.float16, np.float16)
        wanted = expected.astype(np.float64).sum(1)
        np.testing.assert_allclose(total, wanted, rtol=2e-3, atol=2e-2)
        if step and backend != "cpu":  # x as halves, the sum as floats
            assert (traffic.up, traffic.down) == (8, 16)
    np.testing.assert_array_equal(there.numpy(), expected)
    (fed,) = session.run(["present"], {"past": expected, "x": x})  # by the host, as ever
    np.testing.assert_array_equal(fed[:, :-1], expected)


def test_integers_stay_with_the_host(backend) -> None:
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    table = helper.make_tensor("table", I64, [3], [7, 8, 9])
    gather = proto([node], [("i", I64, ["n"])], [("y", I64, ["n"])], initializer=[table])
    taking = opened(gather, backend)
    (y,) = taking.run(None, {"i": DeviceArray(np.array([2, 0]))}, out={"y": DeviceArray})
    assert (y.dtype, y.device) == (np.int64, None)
    np.testing.assert_array_equal(y.numpy(), [9, 7])
    with pytest.raises(GlnnError, match="i"):  # indices are looked at before a run, as ever
        taking.run(None, {"i": y})


@pytest.mark.usefixtures("poisoned")
def test_what_the_host_computes_reads_it(backend, rng) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "wide"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=F),
        helper.make_node("NonZero", ["x"], ["places"]),
    ]
    model = proto(nodes[:3], [("x", F, ["n"])], [("y", F, ["n"])])
    parts = proto(nodes, [("x", F, ["n"])], [("y", F, ["n"]), ("places", I64, [1, None])])
    for session in (opened(model, backend), opened(parts, backend)):
        x = rng((6,))
        (y,) = session.run(["y"], {"x": DeviceArray(x)}, out={"y": DeviceArray})
        (z,) = session.run(["y"], {"x": y}, out={"y": DeviceArray})
        np.testing.assert_allclose(z.numpy(), x**4, rtol=1e-6)
        np.testing.assert_allclose(session.run(["y"], {"x": y})[0], x**4, rtol=1e-6)


def test_numbers_that_decide_sizes(backend) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    model = proto([node], [("x", F, ["n"]), ("scales", F, [1])], [("y", F, ["m"])])
    session = opened(model, backend)
    for scale in (2, 3):
        feeds = {"x": np.array([1, 2], np.float32), "scales": np.array([scale], np.float32)}
        there = {name: DeviceArray(one) for name, one in feeds.items()}
        expected = np.repeat(feeds["x"], scale)
        for _ in range(2):
            np.testing.assert_array_equal(session.run(None, there)[0], expected)


def test_states_and_requests(backend, rng) -> None:
    nodes = [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "t"], ["y"])]
    inputs, outputs = [("s", F, [4]), ("x", F, [4])], [("y", F, [4]), ("t", F, [4])]
    session = opened(proto(nodes, inputs, outputs), backend)
    states, x = session.make_states({"s": "t"}), rng((4,))
    there = DeviceArray(x)
    for step in (1, 2, 3):
        (y,) = session.run(None, {"x": there}, out={"y": DeviceArray}, states=states)
        np.testing.assert_allclose(y.numpy(), (step * x.astype(np.float64)) ** 2, rtol=1e-5)
    future = session.run_async(["y"], {"s": there, "x": there}, out={"y": DeviceArray})
    np.testing.assert_allclose(future.result(60)[0].numpy(), (2 * x.astype(np.float64)) ** 2, 1e-5)


def test_an_array_that_is_given_up(backend, rng) -> None:
    """The output is written in the place of the input, whose numbers are gone then."""
    node = helper.make_node("Add", ["past", "x"], ["present"])
    model = proto([node], [("past", F, ["n", 4]), ("x", F, ["n", 4])], [("present", F, ["n", 4])])
    session = opened(model, backend)
    for rows in (3, 129, 3):
        start = rng((rows, 4))
        past, expected = DeviceArray(start), start
        for step in range(5):
            x, before = rng((rows, 4)), past._block
            (after,) = session.run(None, {"past": past, "x": x}, out={"present": past})
            expected = expected + x
            np.testing.assert_array_equal(after.numpy(), expected)
            assert backend != "compute" or not step or after._block is before
            with pytest.raises(DeviceError, match="are gone: a run was given its memory"):
                past.numpy()
            with pytest.raises(DeviceError, match="are gone: a run was given its memory"):
                session.run(None, {"past": past, "x": x})
            past = after
        future = session.run_async(None, {"past": past, "x": x}, out={"present": past})
        np.testing.assert_array_equal(future.result(60)[0].numpy(), expected + x)
        with pytest.raises(DeviceError, match="are gone"):
            past.numpy()


def test_arrays_that_cannot_be_given_up(backend, rng) -> None:
    """One that is not fed, or that the device is yet to read elsewhere; errors give nothing up."""
    session = opened(square(), backend)
    x, other = DeviceArray(rng((7,))), DeviceArray(rng((7,)))
    (y,) = session.run(None, {"x": x}, out={"y": other})
    np.testing.assert_array_equal(y.numpy(), x.numpy() * x.numpy())
    for wrong in (np.zeros(8, np.float32), np.zeros(7, np.int32)):
        with pytest.raises(ShapeError, match=r"out\['y'\] must be a DeviceArray of float32 \(7,\)"):
            session.run(None, {"x": x}, out={"y": DeviceArray(wrong)})
    both = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])]
    session = opened(proto(both, [("x", F, [7])], [("y", F, [7]), ("z", F, [7])]), backend)
    with pytest.raises(ShapeError, match="one DeviceArray for two outputs"):
        session.run(None, {"x": x}, out={"y": x, "z": x})
    before = x.numpy()
    y, z = session.run(None, {"x": x}, out={"y": x, "z": DeviceArray})
    np.testing.assert_array_equal(y.numpy(), before + before)
    np.testing.assert_array_equal(z.numpy(), before * before)


def test_what_is_fed_twice_is_not_written_in_place(backend, rng) -> None:
    nodes = [
        helper.make_node("Add", ["past", "x"], ["present"]),
        helper.make_node("MatMul", ["present", "other"], ["y"]),
    ]
    inputs = [(name, F, [8, 8]) for name in ("past", "x", "other")]
    model = proto(nodes, inputs, [(name, F, [8, 8]) for name in ("present", "y")])
    session, start = opened(model, backend), rng((8, 8))
    past, expected = DeviceArray(start), start.astype(np.float64)
    for _ in range(3):
        x = rng((8, 8))
        feeds = {"past": past, "x": x, "other": past}
        past, y = session.run(None, feeds, out={"present": past})
        np.testing.assert_allclose(y, (expected + x) @ expected, 1e-4, 1e-4)
        expected = (expected.astype(np.float32) + x).astype(np.float64)
        np.testing.assert_array_equal(past.numpy(), expected)


def test_memory_that_is_given_up_comes_back(gpu, rng) -> None:
    with Device() as device:
        session = opened(square(), gpu, device=device)
        x = DeviceArray(1 + rng((9000,)) / 10)
        for _ in range(4):
            (x,) = session.run(None, {"x": x}, out={"y": x})
        pool = device.blocks
        device.perform(device.collect_garbage)
        assert 4 * 9000 <= pool._used_bytes < 2 * 4 * 9000
        del x
        device.perform(device.collect_garbage)
        assert pool._used_bytes == 0


def test_memory_comes_back(gpu, rng) -> None:
    with Device() as device:
        session = opened(square(), gpu, device=device)
        ys = [session.run(None, {"x": rng((9000,))}, out={"y": DeviceArray})[0] for _ in range(5)]
        pool = device.blocks
        assert pool._used_bytes >= 5 * 4 * 9000
        del ys
        device.perform(device.collect_garbage)
        assert (pool._used_bytes, pool._free_bytes, len(pool._free)) == (0, 0, 0)
        (y,) = session.run(None, {"x": rng((9000,))}, out={"y": DeviceArray})
        for _ in range(4):  # two take turns
            (y,) = session.run(None, {"x": y}, out={"y": DeviceArray})
        assert len(pool._free) <= 1


def test_errors(backend) -> None:
    session = opened(decoder(), backend)
    x = np.zeros((1, 1, 4), np.float32)
    wrong = {
        r"past.*\(n, p, 4\).*\(1, 2, 5\)": np.zeros((1, 2, 5), np.float32),
        r"past.*\(n, p, 4\).*\(4,\)": np.zeros(4, np.float32),
        "'past' must be float32, got a DeviceArray of float16": np.zeros((1, 2, 4), np.float16),
    }
    for text, array in wrong.items():
        with pytest.raises(ShapeError, match=text):
            session.run(None, {"past": DeviceArray(array), "x": x})
    with pytest.raises(ShapeError, match="one size n"):
        session.run(None, {"past": DeviceArray(np.zeros((2, 2, 4), np.float32)), "x": x})
    with pytest.raises(ValueError, match="which copy=False excludes"):
        DeviceArray(x).__array__(copy=False)
    with pytest.raises(ModelError, match="out has 'other'"):
        session.run(None, {"past": x, "x": x}, out={"other": DeviceArray})
    with pytest.raises(ShapeError, match="unknown input 'z'"):
        session.run(None, {"past": x, "x": x, "z": DeviceArray(x)})
    with pytest.raises(ShapeError, match=r"NumPy array of numbers, got \[1\]"):
        DeviceArray([1])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="NumPy array of numbers, got a object array"):
        DeviceArray(np.array(["a"], object))
    assert "with the host" in repr(DeviceArray(x))


def test_too_many_of_them_are_refused(gpu, rng, monkeypatch) -> None:
    """GLNN_MEMORY is for what is left on the device, too."""
    monkeypatch.setenv("GLNN_MEMORY", "1M")
    with Device() as device:
        session = opened(square(), gpu, device=device)
        kept, x = list[Any](), rng((20000,))
        with pytest.raises(LimitError, match=r"needs .*, .* are free"):
            for _ in range(100):
                kept += session.run(None, {"x": x}, out={"y": DeviceArray})
        assert 2 <= len(kept) <= 13  # of 80,000 bytes
        for one in kept:
            np.testing.assert_array_equal(one.numpy(), x * x)
        kept.clear()
        (y,) = session.run(None, {"x": x}, out={"y": DeviceArray})
        np.testing.assert_array_equal(y.numpy(), x * x)


@pytest.mark.usefixtures("poisoned")
def test_auto_measures_with_what_lies_there(rng, monkeypatch) -> None:
    monkeypatch.delenv("GLNN_BACKEND", raising=False)
    session = opened(decoder(), "auto")
    past = DeviceArray(rng((1, 9, 4)))
    expected = past.numpy()
    for _ in range(30):
        x = rng((1, 1, 4))
        total, past = session.run(None, {"past": past, "x": x}, out={"present": DeviceArray})
        expected = np.concatenate([expected, x], axis=1)
        np.testing.assert_allclose(total, expected.astype("f8").sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(past.numpy(), expected)


def test_a_run_that_fails_leaves_what_it_was_given(gpu, rng, monkeypatch) -> None:
    session, x = opened(square(), gpu), rng((50,))
    there = DeviceArray(x)
    session.run(None, {"x": there}, out={"y": DeviceArray})

    def stop(self: BufferSet) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BufferSet, "launch", stop)
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": there}, out={"y": DeviceArray})
    (y,) = session.run(None, {"x": there}, out={"y": DeviceArray})
    np.testing.assert_array_equal(y.numpy(), x * x)
    np.testing.assert_array_equal(there.numpy(), x)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * x)


def test_a_run_without_room_takes_nothing(gpu, rng, monkeypatch) -> None:
    """Neither then nor in a later run, which reads and leaves nothing on the device."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Concat", ["y", "y"], ["twice"], axis=0),
        helper.make_node("Neg", ["twice"], ["z"]),
    ]
    model = proto(nodes, [("x", F, ["n", 8])], [("y", F, ["n", 8]), ("z", F, ["m", 8])])
    session, x = opened(model, gpu), np.abs(rng((4, 8)))
    there, other = DeviceArray(x), 2 * x
    session.run(["y"], {"x": there}, out={"y": DeviceArray})
    session.run(None, {"x": x})
    allocate, asked = BlockPool.allocate, list[int]()

    def allocate_some(self: BlockPool, count: int, *arguments: Any) -> Any:
        if count and asked:
            raise NoRoomError("no room for the last")
        asked.append(count)
        return allocate(self, count, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BlockPool, "allocate", allocate_some)
        with pytest.raises(NoRoomError, match="no room for the last"):
            session.run(None, {"x": there}, out={"y": there, "z": DeviceArray})
    y, z = session.run(None, {"x": other})
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(z, -np.concatenate([other, other]))
    np.testing.assert_array_equal(there.numpy(), x)
    (y,) = session.run(["y"], {"x": there}, out={"y": there})
    np.testing.assert_array_equal(y.numpy(), x)


def test_inputs_alike_are_each_checked(backend, rng) -> None:
    """Of inputs of one kind, as caches, one that fits lets none pass that does not."""
    names = ["a", "b", "c"]
    nodes = [helper.make_node("Sum", names, ["y"])]
    session = opened(
        proto(nodes, [(one, F, ["n", 3]) for one in names], [("y", F, ["n", 3])]), backend
    )
    feeds = {name: DeviceArray(rng((2, 3))) for name in names}
    (y_,) = session.run(None, feeds)
    expected = sum(one.numpy().astype(np.float64) for one in feeds.values())
    np.testing.assert_allclose(y_, expected, rtol=1e-6)
    for text, wrong in {
        r"'b' must have shape \(n, 3\), got \(2, 4\)": np.zeros((2, 4), np.float32),
        "'b' must be float32, got a DeviceArray of float16": np.zeros((2, 3), np.float16),
        "one size n": np.zeros((1, 3), np.float32),
    }.items():
        with pytest.raises(ShapeError, match=text):
            session.run(None, {**feeds, "b": DeviceArray(wrong)})
    with pytest.raises(ShapeError, match=r"'b' must have shape \(n, 3\), got \(2, 4\)"):
        session.run(None, {**feeds, "b": np.zeros((2, 4), np.float32)})
