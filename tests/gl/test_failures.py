"""Machines where GL is missing, broken or old: what the error says, what still runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

from glnn.gl import Device, NoDeviceError, gpus
from glnn.gl import egl as egl_module
from glnn.gl.context import StepError

Run = Callable[..., CompletedProcess[str]]

OPEN = """
import json, glnn.gl
from glnn.errors import DeviceError
try:
    device = glnn.gl.Device()
except DeviceError as error:
    print(json.dumps({
        "error": str(error), "attempts": [[a.what, a.step, a.error] for a in error.attempts]
    }))
else:
    found = device.capabilities
    print(json.dumps({
        "version": found.version, "compute": found.compute, "why": found.why_no_compute(),
        "groups": found.max_compute_work_group_count, "texture": found.max_texture_size,
    }))
"""
FEEDBACK = """
import json, numpy as np
from glnn.gl import Buffer, DataTexture, Device, Program, Source
from glnn.errors import GlnnError
from glnn.core.layout import parse

device = Device()
body = '''
uniform highp sampler2D data;
uniform float factor;
out highp vec4 result;
void main() {
    result = factor * texelFetch(data, ivec2(gl_VertexID & 2047, gl_VertexID >> 11), 0);
}
'''
text = device.capabilities.header("feedback") + body
origin = tuple(("x", i) for i, _ in enumerate(text.splitlines()))
program = Program.feedback(device, Source("x", text, origin), ("result",))
values = np.arange(9000, dtype=np.float32)
a = Buffer((9000,), parse("R"), capacity=4 * 2048 * 2)
b = Buffer((9000,), parse("R"))
a.set(values)
texture = DataTexture(device, 9000, "rgba32f")
texture.copy_from(a.push(device))
texture.bind(0)
program.set({"data": 0, "factor": 2})
program.capture(program.vertex_array(), 2250, 1, b.push(device))
b.mark_written()
try:
    Program.compute(device, Source("x.comp", text, origin))
    refusal = None
except GlnnError as error:
    refusal = str(error)
print(json.dumps({
    "version": device.capabilities.version, "right": bool((b.pull() == 2 * values).all()),
    "refusal": refusal,
}))
"""


def answer(result: CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_no_driver_names_each_attempt_and_its_step(python: Run) -> None:
    found = answer(python(OPEN, __EGL_VENDOR_LIBRARY_FILENAMES="/nowhere", DISPLAY=""))
    if "error" not in found:
        pytest.skip("this EGL does not dispatch to vendors")
    attempts = found["attempts"]
    assert [what for what, _, _ in attempts] == [
        "EGL device",
        "EGL surfaceless",
        "EGL default display",
        "GLFW window",
    ]
    assert all(step and error for _, step, error in attempts)
    for what, step, error in attempts:
        assert f"{what}: {step}: {error}" in found["error"]
    assert "\n" not in found["error"]
    assert "; EGL finds no driver that opens: " in found["error"]
    assert "apt install libegl1 libgles2 libgl1-mesa-dri)" in found["error"]


def test_a_driver_that_opens_too_little_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Any, version: Any) -> None:
        raise StepError("eglCreateContext", "EGL_BAD_MATCH (0x3009)")

    monkeypatch.setattr(egl_module.EglContext, "_create", refuse)
    with pytest.raises(NoDeviceError, match="eglCreateContext") as no:
        Device(platform="surfaceless")
    assert "apt install" not in str(no.value)


def test_a_driver_that_does_not_initialise(python: Run) -> None:
    found = answer(
        python(OPEN, MESA_LOADER_DRIVER_OVERRIDE="nonsense", GALLIUM_DRIVER="nonsense", DISPLAY="")
    )
    if "error" not in found:
        pytest.skip("this driver takes no overrides")
    assert any(step == "eglInitialize" and "0x3001" in e for _, step, e in found["attempts"])


def test_an_index_that_no_gpu_has_is_not_taken_for_no_driver() -> None:
    count = len(gpus())
    if not count:
        pytest.skip("EGL lists no GPUs")
    with pytest.raises(NoDeviceError) as no:
        Device(gpu=count + 6)
    assert f"no usable GPU {count + 6} (" in str(no.value)
    assert str(no.value).endswith(f"the indices are 0 to {count - 1})")


def test_no_egl_library_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("libEGL-missing.so.1", "libEGL-missing.so")
    monkeypatch.setitem(egl_module.EGL_NAMES, sys.platform, missing)
    monkeypatch.delenv("GLNN_EGL", raising=False)
    monkeypatch.delenv("GLNN_GLES", raising=False)
    with pytest.raises(NoDeviceError, match="apt install libegl1 libgles2 libgl1-mesa-dri") as no:
        Device(platform="device")
    (attempt,) = no.value.attempts
    assert attempt.step == "load EGL"
    assert all(f"{name}: cannot open" in attempt.error for name in missing)
    assert gpus() == ()


def test_the_next_way_is_tried_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpus():
        pytest.skip("EGL lists no devices here")
    real = egl_module.Egl._open

    def broken(self: Any, index: Any, platform: Any, native: Any, versions: Any) -> Any:
        if platform == egl_module.PLATFORM_DEVICE:
            raise StepError("eglInitialize", "EGL_NOT_INITIALIZED (0x3001)")
        return real(self, index, platform, native, versions)

    monkeypatch.setattr(egl_module.Egl, "_open", broken)
    try:
        device = Device()
    except NoDeviceError as error:
        pytest.skip(str(error))
    with device:
        assert device.capabilities.platform != "EGL device 0"
        first = device.attempts[0]
        assert (first.what, first.step) == ("EGL device 0", "eglInitialize")
    assert gpus()[0].error == "eglInitialize: EGL_NOT_INITIALIZED (0x3001)"


def test_es_30_refuses_compute_and_runs_feedback(python: Run) -> None:
    found = answer(python(OPEN, MESA_GLES_VERSION_OVERRIDE="3.0"))
    if found["version"] != [3, 0]:
        pytest.skip("not Mesa")
    assert not found["compute"] and "OpenGL ES 3.0" in found["why"]
    assert found["groups"] == [0, 0, 0] and found["texture"] >= 2048
    ran = answer(python(FEEDBACK, MESA_GLES_VERSION_OVERRIDE="3.0"))
    assert ran["version"] == [3, 0] and ran["right"]
    assert ran["refusal"] == f"x.comp: {found['why']}"


def test_es_31(python: Run) -> None:
    found = answer(python(OPEN, MESA_GLES_VERSION_OVERRIDE="3.1"))
    if found["version"] != [3, 1]:
        pytest.skip("not Mesa")
    assert found["compute"] and found["why"] is None
    assert answer(python(FEEDBACK, MESA_GLES_VERSION_OVERRIDE="3.1"))["right"]


def test_es_20_alone_is_no_device(python: Run) -> None:
    found = answer(python(OPEN, MESA_GLES_VERSION_OVERRIDE="2.0", DISPLAY=""))
    if "error" not in found:
        pytest.skip("not Mesa")
    assert any(step == "eglCreateContext" for _, step, _ in found["attempts"])
    assert "asked for OpenGL ES 3.2, OpenGL ES 3.1, OpenGL ES 3.0" in found["error"]
