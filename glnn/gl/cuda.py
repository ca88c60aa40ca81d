"""The numbers by which CUDA calls EGL's devices: what tells several GPUs of one name apart."""

from __future__ import annotations

import re
from ctypes import byref, c_void_p

from glnn.errors import DeviceError, shown
from glnn.gl.context import StepError
from glnn.gl.egl import EXTENSIONS, Egl

CUDA_DEVICE = 0x323A
PREFIX = "cuda:"


def number_asked(gpu: object) -> int | None:
    """CUDA's number in `gpu`, as in `cuda:1`; None where it asks for something else.

    Raises DeviceError where there is no number behind `cuda:`.
    """
    if not isinstance(gpu, str) or not gpu.lower().startswith(PREFIX):
        return None
    found = re.fullmatch(r"cuda:([0-9]{1,6})", gpu, re.ASCII | re.IGNORECASE)
    if found is None:
        raise DeviceError(f"gpu: expected cuda: and a number, as in cuda:0, got {shown(gpu)}")
    return int(found[1])


def numbers(egl: Egl) -> list[int | None]:
    """CUDA's number of each EGL device, None for those that have none.

    Raises StepError where EGL cannot list its devices.
    """
    return [_number(egl, handle) for handle in egl.devices()]


def _number(egl: Egl, handle: int) -> int | None:
    if not (egl.eglQueryDeviceStringEXT and egl.eglQueryDeviceAttribEXT):
        return None
    text = egl.eglQueryDeviceStringEXT(handle, EXTENSIONS)
    if text is None:
        egl.eglGetError()  # forget it
    value = c_void_p()
    if b"EGL_NV_device_cuda" not in (text or b"").split():
        return None
    if not egl.eglQueryDeviceAttribEXT(handle, CUDA_DEVICE, byref(value)):
        egl.eglGetError()
        return None
    return value.value or 0


def index_of(egl: Egl, number: int) -> int:
    """The index of the EGL device that CUDA calls `number`. Raises StepError: there are these."""
    known = numbers(egl)
    if number in known:
        return known.index(number)
    have = [f"cuda:{n} (EGL device {i})" for i, n in enumerate(known) if n is not None]
    why = f"there are {', '.join(have)}" if have else f"of {len(known)} EGL devices none has any"
    raise StepError("EGL_CUDA_DEVICE_NV", f"no device has CUDA's number {number}: {why}")
