"""GL's functions that moderngl does not offer, or not as glnn needs them: each loaded once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from glnn.errors import DeviceError
from glnn.gl.context import Context

Command = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and what it is called with."""


class Functions:
    """The functions of one context.

    What is called in every run is `quick`: Python looks at no types of its arguments, and its
    other threads wait, which takes less than to have them go on. `slow` functions may take long.
    """

    def __init__(self, gl: Context, renderer: str) -> None:
        self._gl, self._renderer = gl, renderer
        self._quick: dict[str, Any] = {}
        self._slow: dict[tuple[Any, ...], Any] = {}  # by their types, too

    def _address(self, name: str) -> int:
        """Raises DeviceError where there is none: calling address 0 would end the process."""
        if not (address := self._gl.load_opengl_function(name)):
            raise DeviceError(f"{self._renderer} has no {name}")
        return address

    def slow(self, name: str, result: Any, *arguments: Any) -> Any:
        """The function of these ctypes types. Python's other threads run while it does.

        Raises DeviceError where the driver has none.
        """
        known = self._slow.get((name, result, arguments))
        if known is None:
            known = ctypes.CFUNCTYPE(result, *arguments)(self._address(name))
            self._slow[name, result, arguments] = known
        return known

    def quick(self, name: str) -> Any:
        """The function, which gives nothing.

        Its arguments are ints of at most 32 bits, or objects of ctypes. Raises as `slow` does.
        """
        if name not in self._quick:
            self._quick[name] = ctypes.PYFUNCTYPE(None)(self._address(name))
            self._quick[name].__name__ = name
        return self._quick[name]
