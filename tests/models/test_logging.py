"""What glnn logs by the standard library's logging, and that nothing is printed unasked."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

from glnn.backends import NAMES, open_backend
from glnn.errors import DeviceError
from glnn.gl import Device
from glnn.model import Model
from glnn.session import InferenceSession

GL = ("compute", "feedback")


def logged(caplog, name: str, level: int = logging.DEBUG) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == f"glnn.{name}" and record.levelno == level
    ]


@pytest.fixture(params=NAMES)
def session(request, small: Model, monkeypatch) -> InferenceSession:
    """One on a device of its own, which has compiled and examined nothing."""
    monkeypatch.setenv("GLNN_CACHE", "")
    monkeypatch.setenv("GLNN_TRUST", "")
    try:
        device = None if request.param == "cpu" else Device()
        if device is not None:
            open_backend(request.param, device)
    except DeviceError as closed:
        pytest.skip(str(closed))
    return InferenceSession(small, request.param, device=device)


def test_nothing_is_printed_unasked() -> None:
    code = "import glnn, logging; logging.getLogger('glnn.session').critical('unasked')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_session(session: InferenceSession, caplog) -> None:
    caplog.set_level(logging.DEBUG, "glnn")
    name, x = session.backend.name, np.ones((2, 3), np.float32)
    for _ in range(2):
        session.run(None, {"input": x})
    (planned,) = logged(caplog, "compiler.plan", logging.INFO)
    assert planned.startswith(f"planned small for input (2, 3) on {name}: ")
    nbytes = session.plan({"input": (2, 3)}).nbytes
    assert f" {len(session.plan({'input': (2, 3)}).steps)} steps, {nbytes} bytes, " in planned
    weights = logged(caplog, "compiler.weights")
    assert any(line.startswith("uploaded affine.weight as ") for line in weights)
    assert any(line.endswith("affine.bias as R, 8 bytes") for line in weights)
    runs = logged(caplog, "session")
    assert len(runs) == 2 and all(line.startswith(f"ran small on {name} in ") for line in runs)
    if name in GL:
        assert any(" matmul/" in line for line in logged(caplog, "backends.programs"))
        assert any(line.startswith("matmul of {") for line in logged(caplog, "backends.gl"))
        seen = logged(caplog, "validation.examination", logging.INFO)
        assert any(line.startswith("examined matmul/") for line in seen)
    layer = session.model.nodes[0].layer
    layer.bias = np.zeros(2, np.float32)
    caplog.clear()
    session.run(None, {"input": x})
    assert logged(caplog, "compiler.weights") == ["uploaded affine.bias anew, 8 bytes"]


def test_info_tells_of_no_run(session: InferenceSession, caplog) -> None:
    caplog.set_level(logging.INFO, "glnn")
    session.run(None, {"input": np.ones((2, 3), np.float32)})
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_device_is_opened_lost_and_renewed(small: Model, caplog) -> None:
    caplog.set_level(logging.INFO, "glnn")
    session, x = InferenceSession(small, "feedback", device=Device()), np.ones((1, 3), np.float32)
    device = session.backend.device
    assert device is not None
    (opened,) = logged(caplog, "gl.device_selection", logging.INFO)
    assert opened.startswith(f"opened {device.capabilities.renderer}, ")
    for attempt in device.attempts:
        assert f"this had failed: {attempt}" in opened
    session.run(None, {"input": x})
    device._reset_status = lambda: 0x8254
    with pytest.raises(DeviceError):
        device.check_reset("step")
    session.run(None, {"input": x})
    assert len(logged(caplog, "gl.device_selection", logging.INFO)) == 2
    (renewed,) = logged(caplog, "compiler.executor", logging.WARNING)
    assert renewed == f"{device.lost}; renewed: {session.backend.device}"
