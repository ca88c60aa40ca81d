"""How much memory there is for a device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_int, c_ubyte, c_uint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.device import nvml

if TYPE_CHECKING:
    import moderngl

GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX = 0x9049  # in KiB
DEVICE_UUID, UUID_SIZE = 0x9597, 16
GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each of its GPUs."""


def memory_available(context: moderngl.Context, load: Callable[..., Any]) -> int | None:
    """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown.

    load: gives GL's functions, as `Device.load` does.
    """
    if "GL_NVX_gpu_memory_info" in context.extensions:
        found = c_int(0)
        get = load("glGetIntegerv", None, c_uint, POINTER(c_int))
        get(GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX, ctypes.byref(found))
        if context.error == "GL_NO_ERROR" and found.value > 0:
            return _of_one(1024 * found.value, context, load)
    try:  # such GPUs share the machine's memory
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    return 1024 * int(kib["MemAvailable"]) if "MemAvailable" in kib else None


def _of_one(said: int, context: moderngl.Context, load: Callable[..., Any]) -> int:
    """What is free on the context's GPU, where GL `said` so much: that is the sum of all GPUs.

    Its driver (580) said 269 GB of two H200s, each of which has 151.
    """
    try:
        count = sum(1 for _ in GPUS.iterdir())
    except OSError:
        count = 1
    if count < 2:
        return said
    uuid = _uuid(context, load)
    free = None if uuid is None else nvml.free(uuid)
    return said // count if free is None else min(free, said)


def _uuid(context: moderngl.Context, load: Callable[..., Any]) -> bytes | None:
    """The UUID of the context's GPU, where GL tells it."""
    if "GL_EXT_memory_object" not in context.extensions:
        return None
    found = (c_ubyte * UUID_SIZE)()
    get = load("glGetUnsignedBytei_vEXT", None, c_uint, c_uint, POINTER(c_ubyte))
    get(DEVICE_UUID, 0, found)
    return bytes(found) if context.error == "GL_NO_ERROR" else None
