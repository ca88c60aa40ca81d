"""States of a session: inputs that stay on the device, step by step beside ONNX Runtime."""

from __future__ import annotations

import gc
import random
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from glnn.compiler import Plan
from glnn.errors import DeviceError, LimitError, ModelError, ShapeError, UnsupportedOpError
from glnn.gl import Device
from glnn.runtime.requests import Requests, RunRequest
from glnn.runtime.runner import InFlightRun
from glnn.session import InferenceSession
from tests.models.test_open_sessions import interrupted

HEAD = '<ir_version: 9, opset_import: ["": 17, "ai.onnx.ml": 3]>\n'
F32 = np.float32
# Reads each state behind its update, too: `y` is of the states before the run alone.
NET = """net (float[1, 3] x, float[1, 4] h, float[2, N] c)
 => (float[1, 4] y, float[1, 4] hn, float[2, N] cn)
 <float[3, 4] w = {1, 2, 3, 4, -1, 0.5, 0.25, 2, -3, 1, 0.5, -0.125}> {
  xw = MatMul(x, w)
  sum = Add(xw, h)
  hn = Tanh(sum)
  two = Constant<value = float[1] {0.5}>()
  half = Mul(c, two)
  mean = ReduceMean<axes = [0, 1]>(sum)
  cn = Add(half, mean)
  first = ReduceMax<axes = [0, 1]>(c)
  y = Add(h, first)
}"""
PAIRS = {"h": "hn", "c": "cn"}
INITIAL = {"c": np.arange(6, dtype=F32).reshape(2, 3)}


def made(text: str) -> bytes:
    return parser.parse_model(HEAD + text).SerializeToString()


@pytest.fixture(
    params=["cpu", "compute", "feedback", "compute es31-minimum", "feedback es31-minimum", "auto"]
)
def options(request) -> dict[str, Any]:
    name, _, limits = request.param.partition(" ")
    return {"backend": name, "limits": limits or None}


def session_of(model: bytes | str, options: dict[str, Any]) -> InferenceSession:
    try:
        return InferenceSession(model, **options)
    except DeviceError as error:
        pytest.skip(str(error))


class Runtime:
    """ONNX Runtime, which is fed what it gave the step before."""

    def __init__(self, model: bytes | str, pairs: dict[str, str], states: dict[str, Any]) -> None:
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.names = [one.name for one in self.session.get_outputs()]
        self.pairs, self.states = pairs, dict(states)

    def step(self, **feeds: Any) -> list[Any]:
        found = dict(zip(self.names, self.session.run(None, {**feeds, **self.states}), strict=True))
        self.states = {name: found[output] for name, output in self.pairs.items()}
        return [found[n] for n in self.names if n not in self.pairs.values()]


def runtime() -> Runtime:
    return Runtime(made(NET), PAIRS, {"h": np.zeros((1, 4), F32), **INITIAL})


def inputs(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((count, 1, 3)).astype(F32))


