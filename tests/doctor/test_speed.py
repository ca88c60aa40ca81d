"""What is slow: every measure is there, of right results, and the machine says no names."""

from __future__ import annotations

import getpass
import json
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glnn.core.settings import describe_environment
from glnn.doctor import report, speed
from glnn.doctor.report import advice, describe_machine, mesa
from glnn.doctor.speed import measure_speed, median_seconds
from glnn.errors import DeviceError
from glnn.gl import BufferBlock, Device
from glnn.gl.buffer import Buffer


@pytest.fixture
def small(monkeypatch) -> None:
    """Little of everything."""
    monkeypatch.setattr(speed, "IMAGE", 4)
    monkeypatch.setattr(speed, "IMAGES", (2,))
    monkeypatch.setattr(speed, "ENOUGH", 0.0)
    monkeypatch.setattr(speed, "CHAIN", 4)
    monkeypatch.setattr(speed, "ROOM", 32 << 20)


def test_all_is_measured(device, small) -> None:
    said: list[str] = []
    found = measure_speed(device, progress=said.append, sides=(8, 16), sizes=(4096, 1 << 16))
    backends = ["compute", "feedback"] if device.capabilities.compute else ["feedback"]
    assert [one.backend for one in found.launches] == backends
    assert [one.backend for one in found.compiling] == backends
    assert [one.nbytes for one in found.transfers] == [4096, 1 << 16]
    assert [(one.what, one.size) for one in found.contests] == [
        ("matmul", 8),
        ("matmul", 16),
        ("conv2d", 4),
        ("lenet", 2),
    ]
    for one in found.contests:
        assert list(one.in_all) == [*backends, "cpu"]
        assert list(one.on_device) == ([] if one.what == "lenet" else [*backends, "numpy"])
    assert found.contests[1].flops == 2 * 16 * 16 * 16
    assert found.room is not None and found.room.confirmed == found.room.tried == 32 << 20
    assert said[0] == "launches" and "products of 16" in said and said[-1] == "memory"
    told = json.loads(json.dumps(found.to_json()))
    assert _positive(told["launches"]) and _positive(told["transfers"])
    assert len(found.lines()) == 2 * len(backends) + 2 + 4 + 2
    assert advice(found)


def _positive(value) -> bool:
    if isinstance(value, dict):
        return all(map(_positive, value.values()))
    if isinstance(value, list):
        return all(map(_positive, value))
    return not isinstance(value, (int, float)) or value > 0


def test_bytes_that_come_back_otherwise_are_no_measure(device, monkeypatch) -> None:
    fetch = Buffer.fetch

    def special_values(self, out=None):
        found = fetch(self, out)
        found[-1] += 1
        return found

    monkeypatch.setattr(Buffer, "fetch", special_values)
    with pytest.raises(DeviceError, match="4096 bytes came back otherwise"):
        device.perform(lambda: speed._transfer(speed.open_backend("feedback", device), 4096))


def test_memory_that_wraps_is_not_confirmed(device, monkeypatch, small) -> None:
    """Every second piece lies where the one before it does."""
    made: list[BufferBlock] = []

    def wrapped(words, on):
        made.append(made[-1] if len(made) % 2 else BufferBlock(words, on))
        return made[-1]

    monkeypatch.setattr(speed, "BufferBlock", wrapped)
    room = device.perform(lambda: speed._room(device, False))
    assert (room.tried, room.confirmed) == (32 << 20, 16 << 20)
    assert room.fault == "what was written to piece 1 of 16 MiB came back otherwise"


def test_memory_that_runs_out_is_told(device, monkeypatch, small) -> None:
    def short(words, on):
        raise DeviceError("GL_OUT_OF_MEMORY")

    monkeypatch.setattr(speed, "BufferBlock", short)
    room = device.perform(lambda: speed._room(device, False))
    assert (room.confirmed, room.fault) == (0, "GL_OUT_OF_MEMORY")


