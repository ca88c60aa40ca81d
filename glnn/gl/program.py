"""Shader programs: their source, compilation, reflection and uniforms."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_uint, c_void_p
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glnn.core.trace_spans import Span
from glnn.errors import DeviceError, LimitError, ShaderError
from glnn.gl.context import GlCall, GlFunctions
from glnn.gl.device import Device

if TYPE_CHECKING:
    import moderngl


# "0:12(5): error", "0(12) : error", "ERROR: 0:12: ..."
POSITION = re.compile(r"(?:ERROR: |WARNING: )?\b\d+(?::(\d+)(?:\(\d+\))?|\((\d+)\)) ?: ?(.*)")


@dataclass(frozen=True)
class Source:
    """A shader's complete text, and the file and line that each of its lines came from."""

    name: str
    text: str
    origin: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(self.text.splitlines()) != len(self.origin):
            raise ValueError(f"{self.name}: a line without an origin")

    def explain(self, message: str) -> str:
        """Return the driver's `message` with file, line and text for each position."""
        lines = self.text.splitlines()
        explained: list[str] = []
        for line in message.splitlines():
            match = POSITION.match(line.strip())
            number = int(match[1] or match[2]) if match else 0
            if match and 1 <= number <= len(lines):
                file, file_line = self.origin[number - 1]
                explained += [f"{file}:{file_line}: {match[3]}", f"    {lines[number - 1].strip()}"]
            elif line.strip():
                explained.append(line.strip())
        return "\n".join(explained)


VERTEX, FRAGMENT, COMPUTE = 0x8B31, 0x8B30, 0x91B9
COMPILED, LINKED, LOG_LENGTH = 0x8B81, 0x8B82, 0x8B84
INTERLEAVED, RETRIEVABLE = 0x8C8C, 0x8257
EMPTY = "void main() {}\n"
STUB = "layout(local_size_x = 1) in;\n" + EMPTY


def compute_program(device: Device, source: Source, keep: bool = False) -> int:
    """Compile and link a compute shader, and return GL's name of the program.

    keep: True where its binary will be retrieved. Raises ShaderError with the driver's message.
    """
    return _program(device, source, {COMPUTE: source}, (), keep)


def feedback_program(
    device: Device, source: Source, varyings: Sequence[str], keep: bool = False
) -> int:
    """Compile and link a vertex shader whose `varyings` are captured, interleaved; return GL's name
    of the program.

    keep: True where its binary will be retrieved. Raises ShaderError with the driver's message.
    """
    header = device.capabilities.header(
        "feedback"
    )  # a program without a second stage does not link
    stages = {VERTEX: source, FRAGMENT: _source_of("(no pixels)", header + EMPTY)}
    return _program(device, source, stages, varyings, keep)


def compile_stub(device: Device, stage: int) -> int:
    """Compile a minimal shader of `stage`, and return GL's name of it."""
    kind, body = ("compute", STUB) if stage == COMPUTE else ("feedback", EMPTY)
    return _shader(device, stage, _source_of("(nothing)", device.capabilities.header(kind) + body))


def _source_of(name: str, text: str) -> Source:
    return Source(name, text, tuple((name, i) for i, _ in enumerate(text.splitlines(), 1)))


def _program(
    device: Device,
    source: Source,
    stages: dict[int, Source],
    varyings: Sequence[str],
    keep: bool,
) -> int:
    slow = device.functions.slow
    with delete_on_error(device, slow("glCreateProgram", c_uint)()) as program:
        shaders: list[int] = []
        try:
            for stage, text in stages.items():
                shaders.append(_shader(device, stage, text))
                slow("glAttachShader", None, c_uint, c_uint)(program, shaders[-1])
            if varyings:
                names = (c_char_p * len(varyings))(*(name.encode() for name in varyings))
                capture = slow("glTransformFeedbackVaryings", None, c_uint, c_int, c_void_p, c_uint)
                capture(program, len(varyings), names, INTERLEAVED)
            if keep:
                slow("glProgramParameteri", None, c_uint, c_uint, c_int)(program, RETRIEVABLE, 1)
            slow("glLinkProgram", None, c_uint)(program)
        finally:
            for shader in shaders:
                slow("glDetachShader", None, c_uint, c_uint)(program, shader)
                slow("glDeleteShader", None, c_uint)(shader)
        if not linked(device, program):
            raise _failed(device, "link", source, _log(device, "Program", program))
    return program


