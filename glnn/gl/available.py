"""Bytes of memory that are free for a device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_int, c_ubyte, c_uint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.gl import nvml

if TYPE_CHECKING:
    import moderngl

GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX = 0x9049  # in KiB
DEVICE_UUID, UUID_SIZE = 0x9597, 16


def memory_available(context: moderngl.Context, load: Callable[..., Any], own: bool) -> int | None:
    """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown.

    load: gives GL's functions, as `Device.load` does. own: whether the GPU has memory of its own,
    so that the machine's says nothing.
    """
    told = [_of_gl(context, load), _of_driver(context, load) if own else None]
    if known := [free for free in told if free is not None]:
        return min(known)
    try:
        lines = [] if own else Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return 1024 * int(kib["MemAvailable"]) if "MemAvailable" in kib else None


def _of_gl(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Return the free bytes by GL_NVX_gpu_memory_info, None where the driver lacks it."""
    if "GL_NVX_gpu_memory_info" not in context.extensions:
        return None
    found = c_int(0)
    get = load("glGetIntegerv", None, c_uint, POINTER(c_int))
    get(GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX, ctypes.byref(found))
    return 1024 * found.value if context.error == "GL_NO_ERROR" and found.value > 0 else None


def _of_driver(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Return the free bytes by NVIDIA's management library, for the GPU with the UUID that GL
    reports.
    """
    if "GL_EXT_memory_object" not in context.extensions:
        return None
    found = (c_ubyte * UUID_SIZE)()
    get = load("glGetUnsignedBytei_vEXT", None, c_uint, c_uint, POINTER(c_ubyte))
    get(DEVICE_UUID, 0, found)
    return nvml.free(bytes(found)) if context.error == "GL_NO_ERROR" else None
