"""Sessions of models of which something was stored: what they load, and when they give it up."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import Shape
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.gl import Device
from glnn.gl.window import WindowContext
from glnn.layers import Linear, ReLU
from glnn.model import Model, TensorInfo
from glnn.runtime.options import Options
from glnn.runtime.runner import Runner
from glnn.session import InferenceSession
from tests.models.test_threads import GL, available, in_threads

X = np.array([[1, 2, 3], [5, 0, 1]], np.float32)
LOADED = [[0.0, 1.0], [4.5, 7.0]]  # what the model of the file gives
STORED = [[8.5, 11.0], [14.5, 17.0]]  # what was stored gives: another one, to be told apart


class Stub:
    """A stored model, and the cache that has it: plans of `model` for batches of two and one."""

    def __init__(self, model: Model, name: str, device: Device) -> None:
        self.info = replace(model.info, metadata={"author": "nobody"})
        self.backend, self.device, self.same = name, device, True
        self.asked: list[Mapping[str, Shape]] = []
        self.executor = Executor(model.graph, name, device=device)

    def find(self, source: object, options: Options) -> Stub | None:
        return self

    def writer(self, *asked: object) -> None:
        return None

    def plan(self, shapes: Mapping[str, Shape], small: bool) -> Runner | None:
        self.asked.append(shapes)
        return None if shapes["input"][0] > 2 else self.executor.plan(shapes)

    def unchanged(self) -> bool:
        return self.same


@pytest.fixture(params=GL)
def stub(request: pytest.FixtureRequest, small: Model) -> Iterator[Stub]:
    """What was stored of `small`, whose biases were larger by ten then."""
    device = Device()
    if device.capabilities.platform == WindowContext.what:
        pytest.skip("the next window would have to be opened in the main thread")
    other = Linear(3, 2)
    other.weight = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
    other.bias = np.array([10.5, 7], np.float32)
    layers = [other, small.nodes[1].layer]
    model = Model.sequential(layers, (3,), name="small", names=["affine", "relu"])
    yield Stub(model, available(request.param), device)
    device.close()


@pytest.fixture
def session(stub: Stub, saved: Path) -> InferenceSession:
    return made(stub, saved)


def made(stub: Stub, source: Path | bytes, **options: Any) -> InferenceSession:
    """A session of the model in `source`, of which `stub` is stored."""
    kind = type("Storing", (InferenceSession,), {"cache": stub})
    session: InferenceSession = kind(source, stub.backend, device=stub.device, **options)
    return session


def loaded(session: InferenceSession) -> bool:
    return session._lazy.loaded is not None


def run(session: InferenceSession, x: Any = X) -> Any:
    return session.run(None, {"input": x})[0].tolist()


def test_what_was_stored_runs_and_nothing_is_loaded(session: InferenceSession, stub: Stub) -> None:
    assert [info.name for info in session.get_inputs()] == ["input"]
    assert session.get_outputs() == [TensorInfo("relu", ("N", 2))]
    assert (session.name, session.metadata) == ("small", {"author": "nobody"})
    assert run(session) == STORED and run(session) == STORED
    out = np.zeros((2, 2), np.float32)
    assert session.run(["relu"], {"input": X}, out={"relu": out})[0] is out
    assert out.tolist() == STORED
    futures = [session.run_async(None, {"input": X[i:]}) for i in (0, 1, 0)]
    assert [future.result(60)[0].tolist() for future in futures] == [STORED, STORED[1:], STORED]
    assert session.hosted == ()
    with pytest.raises(ShapeError, match="missing input 'input': small takes 'input'"):
        session.run(None, {})
    with pytest.raises(ModelError, match="unknown output 'affine': small has 'relu'"):
        session.run(["affine"], {"input": X})
    assert session.backend.name == stub.backend and session.backend.device is stub.device
    assert not loaded(session)
    assert stub.asked == [{"input": (2, 3)}, {"input": (1, 3)}]  # once for each shape


@pytest.mark.parametrize("needs", ["model", "plan", "intermediates", "another shape"])
def test_what_needs_the_model_loads_it_and_leaves_what_was_stored(
    session: InferenceSession, needs: str
) -> None:
    assert run(session) == STORED
    if needs == "model":
        layer: Any = session.model.nodes[0].layer
        layer.bias = np.array([1.5, -3], np.float32)
        assert run(session) == [[0, 1], [5.5, 7]]
        return
    if needs == "plan":
        assert len(session.plan({"input": (2, 3)}).steps) > 0
    elif needs == "intermediates":
        assert session.intermediates({"input": X}, ["relu"])["relu"].tolist() == LOADED
    else:
        assert run(session, np.concatenate([X, X])) == LOADED + LOADED
    assert loaded(session)
    assert run(session) == LOADED
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == LOADED


def test_a_request_of_another_shape_loads_the_model(session: InferenceSession) -> None:
    asked = [X, np.concatenate([X, X]), X]
    futures = [session.run_async(None, {"input": x}) for x in asked]
    found = [future.result(60)[0].tolist() for future in futures]
    assert found == [STORED, LOADED + LOADED, LOADED]


def test_requests_are_joined(stub: Stub, saved: Path) -> None:
    session = made(stub, saved, max_batch=2)
    futures = [session.run_async(None, {"input": X[i : i + 1]}) for i in (0, 1, 0, 1)]
    assert [future.result(60)[0].tolist()[0] for future in futures] == STORED + STORED


def test_a_model_that_was_changed_meanwhile(session: InferenceSession, stub: Stub) -> None:
    stub.same = False
    assert run(session) == STORED
    for _ in range(2):
        with pytest.raises(ModelError, match=r"small.json was changed while a session used what"):
            run(session, X[[0, 0, 0]])
    assert run(session) == STORED  # of which the session is made


def test_a_model_that_is_gone(session: InferenceSession, saved: Path) -> None:
    saved.unlink()
    with pytest.raises(ModelError, match=r"small\.json"):
        _ = session.model
    assert run(session) == STORED and not loaded(session)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_plan_that_gl_refuses(stub: Stub, saved: Path, monkeypatch, asynchronous: bool) -> None:
    """The session runs the model, and what was stored is not asked for again."""
    session, refused = made(stub, saved), []
    monkeypatch.setattr(Stub, "refuse", lambda self: refused.append(self), raising=False)

    def fails(*given: object) -> Any:
        raise DeviceError("copies: GL_INVALID_OPERATION")

    monkeypatch.setattr(stub.executor.plan({"input": (2, 3)}), "_begin_run", fails)
    for _ in range(2):
        if asynchronous:
            assert session.run_async(None, {"input": X}).result(60)[0].tolist() == LOADED
        else:
            assert run(session) == LOADED
    assert refused == [stub]


def test_who_may_not_use_the_device_refuses_nothing(
    session: InferenceSession, stub: Stub, monkeypatch
) -> None:
    refused: list[Stub] = []
    monkeypatch.setattr(Stub, "refuse", lambda self: refused.append(self), raising=False)

    def fails(work: object) -> Any:
        raise DeviceError("this process is a fork")

    assert run(session) == STORED
    with monkeypatch.context() as patch:
        patch.setattr(stub.device, "perform", fails)
        with pytest.raises(DeviceError, match="fork"):
            run(session)
    assert not refused and not loaded(session)
    assert run(session) == STORED


def test_new_plans_of_requests_are_kept(session: InferenceSession, stub: Stub) -> None:
    """Or are seen not to be, and their weights held no longer: by whatever runs the model."""
    stub.device.debug = False  # with which nothing is
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == STORED
    executor: Any = session._lazy.load().executor
    executor.save_by(None)
    session.run_async(None, {"input": np.concatenate([X, X])}).result(60)
    assert not executor.saving.waiting


def test_bytes_are_kept_until_they_are_needed(stub: Stub, tmp_path: Path) -> None:
    Model.sequential([ReLU()], (3,)).save(tmp_path / "relu.json")
    session = made(stub, (tmp_path / "relu.json").read_bytes())
    assert run(session) == STORED
    assert session.model.outputs == ("relu1",)


def test_a_lost_device(session: InferenceSession, stub: Stub, caplog) -> None:
    assert run(session) == STORED
    stub.device._reset_status = lambda: 0x8254
    with pytest.raises(DeviceError, match=r"was reset by its driver \(innocent\)"):
        run(session)
    with caplog.at_level(logging.WARNING, "glnn"):
        assert run(session) == LOADED
    assert "reset by its driver" in caplog.text
    fresh = session.backend.device
    assert fresh is stub.device.reopen() and session.backend.name == stub.backend
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == LOADED
    fresh.close()


def test_a_lost_device_that_requests_find(session: InferenceSession, stub: Stub) -> None:
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == STORED
    stub.device._reset_status = lambda: 0x8254
    with pytest.raises(DeviceError, match="was reset by its driver"):
        session.run_async(None, {"input": X}).result(60)
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == LOADED
    stub.device.reopen().close()


def test_threads_that_load_it_at_once(session: InferenceSession, stub: Stub) -> None:
    shapes = [X, np.concatenate([X, X])] * 3
    found = in_threads(lambda i: run(session, shapes[i]), len(shapes))
    for x, result in zip(shapes, found, strict=True):
        assert result in ([LOADED + LOADED] if len(x) == 4 else [STORED, LOADED])
    assert run(session) == LOADED


def test_a_session_ends_with_its_last_reference(stub: Stub, saved: Path) -> None:
    session = made(stub, saved)
    assert session.run_async(None, {"input": X}).result(60)[0].tolist() == STORED
    gone = weakref.ref(session._runs)
    gc.disable()
    try:
        del session
        assert gone() is None  # without the collector: no circle keeps device memory
    finally:
        gc.enable()


ALONE = """
import sys
import numpy as np
from glnn.gl.device import SHARED
from glnn.core.layout.layout import DENSE
from glnn.gl.command_buffer import CommandBuffer
from glnn.runtime.buffer_set import Resources
from glnn.runtime.executable import Block, Executable, Input, IOSpec, Output, TensorSlot
from glnn.runtime.runner import Runner
from glnn.runtime.store import OnDevice
from glnn.session import InferenceSession
from glnn.core.tensor_info import ModelInfo, TensorInfo
from glnn.core.types import DType

