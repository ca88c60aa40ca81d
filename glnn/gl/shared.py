"""Devices that callers who name no device share, in all threads."""

from __future__ import annotations

from glnn.errors import GlnnError
from glnn.gl.context import NoDeviceError
from glnn.gl.device import Device
from glnn.gl.opening import check_gpu, check_limits
from glnn.gl.wanted import Wanted
from glnn.process import GL_PROCESS, process_lock
from glnn.settings import Settings


class SharedDevices:
    """Cache of open devices, one for each combination of GPU, limits, priority and way to wait.

    It is opened when it is asked for first.
    """

    def __init__(self) -> None:
        self._lock = process_lock()
        self._devices: dict[Wanted, Device] = {}

    def open(
        self,
        gpu: int | str | None = None,
        limits: str | None = None,
        *,
        priority: str | None = None,
        wait: str | None = None,
    ) -> Device:
        """The device for `gpu`, `limits` and the like; None is what the environment asks for.

        Another one where it was closed or lost. Raises DeviceError where none opens, and in a fork
        of a process that used GL.
        """
        check_gpu(gpu)
        check_limits(limits)
        GL_PROCESS.check()  # before the lock
        with self._lock:
            asked = Wanted.of(Settings.from_environment(), gpu, limits, None, None, priority, wait)
            device = self._devices.get(asked)
            if device is None or device.closed:
                lost = device is not None and device.lost is not None
                fresh = device.renewed() if device and lost else Device(**vars(asked))
                self._devices[asked] = device = fresh
            return device


def limits_wanted(limits: str | None) -> str | None:
    """The limits asked for, by an argument or by the environment."""
    return Settings.from_environment().limits if limits is None else limits


def gpu_wanted(gpu: int | str | None) -> int | str | None:
    """The GPU asked for, by an argument or by the environment."""
    return Settings.from_environment().gpu if gpu is None else gpu


SHARED = SharedDevices()


def shared_device(
    backend: str,
    device: Device | None,
    gpu: int | str | None,
    limits: str | None,
    priority: str | None,
    wait: str | None,
) -> Device | None:
    """The device for a session: `device`, or a shared one where `priority` or `wait` ask for that.

    None where it is for the backend to say. Raises GlnnError where these are given with a device,
    and what `SharedDevices.open` raises.
    """
    if (priority, wait) == (None, None):
        return device
    if device is not None:
        raise GlnnError("priority and wait are for the Device that the session is given")
    if backend == "cpu":
        return None
    try:
        return SHARED.open(gpu, limits, priority=priority, wait=wait)
    except NoDeviceError:
        if backend != "auto":
            raise
        return None  # then another backend may open
