"""Programs that glnn made, as moderngl's: running one by moderngl takes Python the least.

moderngl cannot be given a program: it compiles and links a text while Python's other threads wait.
So for what makes programs it is not given GL's functions but stand-ins, of which that for
`glCreateProgram` hands out the program that is there. The others do nothing, and their success is
that of a shader that did compile.

The stand-ins are functions that Python has in C: one of its own would be where Ctrl-C is heeded,
from which moderngl knows no way back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint
from typing import TYPE_CHECKING, Any

from glnn.gl.context import Context

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self

COMPUTE, VERTEX = 0x91B9, 0x8B31
NOTHING = (
    *("glShaderSource", "glCompileShader", "glAttachShader", "glDetachShader", "glDeleteShader"),
    *("glTransformFeedbackVaryings", "glLinkProgram"),
)
ASKS = "glIsShader"  # changes nothing, and is no error whatever it is asked


class Adopting:
    """Function loader through which moderngl adopts programs that glnn has linked with `gl`."""

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
        if name in self._instead:
            return ctypes.cast(self._instead[name], ctypes.c_void_p).value or 0
        # moderngl flushes behind every capture: 5 us on an H200. Commands do where it helps.
        return self._gl.load_opengl_function(ASKS if name == "glFlush" else name)

    def adopt(
        self,
        context: moderngl.Context,
        program: int,
        varyings: tuple[str, ...],
        shader: Callable[[int], int],
    ) -> Any:
        """The linked `program` as moderngl's `context` has one; it is freed by that.

        varyings: those that it captures; a compute program has none. shader: makes some shader of
        a stage, any that compiles, which is asked for once.
        """
        stage = VERTEX if varyings else COMPUTE
        if stage not in self._shaders:
            self._shaders[stage] = shader(stage)
        self._programs[:] = [program]
        if varyings:
            return context.program(vertex_shader="", varyings=varyings)
        return context.compute_shader("")

    def release(self) -> None:
        """Destroy the context, as moderngl may ask for."""
        self._gl.release()

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: object) -> None:
        return
