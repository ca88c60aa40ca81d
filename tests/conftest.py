"""Devices and helpers that tests of several folders share."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

os.environ["GLNN_DEBUG"] = "1"  # GL is asked for errors after every step
os.environ["GLNN_CACHE"] = ""  # what the user tuned is not what is tested
os.environ["GLNN_BACKEND"] = "compute,feedback,cpu"  # the first that opens: nothing is measured
os.environ.pop("COLUMNS", None)  # of pytest-xdist's workers: tables are as wide as they need be
os.environ.setdefault("GLNN_TRUST", "1")  # the tests themselves hold every kernel against NumPy

import glnn.gl
from glnn.gl import BufferBlock, Device, Program

# A slow machine is no failure, nor is chance; `make check-exhaustive` looks for other examples.
settings.register_profile("glnn", deadline=None, derandomize=not os.environ.get("GLNN_EXHAUSTIVE"))
settings.load_profile("glnn")

Run = Callable[..., subprocess.CompletedProcess[str]]
NO_GL = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
"""The environment of a process that finds no GL, whatever EGL the tests have."""
NO_GL |= {"GLNN_EGL": "/nonexistent"} if os.environ.get("GLNN_EGL") else {}


def pytest_collection_finish() -> None:
    """Tens of thousands of tests are no garbage, and nothing looks through them again for it."""
    gc.freeze()


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The first device that opens; shared: leave it open."""
    with Device() as opened:
        yield opened


@pytest.fixture(scope="session")
def minimum_device() -> Iterator[Device]:
    """A device with the limits that OpenGL ES 3.1 guarantees; shared: leave it open."""
    with Device(limits="es31-minimum") as opened:
        yield opened


@pytest.fixture(scope="session")
def python() -> Run:
    """Runs Python code in a process of its own, with more in its environment."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        package = str(Path(glnn.gl.__file__).parents[2])  # the one under test
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """An X display without a screen, for DISPLAY; skips where Xvfb is not installed."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed")
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "64x64x24", "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    try:
        with os.fdopen(read) as numbers:
            number = numbers.readline().strip()
        if not number:
            pytest.skip("Xvfb does not start")
        yield f":{number}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def rng() -> Callable[[tuple[int, ...]], NDArray[np.float32]]:
    """Makes arrays of standard normal float32 numbers, the same in every run of a test."""
    generator = np.random.default_rng(2026)
    return lambda shape: generator.standard_normal(shape, dtype=np.float32)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that tensors share holds NaN before anything is computed."""
    start = BufferBlock.__init__

    def poison(self: BufferBlock, *arguments: Any) -> None:
        start(self, *arguments)
        self.device.write_buffer(self.copy, np.full(self.size, np.nan, np.float32))

    monkeypatch.setattr(BufferBlock, "__init__", poison)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled."""
    texts: list[str] = []
    compute, feedback = Program.compute, Program.feedback

    def computing(device, source):
        texts.append(source.text)
        return compute(device, source)

    def capturing(device, source, captured):
        texts.append(source.text)
        return feedback(device, source, captured)

    monkeypatch.setattr(Program, "compute", computing)
    monkeypatch.setattr(Program, "feedback", capturing)
    return texts
