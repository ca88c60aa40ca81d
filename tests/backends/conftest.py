"""The GL backends, each on the device as it is and at the limits that ES 3.1 guarantees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from glnn.backends.gl import GlBackend
from glnn.device import Device
from tests.backends.harness import BACKENDS

Opened = Callable[[str], GlBackend]


@pytest.fixture(scope="session", params=["as it is", "es31-minimum"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Gives the backend of a name; skips one that the context cannot have."""
    limits = None if request.param == "as it is" else request.param
    device = Device(limits=limits)
    request.addfinalizer(device.close)
    cache: dict[str, GlBackend] = {}

    def get(name: str) -> GlBackend:
        if reason := BACKENDS[name].why_not_device(device):
            pytest.skip(reason)
        if name not in cache:
            cache[name] = BACKENDS[name](device)
        return cache[name]

    return get


@pytest.fixture(scope="session", params=["compute", "feedback"])
def backend(request: pytest.FixtureRequest, opened: Opened) -> GlBackend:
    """Each GL backend in turn."""
    return opened(request.param)
