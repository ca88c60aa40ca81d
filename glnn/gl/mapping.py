"""Buffers that stay mapped: memory of the host's that the device reads and writes."""

from __future__ import annotations

import ctypes
from ctypes import c_ssize_t, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import NoRoomError
from glnn.gl.device import Device

if TYPE_CHECKING:
    import moderngl

COPY_WRITE_BUFFER = 0x8F37
MAP_READ, MAP_WRITE, MAP_PERSISTENT, MAP_COHERENT, DYNAMIC_STORAGE = 0x1, 0x2, 0x40, 0x80, 0x100


def mapped(device: Device, nbytes: int) -> tuple[moderngl.Buffer, NDArray[np.uint32]]:
    """A buffer of zeros that stays mapped, coherently, and its words.

    They go away with the buffer. Raises NoRoomError where there is no such memory.
    """
    device.collect()  # which may be what there is room for
    buffer = device.context.buffer(reserve=nbytes)
    access = MAP_READ | MAP_WRITE | MAP_PERSISTENT | MAP_COHERENT
    bind = device.load("glBindBuffer", None, c_uint, c_uint)
    store = device.load("glBufferStorageEXT", None, c_uint, c_ssize_t, c_void_p, c_uint)
    see = device.load("glMapBufferRange", c_void_p, c_uint, c_ssize_t, c_ssize_t, c_uint)
    bind(COPY_WRITE_BUFFER, buffer.glo)
    store(COPY_WRITE_BUFFER, nbytes, None, access | DYNAMIC_STORAGE)
    address: int | None = see(COPY_WRITE_BUFFER, 0, nbytes, access)
    bind(COPY_WRITE_BUFFER, 0)
    device.check_always(f"map {nbytes} bytes")
    if address is None:
        raise NoRoomError(f"map {nbytes} bytes: no memory on {device.capabilities.renderer}")
    words: Any = (ctypes.c_uint32 * (nbytes // 4)).from_address(address)
    seen = np.frombuffer(words, np.uint32)
    seen[:] = 0
    return buffer, seen
