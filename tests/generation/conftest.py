"""Backends that tests of language models run on."""

from __future__ import annotations

import pytest

from glnn.backends import open_backend
from glnn.errors import DeviceError


@pytest.fixture(params=["compute", "feedback", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend; skips one that does not open."""
    try:
        open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return str(request.param)
