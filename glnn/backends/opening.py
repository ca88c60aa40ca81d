"""Opening backends: the choice of backend and device, and the error where none opens."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from glnn.backends.backend import Backend
from glnn.backends.compute import Compute
from glnn.backends.cpu import Cpu
from glnn.backends.feedback import Feedback
from glnn.backends.gl import GlBackend
from glnn.core.process import GL_PROCESS, process_lock
from glnn.core.settings import Settings, meant_backend
from glnn.errors import DeviceError, GlnnError, shown
from glnn.gl import Device
from glnn.gl.device import SHARED, limits_or_default
from glnn.gl.device_selection import check_gpu, check_limits
from glnn.runtime.options import NAMES

LOG = logging.getLogger(__name__)
GL: dict[str, type[GlBackend]] = {"compute": Compute, "feedback": Feedback}


class _Shared:
    """The backends shared, in all threads, by callers who name no device."""

    def __init__(self) -> None:
        self.lock = process_lock()
        self.backends: dict[tuple[str, Device], GlBackend] = {}


_shared = _Shared()


def open_backend(
    name: str = "auto",
    device: Device | None = None,
    *,
    gpu: int | str | None = None,
    limits: str | None = None,
    gl_kernels: bool = False,
) -> Backend:
    """Open the backend `name`; for `auto` the first that opens of those that `tried` returns.

    Where that is on a software renderer, `auto` takes the CPU instead: NumPy computes faster on
    the same processors. It does not where `GLNN_BACKEND`, a device, a GPU or limits are given.
    device: the device to run on; None shares one per `gpu` and `limits`. A requested device or GPU
    is not replaced by the CPU, whatever `GLNN_BACKEND` says. gl_kernels: True where kernels are
    requested, which only a device has: then `auto` may take a software renderer. Raises GlnnError
    for an unknown name, DeviceError where the backend cannot run here.
    """
    if not isinstance(name, str):
        raise GlnnError(f"a backend must be a name, got {shown(name)}")
    if device is not None and not isinstance(device, Device):
        raise DeviceError(f"device must be a glnn.Device, got {shown(device)}; gpu= takes an index")
    check_gpu(gpu)
    check_limits(limits)
    if name == "cpu":
        if gpu is not None:
            raise DeviceError(f"the cpu backend uses no GPU, but gpu {shown(gpu)} was asked for")
        return Cpu()
    if name == "auto":
        backend = next(open_each(device, gpu=gpu, limits=limits))
        settings = Settings.from_environment()
        requests = device, gpu, settings.gpu, limits_or_default(limits)
        is_requested = gl_kernels or settings.backends or any(one is not None for one in requests)
        return backend if is_requested else _no_renderer(backend)
    if name not in GL:
        raise GlnnError(
            f"unknown backend {name!r}: expected auto, {', '.join(NAMES)}{meant_backend(name)}"
        )
    if device is not None:
        return GL[name](device)
    GL_PROCESS.check()
    with _shared.lock:
        device = SHARED.open(gpu, limits)
        if (name, device) not in _shared.backends:
            open_ones = {key: b for key, b in _shared.backends.items() if not key[1].closed}
            _shared.backends = {**open_ones, (name, device): GL[name](device)}
        return _shared.backends[name, device]


def opened(backend: str | Backend) -> Backend:
    """Return `backend`, opened if it is a name. Raises what `open_backend` raises."""
    return backend if isinstance(backend, Backend) else open_backend(backend)


def open_each(
    device: Device | None = None, *, gpu: int | str | None = None, limits: str | None = None
) -> Iterator[Backend]:
    """Yield the backends that open of those that `tried` returns, in order.

    device, gpu, limits: see `open_backend`. Raises DeviceError where none opens.
    """
    reasons: list[str] = []
    # Wrong limits, and a fork, are errors, and no reason to take the CPU.
    GL_PROCESS.check()
    check_limits(limits_or_default(limits))
    names = tried(device, gpu)
    for name in names:
        try:
            backend = open_backend(name, device, gpu=gpu, limits=limits)
        except DeviceError as error:
            reasons.append(str(error))
        else:
            yield backend
    if len(reasons) == len(names):
        raise DeviceError("; ".join(dict.fromkeys(reasons)))


def _no_renderer(backend: Backend) -> Backend:
    """Return `backend`, or the CPU's where that is on a software renderer."""
    software = None if backend.device is None else backend.device.capabilities.software
    if software is None:
        return backend
    LOG.info("%s is a software renderer: auto takes the cpu", software)
    return Cpu()


def tried(device: Device | None = None, gpu: int | str | None = None) -> tuple[str, ...]:
    """Return the backends that `auto` may choose, in order: those of `GLNN_BACKEND`, or all.

    A requested GPU excludes the CPU, unless it is the environment's and `GLNN_BACKEND` names the
    CPU alone.
    """
    settings = Settings.from_environment()
    names, by_caller = settings.backends or NAMES, device is not None or gpu is not None
    if not by_caller and (settings.gpu is None or names == ("cpu",)):
        return names
    return tuple(name for name in names if name in GL) or tuple(GL)
