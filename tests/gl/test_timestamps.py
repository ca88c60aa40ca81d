"""The device's time at points among its commands."""

from __future__ import annotations

import dataclasses

import pytest

from glnn.errors import DeviceError
from glnn.gl import Device, Timestamps
from tests.conftest import Run

SOFTPIPE = {"LIBGL_ALWAYS_SOFTWARE": "1", "GALLIUM_DRIVER": "softpipe"}
AGREE = """
import numpy as np, glnn
from glnn.profiling import Trace
from tests.trace_files import check
for name in ("compute", "feedback"):
    session = glnn.InferenceSession("lenet", name)
    x = np.ones((2, 1, 28, 28), np.float32)
    plan = session.plan({"input": x.shape})
    for _ in range(5):  # the machine may be busy
        trace = Trace()
        trace.run(plan, {"input": x})
        check(document := trace.to_json())
        if "timestamps'" in str(document).replace('"', "'"):
            break
    print(session.backend.device.capabilities.renderer, document["otherData"]["plans"])
"""


def test_points_follow_each_other(device: Device) -> None:
    try:
        stamps = device.perform(lambda: Timestamps(device, 3))
    except DeviceError as none:
        pytest.skip(str(none))

    def asked() -> tuple[list[float], float]:
        for point in range(3):
            stamps.mark(point)
        device.finish()
        now = stamps.since_first()
        return stamps.read(3), now

    for _ in range(2):
        points, now = device.perform(asked)
        assert points == sorted(points) and points[0] == 0 and points[-1] <= now < 60
    device.perform(stamps.release)


def test_a_driver_without_a_timer() -> None:
    with Device() as own:
        own.capabilities = dataclasses.replace(own.capabilities, timer_query=False)
        with pytest.raises(DeviceError, match="has no timer query"):
            Timestamps(own, 1)


def test_a_driver_without_timestamps(monkeypatch) -> None:
    """It has the functions, and counts with no bits."""
    with Device() as own:
        own.capabilities = dataclasses.replace(own.capabilities, timer_query=True)
        monkeypatch.setattr(Device, "load", lambda *arguments: lambda *arguments: None)
        with pytest.raises(DeviceError, match="has no timestamps"):
            Timestamps(own, 1)


def test_a_driver_that_does_as_it_is_told(python: Run) -> None:
    """softpipe computes while it is asked to, and knows the time: it is believed."""
    done = python(AGREE, **SOFTPIPE)
    if not done.stdout.startswith("softpipe"):
        pytest.skip(f"no softpipe here: {done.stdout}{done.stderr[-300:]}")
    assert done.stdout.count("{'clock of the steps': \"the device's timestamps\"") == 2
