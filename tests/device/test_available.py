"""The memory that is free, where a driver adds up what its GPUs have."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glnn.device import available, nvml

GIB = 1 << 30
UUID = bytes(range(16))
NAME = b"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
SAID = 250 * GIB


def load(name: str, *signature: Any) -> Any:
    """GL's functions, of a driver that adds up and tells the UUID."""

    def integer(what: int, found: Any) -> None:
        found._obj.value = SAID // 1024

    def unsigned(what: int, index: int, found: Any) -> None:
        assert (what, index) == (available.DEVICE_UUID, 0)
        found[:] = UUID

    return {"glGetIntegerv": integer, "glGetUnsignedBytei_vEXT": unsigned}[name]


def library_of(gpus: dict[bytes, int]) -> Any:
    """The management library, of a machine that has `gpus`: what is free of each, by its name."""

    def handle_of(name: bytes, handle: Any) -> int:
        handle._obj.value = 1 + list(gpus).index(name) if name in gpus else 0
        return 0 if name in gpus else 6

    def memory_of(handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.free = list(gpus.values())[(handle.value or 0) - 1]
        return 0

    return SimpleNamespace(nvmlDeviceGetHandleByUUID=handle_of, nvmlDeviceGetMemoryInfo=memory_of)


@pytest.mark.parametrize(
    ("gpus", "extensions", "library", "expected"),
    [
        (1, {"GL_EXT_memory_object"}, library_of({NAME: 5 * GIB}), SAID),  # GL's answer is right
        (0, set(), None, SAID),
        (2, {"GL_EXT_memory_object"}, library_of({b"GPU-other": 7, NAME: 120 * GIB}), 120 * GIB),
        (2, {"GL_EXT_memory_object"}, library_of({b"GPU-other": 7}), SAID // 2),
        (2, {"GL_EXT_memory_object"}, None, SAID // 2),
        (2, set(), library_of({NAME: 5 * GIB}), SAID // 2),
    ],
)
def test_of_several_gpus_it_is_that_of_one(
    gpus: int,
    extensions: set[str],
    library: Any,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(gpus):
        (tmp_path / "gpus" / f"0000:{number}").mkdir(parents=True)
    monkeypatch.setattr(available, "GPUS", tmp_path / "gpus")
    monkeypatch.setattr(nvml, "library", lambda: library)
    context: Any = SimpleNamespace(
        extensions={"GL_NVX_gpu_memory_info", *extensions}, error="GL_NO_ERROR"
    )
    assert available.memory_available(context, load) == expected


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-missing.so.1")
    nvml.library.cache_clear()
    assert nvml.free(UUID) is None
    nvml.library.cache_clear()
