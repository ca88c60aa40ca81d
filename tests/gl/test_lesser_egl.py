"""What a vendor's EGL may lack: glnn does without, or `glnn info` names step and lack.

The EGL here is the system's with parts hidden: see lesser_egl.c.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glnn.gl import egl as egl_module
from glnn.gl.context import StepError

SOURCE = Path(__file__).with_name("lesser_egl.c")
NO_PLATFORM = "EGL_EXT_platform_device EGL_MESA_platform_surfaceless"
OLD = "1.5 EGL_KHR_create_context"
Build = Callable[..., str]
Lesser = Callable[..., Any]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the lesser EGL with these options of the C compiler, and says where it lies."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler")

    def made(*options: str) -> str:
        path = str(tmp_path_factory.mktemp("egl") / "libvendor.so")
        command = [compiler, "-shared", "-fPIC", *options, "-o", path, str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        return path

    return made


@pytest.fixture(scope="module")
def lesser(build: Build) -> Lesser:
    """Runs `glnn info --json`, or another program, with an EGL that lacks these."""
    path = build()

    def run(lacks: str, *command: str, **more: str) -> Any:
        environment = {"DISPLAY": "", "EGL_PLATFORM": "surfaceless", "GLNN_EGL": path}
        environment |= {"GLNN_GLES": "", **more}
        done = subprocess.run(
            [sys.executable, "-m", "glnn", *(command or ("info", "--json"))],
            env={**os.environ, "LESSER_EGL": lacks, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    if run("")["device"] is None:
        pytest.skip("no EGL of the system's")
    if "Mesa" not in run("")["device"]["version"]:
        pytest.skip("not Mesa")
    return run


@pytest.mark.parametrize(
    "lacks",
    [
        "EGL_KHR_surfaceless_context",
        "EGL_KHR_no_config_context",
        "EGL_KHR_no_config_context pbuffer",
        "1.5",
        OLD,
        "functions",
        f"{OLD} {NO_PLATFORM} functions EGL_KHR_surfaceless_context EGL_KHR_no_config_context",
    ],
)
def test_it_does_without(lesser: Lesser, lacks: str) -> None:
    found = lesser(lacks)
    assert found["device"]["api"] == "es"
    assert all(state["ok"] for state in found["backends"].values())


def test_the_oldest_egl_runs_a_model(lesser: Lesser) -> None:
    lacks = f"{OLD} {NO_PLATFORM} functions EGL_KHR_surfaceless_context EGL_KHR_no_config_context"
    assert lesser(lacks, "run", "lenet", "--json")["accuracy"] == pytest.approx(0.991, abs=0.001)


@pytest.mark.parametrize(
    ("lacks", "step", "says"),
    [
        ("EGL_KHR_no_config_context es3", "eglChooseConfig", "no config has EGL_OPENGL_ES3_BIT"),
        (
            "EGL_KHR_surfaceless_context pbuffer",
            "eglChooseConfig",
            "no config has EGL_OPENGL_ES3_BIT and EGL_PBUFFER_BIT "
            "(there is no EGL_KHR_surfaceless_context)",
        ),
        ("es", "eglBindAPI", "this EGL knows no OpenGL ES: EGL_BAD_PARAMETER (0x300c)"),
        (f"{NO_PLATFORM} display", "eglGetDisplay", "no display: EGL_SUCCESS"),
        *(
            (f"{NO_PLATFORM} es", "eglGetPlatformDisplayEXT", f"this EGL has no {name}")
            for name in NO_PLATFORM.split()
        ),
        (
            "EGL_EXT_device_base EGL_EXT_device_enumeration es",
            "eglQueryDevicesEXT",
            "this EGL has no EGL_EXT_device_enumeration",
        ),
    ],
)
def test_what_is_missing_is_named(lesser: Lesser, lacks: str, step: str, says: str) -> None:
    attempts = lesser(lacks)["attempts"]
    assert any(a["step"] == step and a["error"].startswith(says) for a in attempts), attempts


def test_a_gl_es_library_that_is_not_there(lesser: Lesser) -> None:
    found = lesser("functions", GLNN_GLES="/nowhere/libGLESv2.so")
    (first, *_) = found["attempts"]
    assert found["device"] is None
    assert (first["what"], first["step"]) == ("EGL", "load GLNN_GLES")
    assert first["error"].startswith("/nowhere/libGLESv2.so: cannot open shared object file")


CUDA = """
import json
from glnn.gl import Device, gpus
from glnn.errors import DeviceError