@contextmanager
def delete_on_error(device: Device, program: int) -> Iterator[int]:
    """Delete the program of this GL name where the body raises an exception."""
    try:
        yield program
    except BaseException:
        device.functions.slow("glDeleteProgram", None, c_uint)(program)
        raise


def linked(device: Device, program: int) -> bool:
    """Return True where a program is linked and can be run."""
    return _get_parameter(device, "glGetProgramiv", program, LINKED) != 0


def _get_parameter(device: Device, function: str, name: int, what: int) -> int:
    value = c_int()
    device.functions.slow(function, None, c_uint, c_uint, c_void_p)(name, what, byref(value))
    return value.value


def _shader(device: Device, stage: int, source: Source) -> int:
    slow = device.functions.slow
    shader: int = slow("glCreateShader", c_uint, c_uint)(stage)
    try:
        raw = source.text.encode()
        text, length = c_char_p(raw), c_int(len(raw))
        put: Callable[..., Any]
        put = slow("glShaderSource", None, c_uint, c_int, c_void_p, c_void_p)
        put(shader, 1, byref(text), byref(length))
        slow("glCompileShader", None, c_uint)(shader)
        if not _get_parameter(device, "glGetShaderiv", shader, COMPILED):
            raise _failed(device, "compile", source, _log(device, "Shader", shader))
    except BaseException:
        slow("glDeleteShader", None, c_uint)(shader)
        raise
    return shader


def _log(device: Device, kind: str, name: int) -> str:
    """Return the driver's info log of a shader or a program."""
    length = _get_parameter(device, f"glGet{kind}iv", name, LOG_LENGTH)
    text = ctypes.create_string_buffer(max(length, 0) + 1)
    kinds = c_uint, c_int, c_void_p, c_void_p
    device.functions.slow(f"glGet{kind}InfoLog", None, *kinds)(name, len(text), None, text)
    return text.value.decode("utf-8", "replace")


def _failed(device: Device, step: str, source: Source, log: str) -> ShaderError:
    while device.context.error != "GL_NO_ERROR":
        device.check_reset(f"{step} {source.name}")  # a lost context repeats its error
    device.check_reset(f"{step} {source.name}")
    offers = device.capabilities
    limits = (
        f"; at most {offers.max_compute_work_group_invocations} invocations and "
        f"{offers.max_compute_shared_memory_size} bytes of shared memory a workgroup"
    )
    return ShaderError(
        f"{step}: {source.name} on {offers.renderer}"
        f"{limits if offers.compute else ''}\n{source.explain(log)}"
    )


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
UNIT = 1, "i", "iv"  # the same of samplers, which are texture units


@dataclass(frozen=True)
class Uniform:
    """A uniform of a program. Its calls run while the program is current."""

    location: int
    """Its location in the program."""
    type: int
    """GL's number of its type."""
    count: int
    """The elements of an array that the program uses; 1 for others."""

    def uniform_call(self, gl: GlFunctions, value: Value) -> GlCall:
        """Return the call that sets the uniform to `value`, cut to the elements in use.

        Raises struct.error for a value of another type.
        """
        if type(value) is int and self.type == INT and -(1 << 31) <= value < 1 << 31:
            return gl.quick("glUniform1i"), (self.location, value)  # the common case
        components, letter, ending = WRITTEN.get(self.type, UNIT)
        values = value if isinstance(value, tuple) else (value,)
        if self.count == 1 and letter != "f" and len(values) == components:
            # Integers are passed as arguments, which is faster than packing them.
            least = 0 if letter == "I" else -(1 << 31)
            if all(type(one) is int and least <= one < least + (1 << 32) for one in values):
                return gl.quick(f"glUniform{components}{ending[:-1]}"), (self.location, *values)
        packed = struct.pack(f"{self.count * components}{letter}", *values[: self.components])
        content = (c_char * len(packed)).from_buffer_copy(packed)
        return gl.quick(f"glUniform{components}{ending}"), (self.location, self.count, content)

    @property
    def ctype(self) -> Any:
        """The ctypes type of its numbers in memory."""
        return {"f": c_float, "i": c_int, "I": c_uint}[WRITTEN.get(self.type, UNIT)[1]]

    def uniform_call_from(self, gl: GlFunctions, memory: Any) -> GlCall:
        """Return the call that sets the uniform from `memory`, an array of `ctype`, which GL reads
        when the call runs.
        """
        components, _, ending = WRITTEN.get(self.type, UNIT)
        return gl.quick(f"glUniform{components}{ending}"), (self.location, self.count, memory)

    @property
    def components(self) -> int:
        """The count of its numbers."""
        return self.count * WRITTEN.get(self.type, UNIT)[0]


