"""The backends that gradients are computed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from glnn.backends import Backend, open_backend
from glnn.errors import DeviceError
from glnn.gl import Device
from tests.backends.harness import BACKENDS

LIMITS = (None, "es31-minimum")


@pytest.fixture(scope="session", params=LIMITS, ids=str)
def limited(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Backend]]:
    """Gives the GL backend of a name."""
    try:
        device = Device(limits=request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    with device:

        def get(name: str) -> Backend:
            if reason := BACKENDS[name].why_not_device(device):
                pytest.skip(reason)
            return BACKENDS[name](device)

        yield get


@pytest.fixture(scope="session", params=tuple(BACKENDS))
def gl(request: pytest.FixtureRequest, limited: Callable[[str], Backend]) -> Backend:
    """Each GL backend in turn, by the device's own limits and the smallest."""
    return limited(request.param)


@pytest.fixture(scope="session")
def cpu() -> Backend:
    """The host."""
    return open_backend("cpu")
