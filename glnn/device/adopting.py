"""Programs that glnn made, as moderngl's: running one by moderngl takes Python the least.

moderngl cannot be given a program: it compiles and links a text while Python's other threads wait.
So for what makes programs it is not given GL's functions but stand-ins, of which that for
`glCreateProgram` hands out the program that is there. The others do nothing but tell of success.

The stand-ins are functions that Python has in C: one of its own would be where Ctrl-C is heeded,
from which moderngl knows no way back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint
from typing import TYPE_CHECKING, Any

from glnn.device.context import Context

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self

COMPUTE = 0x91B9
NOTHING = ("glShaderSource", "glCompileShader", "glAttachShader", "glLinkProgram", "glDeleteShader")


class Adopting:
    """What moderngl loads the functions of `gl` from."""

    def __init__(self, gl: Context) -> None:
        self._gl = gl
        self._programs: list[int] = []
        self._shaders: dict[int, int] = {}
        given = ctypes.CFUNCTYPE(c_uint)(self._programs.pop)
        shader = ctypes.CFUNCTYPE(c_uint, c_uint)(self._shaders.get)
        nothing = ctypes.CFUNCTYPE(None, c_uint)(int)  # the rest of the arguments it does not see
        self._instead = dict.fromkeys(NOTHING, nothing)
        self._instead |= {"glCreateProgram": given, "glCreateShader": shader}

    def load_opengl_function(self, name: str) -> int:
        """The address that moderngl is to call for the function `name`, 0 where there is none."""
        if name not in self._instead:
            return self._gl.load_opengl_function(name)
        return ctypes.cast(self._instead[name], ctypes.c_void_p).value or 0

    def adopt(
        self, context: moderngl.Context, program: int, shader: Callable[[], int]
    ) -> moderngl.ComputeShader:
        """The linked compute `program` as moderngl's `context` has one; it is freed by that.

        shader: makes some compute shader that compiled, which is asked for once.
        """
        if COMPUTE not in self._shaders:
            self._shaders[COMPUTE] = shader()
        self._programs[:] = [program]
        return context.compute_shader("")

    def release(self) -> None:
        """Destroy the context, as moderngl may ask for."""
        self._gl.release()

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: Any) -> None:
        return
