"""Reflection of a linked program: its uniforms, captured varyings and limits."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from ctypes import byref, c_char, c_float, c_int, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from glnn.errors import LimitError, ShaderError
from glnn.gl.device import Device
from glnn.gl.functions import Command, Functions

UNIFORMS, VARYINGS = 0x8B86, 0x8C83
COMPUTE_WORK_GROUP_SIZE, SHADER_STORAGE_BLOCK, ACTIVE_RESOURCES = 0x8267, 0x92E6, 0x92F5
LONGEST = 256  # bytes of a name
Value = int | float | tuple[int, ...]
COMPONENTS = {
    **{0x1406: 1, 0x8B50: 2, 0x8B51: 3, 0x8B52: 4, 0x8B5C: 16},  # float to vec4, mat4
    **{0x1404: 1, 0x8B53: 2, 0x8B54: 3, 0x8B55: 4},  # int to ivec4
}
"""Components of the GL types that may be captured."""
WRITTEN = {
    **{kind: (n, "f", "fv") for n, kind in enumerate((0x1406, 0x8B50, 0x8B51, 0x8B52), 1)},
    **{kind: (n, "i", "iv") for n, kind in enumerate((0x1404, 0x8B53, 0x8B54, 0x8B55), 1)},
    **{kind: (n, "I", "uiv") for n, kind in enumerate((0x1405, 0x8DC6, 0x8DC7, 0x8DC8), 1)},
    **{kind: (n, "i", "iv") for n, kind in enumerate((0x8B56, 0x8B57, 0x8B58, 0x8B59), 1)},
}
"""By uniform type: components, struct format of one, and suffix of GL's function."""
INT = 0x1404
UNIT = 1, "i", "iv"  # of what is none of these: a sampler


@dataclass(frozen=True)
class Uniform:
    """A uniform of a program, written while that is the current one."""

    place: int
    """GL's number of it."""
    kind: int
    """GL's number of its type."""
    count: int
    """The elements that the program uses, where it is an array; else 1."""

    def writing(self, gl: Functions, value: Value) -> Command:
        """Return the command that sets the uniform to `value`, cut to the elements that the program
        has.

        Raises struct.error where that is none of its type.
        """
        if type(value) is int and self.kind == INT and -(1 << 31) <= value < 1 << 31:
            return gl.quick("glUniform1i"), (self.place, value)  # as most are
        components, letter, ending = WRITTEN.get(self.kind, UNIT)
        values = value if isinstance(value, tuple) else (value,)
        if self.count == 1 and letter != "f" and len(values) == components:
            # Integers go as they are, which takes less than to pack them.
            least = 0 if letter == "I" else -(1 << 31)
            if all(type(one) is int and least <= one < least + (1 << 32) for one in values):
                return gl.quick(f"glUniform{components}{ending[:-1]}"), (self.place, *values)
        packed = struct.pack(f"{self.count * components}{letter}", *values[: self.components])
        content = (c_char * len(packed)).from_buffer_copy(packed)
        return gl.quick(f"glUniform{components}{ending}"), (self.place, self.count, content)

    @property
    def ctype(self) -> Any:
        """The type of its numbers in memory."""
        return {"f": c_float, "i": c_int, "I": c_uint}[WRITTEN.get(self.kind, UNIT)[1]]

    def writing_from(self, gl: Functions, memory: Any) -> Command:
        """Return the command that sets the uniform from `memory`, an array of `ctype`, read when it
        runs.
        """
        components, _, ending = WRITTEN.get(self.kind, UNIT)
        return gl.quick(f"glUniform{components}{ending}"), (self.place, self.count, memory)

    @property
    def components(self) -> int:
        """The numbers that it holds."""
        return self.count * WRITTEN.get(self.kind, UNIT)[0]


def uniforms(device: Device, program: int) -> dict[str, Uniform]:
    """The uniforms of a program by name, those in blocks left out."""
    place = device.functions.slow("glGetUniformLocation", c_int, c_uint, c_void_p)
    found: dict[str, Uniform] = {}
    for name, count, kind in _active(device, program, UNIFORMS, "glGetActiveUniform"):
        at = place(program, ctypes.create_string_buffer(name))
        if at >= 0:
            found[name.decode().removesuffix("[0]")] = Uniform(at, kind, count)
    return found


def _active(
    device: Device, program: int, what: int, function: str
) -> Iterator[tuple[bytes, int, int]]:
    """The name, the elements and the type of each uniform, or of each captured varying."""
    total, length, count, kind = c_int(), c_int(), c_int(), c_uint()
    text = ctypes.create_string_buffer(LONGEST)
    slow: Any = device.functions.slow
    slow("glGetProgramiv", None, c_uint, c_uint, c_void_p)(program, what, byref(total))
    ask = slow(function, None, c_uint, c_uint, c_int, *[c_void_p] * 4)
    for index in range(total.value):
        ask(program, index, LONGEST, byref(length), byref(count), byref(kind), text)
        yield text.value, count.value, kind.value


def check_uniforms(device: Device, name: str, found: Mapping[str, Uniform], stage: str) -> None:
    """Raise LimitError where a program of `stage` has more uniforms than the device allows."""
    offers, components = device.capabilities, sum(one.components for one in found.values())
    compute = stage == "compute"
    most = (
        offers.max_compute_uniform_components if compute else offers.max_vertex_uniform_components
    )
    if components > most:
        raise LimitError(f"{name}: {components} numbers of uniforms, the device allows {most}")


def check_compute(device: Device, name: str, program: int) -> None:
    """Raise LimitError where a program exceeds the device's limits, or the lowered ones."""
    size, blocks = (c_int * 3)(), c_int()
    slow = device.functions.slow
    slow("glGetProgramiv", None, c_uint, c_uint, c_void_p)(program, COMPUTE_WORK_GROUP_SIZE, size)
    slow("glGetProgramInterfaceiv", None, c_uint, c_uint, c_uint, c_void_p)(
        program, SHADER_STORAGE_BLOCK, ACTIVE_RESOURCES, byref(blocks)
    )
    offers = device.capabilities
    x, y, z = size
    most = offers.max_compute_work_group_size
    if (
        x * y * z > offers.max_compute_work_group_invocations
        or max(x - most[0], y - most[1], z - most[2]) > 0
    ):
        raise LimitError(
            f"{name}: workgroups of {x} x {y} x {z}, the device allows "
            f"{offers.max_compute_work_group_invocations} invocations and {most}"
        )
    if blocks.value > offers.max_compute_shader_storage_blocks:
        raise LimitError(
            f"{name}: {blocks.value} storage blocks, the device allows "
            f"{offers.max_compute_shader_storage_blocks}"
        )


def check_feedback(device: Device, name: str, program: int) -> int:
    """The bytes that a vertex captures; LimitError where they are too many.

    Raises ShaderError where a varying is none of floats or ints.
    """
    components = 0
    captured = _active(device, program, VARYINGS, "glGetTransformFeedbackVarying")
    for _, count, kind in captured:
        if kind not in COMPONENTS:
            raise ShaderError(f"{name}: a captured varying of type 0x{kind:04X}: no float or int")
        components += count * COMPONENTS[kind]
    most = device.capabilities.max_transform_feedback_interleaved_components
    if components > most:
        raise LimitError(f"{name}: {components} captured components, the device allows {most}")
    return 4 * components
