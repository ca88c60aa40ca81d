"""Reports name nobody: paths and names are taken out, whatever they look like, and no more."""

from __future__ import annotations

import getpass
import platform
from pathlib import Path

import pytest

from glnn.core.glsl import shaders_folder
from glnn.core.redaction import redact
from glnn.core.settings import describe_environment

ENVIRONMENT = {"HOME": "/home/zaphod", "USER": "zaphod", "HOSTNAME": "heart-of-gold"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have names from the environment alone, wherever the tests run."""
    monkeypatch.setattr(platform, "node", lambda: "magrathea.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "zaphod")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read /home/zaphod/a b", "cannot read (a path)"),
        ("/home/zaphod/My Models/net.onnx: cannot open", "(a path): cannot open"),
        ("/home/zaphod/my net.onnx; left out", "(a path); left out"),
        ("/home/zaphod/Doe, Jane/net.onnx: no", "(a path): no"),
        ("/srv/it's mine/net.onnx: no", "(a path): no"),
        ("/srv/Models (old)/a (1) b.onnx: no", "(a path): no"),
        ("closed (/opt/x/y.so)", "closed ((a path))"),
        ("cannot open /opt/x/y.so.", "cannot open (a path)."),
        ("'/opt/x y/z.so': no", "'(a path)': no"),
        ('got "/opt/x/y.so", expected a folder', 'got "(a path)", expected a folder'),
        ("`/opt/x: y` and 'others'", "`(a path)` and 'others'"),
        ("path=/opt/x:/home/zaphod/lib", "path=(a path)"),
        ("//server/zaphod/x: no", "(a path): no"),
        ("../zaphod/x: no, ./y: no", "(a path): no, (a path): no"),
        ("~/models/net.onnx", "(a path)"),
        ("~arthur is full", "(a path)"),
        ("~me/models, and C:\\Users\\me\\net", "(a path), and (a path)"),
        ("C:\\Users\\Jane Doe\\net.onnx: no", "(a path): no"),
        ("d:/Users/me/net.onnx: no", "(a path): no"),
        ("'C:\\\\Users\\\\me\\\\net'", "'(a path)'"),
        ("\\\\server\\Jane's share\\net.onnx: no", "(a path): no"),
        ("\\\\?\\C:\\Users\\me: no", "(a path): no"),
        ("\\Users\\me\\net.onnx: no", "(a path): no"),
        ("file:///home/me/net.onnx: no", "(a path): no"),
        ("https://me:secret@host:8000/v1: refused", "(a path): refused"),
        ("first\n/home/me/x\nlast", "first\n(a path)\nlast"),
    ],
)
def test_paths_are_taken_out(text: str, expected: str) -> None:
    assert redact(text, ENVIRONMENT) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zaphod may not", "(a name) may not"),
        ("Zaphod's lock, of ZAPHOD_1", "(a name)'s lock, of (a name)_1"),
        ("heart-of-gold: refused", "(a name): refused"),
        ("magrathea and magrathea.example.org", "(a name) and (a name)"),
        ("zaphodesque", "zaphodesque"),
    ],
)
def test_names_are_taken_out(text: str, expected: str) -> None:
    assert redact(text, ENVIRONMENT) == expected


def test_names_of_windows() -> None:
    there = {"USERPROFILE": "C:\\Users\\Ford", "USERNAME": "fprefect", "COMPUTERNAME": "GUIDE"}
    assert redact("fprefect or ford at guide", there) == "(a name) or (a name) at (a name)"


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA H200/PCIe/SSE2 by NVIDIA",
        "5 / 3 is no path, nor is 7 // 3",
        "12 GB/s, ~3 ms, 50% w/o it",
        "matmul/gemm_tiled: 3 of 4 results are wrong, as x[0] = -inf",
        "root may, and a pi board does",
        "conv2d.comp:12(3): error: 'a': undeclared",
        "\\x1b[0m is escaped",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert redact(text, {**ENVIRONMENT, "HOME": "/root", "LOGNAME": "pi"}) == text


def test_files_of_glnn_stay() -> None:
    shader = shaders_folder() / "matmul" / "gemm_tiled.comp"
    text = f"{shader}:12: error in {Path(__file__)}"
    expected = str(shader.relative_to(shaders_folder().parent))
    assert redact(text, ENVIRONMENT).startswith(f"{expected}:12: error in ")


def test_settings_are_told_without_paths_and_names() -> None:
    told = describe_environment(
        {
            **ENVIRONMENT,
            "GLNN_GPU": "0",
            "GLNN_EGL": "/home/zaphod/egl.so",
            "GLNN_CACHE": "~",
            "GLNN_KERNELS": "C:\\Users\\zaphod",
            "GLNN_GLES": "\\\\server\\zaphod",
            "MESA_LOG": "zaphod.log",
            "LIBGL_X": "a 1/b 2",
            "MESA_X": "",
        }
    )
    assert told == {
        "GLNN_CACHE": "(a path)",
        "GLNN_EGL": "(a path)",
        "GLNN_GLES": "(a path)",
        "GLNN_GPU": "0",
        "GLNN_KERNELS": "(a path)",
        "LIBGL_X": "(a path)",
        "MESA_LOG": "(a name).log",
    }
