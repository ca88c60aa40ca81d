"""Linked shader programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from glnn.errors import DeviceError, LimitError
from glnn.gl.building import any_shader, compute_program, feedback_program, owned
from glnn.gl.device import Device
from glnn.gl.functions import Command
from glnn.gl.members import Value, check_compute, check_feedback, check_uniforms, uniforms
from glnn.gl.source import Source
from glnn.span import Span

if TYPE_CHECKING:
    import moderngl

POINTS = 0
MOST_KNOWN = 64  # sets of uniforms of a program


@dataclass(eq=False)
class UniformUse:
    """Commands that set a program's uniforms before a command list that writes single ones."""

    last: object
    """What is set behind these commands; the same object as where that is the same."""
    back: list[Command]
    """Commands that set them where `last` was set."""
    sized: list[Command]
    """Commands that set them behind the same commands with other sizes."""
    every: list[Command]
    """Commands that set them whatever was set before."""


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
    """What `restored` gives it by in a later process; None where its binary is not kept."""
    compiled: bool = True
    """True where it was compiled here, False where it was loaded from a binary."""

    def __init__(
        self, device: Device, name: str, program: int, varyings: tuple[str, ...] = ()
    ) -> None:
        """program: GL's name of one that is linked, which is this one's from here on.

        varyings: those that it captures, none for a compute program. Raises LimitError where it
        exceeds the device's limits, ShaderError where it captures what is none of floats or ints.
        """
        self._device, self._gl = device, device.functions
        self.name, self.glo, self.stride = name, program, 0
        self._last: object = None  # a mapping, or what stands for one
        self._last_use: UniformUse | None = None
        self._known: dict[str, Mapping[str, Value]] = {}  # what commands set, by its text
        self._use = self._gl.quick("glUseProgram")
        with owned(device, program):
            self._members = uniforms(device, program)
            check_uniforms(device, name, self._members, "feedback" if varyings else "compute")
            if varyings:
                self.stride = check_feedback(device, name, program)
            else:
                check_compute(device, name, program)
            shader = partial(any_shader, device)
            self._program = device.adopting.adopt(device.context, program, varyings, shader)
        self.uniforms = frozenset(self._members)

    @classmethod
    def compute(cls, device: Device, source: Source) -> Program:
        """Compile a compute shader, or take what was compiled in an earlier process.

        Raises ShaderError where it does not compile or link, LimitError where it exceeds the
        device's limits, DeviceError where the device has no compute shaders.
        """
        device.activate()
        if reason := device.capabilities.why_no_compute():
            raise DeviceError(f"{source.name}: {reason}")
        key = device.binaries.key("compute", source.text)
        if key is not None and (found := cls._loaded(device, key, "compute")):
            return found
        program = compute_program(device, source, keep=key is not None)
        return cls._made(device, source, program, key, "compute", ())

    @classmethod
    def feedback(cls, device: Device, source: Source, varyings: tuple[str, ...]) -> Program:
        """Compile a vertex shader whose `varyings` are captured, or take what was compiled.

        Raises ShaderError where it does not compile or link, LimitError where it captures more
        than the device allows.
        """
        device.activate()
        key = device.binaries.key("feedback", source.text, varyings)
        if key is not None and (found := cls._loaded(device, key, "feedback")):
            return found
        program = feedback_program(device, source, varyings, keep=key is not None)
        return cls._made(device, source, program, key, "feedback", varyings)

    @classmethod
    def restored(cls, device: Device, key: str) -> Program | None:
        """The program that an earlier process, or this one, had by `key`.

        None where it is not kept any more, or the driver does not take it.
        """
        device.activate()
        start = perf_counter()
        made = cls._loaded(device, key, None)
        if made is not None:
            device.restored.append(Span(made.name, start, perf_counter()))
        return made

    @classmethod
    def _loaded(cls, device: Device, key: str, stage: str | None) -> Program | None:
        kept = device.binaries.load(key, stage)
        if kept is None:
            return None
        made = cls(device, kept.name, kept.program, kept.varyings)
        made.key, made.compiled = key, False
        device.check(f"load {made.name}")
        return made

    @classmethod
    def _made(
        cls,
        device: Device,
        source: Source,
        program: int,
        key: str | None,
        stage: str,
        varyings: tuple[str, ...],
    ) -> Program:
        made = cls(device, source.name, program, varyings)
        device.check(f"compile {source.name}")
        if key is not None and device.binaries.keep(key, stage, source.name, program, varyings):
            made.key = key
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
        before = self._last if isinstance(self._last, Mapping) else {}
        self.forget()
        self._use(self.glo)
        for function, arguments in self.changes(before, values):
            function(*arguments)
        self._last = values
        self._device.check(f"uniforms of {self.name}")

    def known(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return `values`, the same mapping for equal ones, so that `set` knows it."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        return self._known.setdefault(repr(sorted(values.items())), values)

    def changes(self, old: Mapping[str, Value], new: Mapping[str, Value]) -> list[Command]:
        """Return the commands that write those uniforms whose values in `old` and `new` differ (-0
        is not 0).

        To be called while the program is the current one.
        """
        return [
            self._members[name].writing(self._gl, value)
            for name, value in new.items()
            if name in self._members and not _same(old.get(name), value)
        ]

    def writing(self, name: str, value: Value) -> Command:
        """Return the command that sets uniform `name`, to be run while the program is current."""
        return self._members[name].writing(self._gl, value)

    def memory(self, name: str, count: int) -> Any:
        """Return memory for numbers of one of its uniforms, in which they are as GL has them."""
        return (self._members[name].ctype * count)()

    def writing_from(self, name: str, memory: Any) -> Command:
        """Return the command that sets uniform `name` from `memory`, read when it runs."""
        return self._members[name].writing_from(self._gl, memory)

    def resume(self, use: UniformUse) -> None:
        """Set the uniforms of `use` by as little as need be, and note that its `last` follows.

        For `BoundCommands`, which write what is between the two themselves.
        """
        if self._last is use.last:
            commands = use.back
        else:
            self._usable()
            commands = use.sized if self._last_use is use else use.every
        if commands:
            self._use(self.glo)
            for function, arguments in commands:
                function(*arguments)
        self._last, self._last_use = use.last, use

    def forget(self) -> None:
        """Take no uniform to be set."""
        self._last = self._last_use = None

    def using(self) -> Command:
        """Return the command that makes the program current, as running it does by itself."""
        return self._use, (self.glo,)

    def dispatching(self, groups: tuple[int, int, int]) -> Command:
        """Return the command that makes the program current and dispatches its compute shader.

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
        """Return a vertex array for `capture`: by attribute a buffer and the floats per vertex.

        Raises DeviceError where the program is no vertex shader.
        """
        self._usable()
        if not self.stride:
            raise DeviceError(f"{self.name}: a compute program captures nothing")
        # Compilers drop attributes that the result does not depend on, as x in x - x.
        content = [
            (buffer, f"{floats}f", name)
            for name, (buffer, floats) in (attributes or {}).items()
            if name in self._program
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
        """Return the command that captures `vertices` of `array`, once for each instance.

        It makes the program the current one. first: the first of the vertices. Its varyings land
        in `out` from the byte `offset` on. Raises DeviceError where that is too small: GL would
        drop the rest without a word.
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


def _same(old: Value | None, new: Value) -> bool:
    """Return True where a uniform is `new` already; -0 is not 0, nor a float an int."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new) or old != new:
        return False
    if isinstance(old, tuple) and isinstance(new, tuple):
        return all(map(_same, old, new))
    return kind is int or repr(old) == repr(new)