F = DType.float32

def plan(device):
    io = IOSpec((Input("x", F, (2, 3), F),),
                (Output("y", F, (2, 3)), Output("c", DType.int64, (1,), fixed=True)))
    x = TensorSlot("x", (2, 3), F, DENSE, 16, 0, "x", None)
    nothing = CommandBuffer((), (), (), (), ())
    executable = Executable("copies", "compute", (), (), (), (Block((16,), "shared", True),), (),
                            nothing, io, {"x": x}, {"y": "x"}, 64)
    resources = Resources(device, (), (), lambda: None)
    fixed = {"c": np.array([7])}
    return Runner(executable, OnDevice(device), resources, (),
                  fixed=lambda name, buffers: fixed[name].copy(), nbytes=64)

class Stored:
    backend = "compute"
    info = ModelInfo("copies", (TensorInfo("x", (2, 3)),),
                     (TensorInfo("y", (2, 3)), TensorInfo("c", (1,), "tensor(int64)")), {})
    def __init__(self):
        self.device = SHARED.open()
    def find(self, source, options):
        return self
    def plan(self, shapes, small):
        return plan(self.device)

class Session(InferenceSession):
    cache = Stored()

session = Session("no such model.onnx")
x = np.arange(6, dtype=np.float32).reshape(2, 3)
y, c = session.run(None, {"x": x})
assert y is not x and (y == x).all() and c.tolist() == [7] and c.dtype == np.int64
futures = [session.run_async(["y"], {"x": x + i}) for i in range(4)]
assert [f.result(60)[0][0, 0] for f in futures] == [0, 1, 2, 3]
heavy = ("graph", "kernels", "backends", "compile", "layers", "onnx", "model", "training", "cli")
there = [f"glnn.{part}" for part in heavy] + ["onnx", "rich", "click", "glnn.data"]
print([name for name in there if name in sys.modules])
"""


def test_what_reads_models_and_plans_them_is_not_imported(python) -> None:
    done = python(ALONE)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
