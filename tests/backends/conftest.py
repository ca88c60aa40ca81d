"""The GL backends on every kind of context that opens here."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from glnn.backends.gl import GlBackend
from glnn.device import Device, Program, confuses_values
from glnn.errors import DeviceError
from tests.backends.harness import BACKENDS

Opened = Callable[[str], GlBackend]
HERE = Path(__file__).parent
CONTEXTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "es31-minimum": {"limits": "es31-minimum"},
    "OpenGL 4.3": {"version": (4, 3)},
    "OpenGL 3.3": {"version": (3, 3)},
}
SHARE = os.environ.get("GLNN_SHARE")
"""Of the tests of a kernel one in so many is run: unless it says so, all, or on the least limits
a third. Of all those on desktop OpenGL it is one in eight. With GLNN_EXHAUSTIVE all are run."""


def _alike(item: pytest.Item) -> tuple[object, ...]:
    """One in how many tests is run, and what those have in common of which that is."""
    if item.path.parent != HERE or os.environ.get("GLNN_EXHAUSTIVE"):
        return 1, item
    if "OpenGL" in item.name:
        return 8, HERE
    given = item.callspec.params if hasattr(item, "callspec") else {}
    kernel = (str(given.get(name)) for name in ("opened", "backend", "kernel"))
    share = 3 if "es31-minimum" in item.name else 1
    return int(SHARE or share), item.path, item.name.split("[")[0], *kernel


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a part that chance, not the order of parameters, chooses: the same in every run."""
    groups: defaultdict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_alike(item)].append(item)
    left = set()
    for (share, *_), group in groups.items():
        group.sort(key=lambda item: crc32(item.nodeid.encode()))
        left |= {item for place, item in enumerate(group) if place % share}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session", params=CONTEXTS)
def opened(request: pytest.FixtureRequest) -> Opened:
    """Gives the backend of a name; skips one that the context cannot have."""
    try:
        device = Device(**CONTEXTS[request.param])
    except DeviceError as error:
        pytest.skip(str(error))
    if device.capabilities.compute:
        confuses_values(device)  # asked before a test has its driver do wrong
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


@pytest.fixture
def by_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings call Program.dispatch and Program.capture, which a test can have do wrong."""
    dispatching, capturing = Program.dispatching, Program.capturing

    def dispatch(self: Program, groups: tuple[int, int, int]) -> None:
        function, arguments = dispatching(self, groups)
        function(*arguments)

    def capture(self: Program, *what: Any) -> None:
        function, arguments = capturing(self, *what)
        function(*arguments)

    monkeypatch.setattr(Program, "dispatch", dispatch)
    monkeypatch.setattr(Program, "capture", capture)
    monkeypatch.setattr(Program, "dispatching", lambda self, groups: (self.dispatch, (groups,)))
    monkeypatch.setattr(Program, "capturing", lambda self, *what: (self.capture, what))
