"""Points in the device's own time, asked for among its commands."""

from __future__ import annotations

from ctypes import byref, c_int, c_int64, c_uint, c_uint64, c_void_p

from glnn.errors import DeviceError
from glnn.gl.device import Device

TIMESTAMP, QUERY_COUNTER_BITS, QUERY_RESULT = 0x8E28, 0x8864, 0x8866


class Timestamps:
    """The device's time at `count` points among its commands, for use inside `Device.perform`.

    A point is passed once all commands before it are done (glQueryCounter, of
    EXT_disjoint_timer_query and ARB_timer_query). To be `release`d. Raises DeviceError where the
    driver has none.
    """

    def __init__(self, device: Device, count: int) -> None:
        if not device.capabilities.timer_query:
            raise DeviceError(f"{device.capabilities.renderer} has no timer query")
        self._device, self._count = device, count
        end = "EXT" if device.capabilities.api == "es" else ""
        load = device.load
        bits = c_int()
        load(f"glGetQueryiv{end}", None, c_uint, c_uint, c_void_p)(
            TIMESTAMP, QUERY_COUNTER_BITS, byref(bits)
        )
        if not bits.value:
            raise DeviceError(f"{device.capabilities.renderer} has no timestamps")
        self._turn = 1 << min(bits.value, 64)  # nanoseconds after which it counts from 0 again
        self._mark = load(f"glQueryCounter{end}", None, c_uint, c_uint)
        self._result = load(f"glGetQueryObjectui64v{end}", None, c_uint, c_uint, c_void_p)
        self._delete = load(f"glDeleteQueries{end}", None, c_int, c_void_p)
        self._now = load(f"glGetInteger64v{end}", None, c_uint, c_void_p)
        self._names = (c_uint * count)()
        load(f"glGenQueries{end}", None, c_int, c_void_p)(count, self._names)

    def mark(self, point: int) -> None:
        """Have the device note its time at `point` when it comes here."""
        self._mark(self._names[point], TIMESTAMP)

    def read(self, count: int) -> list[float]:
        """The seconds from the first point to each of the first `count`, all of them marked.

        Waits for the device.
        """
        value, found = c_uint64(), []
        for name in self._names[:count]:
            self._result(name, QUERY_RESULT, byref(value))
            found.append(value.value)
        return [1e-9 * ((time - found[0]) % self._turn) for time in found]

    def since_first(self) -> float:
        """The seconds from the first point until now, on the device's clock."""
        first, now = c_uint64(), c_int64()
        self._now(TIMESTAMP, byref(now))
        self._result(self._names[0], QUERY_RESULT, byref(first))
        return 1e-9 * ((now.value - first.value) % self._turn)

    def release(self) -> None:
        """Give the queries back to the driver."""
        if not self._device.closed:
            self._delete(self._count, self._names)
