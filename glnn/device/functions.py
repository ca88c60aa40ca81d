"""GL's functions that moderngl does not offer, or not as glnn needs them: each loaded once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from glnn.device.context import Context
from glnn.errors import DeviceError

POINTS, ARRAY_BUFFER, CAPTURED, DISCARD = 0, 0x8892, 0x8C8E, 0x8C89
Command = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and what it is called with."""


class Functions:
    """The functions of one context.

    What is called in every run is `quick`: Python looks at no types of its arguments, and its
    other threads wait, which takes less than to have them go on. `slow` functions may take long.
    """

    def __init__(
        self,
        gl: Context,
        renderer: str,
        drop: Callable[[Callable[[], object]], object],
    ) -> None:
        """drop: see `Device.drop`; it knows no device."""
        self._gl, self._renderer, self.drop = gl, renderer, drop
        self._quick: dict[str, Any] = {}
        self._capturing = self._discards = False

    def _address(self, name: str) -> int:
        """Raises DeviceError where there is none: calling address 0 would end the process."""
        if not (address := self._gl.load_opengl_function(name)):
            raise DeviceError(f"{self._renderer} has no {name}")
        return address

    def slow(self, name: str, result: Any, *arguments: Any) -> Any:
        """The function of these ctypes types. Python's other threads run while it does.

        Raises DeviceError where the driver has none.
        """
        return ctypes.CFUNCTYPE(result, *arguments)(self._address(name))

    def quick(self, name: str) -> Any:
        """The function, which gives nothing.

        Its arguments are ints of at most 32 bits, or objects of ctypes. Raises as `slow` does.
        """
        if name not in self._quick:
            self._quick[name] = ctypes.PYFUNCTYPE(None)(self._address(name))
            self._quick[name].__name__ = name
        return self._quick[name]

    def discard(self) -> None:
        """Draw no pixels from now on: nothing of glnn's does."""
        if not self._discards:
            self.quick("glEnable")(DISCARD)
            self._discards = True

    def capture(self, bound: tuple[Any, ...], drawn: tuple[Any, ...]) -> None:
        """Bind a part of a buffer, and draw points, whose varyings land there."""
        quick = self._quick  # `capturing` loaded them
        quick["glBindBufferRange"](*bound)
        self._capturing = True
        quick["glBeginTransformFeedback"](POINTS)
        quick["glDrawArraysInstanced"](*drawn)
        quick["glEndTransformFeedback"]()
        self._capturing = False

    def capturing(
        self, buffer: int, offset: int, nbytes: int, first: int, vertices: int, instances: int
    ) -> Command:
        """What draws these vertices once for each instance, captured to a part of `buffer`."""
        for name in ("BindBufferRange", "BeginTransformFeedback", "EndTransformFeedback"):
            self.quick(f"gl{name}")
        self.quick("glDrawArraysInstanced")
        ends = ctypes.c_ssize_t(offset), ctypes.c_ssize_t(nbytes)
        bound = CAPTURED, 0, buffer, *ends
        return self.capture, (bound, (POINTS, first, vertices, instances))

    def settle(self) -> None:
        """After an exception in the middle of commands: end a capture that was under way."""
        if self._capturing:
            self._capturing = False
            self.quick("glEndTransformFeedback")()
            self.slow("glGetError", ctypes.c_uint)()  # where it had not yet begun
