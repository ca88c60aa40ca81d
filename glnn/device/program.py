"""Linked shader programs."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_int, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

from glnn.device.device import Device
from glnn.device.source import Source
from glnn.errors import DeviceError, LimitError, ShaderError

if TYPE_CHECKING:
    import moderngl

POINTS = 0
COMPUTE_WORK_GROUP_SIZE, SHADER_STORAGE_BLOCK, ACTIVE_RESOURCES = 0x8267, 0x92E6, 0x92F5
SAMPLER_BUFFERS = 0x8DC2, 0x8DD0  # of floats, of integers
MOST_KNOWN = 64  # sets of uniforms of a program
Value = int | float | tuple[int, ...]
Command = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and what it is called with."""
COMPONENTS = {
    **{0x1406: 1, 0x8B50: 2, 0x8B51: 3, 0x8B52: 4, 0x8B5C: 16},  # float to vec4, mat4
    **{0x1404: 1, 0x8B53: 2, 0x8B54: 3, 0x8B55: 4},  # int to ivec4
}


class Program:
    """A linked program of one device. May be shared: each user sets its uniforms before a run."""

    uniforms: frozenset[str]
    """The names of the plain uniforms that the program uses, samplers included."""
    stride: int
    """The bytes that a vertex captures, 0 for a compute program."""

    def __init__(self, device: Device, name: str, program: Any) -> None:
        self._device = device
        self.name = name
        self._program = program
        members = {member: program[member] for member in program}
        self._members = {n: m for n, m in members.items() if type(m).__name__ == "Uniform"}
        self.uniforms = frozenset(self._members)
        self._attributes = {n for n, m in members.items() if type(m).__name__ == "Attribute"}
        self._last: Mapping[str, Value] | None = None
        self._known: dict[str, Mapping[str, Value]] = {}  # what recordings set, by its text
        self._use = device.load("glUseProgram", None, c_uint)
        self._uniform = device.load("glUniform1i", None, c_int, c_int)
        self.stride = 0

    @classmethod
    def compute(cls, device: Device, source: Source) -> Program:
        """Compile a compute shader.

        Raises ShaderError where it does not compile or link, LimitError where it exceeds the
        device's limits, DeviceError where the device has no compute shaders.
        """
        device.activate()
        if reason := device.capabilities.why_no_compute():
            raise DeviceError(f"{source.name}: {reason}")
        with _Translated(device, source):
            program = device.context.compute_shader(source.text)
        device.check(f"compile {source.name}")
        _check_compute(device, source.name, program.glo)
        return cls(device, source.name, program)

    @classmethod
    def feedback(cls, device: Device, source: Source, varyings: tuple[str, ...]) -> Program:
        """Compile a vertex shader whose `varyings` are captured, interleaved.

        Raises ShaderError where it does not compile or link, LimitError where it captures more
        than the device allows.
        """
        device.activate()
        with _Translated(device, source):
            program = device.context.program(
                vertex_shader=source.text,
                fragment_shader=device.capabilities.header("feedback") + "void main() {}\n",
                varyings=varyings,
            )
        device.check(f"compile {source.name}")
        made = cls(device, source.name, program)
        made.stride = _check_feedback(device, source.name, program.glo, len(varyings))
        return made

    def _usable(self) -> None:
        if self._device.closed:
            raise DeviceError(f"{self.name}: the device is closed")

    def set(self, values: Mapping[str, Value]) -> None:
        """Write uniforms; names that the program does not use are passed over.

        The mapping that was set last is not written again: make a new one for new values.
        """
        if values is self._last:
            return
        self._usable()
        self._last = None
        for function, arguments in self.changes({}, values):
            function(*arguments)
        self._last = values
        self._device.check(f"uniforms of {self.name}")

    def known(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """`values`, as the mapping that another recording has of them, so that `set` knows it."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        return self._known.setdefault(repr(sorted(values.items())), values)

    def changes(self, old: Mapping[str, Value], new: Mapping[str, Value]) -> list[Command]:
        """What writes the uniforms that are in `new` other than in `old`, -0 being none of 0."""
        return [
            command
            for name, value in new.items()
            if name in self._members and (name not in old or repr(old[name]) != repr(value))
            for command in self._writes(self._members[name], value)
        ]

    def _writes(self, member: Any, value: Value) -> Iterable[Command]:
        if member.gl_type in SAMPLER_BUFFERS:  # of a type that moderngl does not know
            yield self._use, (self._program.glo,)
            yield self._uniform, (member.location, value)
            return
        values = value if isinstance(value, tuple) else (value,)
        # One of `fmt` for each element of an array; drivers drop elements that are not used.
        count = member.array_length * member.dimension
        form = member.fmt if member.array_length == 1 else f"{count}{member.fmt[-1]}"
        yield member.write, (struct.pack(form, *values[:count]),)

    def resume(
        self, first: Mapping[str, Value], last: Mapping[str, Value], back: list[Command]
    ) -> None:
        """Set `first`, by `back` alone where `last` was set before, and note that `last` follows.

        For recordings, which write what is between the two themselves.
        """
        if self._last is last:
            for function, arguments in back:
                function(*arguments)
        else:
            self.set(first)
        self._last = last

    def forget(self) -> None:
        """Take no uniform to be set."""
        self._last = None

    def dispatching(self, groups: tuple[int, int, int]) -> Command:
        """What runs the compute shader.

        Raises LimitError on more workgroups than the device allows.
        """
        self._usable()
        x, y, z = groups
        most = self._device.capabilities.max_compute_work_group_count
        if x > most[0] or y > most[1] or z > most[2]:
            raise LimitError(f"{self.name}: {groups} workgroups, the device allows {most}")
        return self._program.mglo.run, groups

    def dispatch(self, groups: tuple[int, int, int]) -> None:
        """Run the compute shader. Raises LimitError on more workgroups than the device allows."""
        function, arguments = self.dispatching(groups)
        function(*arguments)
        self._device.check(f"dispatch {self.name}")

    def vertices(
        self, attributes: Mapping[str, tuple[moderngl.Buffer, int]] | None = None
    ) -> moderngl.VertexArray:
        """What `capture` draws: for each attribute the buffer, and the floats that a vertex takes.

        Raises DeviceError where the program is no vertex shader.
        """
        self._usable()
        if not self.stride:
            raise DeviceError(f"{self.name}: a compute program captures nothing")
        # Compilers drop attributes that the result does not depend on, as x in x - x.
        content = [
            (buffer, f"{floats}f", name)
            for name, (buffer, floats) in (attributes or {}).items()
            if name in self._attributes
        ]
        made = self._device.context.vertex_array(self._program, content)
        self._device.check_always(f"vertices of {self.name}")
        return made

    def capturing(
        self,
        array: moderngl.VertexArray,
        vertices: int,
        instances: int,
        out: moderngl.Buffer,
        first: int = 0,
        offset: int = 0,
    ) -> Command:
        """What runs the vertex shader for as many `vertices` of `array`, once for each instance.

        first: the first of the vertices. Its varyings land in `out` from the byte `offset` on.
        Raises DeviceError where that is too small: GL would drop the rest without a word.
        """
        self._usable()
        if offset + vertices * instances * self.stride > out.size:
            raise DeviceError(
                f"{self.name}: {vertices * instances} vertices of {self.stride} bytes do not fit "
                f"a buffer of {out.size} bytes"
            )
        draw, to = array.mglo, out.mglo
        return draw.transform, ([to], POINTS, vertices, first, instances, offset)

    def capture(self, array: moderngl.VertexArray, vertices: int, *rest: Any) -> None:
        """Run what `capturing` gives, and raise DeviceError where GL met an error."""
        function, arguments = self.capturing(array, vertices, *rest)
        function(*arguments)
        self._device.check_always(f"capture {self.name}")  # a wrong state shows as zeros only


class _Translated:
    """Turns moderngl's error inside a `with` into a ShaderError."""

    def __init__(self, device: Device, source: Source) -> None:
        self._device = device
        self._source = source

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import moderngl

        if not isinstance(error, moderngl.Error):
            return
        while self._device.context.error != "GL_NO_ERROR":
            pass
        self._device.check_reset(f"compile {self._source.name}")
        text = str(error)
        stage = "link" if "GLSL Linker failed" in text else "compile"
        log = re.split(r"\n=+\n", text, maxsplit=1)[-1]
        offers = self._device.capabilities
        limits = (
            f"; at most {offers.max_compute_work_group_invocations} invocations and "
            f"{offers.max_compute_shared_memory_size} bytes of shared memory a workgroup"
        )
        raise ShaderError(
            f"{stage}: {self._source.name} on {offers.renderer}"
            f"{limits if offers.compute else ''}\n{self._source.explain(log)}"
        ) from None


def _check_compute(device: Device, name: str, program: int) -> None:
    """Hold a linked program against the device's limits, which may be lower than the driver's."""
    size, blocks = (c_int * 3)(), c_int()
    device.load("glGetProgramiv", None, c_uint, c_uint, c_void_p)(
        program, COMPUTE_WORK_GROUP_SIZE, size
    )
    device.load("glGetProgramInterfaceiv", None, c_uint, c_uint, c_uint, c_void_p)(
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


def _check_feedback(device: Device, name: str, program: int, varyings: int) -> int:
    """The bytes that a vertex captures; LimitError where they are too many.

    Raises ShaderError where a varying is none of floats or ints.
    """
    pointers = [c_void_p] * 4
    ask = device.load("glGetTransformFeedbackVarying", None, c_uint, c_uint, c_int, *pointers)
    components = 0
    for index in range(varyings):
        length, count, kind = c_int(), c_int(), c_uint()
        text = ctypes.create_string_buffer(256)
        ask(program, index, 256, byref(length), byref(count), byref(kind), text)
        if kind.value not in COMPONENTS:
            raise ShaderError(
                f"{name}: a captured varying of type 0x{kind.value:04X}: no float or int"
            )
        components += count.value * COMPONENTS[kind.value]
    most = device.capabilities.max_transform_feedback_interleaved_components
    if components > most:
        raise LimitError(f"{name}: {components} captured components, the device allows {most}")
    return 4 * components
