"""Devices that callers who name no device share, in all threads."""

from __future__ import annotations

from glnn.device.device import Device
from glnn.device.opening import check_gpu, check_limits
from glnn.process import GL_PROCESS, ProcessLock
from glnn.settings import Settings


class SharedDevices:
    """One device for each GPU and limits that are asked for, opened when it is asked for first."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._devices: dict[tuple[object, object], Device] = {}

    def open(self, gpu: int | str | None = None, limits: str | None = None) -> Device:
        """The device for `gpu` and `limits`; None is what the environment asks for.

        Another one where it was closed or lost. Raises DeviceError where none opens, and in a fork
        of a process that used GL.
        """
        check_gpu(gpu)
        check_limits(limits)
        GL_PROCESS.check()  # before the lock
        with self._lock:
            key = gpu_wanted(gpu), limits_wanted(limits)
            device = self._devices.get(key)
            if device is None or device.closed:
                fresh = Device(*key) if device is None or device.lost is None else device.renewed()
                self._devices[key] = device = fresh
            return device


def limits_wanted(limits: str | None) -> str | None:
    """The limits asked for, by an argument or by the environment."""
    return Settings.from_environment().limits if limits is None else limits


def gpu_wanted(gpu: int | str | None) -> int | str | None:
    """The GPU asked for, by an argument or by the environment."""
    return Settings.from_environment().gpu if gpu is None else gpu


SHARED = SharedDevices()