def test_a_backend_that_is_too_slow_is_left_out(device, monkeypatch, small) -> None:
    monkeypatch.setattr(speed, "TOO_LONG", 0.0)
    monkeypatch.setattr(speed, "IMAGES", ())
    found = measure_speed(device, sides=(8, 16), sizes=())
    first, second = found.comparisons("matmul")
    gpu = {one.backend for one in found.launches}
    for one in (first, second):
        assert set(one.left_out) == gpu and one.gain is None
        assert (list(one.on_device), list(one.in_all)) == (["numpy"], ["cpu"])
    assert "not run, as too slow: " in "\n".join(found.lines())


def test_times_are_medians_of_what_is_waited_for() -> None:
    naps: Iterator[float] = iter((0.0, 0.001, 0.05, 0.002))
    found = median_seconds(lambda: time.sleep(next(naps, 0.002)))
    assert 0.002 <= found < 0.05


def test_waiting_is_what_others_take(monkeypatch) -> None:
    """A clock on the wall that goes three times as fast as the thread's."""
    clock: Iterator[float] = iter(np.arange(0, 9, 0.03))
    now = [0.0]

    def computed() -> float:
        now[0] = next(clock)
        return now[0]

    monkeypatch.setattr(speed, "thread_time", computed)
    monkeypatch.setattr(speed, "perf_counter", lambda: 3 * now[0])
    assert speed.waiting() == pytest.approx(3, rel=1e-6)


def test_the_machine_says_no_names(device, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    monkeypatch.setenv("GLNN_KERNELS", "~/kernels")
    monkeypatch.setenv("MESA_GLES_VERSION_OVERRIDE_X", "3.2")
    monkeypatch.setenv("GLNN_WAIT", "spin")
    found = describe_machine(device)
    text = "\n".join(found.lines()) + json.dumps(found.to_json())
    assert found.renderer in text and "GLNN_WAIT=spin" in text and found.processors >= 1
    assert found.environment["GLNN_CACHE"] == found.environment["GLNN_KERNELS"] == "(a path)"
    assert found.extensions == tuple(sorted(device.context.extensions))
    assert np.__version__ in text and platform.python_version() in text
    for name in (str(tmp_path), str(Path.home()) + "/", platform.node()):
        assert len(name) < 4 or name not in text
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", text)


def test_the_machine_says_where_the_driver_is_not_believed(device, monkeypatch) -> None:
    offers = device.capabilities
    assert describe_machine(device).stated == {}
    monkeypatch.setattr(device, "capabilities", replace(offers, max_texture_size=64))
    found = describe_machine(device)
    assert found.stated == {"max_texture_size": offers.max_texture_size}
    assert f"the driver states: max_texture_size {offers.max_texture_size}" in found.lines()


def test_cards_are_named_with_their_drivers(monkeypatch, tmp_path) -> None:
    dri, drm = tmp_path / "dri", tmp_path / "drm"
    for name in ("card0", "renderD128", "by-path"):
        (dri / name).mkdir(parents=True)
    (drm / "renderD128" / "device").mkdir(parents=True)
    (tmp_path / "v3d").mkdir()
    (drm / "renderD128" / "device" / "driver").symlink_to(tmp_path / "v3d")
    monkeypatch.setattr(report, "DRI", dri)
    monkeypatch.setattr(report, "DRM", drm)
    cards = [(one.name, one.driver) for one in report._cards()]
    assert cards == [("card0", None), ("renderD128", "v3d")]
    monkeypatch.setattr(report, "DRI", tmp_path / "none")
    assert list(report._cards()) == []


@pytest.mark.parametrize(
    "text, version",
    [
        ("OpenGL ES 3.2 Mesa 22.3.6", "22.3.6"),
        ("OpenGL ES 3.1 Mesa 25.0.7-2+deb13", "25.0.7-2+deb13"),
        ("OpenGL ES 3.2 NVIDIA 580.159.04", None),
    ],
)
def test_mesas_version(text, version) -> None:
    assert mesa(text) == version


def test_the_environment_is_told_without_paths() -> None:
    told = describe_environment(
        {"GLNN_GPU": "0", "GLNN_EGL": "/home/me/egl.so", "MESA_X": "", "HOME": "/home/me"}
    )
    assert told == {"GLNN_GPU": "0", "GLNN_EGL": "(a path)"}


def test_a_device_of_its_own_is_not_lowered_by_a_report() -> None:
    with Device(limits="es31-minimum") as lowest:
        assert describe_machine(lowest).stated == {}
