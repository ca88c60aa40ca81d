"""`backend="auto"`: what is measured, what is taken from then on, where nothing is measured."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.backends.opening import _shared
from glnn.compiler.backend_autotune import SOFTWARE_LAST, AutoExecutor
from glnn.compiler.executor import Executor
from glnn.errors import DeviceError, GlnnError, LimitError, ShaderError, ShapeError
from glnn.layers import Linear, ReLU
from glnn.model import Model

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TIMES = {"compute": 0.5, "feedback": 0.2, "cpu": 0.1}
COMPILING = {"compute": 0.0, "feedback": 0.0, "cpu": 0.0}
"""Seconds that the first run on a backend takes beside."""


@pytest.fixture
def model() -> Model:
    model = Model.sequential([Linear(3, 2), ReLU()], (3,), name="tiny")
    model.begin(1)
    return model


@pytest.fixture
def expected(model: Model) -> np.ndarray:
    weights = model.parameters()
    made = X.astype("f8") @ weights["linear1.weight"].T.astype("f8") + weights["linear1.bias"]
    return np.maximum(made, 0)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends that runs were done on, one after the other; by the clock each takes TIMES."""
    names: list[str] = []
    run, seconds = Executor.run, [0.0]

    def running(self: Executor, *given: object, **more: object) -> object:
        name = self.backend.name
        seconds[0] += TIMES[name] + COMPILING[name] * (name not in names)
        names.append(name)
        return run(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "run", running)
    monkeypatch.setattr(AutoExecutor.__init__, "__defaults__", (lambda: seconds[0],))
    return names


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is named, and nothing known from before."""
    for name in ("GLNN_BACKEND", "GLNN_GPU", "GLNN_LIMITS"):
        monkeypatch.delenv(name, raising=False)
    _shared.backends.clear()
    yield
    _shared.backends.clear()


@pytest.fixture
def all_open() -> None:
    """Skips where there is less to choose among."""
    try:
        open_backend("compute")
        open_backend("feedback")
    except DeviceError as error:
        pytest.skip(str(error))


needs_all = pytest.mark.usefixtures("all_open")


@needs_all
def test_the_fastest_is_taken_after_one_run_by_each(model, expected, ran, caplog) -> None:
    caplog.set_level(logging.INFO, "glnn")
    session = glnn.InferenceSession(model)
    assert session.choice is None
    for _ in range(2):
        (found,) = session.run(None, {"input": X})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    choice = session.choice
    assert choice is not None and choice.backend == session.backend.name == "cpu"
    assert choice.seconds["cpu"] == pytest.approx(0.1)
    assert set(ran) >= {"cpu", "compute"} and ran[-1] == "cpu"
    count = len(ran)
    session.run(None, {"input": X + 1})
    assert ran[count:] == ["cpu"]
    assert any("auto takes cpu: " in record.message for record in caplog.records)
    warned = [one for one in caplog.records if "software renderer" in one.message]
    assert len(warned) == (session._executor._offers.software is not None)  # type: ignore[union-attr]


@needs_all
@pytest.mark.parametrize("first", ["compute", "feedback"])
def test_what_a_driver_compiles_drops_no_backend(model, ran, monkeypatch, first) -> None:
    """Of 9 s, of which the next run takes 10 ms, and of the backend that comes after."""
    monkeypatch.setitem(COMPILING, first, 9.0)
    monkeypatch.setitem(TIMES, first, 0.01)
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    assert session.choice is not None and session.choice.backend == first, session.choice
    assert {first, "cpu"} <= set(ran)


@needs_all
def test_measuring_has_a_bound(model, ran, monkeypatch) -> None:
    """What was not begun with by then is named, with the reason."""
    monkeypatch.setattr("glnn.compiler.backend_autotune.GPU_FIRST", SOFTWARE_LAST)
    monkeypatch.setitem(COMPILING, "feedback", 25.0)
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    assert session.choice is not None and "compute" not in ran
    assert session.choice.why["compute"] == "measuring had taken 25 s by then"


@needs_all
@pytest.mark.parametrize("load", [0.1, 1.0, 4.0, 20.0])
def test_a_slow_machine_chooses_as_a_fast_one(model, ran, monkeypatch, load) -> None:
    """Runs of seconds do not use up what there is for measuring before the fastest has its turn."""
    monkeypatch.setattr("glnn.compiler.backend_autotune.GPU_FIRST", SOFTWARE_LAST)
    for name, seconds in (("cpu", 4.1), ("feedback", 1.6), ("compute", 0.7)):
        monkeypatch.setitem(TIMES, name, load * seconds)
        monkeypatch.setitem(COMPILING, name, load * 1.5)
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    choice = session.choice
    assert choice is not None and choice.backend == "compute", choice.why
    assert choice.seconds["compute"] == pytest.approx(load * 0.7)


@needs_all
def test_each_class_of_shapes_is_measured_once(model, ran) -> None:
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    TIMES["cpu"], count = 1.9, len(ran)
    try:
        session.run(None, {"input": np.ones((1000, 3), np.float32)})
        assert len(ran) > count + 2 and session.backend.name != "cpu"
        count = len(ran)
        session.run(None, {"input": np.ones((999, 3), np.float32)})  # of the same class
        session.run(None, {"input": X})  # of the first
        assert ran[count] != "cpu" and ran[count + 1 :] == ["cpu"]
    finally:
        TIMES["cpu"] = 0.1


@needs_all
def test_another_session_does_not_measure(model, ran, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    glnn.InferenceSession(model).run(None, {"input": X})
    for forget in (False, True):  # by this process, by the file
        if forget:
            _shared.backends.clear()
        count = len(ran)
        session = glnn.InferenceSession(model)
        session.run(None, {"input": X})
        assert ran[count:] == ["cpu"]
        assert session.choice is not None and session.choice.remembered
    half = glnn.InferenceSession(model, precision="float16")
    count = len(ran)
    half.run(None, {"input": X})
    assert len(ran) > count + 1  # which computes otherwise


def test_what_is_asked_for_is_not_measured(model, ran, monkeypatch) -> None:
    sessions: list[Callable[[], glnn.InferenceSession]] = [
        lambda: glnn.InferenceSession(model, "cpu"),
        lambda: glnn.InferenceSession(model, kernels={"matmul": "gemm_tiled"}),
    ]
    for session in sessions:
        with suppress(GlnnError):  # where compute does not open: feedback has no such kernel
            session().run(None, {"input": X})
        assert len(ran) <= 1
        ran.clear()
    monkeypatch.setenv("GLNN_BACKEND", "cpu")
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    assert ran == ["cpu"] and session.choice is None


@needs_all
def test_a_gpu_that_was_asked_for_is_not_replaced(model, ran, device) -> None:
    session = glnn.InferenceSession(model, device=device)
    session.run(None, {"input": X})
    assert "cpu" not in ran and session.backend.device is device


@needs_all
@pytest.mark.parametrize("software", [None, "llvmpipe"])
def test_the_cpu_is_kept_free_where_there_is_a_gpu(model, ran, monkeypatch, software) -> None:
    found = property(lambda self: software)
    monkeypatch.setattr("glnn.gl.device_info.Capabilities.software", found)
    session = glnn.InferenceSession(model, prefer="gpu")
    session.run(None, {"input": X})
    assert ("cpu" in ran) == (software is not None)


def test_preferences_are_checked(model) -> None:
    with pytest.raises(GlnnError, match="prefer must be fastest or gpu, got 'cpu'"):
        glnn.InferenceSession(model, prefer="cpu")


@needs_all
def test_what_cannot_is_passed_over(model, expected, ran, monkeypatch) -> None:
    def refused(self: Executor, feeds: object) -> None:
        if self.backend.device is not None:
            raise LimitError("too large for it")

    monkeypatch.setattr(Executor, "ready", refused)
    session = glnn.InferenceSession(model)
    (found,) = session.run(None, {"input": X})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert session.choice is not None and session.choice.why["compute"] == "too large for it"
    monkeypatch.setattr(
        Executor, "ready", lambda self, feeds: (_ for _ in ()).throw(LimitError("no"))
    )
    with pytest.raises(LimitError, match="no"):
        glnn.InferenceSession(model).run(None, {"input": np.ones((9, 3), np.float32)})


@needs_all
@pytest.mark.parametrize(("error", "kept"), [(ShaderError, 1), (DeviceError, 0), (MemoryError, 0)])
def test_what_fails_beside_an_answer_costs_no_run(
    model, expected, ran, monkeypatch, tmp_path: Path, error, kept
) -> None:
    """A device that was lost is no reason to leave it for good; a shader that it refuses is."""
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    run = Executor.run

    def failing(self: Executor, *given: object, **more: object) -> object:
        if self.backend.name == "compute":
            raise error("it broke")
        return run(self, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "run", failing)
    monkeypatch.setattr("glnn.compiler.backend_autotune.GPU_FIRST", SOFTWARE_LAST)
    session = glnn.InferenceSession(model)
    for _ in range(2):
        (found,) = session.run(None, {"input": X})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert session.choice is not None and session.choice.why["compute"] == "it broke"
    assert len(list(tmp_path.glob("fastest/*.json"))) == kept


@needs_all
@pytest.mark.parametrize("others", [False, True])
def test_times_that_others_lengthened_are_not_kept(
    model, ran, monkeypatch, tmp_path: Path, others
) -> None:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    session, ready = glnn.InferenceSession(model), Executor.ready

    def disturbed(self: Executor, feeds: object) -> None:
        if others and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=session.run, args=(None, {"input": X}))
            other.start()
            other.join(60)
        ready(self, feeds)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "ready", disturbed)
    for _ in range(2):
        session.run(None, {"input": X})
    assert session.choice is not None and not session.choice.remembered
    assert len(list(tmp_path.glob("fastest/*.json"))) == (not others)


@needs_all
def test_numbers_that_no_gpu_takes_are_the_cpu_s(monkeypatch) -> None:
    """Whatever was chosen for numbers that all take; a backend that is named refuses them."""
    onnx = pytest.importorskip("onnx")
    infos = [
        onnx.helper.make_tensor_value_info(name, number, ["n"])
        for name, number in (("ids", 7), ("y", 1))
    ]
    cast = onnx.helper.make_node("Cast", ["ids"], ["y"], to=1)
    graph = onnx.helper.make_graph([cast], "cast", infos[:1], infos[1:])
    opset = onnx.helper.make_opsetid("", 17)
    made = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    model = made.SerializeToString()
    feeds = [{"ids": np.array(numbers)} for numbers in ([2**40, 1], [3, 1])]
    monkeypatch.setitem(TIMES, "compute", 0.001)
    session = glnn.InferenceSession(model)
    for one in (*feeds, *feeds):
        (found,) = session.run(None, one)
        assert found.tolist() == one["ids"].tolist()
        (found,) = session.run_async(None, one).result(60)
        assert found.tolist() == one["ids"].tolist()
    with pytest.raises(ShapeError, match="must have int64 numbers from"):
        glnn.InferenceSession(model, "compute").run(None, feeds[0])


@needs_all
def test_the_callers_arrays_are_written_and_nothing_else(model, expected, ran) -> None:
    session = glnn.InferenceSession(model)
    out, x = np.empty((2, 2), np.float32), X.copy()
    (found,) = session.run(None, {"input": x}, out={session.model.outputs[0]: out})
    assert found is out and np.array_equal(x, X)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@needs_all
def test_requests_and_threads(model, expected, ran) -> None:
    """Whoever comes while one measures is not kept waiting for it, and nothing hangs."""
    session = glnn.InferenceSession(model, max_batch=4)
    found: list[np.ndarray] = []

    def ask() -> None:
        for _ in range(3):
            found.extend(session.run(None, {"input": X}))
            found.extend(session.run_async(None, {"input": X}).result(60))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 18
    for one in found:
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-6)


@needs_all
def test_losers_let_go_of_memory(model, ran, monkeypatch) -> None:
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    executor = session._executor
    assert isinstance(executor, AutoExecutor) and set(executor._executors) == {"cpu"}


def test_of_one_backend_nothing_is_measured(model, ran, monkeypatch) -> None:
    monkeypatch.setattr("glnn.backends.opening.NAMES", ("cpu",))
    session = glnn.InferenceSession(model)
    session.run(None, {"input": X})
    assert ran == ["cpu"] and session.choice is None


@needs_all
def test_new_plans_are_settled_where_their_device_is_held(model, ran, monkeypatch) -> None:
    """A run by a GPU may be begun where the cpu, which the run before was on, is held."""
    session = glnn.InferenceSession(model, "compute")
    inside: list[bool] = []
    executor = session._executor
    monkeypatch.setattr(executor, "settle", lambda: inside.append(held[-1]))
    held, perform = [False], executor.perform

    def performed(work):
        held.append(True)
        try:
            return perform(work)
        finally:
            held.pop()

    monkeypatch.setattr(executor, "perform", performed)
    auto = glnn.InferenceSession(model)._executor
    assert isinstance(auto, AutoExecutor)
    monkeypatch.setattr(auto, "_latest", SimpleNamespace(executor=executor))
    auto.settle()
    assert inside == [True]
