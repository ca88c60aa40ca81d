"""The GL backends on every kind of context that opens here."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from glnn.backends.gl import GlBackend
from glnn.errors import DeviceError
from glnn.gl import Capabilities, Device, Program, confuses_values
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
"""Of the tests of a kernel in a file one in so many is run, on an older context. Without it half of
a test's cases are, of three or more of a kernel, or ten, unless it is marked `whole`; on the least
limits a sixth of a kernel's tests; of all those on desktop OpenGL one in 24. With GLNN_EXHAUSTIVE
all are run."""


def _alike(item: pytest.Item) -> tuple[int, int, tuple[object, ...]]:
    """One in how many tests is run of at least how many, and what these have in common."""
    if item.path.parent != HERE or os.environ.get("GLNN_EXHAUSTIVE"):
        return 1, 1, (item,)
    if "OpenGL" in item.name:
        return 24, 1, ("OpenGL",)
    given = item.callspec.params if hasattr(item, "callspec") else {}
    kernel = [given.get(name) for name in ("opened", "backend", "name", "kernel")]
    if SHARE or "es31-minimum" in item.name:  # tests of all kernels say them otherwise than by name
        return int(SHARE or 6), 1, (item.path, *(one for one in kernel if isinstance(one, str)))
    if item.get_closest_marker("whole"):
        return 1, 1, (item,)
    return 2, 3 if kernel[-1] else 10, (item.path, item.name.split("[")[0], *map(str, kernel))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a part that chance, not the order of parameters, chooses: the same in every run."""
    groups: defaultdict[tuple[int, int, tuple[object, ...]], list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_alike(item)].append(item)
    left = set()
    for (share, least, _), group in groups.items():
        if len(group) >= least:
            group.sort(key=lambda item: crc32(f"{SHARE} {item.nodeid}".encode()))
            left |= {item for place, item in enumerate(group) if place % share}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session", params=[*CONTEXTS][: 1 if int(SHARE or 1) > 1 else None])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Gives the backend of a name; skips one that the context cannot have.

    An older context, of which a part is run, is only looked at as it is.
    """
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
def taken_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[GlBackend, str], GlBackend]:
    """Makes a backend that chooses as on a device of that renderer, for tests of such choices.

    It is on the device of another backend, and what is known of its driver still holds. Neither
    multiprocessors nor subgroups are known, on whatever device the test runs.
    """

    def take(backend: GlBackend, renderer: str) -> GlBackend:
        device, offers = backend.device, backend.device.capabilities
        monkeypatch.setattr(Capabilities, "nvidia_driver", offers.nvidia_driver)
        told = replace(offers, vendor="", renderer=renderer, multiprocessors=0, subgroup_size=0)
        monkeypatch.setattr(device, "capabilities", told)
        return BACKENDS[backend.name](device)  # which has chosen nothing yet

    return take


@pytest.fixture
def by_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands call Program.dispatch and Program.capture, which a test can have do wrong."""
    dispatch_call, capture_call = Program.dispatch_call, Program.capture_call

    def dispatch(self: Program, groups: tuple[int, int, int]) -> None:
        function, arguments = dispatch_call(self, groups)
        function(*arguments)

    def capture(self: Program, *what: Any) -> None:
        function, arguments = capture_call(self, *what)
        function(*arguments)

    monkeypatch.setattr(Program, "dispatch", dispatch)
    monkeypatch.setattr(Program, "capture", capture)
    monkeypatch.setattr(Program, "dispatch_call", lambda self, groups: (self.dispatch, (groups,)))
    monkeypatch.setattr(Program, "capture_call", lambda self, *what: (self.capture, what))
