"""A thousand runs leave nothing behind."""

from __future__ import annotations

import ctypes
import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import DeviceError
from glnn.gl import Device

MEGABYTE = 1 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def objects(device: Device) -> dict[str, int]:
    """How many objects of each kind GL holds, by asking for each name."""
    device.activate()
    count = {}
    for kind in ("Buffer", "Texture", "Program", "Shader", "VertexArray", "Query"):
        exists = device.load(f"glIs{kind}", ctypes.c_ubyte, ctypes.c_uint)
        count[kind] = sum(exists(name) for name in range(1, 4096))
    return count


def growth(backend: str, runs: int) -> tuple[dict[str, int], dict[str, int], int] | None:
    """GL's objects before and after `runs` runs, and by how many bytes the process has grown.

    None where the backend does not open.
    """
    with Device() as device:
        try:
            session = glnn.InferenceSession("lenet", backend, device=device)
        except DeviceError:
            return None
        x = np.zeros((1, 1, 28, 28), np.float32)
        for _ in range(100):
            session.run(None, {"input": x})
        held, memory = objects(device), resident()
        for _ in range(runs):
            session.run(None, {"input": x})
        gc.collect()
        return held, objects(device), resident() - memory


@pytest.mark.parametrize(("backend", "runs"), [("compute", 1000), ("feedback", 1000)])
def test_runs_of_a_session_do_not_grow(backend, runs) -> None:
    """In a process of its own: what other tests left behind may grow or shrink meanwhile."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        found = processes.submit(growth, backend, runs).result()
    if found is None:
        pytest.skip(f"{backend} does not open")
    held, after, grown = found
    assert after == held
    assert grown < MEGABYTE


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_sessions_that_are_dropped_free_their_objects(backend) -> None:
    model = glnn.load("lenet")
    with Device() as device:
        held = []
        for batch in range(9, 29, 4):  # the same kernels for all of them
            try:
                session = glnn.InferenceSession(model, backend, device=device)
            except DeviceError as error:
                pytest.skip(str(error))
            session.run(None, {"input": np.zeros((batch, 1, 28, 28), np.float32)})
            del session
            gc.collect()
            held.append(objects(device))
        assert held[-1] == held[0]
