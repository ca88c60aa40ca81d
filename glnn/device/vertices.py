"""What the vertices that are drawn take from buffers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from ctypes import byref, c_int, c_ubyte, c_uint, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from glnn.device.functions import ARRAY_BUFFER, Command, Functions
from glnn.errors import ShaderError

if TYPE_CHECKING:
    import moderngl

FLOAT = 0x1406
COLUMNS = {
    **dict.fromkeys((FLOAT, 0x8B50, 0x8B51, 0x8B52), 1),  # float to vec4
    **{0x8B5A: 2, 0x8B65: 2, 0x8B66: 2},  # mat2, mat2x3, mat2x4
    **{0x8B5B: 3, 0x8B67: 3, 0x8B68: 3},  # mat3, mat3x2, mat3x4
    **{0x8B5C: 4, 0x8B69: 4, 0x8B6A: 4},  # mat4, mat4x2, mat4x3
}
"""Of the types that an attribute may have, each of which has a place of its own."""


@dataclass(frozen=True)
class Attribute:
    """An attribute of a program."""

    name: str
    """What the shader calls it."""
    place: int
    """GL's number of it, of its first column."""
    kind: int
    """GL's number of its type."""


class Vertices:
    """A vertex array: where each attribute's floats lie, one vertex behind the other.

    Raises ShaderError where an attribute is none of floats, or cannot take as many.
    """

    def __init__(
        self,
        gl: Functions,
        content: Iterable[tuple[Attribute, moderngl.Buffer, int]],
    ) -> None:
        """content: each attribute, its buffer, and the floats that a vertex takes from there."""
        content = tuple(content)
        self._buffers = [buffer for _, buffer, _ in content]  # kept as long as they are drawn
        for attribute, _, floats in content:
            columns = COLUMNS.get(attribute.kind)
            if columns is None:
                raise ShaderError(
                    f"{attribute.name}: an attribute of type 0x{attribute.kind:04X}: no float"
                )
            if floats % columns or not 1 <= floats // columns <= 4:
                raise ShaderError(f"{attribute.name}: an attribute cannot take {floats} floats")
        name = c_uint()
        gl.slow("glGenVertexArrays", None, c_int, c_void_p)(1, byref(name))
        self.name = name.value
        delete = gl.slow("glDeleteVertexArrays", None, c_int, c_void_p)
        dropped = partial(delete, 1, byref(c_uint(name.value)))
        weakref.finalize(self, gl.drop, dropped).atexit = False
        self._bind = gl.quick("glBindVertexArray")
        self.use()
        for attribute, buffer, floats in content:
            gl.quick("glBindBuffer")(ARRAY_BUFFER, buffer.glo)
            _point(gl, attribute.place, COLUMNS[attribute.kind], floats)

    def use(self) -> None:
        """Make it the current one."""
        self._bind(self.name)

    def using(self) -> Command:
        """What makes it the current one."""
        return self._bind, (self.name,)


def _point(gl: Functions, place: int, columns: int, floats: int) -> None:
    """Have the `columns` of an attribute taken from the buffer that is bound."""
    kinds = c_uint, c_int, c_uint, c_ubyte, c_int, c_void_p
    point = gl.slow("glVertexAttribPointer", None, *kinds)
    rows = floats // columns
    for column in range(columns):
        gl.quick("glEnableVertexAttribArray")(place + column)
        point(place + column, rows, FLOAT, 0, 4 * floats, 4 * rows * column)