def opened(gpu):
    try:
        with Device(gpu) as device:
            return device.capabilities.platform
    except DeviceError as error:
        return str(error)

asked = (None, 0, 1, "cuda:0", "CUDA:1", "cuda:2", "cuda:", "cuda:-1", "cuda:0x")
print(json.dumps([[g.cuda for g in gpus()], [opened(gpu) for gpu in asked]]))
"""


@pytest.mark.usefixtures("lesser")
def test_a_gpu_by_the_number_that_cuda_gives_it(build: Build, python: Any) -> None:
    done = python(CUDA, TWO_CUDA="1", GLNN_EGL=build(), GLNN_GLES="", DISPLAY="")
    assert done.returncode == 0, done.stderr
    numbers, (first, zero, one, cuda_0, cuda_1, cuda_2, *wrong) = json.loads(done.stdout)
    assert numbers == [1, 0]
    assert (first, zero, one) == ("EGL device 0", "EGL device 0", "EGL device 1")
    assert (cuda_0, cuda_1) == ("EGL device 1", "EGL device 0")
    assert cuda_2.endswith(
        "no device has CUDA's number 2: there are cuda:1 (EGL device 0), cuda:0 (EGL device 1))"
    )
    assert all(said.startswith("gpu: expected cuda: and a number") for said in wrong)


@pytest.mark.usefixtures("lesser")
def test_gl_without_functions_is_not_called(build: Build, python: Any) -> None:
    code = """
import sys, glnn.gl
from glnn.gl import egl as egl_module
egl_module.GLES_NAMES[sys.platform] = ("libGLES-missing.so",)
try:
    glnn.gl.Device()
except glnn.errors.DeviceError as error:
    print(error)
"""
    done = python(code, LESSER_EGL="functions", GLNN_EGL=build(), GLNN_GLES="", DISPLAY="")
    assert done.returncode == 0, done.stderr
    assert "eglGetProcAddress: no glGetString, and no GL ES library: libGLES-missing" in done.stdout


def test_a_library_without_a_function_of_egl(build: Build) -> None:
    path = build("-DNO_CREATE_CONTEXT")
    with pytest.raises(StepError, match="it has no eglCreateContext") as failed:
        egl_module.load_egl(path, ["eglGetError", "eglCreateContext"])
    assert failed.value.step == "load GLNN_EGL"


def test_names_are_tried_in_turn(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("libEGL-missing.so.1", build("-DNO_CREATE_CONTEXT"), build())
    monkeypatch.setitem(egl_module.EGL_NAMES, sys.platform, names)
    assert egl_module.load_egl(None, ["eglCreateContext"])._name == names[2]
    with pytest.raises(StepError) as failed:
        egl_module.load_egl(None, ["eglMissing"])
    assert all(name in failed.value.error for name in names)


@pytest.mark.parametrize("what", ["nothing", "a folder", "text"])
def test_a_path_that_is_no_library(tmp_path: Path, what: str) -> None:
    path = tmp_path / "libEGL.so"
    if what == "a folder":
        path.mkdir()
    elif what == "text":
        path.write_text("libEGL.so.1\n")
    with pytest.raises(StepError) as failed:
        egl_module.load_egl(str(path), ())
    assert str(failed.value).startswith(f"load GLNN_EGL: {path}: ")
    assert "libEGL.so.1" not in failed.value.error.replace(str(path), "")


def test_vendors_names() -> None:
    assert egl_module.EGL_NAMES["linux"][:2] == ("libEGL.so.1", "libEGL.so")
    assert egl_module.GLES_NAMES["linux"][:2] == ("libGLESv2.so.2", "libGLESv2.so")
    assert "/system/lib64/libEGL.so" in egl_module.EGL_NAMES["linux"]