def alike(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert got.dtype == expected.dtype


def check(states: Any, theirs: Runtime) -> None:
    found = states.read()
    assert list(found) == list(theirs.states)
    for name, array in found.items():
        alike(array, theirs.states[name])


def test_every_step_is_that_of_a_program_that_feeds_states_back(options) -> None:
    session, theirs = session_of(made(NET), options), runtime()
    states = session.make_states(PAIRS, INITIAL)
    check(states, theirs)
    for i, x in enumerate(inputs(5)):
        expected = theirs.step(x=x)
        found = session.run(None, {"x": x}, states=states)
        assert len(found) == 1
        alike(found[0], expected[0])
        if i % 2:
            check(states, theirs)
    states.reset()
    check(states, runtime())
    alike(session.run(["y"], {"x": x}, states=states)[0], runtime().step(x=x)[0])
    h = np.array([[4, 3, 2, 1]], F32)
    states.write({"h": h})
    before = states.read()
    assert np.array_equal(before["h"], h)
    alike(session.run(None, {"x": x}, states=states)[0], h + before["c"].max())


def test_streams_of_one_session_are_apart(options) -> None:
    session = session_of(made(NET), options)
    streams = [(session.make_states(PAIRS, INITIAL), runtime(), inputs(6, i)) for i in range(3)]
    for i in (0, 1, 2, 2, 1, 0):
        for states, theirs, xs in streams[: i + 1]:
            alike(session.run(None, {"x": xs[i]}, states=states)[0], theirs.step(x=xs[i])[0])
        check(streams[i][0], streams[i][1])  # which may not be the one that ran last
    session.run(None, {"x": xs[0], **streams[0][1].states})  # without any
    for states, theirs, _ in streams:
        check(states, theirs)
    del streams[-1], states
    gc.collect()  # a stream that ended while its content was on the device
    states, theirs, xs = streams[0]
    alike(session.run(None, {"x": xs[0]}, states=states)[0], theirs.step(x=xs[0])[0])


def test_runs_that_nobody_waits_for_follow_one_another(options) -> None:
    session, theirs = session_of(made(NET), options), runtime()
    states = session.make_states(PAIRS, INITIAL)
    xs = inputs(8)
    futures = [session.run_async(None, {"x": x}, states=states) for x in xs]
    for x, future in zip(xs, futures, strict=True):
        alike(future.result(60)[0], theirs.step(x=x)[0])
    check(states, theirs)


def test_threads_have_streams_of_their_own(options) -> None:
    session, failed = session_of(made(NET), options), []

    def stream(seed: int) -> None:
        try:
            states, theirs = session.make_states(PAIRS, INITIAL), runtime()
            for x in inputs(6, seed):
                alike(session.run(None, {"x": x}, states=states)[0], theirs.step(x=x)[0])
            check(states, theirs)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert not failed


@pytest.mark.parametrize(
    ("type", "dtype", "add"),
    [
        ("float", np.float32, "step"),
        ("float16", np.float16, "step"),
        ("int32", np.int32, "step"),
        ("int64", np.int64, "step"),
        ("bool", np.bool_, "flip"),
    ],
)
def test_states_have_the_model_s_dtypes(options, type, dtype, add) -> None:
    more = (
        "n = Not(s)"
        if add == "flip"
        else f"one = Constant<value = {type}[1] {{3}}>() n = Add(s, one)"
    )
    text = f"""net (float[2] x, {type}[2] s) => (float[2] y, {type}[2] n) {{
      f = Cast<to = 1>(s)
      y = Mul(x, f)
      {more}
    }}"""
    first = {"s": np.array([1, 0], dtype)}
    theirs = Runtime(made(text), {"s": "n"}, first)
    session = session_of(made(text), options)
    states = session.make_states({"s": "n"}, first)
    for _ in range(4):
        x = np.array([0.5, 2], F32)
        alike(session.run(None, {"x": x}, states=states)[0], theirs.step(x=x)[0])
        check(states, theirs)


def test_a_state_on_the_host_has_all_of_int64() -> None:
    text = """net (float[1] x, int64[1] s) => (float[1] y, int64[1] n) {
      one = Constant<value = int64[1] {1}>()  n = Add(s, one)  y = Neg(x)
    }"""
    session = InferenceSession(made(text), "cpu")
    states = session.make_states({"s": "n"}, {"s": np.array([2**40])})
    session.run(None, {"x": np.ones(1, F32)}, states=states)
    assert states.read()["s"] == 2**40 + 1


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_a_gpu_refuses_numbers_of_a_state_beyond_int32(backend) -> None:
    text = """net (float[1] x, int64[1] s) => (float[1] y, int64[1] n) {
      n = Neg(s)  y = Neg(x)
    }"""
    session = session_of(made(text), {"backend": backend})
    states = session.make_states({"s": "n"}, {"s": np.array([5])})
    x = {"x": np.ones(1, F32)}
    states.write({"s": np.array([2**40])})
    for _ in range(2):
        with pytest.raises(ShapeError, match="state 's' must have int64 numbers from"):
            session.run(None, x, states=states)
        assert states.read()["s"] == 2**40
    states.reset()
    session.run(None, x, states=states)
    assert states.read()["s"] == -5


def test_two_states_may_change_places(options) -> None:
    text = """net (float[1] x, float[2] a, float[2] b) => (float[2] y, float[2] an, float[2] bn) {
      an = Identity(b)  bn = Add(a, x)  y = Sub(a, b)
    }"""
    pairs = {"a": "an", "b": "bn"}
    first = {"a": np.array([1, 2], F32), "b": np.array([5, 7], F32)}
    theirs = Runtime(made(text), pairs, first)
    session = session_of(made(text), options)
    states = session.make_states(pairs, first)
    for i in range(5):
        x = np.array([i], F32)
        alike(session.run(None, {"x": x}, states=states)[0], theirs.step(x=x)[0])
    check(states, theirs)


def test_an_error_leaves_states_as_they_were(options) -> None:
    text = """net (float[2] x, int64[1] i, float[2] s) => (float[1, 2] y, float[2] n)
    <float[3, 2] table = {1, 2, 3, 4, 5, 6}> {
      n = Add(s, x)  row = Gather<axis = 0>(table, i)  y = Add(row, s)
    }"""
    first = {"s": np.ones(2, F32)}
    session, theirs = session_of(made(text), options), Runtime(made(text), {"s": "n"}, first)
    states = session.make_states({"s": "n"}, first)
    x, i = np.array([1, 2], F32), np.array([2])
    for wrong in ({"i": np.array([9])}, {"x": np.ones(3, F32)}, {"x": x.astype(np.float64)}):
        with pytest.raises(ShapeError):
            session.run(None, {"x": x, "i": i, **wrong}, states=states)
        check(states, theirs)
        alike(session.run(None, {"x": x, "i": i}, states=states)[0], theirs.step(x=x, i=i)[0])
        check(states, theirs)


@pytest.mark.parametrize(
    ("pairs", "initial", "error", "said"),
    [
        ({"g": "hn"}, {}, ModelError, "no input 'g', it has 'x', 'h', 'c'"),
        ({"h": "gn"}, {}, ModelError, "no output 'gn', it has 'y', 'hn', 'cn'"),
        ({"h": "hn", "x": "hn"}, {}, ModelError, "'hn' cannot update both states 'h' and 'x'"),
        ({"x": "y"}, {}, ShapeError, r"'x', float32 \(1, 3\), .* 'y', float32 \(1, 4\)"),
        ({}, {}, ModelError, "must map inputs to the outputs"),
        (None, {}, ModelError, "no inputs 'past…'"),
        ({"c": "cn"}, {}, ShapeError, r"'c' is float32 \(2, N\), which is open"),
        ({"c": "cn"}, {"c": np.zeros((3, 2), F32)}, ShapeError, r"shape \(2, N\), got \(3, 2\)"),
        ({"c": "cn"}, {"c": np.zeros((2, 2))}, ShapeError, "float64"),
        ({"h": "hn"}, {"c": np.zeros((2, 2), F32)}, ModelError, "no state 'c'"),
        ({"h": "hn"}, 3, ShapeError, "initial must map"),
    ],
)
def test_bad_pairs_are_refused_in_one_sentence(pairs, initial, error, said) -> None:
    with pytest.raises(error, match=said) as raised:
        InferenceSession(made(NET), "cpu").make_states(pairs, initial)
    assert "\n" not in str(raised.value)


def test_an_output_of_another_dtype_is_refused_with_both() -> None:
    text = """net (float[2] x, int32[2] s) => (float[2] y) {
      f = Cast<to = 1>(s)  y = Add(x, f)
    }"""
    session = InferenceSession(made(text), "cpu")
    with pytest.raises(ShapeError, match=r"'s', int32 \(2,\), .* 'y', float32 \(2,\)"):
        session.make_states({"s": "y"})


GROWING = """net (float[1, 2] x, float[n, 2] past_0) => (float[1, 2] y, float[m, 2] present_0) {
  present_0 = Concat<axis = 0>(past_0, x)
  y = ReduceMean<axes = [0]>(present_0)
}"""


def test_a_state_that_grows_is_refused_and_stays(options) -> None:
    session = session_of(made(GROWING), options)
    states = session.make_states(initial={"past_0": np.ones((3, 2), F32)})
    assert states.updates == {"past_0": "present_0"}
    x = {"x": np.ones((1, 2), F32)}
    said = r"'past_0', float32 \(3, 2\), cannot be updated by output 'present_0', float32 \(4, 2\)"
    for _ in range(2):
        with pytest.raises(ShapeError, match=said):
            session.run(None, x, states=states)
    assert np.array_equal(states.read()["past_0"], np.ones((3, 2)))


def test_wrong_uses_are_refused() -> None:
    session = InferenceSession(made(NET), "cpu")
    states, x = session.make_states(PAIRS, INITIAL), inputs(1)[0]
    with pytest.raises(ShapeError, match="'h' is a state, which is not fed"):
        session.run(None, {"x": x, "h": np.zeros((1, 4), F32)}, states=states)
    with pytest.raises(ModelError, match="'hn' updates state 'h'"):
        session.run(["hn"], {"x": x}, states=states)
    with pytest.raises(ShapeError, match="unknown input 'z'"):
        session.run(None, {"x": x, "z": x}, states=states)
    with pytest.raises(ShapeError, match="missing input 'x'"):
        session.run_async(None, {}, states=states)
    with pytest.raises(ModelError, match="make_states"):
        InferenceSession(made(NET), "cpu").run(None, {"x": x}, states=states)
    with pytest.raises(ShapeError, match=r"'h' is float32 \(1, 4\), got a float32 .* \(4,\)"):
        states.write({"h": np.zeros(4, F32)})
    with pytest.raises(ModelError, match="no state 'x'"):
        states.write({"x": x})
    joined = """net (float[N, 2] x, float[N, 2] s) => (float[N, 2] n) { n = Add(s, x) }"""
    with pytest.raises(ModelError, match="max_batch=4"):
        InferenceSession(made(joined), "cpu", max_batch=4).make_states({"s": "n"})


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_states_go_with_a_lost_device(backend) -> None:
    device = Device()
    session = session_of(made(NET), {"backend": backend, "device": device})
    states, parked = (session.make_states(PAIRS, INITIAL) for _ in range(2))
    (x,) = inputs(1)
    for one in (parked, states):
        session.run(None, {"x": x}, states=one)
    device._reset_status = lambda: 0x8254
    with pytest.raises(DeviceError, match="reset"):
        session.run(None, {"x": x}, states=states)
    for one in (states, parked):
        for use in (one.read, partial(session.run, None, {"x": x}, states=one)):
            with pytest.raises(DeviceError, match="with it went the states 'h', 'c' of net"):
                use()
        one.reset()
        alike(session.run(None, {"x": x}, states=one)[0], runtime().step(x=x)[0])
    session.backend.device.close()


def test_stored_plans_go_on_beside_states(tmp_path, options) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(made(NET))
    session, theirs = session_of(str(path), options), runtime()
    states = session.make_states(PAIRS, INITIAL)
    for x in inputs(3):
        whole = session.run(None, {"x": x, **theirs.states})
        expected = theirs.step(x=x)
        alike(whole[0], expected[0])
        alike(session.run(None, {"x": x}, states=states)[0], expected[0])


def test_a_state_whose_numbers_decide_sizes_is_refused() -> None:
    text = """net (float[4] x, int64[1] s) => (float[n] y, int64[1] sn) {
      y = Expand(x, s)  sn = Neg(s)
    }"""
    session = InferenceSession(made(text), "cpu")
    states = session.make_states({"s": "sn"}, {"s": np.array([4])})
    with pytest.raises(UnsupportedOpError, match=r"'s' of net cannot be a state: .* decide sizes"):
        session.run(None, {"x": np.ones(4, F32)}, states=states)


def test_a_step_of_the_host_that_raises_leaves_states_as_they_were(options, monkeypatch) -> None:
    text = """net (float[2] x, float[2] s) => (float[2] y, float[2] n) {
      n = Add(s, x)  y = Sub(n, x)
    }"""
    first = {"s": np.ones(2, F32)}
    session = session_of(made(text), options)
    states, x = session.make_states({"s": "n"}, first), {"x": np.ones(2, F32)}
    session.run(None, x, states=states)
    run_on_thread, device = Plan.run_on_thread, session.backend.device

    def broken(*arguments: Any) -> Any:
        if device is not None:
            run_on_thread(*arguments)
        raise RuntimeError("host")

    with monkeypatch.context() as patch:
        patch.setattr(Plan, "run_on_thread", broken)
        patch.setattr(Plan, "hosted", ("a step",) if device else ())
        with pytest.raises(RuntimeError, match="host"):
            session.run(None, x, states=states)
    assert np.array_equal(states.read()["s"], [2, 2])
    session.run(None, x, states=states)
    assert np.array_equal(states.read()["s"], [3, 3])


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_that_is_interrupted_leaves_states_that_are_known(options, error) -> None:
    """As they were before it or are after it; else whoever uses them is told."""
    if options["backend"] == "auto":
        pytest.skip("it is one of the others")
    session, seen = session_of(made(NET), options), set[str]()
    states, steps = session.make_states(PAIRS, INITIAL), [{"x": x} for x in inputs(3)]
    theirs = runtime()
    expected = [theirs.step(**one) for one in steps[:2]]
    after = {name: array.copy() for name, array in theirs.states.items()}

    def begun() -> dict[str, Any]:
        states.reset()
        alike(session.run(None, steps[0], states=states)[0], expected[0][0])
        return states.read()

    def run() -> None:
        session.run(None, steps[1], states=states)

    for _ in range(2):
        before = begun()
        calls = interrupted(run, error, None).calls
    for n in sorted(random.Random(3).sample(range(1, calls + 1), min(calls, 60))):
        begun()
        interrupted(run, error, n)
        try:
            found = states.read()
        except DeviceError as told:
            assert "a run was stopped" in str(told)
            seen.add("torn")
        else:
            same = [
                all(np.allclose(found[name], one[name], 1e-5, 1e-5) for name in PAIRS)
                for one in (before, after)
            ]
            assert any(same), (n, calls)
            seen.add("before" if same[0] else "after")
    assert "before" in seen
    begun()
    alike(session.run(None, steps[1], states=states)[0], expected[1][0])
    check(states, theirs)


def test_results_that_cannot_be_had_leave_states_of_the_run(options, monkeypatch) -> None:
    session = session_of(made(NET), options)
    states, theirs = session.make_states(PAIRS, INITIAL), runtime()
    one, two, three = ({"x": x} for x in inputs(3))
    for feeds in (one, two):
        alike(session.run(None, feeds, states=states)[0], theirs.step(**feeds)[0])

    def fails(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(InFlightRun, "results", fails)
        with pytest.raises(LimitError):
            session.run(None, three, states=states)
        with pytest.raises((LimitError, MemoryError)):
            session.run_async(None, one, states=states).result(60)
    for feeds in (three, one):
        theirs.step(**feeds)
    check(states, theirs)


def test_shapes_may_change_and_states_stay(options) -> None:
    text = """net (float[k, 2] x, float[1, 2] s) => (float[k, 2] y, float[1, 2] n)
     <int64[1] axis = {0}> {
      y = Add(x, s)  sum = ReduceSum(x, axis)  n = Add(s, sum)
    }"""
    first = {"s": np.zeros((1, 2), F32)}
    theirs, session = Runtime(made(text), {"s": "n"}, first), session_of(made(text), options)
    states = session.make_states({"s": "n"})
    for rows in (1, 3, 1, 2, 5, 4, 7, 3):
        x = np.full((rows, 2), rows, F32)
        alike(session.run(None, {"x": x}, states=states)[0], theirs.step(x=x)[0])
    check(states, theirs)


def test_one_plan_serves_a_range_of_sizes(options) -> None:
    """Of inputs: a state keeps its own, also where an input has the same (`c` here)."""
    text = """net (float[1, t, 2] x, float[1, 1, c] s, float[1, 1, c] z) =>
     (float[1, t, 2] y, float[1, 1, c] n) <int64[1] axis = {1}> {
      y = Add(x, s)  sum = ReduceSum(y, axis)  most = Tanh(sum)  m = Add(s, most)  n = Add(m, z)
    }"""
    first, z = {"s": np.ones((1, 1, 2), F32)}, np.full((1, 1, 2), 0.5, F32)
    theirs, session = Runtime(made(text), {"s": "n"}, first), session_of(made(text), options)
    states, rng = session.make_states({"s": "n"}, first), np.random.default_rng(0)
    for length in (3, 5, 2, 7, 11, 4, 31, 30):
        x = rng.standard_normal((1, length, 2)).astype(F32)
        found = session.run(None, {"x": x, "z": z}, states=states)[0]
        alike(found, theirs.step(x=x, z=z)[0])
        check(states, theirs)
    executor = states._plans._executor
    assert len(executor.range_plans) <= 3 and not executor._plans
    with pytest.raises(ShapeError, match="'z'"):
        session.run(None, {"x": x, "z": z[..., :1]}, states=states)


def test_tables_of_sizes_are_those_of_the_run_where_states_change_places(options) -> None:
    """On feedback each update goes to the other of two memories, with commands for each.

    The table of 5 was not uploaded again for a third run of 5, as the commands were bound to that.
    """
    text = """net (float[1, t, 2] x, float[1, 1, 2] s) => (float[1, t, 2] y, float[1, 1, 2] n)
     <int64[1] axis = {1}, int64 first = {0}, int64 step = {1}, int64[2] ends = {0, 2}> {
      dims = Shape(x)  length = Gather(dims, step)  places = Range(first, length, step)
      last = Sub(length, places)  column = Cast<to = 1>(last)  rows = Unsqueeze(column, ends)
      scaled = Mul(x, rows)  y = Add(scaled, s)  sum = ReduceSum(y, axis)  n = Tanh(sum)
    }"""
    first, rng = {"s": np.ones((1, 1, 2), F32)}, np.random.default_rng(0)
    theirs, session = Runtime(made(text), {"s": "n"}, first), session_of(made(text), options)
    states = session.make_states({"s": "n"}, first)
    for length in (5, 3, 5, 3, 5, 5, 3, 4):
        x = rng.standard_normal((1, length, 2)).astype(F32)
        alike(session.run(None, {"x": x}, states=states)[0], theirs.step(x=x)[0])
        check(states, theirs)


def test_steps_of_a_stream_find_the_plan_of_the_step_before(options, monkeypatch) -> None:
    session = session_of(made(NET), options)
    states, x = session.make_states(PAIRS, INITIAL), inputs(1)[0]
    session.run(None, {"x": x}, states=states)
    executor = states._plans._executor
    monkeypatch.setattr(executor, "_plan", None)  # which looks through the plans
    session.run(None, {"x": x}, states=states)


@pytest.mark.parametrize("then", ["run", "write", "reset"])
def test_a_stream_goes_on_in_the_order_of_its_calls(options, then) -> None:
    """Of those that do not wait, too: `run` had gone before a run that was asked for earlier."""
    text = """net (float[1] x, float[1] s) => (float[1] y, float[1] n)
     <float[1] two = {2}> { n = Add(s, x)  d = Mul(s, two)  y = Add(d, x) }"""
    session = session_of(made(text), options)
    states, xs = session.make_states({"s": "n"}), np.array([[1], [10], [100]], F32)
    session.run(None, {"x": xs[2]}, states=states)  # with which auto has chosen
    for _ in range(20):
        states.write({"s": np.zeros(1, F32)})
        asked = [session.run_async(None, {"x": x}, states=states) for x in xs[:2]]
        if then == "write":
            states.write({"s": np.full(1, 5, F32)})
        elif then == "reset":
            states.reset()
        last = session.run(None, {"x": xs[2]}, states=states)[0]
        before = {"run": 11, "write": 5, "reset": 0}[then]
        assert [one.result(60)[0].tolist() for one in asked] == [[1], [12]]
        assert last.tolist() == [2 * before + 100]


def test_a_callback_of_another_session_waits_for_the_stream() -> None:
    """Only where the stream itself is served nothing may be waited for."""
    session, other = (InferenceSession(made(NET), "cpu") for _ in range(2))
    states = session.make_states(PAIRS, INITIAL)
    x = np.ones((1, 3), F32)
    found: list[Any] = []
    done = threading.Event()

    def back(future: object) -> None:
        for _ in range(50):
            session.run_async(None, {"x": x}, states=states)
        states.reset()
        found.append(states.read()["c"])
        done.set()

    feeds = {"x": x, "h": np.zeros((1, 4), F32), "c": INITIAL["c"]}
    other.run_async(None, feeds).add_done_callback(back)
    assert done.wait(60)
    assert np.array_equal(found[0], INITIAL["c"])


def test_a_run_that_nobody_was_given_is_waited_for(monkeypatch) -> None:
    """As where Ctrl-C comes once a run was asked for, and before its future is there."""
    session = InferenceSession(made(NET), "cpu")
    states = session.make_states(PAIRS, INITIAL)
    put = Requests.put

    def stopped(self: Requests, request: RunRequest) -> None:
        put(self, request)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Requests, "put", stopped)
        session.run_async(None, {"x": np.ones((1, 3), F32)}, states=states)
    states.reset()
    for _ in range(5):
        assert np.array_equal(states.read()["c"], INITIAL["c"])
        time.sleep(0.02)
    session.run(None, {"x": np.ones((1, 3), F32)}, states=states)


def test_a_cache_of_one_size_generates_as_onnx_runtime(options) -> None:
    """A head of attention over a cache that has room for all, written at a position."""
    text = """net (float[1, 4] x, int64[1, 1] pos, float[8, 4] past_key_values.0.key)
    => (float[1, 4] y, float[8, 4] present.0.key) {
      present.0.key = ScatterND(past_key_values.0.key, pos, x)
      turned = Transpose(present.0.key)  scores = MatMul(x, turned)
      weights = Softmax(scores)  y = MatMul(weights, present.0.key)
    }"""
    model = parser.parse_model(HEAD + text.replace("key_values.0.key", "A").replace(".0.key", "B"))
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("past_A", "past_key_values.0.key")
        value.name = value.name.replace("presentB", "present.0.key")
    for node in model.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                new = {"past_A": "past_key_values.0.key", "presentB": "present.0.key"}
                names[i] = new.get(name, name)
    content = model.SerializeToString()
    name = "past_key_values.0.key"
    session = session_of(content, options)
    states = session.make_states()
    assert states.updates == {name: "present.0.key"}
    theirs = Runtime(content, states.updates, {name: np.zeros((8, 4), F32)})
    for i, x in enumerate(np.random.default_rng(0).standard_normal((8, 1, 4)).astype(F32)):
        feeds = {"x": x, "pos": np.array([[i]])}
        alike(session.run(None, feeds, states=states)[0], theirs.step(**feeds)[0])
    check(states, theirs)


NETS = {
    "a window that slides": """net (float[1, 4] x, float[5, 4] s) => (float[1, 4] y, float[5, 4] n)
    <int64[1] one = {1}, int64[1] end = {5}, int64[1] axis = {0}> {
      tail = Slice(s, one, end, axis)  n = Concat<axis = 0>(tail, x)
      m = ReduceMax<axes = [0]>(n)  y = Sub(m, x)
    }""",
    "turned around": """net (float[1, 4] x, float[4, 4] s) => (float[4, 4] y, float[4, 4] n) {
      t = Transpose(s)  n = Add(t, x)  y = MatMul(n, s)
    }""",
    "a branch by what comes": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) <float[1] zero = {0}> {
      sum = ReduceSum<keepdims = 0>(x)  z = ReduceMax<keepdims = 0>(zero)
      up = Greater(sum, z)
      n = If (up) <then_branch = a () => (float[1, 4] p) { p = Add(s, x) },
                   else_branch = b () => (float[1, 4] q) { q = Mul(s, x) }>
      y = Sub(n, s)
    }""",
    "a node of the host": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) {
      n = Add(s, x)  wide = Cast<to = 11>(n)  e = Exp(wide)  less = Cast<to = 1>(e)
      y = Add(s, less)
    }""",
    "one that is never read": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) {
      n = Exp(x)  y = Neg(x)
    }""",
    "one that stays as it is": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) {
      n = Identity(s)  y = Add(x, s)
    }""",
    "one that becomes a constant": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) <float[1, 4] c = {1, 2, 3, 4}> {
      n = Identity(c)  y = Add(x, s)
    }""",
    "one that becomes an input": """net (float[1, 4] x, float[1, 4] s)
    => (float[1, 4] y, float[1, 4] n) {
      n = Identity(x)  y = Add(x, s)
    }""",
}


@pytest.mark.parametrize("name", NETS)
def test_updates_of_many_kinds(options, name) -> None:
    content = made(NETS[name])
    session = session_of(content, options)
    shape = next(one.shape for one in session.get_inputs() if one.name == "s")
    first = {"s": np.random.default_rng(1).standard_normal(shape).astype(F32)}
    states, theirs = session.make_states({"s": "n"}, first), Runtime(content, {"s": "n"}, first)
    for i, x in enumerate(np.random.default_rng(0).standard_normal((5, 1, 4)).astype(F32)):
        before = x.copy()
        expected = theirs.step(x=before)[0]
        alike(session.run(None, {"x": x}, states=states)[0], expected)
        x[:] = 99  # the caller's own
        if i != 2:
            check(states, theirs)
    if name == "a node of the host":
        plan = states._plans.plan({"x": x})
        assert bool(plan.hosted) == (session.backend.device is not None)


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_states_are_whole_where_weights_are_not(options, precision) -> None:
    text = """net (float[1, 4] x, float[1, 4] s) => (float[1, 4] y, float[1, 4] n) {
      n = Add(s, x)  e = Tanh(n)  y = Sub(e, x)
    }"""
    session = session_of(made(text), {**options, "precision": precision})
    first = {"s": np.full((1, 4), 1.0001, F32)}
    states, theirs = session.make_states({"s": "n"}, first), Runtime(made(text), {"s": "n"}, first)
    for x in np.random.default_rng(0).standard_normal((4, 1, 4)).astype(F32):
        found = session.run(None, {"x": x}, states=states)[0]
        np.testing.assert_allclose(found, theirs.step(x=x)[0], rtol=2e-3, atol=2e-3)
    check(states, theirs)


def test_a_model_in_parts_is_refused(options) -> None:
    text = """net (float[1, 4] x, float[1, 4] s) => (float[1, 4] y, float[1, 4] n) {
      n = Add(s, x)  y = ai.onnx.ml.Normalizer<norm = "L1">(n)
    }"""
    session = session_of(made(text), options)
    states = session.make_states({"s": "n"})
    with pytest.raises(UnsupportedOpError, match="no single plan, which states need"):
        session.run(None, {"x": np.ones((1, 4), F32)}, states=states)
    assert np.array_equal(states.read()["s"], np.zeros((1, 4)))
