"""Free memory of a GPU by NVIDIA's management library, as OpenGL ES does not report it."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint64, c_void_p
from functools import cache
from typing import Any

LIBRARY = "libnvidia-ml.so.1"


class Memory(ctypes.Structure):
    """Bytes of a GPU's memory."""

    _fields_ = (("total", c_uint64), ("free", c_uint64), ("used", c_uint64))


@cache
def library() -> Any:
    """The library, begun with; None where there is none."""
    try:
        found = ctypes.CDLL(LIBRARY)
        return found if found.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def free(uuid: bytes) -> int | None:
    """Bytes that are free on the GPU with these 16 bytes of UUID; None where nobody knows."""
    nvml, handle, memory = library(), c_void_p(), Memory()
    text = uuid.hex()
    name = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if nvml is None or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}".encode(), byref(handle)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)):
        return None
    return int(memory.free)
