"""How much memory there is for a device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import moderngl

GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX = 0x9049  # in KiB


def memory_available(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown.

    load: gives GL's functions, as `Device.load` does.
    """
    if "GL_NVX_gpu_memory_info" in context.extensions:
        found = ctypes.c_int(0)
        get = load("glGetIntegerv", None, ctypes.c_uint, ctypes.POINTER(ctypes.c_int))
        get(GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX, ctypes.byref(found))
        if context.error == "GL_NO_ERROR" and found.value > 0:
            return 1024 * found.value
    try:  # such GPUs share the machine's memory
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return 1024 * int(kib["MemAvailable"]) if "MemAvailable" in kib else None
