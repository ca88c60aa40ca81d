"""Hidden windows, where EGL gives nothing. Each test runs in a process of its own, under Xvfb."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

Run = Callable[..., CompletedProcess[str]]

NO_EGL = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"}
START = """
import json, threading, numpy as np
from glnn.gl import Attempt, Buffer, DataTexture, Device, NoDeviceError, Program, Source
from glnn.core.layout import parse

def source(device, stage, body):
    text = device.capabilities.header(stage) + body
    return Source(stage, text, tuple((stage, i) for i, _ in enumerate(text.splitlines())))

def feedback(device):
    body = "uniform highp sampler2D data; out highp vec4 result;"
    body += "void main() { result = 2.0 * texelFetch(data, ivec2(gl_VertexID, 0), 0); }"
    program = Program.feedback(device, source(device, "feedback", body), ("result",))
    a, b = Buffer((8,), parse("R")), Buffer((8,), parse("R"))
    a.set(np.arange(8, dtype=np.float32))
    texture = DataTexture(device, 8, "rgba32f")
    texture.copy_from(a.push(device))
    texture.bind(0)
    program.set({"data": 0})
    program.capture(program.vertex_array(), 2, 1, b.push(device))
    b.mark_written()
    return b.pull().tolist() == [2.0 * i for i in range(8)]

def compute(device):
    body = "layout(local_size_x = 8) in; layout(std430, binding = 0) buffer A { float a[]; };"
    body += "void main() { a[gl_GlobalInvocationID.x] *= 2.0; }"
    program = Program.compute(device, source(device, "compute", body))
    a = Buffer((8,), parse("R"))
    a.set(np.arange(8, dtype=np.float32))
    a.push(device).bind_to_storage_buffer(0)
    program.dispatch((1, 1, 1))
    device.barrier()
    a.mark_written()
    return a.pull().tolist() == [2.0 * i for i in range(8)]

def report(device, **more):
    found = device.capabilities
    print(json.dumps({
        "platform": found.platform, "api": found.api, "version": found.version,
        "compute": compute(device) if found.compute else None, "feedback": feedback(device),
        "attempts": [a.what for a in device.attempts], **more,
    }))
"""


def answer(result: CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_window_where_egl_gives_nothing(python: Run, display: str) -> None:
    found = answer(python(START + "report(Device())", DISPLAY=display, **NO_EGL))
    if found["platform"].startswith("EGL"):
        pytest.skip("this EGL does not dispatch to vendors")
    assert found["platform"] == "GLFW window"
    assert found["compute"] is not False and found["feedback"]
    assert "EGL default display" in found["attempts"]


def test_desktop_gl_33_has_feedback_only(python: Run, display: str) -> None:
    environment = {"MESA_GL_VERSION_OVERRIDE": "3.3", "MESA_GLES_VERSION_OVERRIDE": "3.0"}
    code = START + "report(Device(platform='window'))"
    found = answer(python(code, DISPLAY=display, **environment))
    if found["version"] != [3, 3]:
        pytest.skip("not Mesa")
    assert found["api"] == "gl" and found["feedback"] and found["compute"] is None


def test_a_window_prefers_es_with_compute_to_gl_without(python: Run, display: str) -> None:
    code = START + "report(Device(platform='window'))"
    found = answer(python(code, DISPLAY=display, MESA_GL_VERSION_OVERRIDE="3.3"))
    if found["version"] == [3, 3]:
        pytest.skip("no OpenGL ES by way of the window system")
    assert found["api"] == "es" and found["compute"] and found["feedback"]


def test_windows_and_egl_in_one_process(python: Run, display: str) -> None:
    code = (
        START
        + """
devices = [Device(), Device(platform="window"), Device(), Device(platform="window")]
right = []
for _ in range(3):
    for device in devices:
        device.activate()
        right.append(feedback(device))
        right.append(compute(device) if device.capabilities.compute else True)
devices[1].close()
for device in (devices[0], devices[3], devices[2]):
    device.activate()
    right.append(feedback(device))
devices[3].close()
devices[0].activate()
report(devices[0], right=all(right), closed=devices[1].closed)
"""
    )
    found = answer(python(code, DISPLAY=display))
    assert found["right"] and found["closed"] and found["platform"].startswith("EGL")


def test_a_window_wants_the_main_thread(python: Run, display: str) -> None:
    code = (
        START
        + """
def work():
    try:
        Device(platform="window")
    except NoDeviceError as error:
        print(json.dumps(str(error)))
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    )
    assert "main thread" in answer(python(code, DISPLAY=display))


@pytest.mark.parametrize("end", ["window.close()", "del window", "pass"])
def test_threads_use_a_window(python: Run, display: str, end: str) -> None:
    code = (
        START
        + f"""
window, egl = Device(platform="window"), Device()
right = []
def work():
    for device in (window, egl):
        right.append(device.perform(lambda: feedback(device)))
work()
for _ in range(4):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
work()
del work
{end}
if not {end!r}.startswith("pass"):
    with Device(platform="window") as another:
        right.append(another.perform(lambda: feedback(another)))
report(Device(), right=right, threads=threading.active_count())
"""
    )
    found = answer(python(code, DISPLAY=display))
    assert found["right"] == [True] * len(found["right"]) and len(found["right"]) > 11
    assert found["threads"] == (3 if end == "pass" else 2)


def test_exit_without_closing_the_window(python: Run, display: str) -> None:
    code = START + "device = Device(platform='window'); print(json.dumps(feedback(device)))"
    result = python(code, DISPLAY=display)
    assert answer(result) is True and result.stderr == ""


def test_no_window_system(python: Run) -> None:
    code = (
        START
        + """
try:
    Device(platform="window")
except NoDeviceError as error:
    print(json.dumps([error.attempts[0].step, error.attempts[0].error]))
"""
    )
    step, error = answer(python(code, DISPLAY="", WAYLAND_DISPLAY=""))
    assert step == "glfwInit" and error