def active_uniforms(device: Device, program: int) -> dict[str, Uniform]:
    """Return the uniforms of a program by name, without those in blocks."""
    locate = device.functions.slow("glGetUniformLocation", c_int, c_uint, c_void_p)
    result: dict[str, Uniform] = {}
    for name, count, kind in _active(device, program, UNIFORMS, "glGetActiveUniform"):
        location = locate(program, ctypes.create_string_buffer(name))
        if location >= 0:
            result[name.decode().removesuffix("[0]")] = Uniform(location, kind, count)
    return result


def _active(
    device: Device, program: int, what: int, function: str
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the elements and the type of each uniform, or of each captured varying."""
    total, length, count, kind = c_int(), c_int(), c_int(), c_uint()
    text = ctypes.create_string_buffer(LONGEST)
    slow: Any = device.functions.slow
    slow("glGetProgramiv", None, c_uint, c_uint, c_void_p)(program, what, byref(total))
    ask = slow(function, None, c_uint, c_uint, c_int, *[c_void_p] * 4)
    for index in range(total.value):
        ask(program, index, LONGEST, byref(length), byref(count), byref(kind), text)
        yield text.value, count.value, kind.value


def check_uniforms(device: Device, name: str, members: Mapping[str, Uniform], stage: str) -> None:
    """Raise LimitError where a program of `stage` has more uniforms than the device allows."""
    offers, components = device.capabilities, sum(one.components for one in members.values())
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
    """Return the bytes that a vertex captures. Raises LimitError where they are too many,
    ShaderError where a varying is neither of floats nor of ints.
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


POINTS = 0
MOST_KNOWN = 64  # sets of uniforms that `Program.intern_uniforms` keeps


@dataclass(eq=False)
class UniformUse:
    """Calls that set a program's uniforms before commands that write single ones."""

    last: object
    """The set of uniforms behind these commands; the same object for equal sets."""
    calls_from_last: list[GlCall]
    """The calls where `last` is set."""
    calls_from_other_sizes: list[GlCall]
    """The calls where the same use was the last one, with other sizes."""
    all_calls: list[GlCall]
    """The calls where any other uniforms are set, or none."""


class Program:
    """A linked program of one device. May be shared: each user sets its uniforms before a run."""

    name: str
    """The program's name for people: its shader."""
    glo: int
    """GL's name of it."""
    uniforms: frozenset[str]
    """The names of the plain uniforms that the program uses, samplers included."""
    stride: int
    """The bytes that a vertex captures, 0 for a compute program."""
    key: str | None = None
    """The key by which `load_stored` finds it in a later process; None without a stored binary."""
    compiled: bool = True
    """True where this process compiled it, False where it loaded a binary."""

    def __init__(
        self, device: Device, name: str, program: int, varyings: tuple[str, ...] = ()
    ) -> None:
        """program: GL's name of a linked program, which this object owns from now on. varyings: the
        varyings that it captures, none for a compute program.

        Raises LimitError where it exceeds the device's limits, ShaderError where it captures
        varyings that are neither of floats nor of ints.
        """
        self._device, self._gl = device, device.functions
        self.name, self.glo, self.stride = name, program, 0
        self._last: object = None  # the uniforms set last: a mapping, or UniformUse.last
        self._last_use: UniformUse | None = None
        self._interned: dict[str, Mapping[str, Value]] = {}  # sets of uniforms, by their text
        self._use = self._gl.quick("glUseProgram")
        with delete_on_error(device, program):
            self._members = active_uniforms(device, program)
            check_uniforms(device, name, self._members, "feedback" if varyings else "compute")
            if varyings:
                self.stride = check_feedback(device, name, program)
            else:
                check_compute(device, name, program)
            shader = partial(compile_stub, device)
            self._program = device.moderngl_loader.adopt(device.context, program, varyings, shader)
        self.uniforms = frozenset(self._members)

    @classmethod
    def compute(cls, device: Device, source: Source) -> Program:
        """Compile a compute shader, or load the binary that an earlier process stored.

        Raises ShaderError where it does not compile or link, LimitError where it exceeds the
        device's limits, DeviceError where the device has no compute shaders.
        """
        device.activate()
        if reason := device.capabilities.why_no_compute():
            raise DeviceError(f"{source.name}: {reason}")
        key = device.binaries.key("compute", source.name, source.text)
        if key is not None and (result := cls._from_binary(device, key, "compute")):
            return result
        program = compute_program(device, source, keep=key is not None)
        return cls._from_source(device, source, program, key, "compute", ())

    @classmethod
    def feedback(cls, device: Device, source: Source, varyings: tuple[str, ...]) -> Program:
        """Compile a vertex shader whose `varyings` are captured, or load its stored binary.

        Raises ShaderError where it does not compile or link, LimitError where it captures more
        than the device allows.
        """
        device.activate()
        key = device.binaries.key("feedback", source.name, source.text, varyings)
        if key is not None and (result := cls._from_binary(device, key, "feedback")):
            return result
        program = feedback_program(device, source, varyings, keep=key is not None)
        return cls._from_source(device, source, program, key, "feedback", varyings)

    @classmethod
    def load_stored(cls, device: Device, key: str) -> Program | None:
        """Load the stored program of this `key`.

        Return None where it is not stored any more, or the driver refuses it.
        """
        device.activate()
        start = perf_counter()
        result = cls._from_binary(device, key, None)
        if result is not None:
            device.restored.append(Span(result.name, start, perf_counter()))
        return result

    @classmethod
    def _from_binary(cls, device: Device, key: str, stage: str | None) -> Program | None:
        loaded = device.binaries.load(key, stage)
        if loaded is None:
            return None
        result = cls(device, loaded.name, loaded.program, loaded.varyings)
        result.key, result.compiled = key, False
        device.check(f"load {result.name}")
        return result

    @classmethod
    def _from_source(
        cls,
        device: Device,
        source: Source,
        program: int,
        key: str | None,
        stage: str,
        varyings: tuple[str, ...],
    ) -> Program:
        result = cls(device, source.name, program, varyings)
        device.check(f"compile {source.name}")
        if key is not None and device.binaries.save(key, stage, source.name, program, varyings):
            result.key = key
        return result

    def _check_open(self) -> None:
        if self._device.closed:
            raise DeviceError(f"{self.name}: the device is closed")

    def set(self, values: Mapping[str, Value]) -> None:
        """Write uniforms; names that the program does not use are ignored.

        The mapping that was set last is not written again: pass a new one for new values.
        """
        if values is self._last:
            return
        self._check_open()
        previous = self._last if isinstance(self._last, Mapping) else {}
        self.invalidate_uniforms()
        self._use(self.glo)
        for function, arguments in self.changes(previous, values):
            function(*arguments)
        self._last = values
        self._device.check(f"uniforms of {self.name}")

    def intern_uniforms(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return a mapping equal to `values`, the same object for all equal ones."""
        if len(self._interned) >= MOST_KNOWN:
            self._interned.clear()
        return self._interned.setdefault(repr(sorted(values.items())), values)

    def changes(self, old: Mapping[str, Value], new: Mapping[str, Value]) -> list[GlCall]:
        """Return the calls that write the uniforms whose values in `old` and `new` differ (-0 is
        not 0), to be run while the program is current.
        """
        return [
            self._members[name].uniform_call(self._gl, value)
            for name, value in new.items()
            if name in self._members and not _same(old.get(name), value)
        ]

    def uniform_call(self, name: str, value: Value) -> GlCall:
        """Return the call that sets uniform `name`, to be run while the program is current."""
        return self._members[name].uniform_call(self._gl, value)

    def uniform_memory(self, name: str, count: int) -> Any:
        """Return memory for `count` numbers of uniform `name`, in GL's type."""
        return (self._members[name].ctype * count)()

    def uniform_call_from(self, name: str, memory: Any) -> GlCall:
        """Return the call that sets uniform `name` from `memory`, which GL reads when it runs."""
        return self._members[name].uniform_call_from(self._gl, memory)

    def apply_uniforms(self, use: UniformUse) -> None:
        """Set the uniforms that `use` begins with, by as few calls as possible.

        For `BoundCommands`, whose later commands write the changes up to `use.last`.
        """
        if self._last is use.last:
            calls = use.calls_from_last
        else:
            self._check_open()
            calls = use.calls_from_other_sizes if self._last_use is use else use.all_calls
        if calls:
            self._use(self.glo)
            for function, arguments in calls:
                function(*arguments)
        self._last, self._last_use = use.last, use

    def invalidate_uniforms(self) -> None:
        """Forget which uniforms are set, so that all are set again."""
        self._last = self._last_use = None

    def use_call(self) -> GlCall:
        """Return the call that makes the program current, as a dispatch or draw does by itself."""
        return self._use, (self.glo,)

    def dispatch_call(self, groups: tuple[int, int, int]) -> GlCall:
        """Return the call that makes the program current and dispatches its compute shader.

        Raises LimitError on more workgroups than the device allows.
        """
        self._check_open()
        x, y, z = groups
        most = self._device.capabilities.max_compute_work_group_count
        if x > most[0] or y > most[1] or z > most[2]:
            raise LimitError(f"{self.name}: {groups} workgroups, the device allows {most}")
        return self._program.mglo.run, groups

    def dispatch(self, groups: tuple[int, int, int]) -> None:
        """Run the compute shader. Raises LimitError on more workgroups than the device allows."""
        function, arguments = self.dispatch_call(groups)
        function(*arguments)
        self._device.check(f"dispatch {self.name}")

    def vertex_array(
        self, attributes: Mapping[str, tuple[moderngl.Buffer, int]] | None = None
    ) -> moderngl.VertexArray:
        """Return a vertex array for `capture`: by attribute a buffer and the floats per vertex.

        Raises DeviceError where the program is no vertex shader.
        """
        self._check_open()
        if not self.stride:
            raise DeviceError(f"{self.name}: a compute program captures nothing")
        # Compilers drop attributes that the result does not depend on, as x in x - x.
        content = [
            (buffer, f"{floats}f", name)
            for name, (buffer, floats) in (attributes or {}).items()
            if name in self._program
        ]
        array = self._device.context.vertex_array(self._program, content)
        self._device.check_always(f"vertices of {self.name}")
        return array

    def capture_call(
        self,
        array: moderngl.VertexArray,
        vertices: int,
        instances: int,
        out: moderngl.Buffer,
        first: int = 0,
        offset: int = 0,
    ) -> GlCall:
        """Return the call that makes the program current and captures `vertices` of `array`, once
        for each instance, to `out` from the byte `offset` on.

        first: the first vertex. Raises DeviceError where `out` is too small: GL would drop the rest
        without an error.
        """
        self._check_open()
        if offset + vertices * instances * self.stride > out.size:
            raise DeviceError(
                f"{self.name}: {vertices * instances} vertices of {self.stride} bytes do not fit "
                f"a buffer of {out.size} bytes"
            )
        draw, target = array.mglo, out.mglo
        return draw.transform, ([target], POINTS, vertices, first, instances, offset)

    def capture(self, array: moderngl.VertexArray, vertices: int, *rest: Any) -> None:
        """Run the call of `capture_call`, and raise DeviceError where GL reports an error."""
        function, arguments = self.capture_call(array, vertices, *rest)
        function(*arguments)
        self._device.check_always(f"capture {self.name}")  # else a wrong state gives zeros


def _same(old: Value | None, new: Value) -> bool:
    """Return True for equal values; -0 is not 0, nor a float an int."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new) or old != new:
        return False
    if isinstance(old, tuple) and isinstance(new, tuple):
        return all(map(_same, old, new))
    return kind is int or repr(old) == repr(new)
