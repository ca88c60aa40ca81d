"""The backends that filters run on."""

from __future__ import annotations

import pytest

from glnn.backends import Backend, open_backend
from tests.backends.harness import BACKENDS

PLACES = ("cpu", "compute", "feedback", "compute es31-minimum")


@pytest.fixture(scope="session", params=PLACES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn, those of a GPU also with the least limits."""
    name, *limits = request.param.split()
    if name == "cpu":
        return open_backend("cpu")
    device = request.getfixturevalue("minimum_device" if limits else "device")
    if reason := BACKENDS[name].why_not_device(device):
        pytest.skip(reason)
    return BACKENDS[name](device)
