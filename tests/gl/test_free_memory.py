"""The memory that is free, as drivers tell it."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace
from typing import Any

import pytest

from glnn.gl import device_info

GIB = 1 << 30
UUID = bytes(range(16))
NAME = b"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
SAID = 250 * GIB
NVX, MEMORY_OBJECT = "GL_NVX_gpu_memory_info", "GL_EXT_memory_object"


def load(name: str, *signature: Any) -> Any:
    """GL's functions, of a driver that tells a sum and the UUID."""

    def integer(what: int, found: Any) -> None:
        found._obj.value = SAID // 1024

    def unsigned(what: int, index: int, found: Any) -> None:
        assert (what, index) == (device_info.DEVICE_UUID, 0)
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
    ("extensions", "own", "library", "expected"),
    [
        ({NVX}, False, None, SAID),
        ({NVX, MEMORY_OBJECT}, True, library_of({b"GPU-other": 7, NAME: 120 * GIB}), 120 * GIB),
        ({NVX, MEMORY_OBJECT}, True, library_of({NAME: 300 * GIB}), SAID),
        ({NVX, MEMORY_OBJECT}, True, library_of({b"GPU-other": 7}), SAID),
        ({NVX}, True, library_of({NAME: 5 * GIB}), SAID),
        ({MEMORY_OBJECT}, True, library_of({b"GPU-other": 7, NAME: 120 * GIB}), 120 * GIB),
        ({MEMORY_OBJECT}, True, library_of({b"GPU-other": 7}), None),
        ({MEMORY_OBJECT}, True, None, None),
        (set(), True, library_of({NAME: 5 * GIB}), None),
    ],
)
def test_a_gpu_with_its_own_memory_never_has_the_machines(
    extensions: set[str],
    own: bool,
    library: Any,
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_info, "nvml_library", lambda: library)
    context: Any = SimpleNamespace(extensions=extensions, error="GL_NO_ERROR")
    assert device_info.memory_available(context, load, own) == expected


def test_a_gpu_that_shares_the_machines_memory_has_what_is_free_of_it() -> None:
    context: Any = SimpleNamespace(extensions=set(), error="GL_NO_ERROR")
    found = device_info.memory_available(context, load, False)
    assert found is not None and GIB // 16 < found <= os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )


def test_without_the_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_info, "NVML_LIBRARY", "libnvidia-ml-missing.so.1")
    device_info.nvml_library.cache_clear()
    assert device_info.nvml_free_memory(UUID) is None
    device_info.nvml_library.cache_clear()
