"""A folder for what is stored, a device that keeps its programs there, and a model in a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glnn.gl import Device
from glnn.stored.index import YOUNG


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the cache, for a module's tests, which ask GL for no errors after steps."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLNN_CACHE", str(folder))
        patch.setenv("GLNN_DEBUG", "0")
        yield folder


@pytest.fixture(scope="module")
def keeping(cache: Path) -> Iterator[Device]:
    """A device that keeps its programs in `cache`."""
    with Device() as opened:
        yield opened


@pytest.fixture(scope="module")
def least(cache: Path) -> Iterator[Device]:
    """The same with the least limits."""
    with Device(limits="es31-minimum") as opened:
        yield opened


@pytest.fixture
def old() -> Callable[[Path], Path]:
    """Waits until a file is so old that another one would have other times."""

    def wait(path: Path) -> Path:
        while time.time_ns() - path.stat().st_ctime_ns <= 1.5 * YOUNG:
            time.sleep(0.005)
        return path

    return wait
