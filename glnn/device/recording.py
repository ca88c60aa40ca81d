"""Commands of GL, written down once and given again and again with the least of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from glnn.device.device import BARRIERS, Device
from glnn.device.functions import Command
from glnn.device.members import Value
from glnn.device.places import END, Marks, Place, Range
from glnn.device.program import Program

if TYPE_CHECKING:
    import moderngl

Groups = tuple[int, int, int]
"""The workgroups of a dispatch along x, y and z."""
Attributes = Mapping[str, tuple["moderngl.Buffer", int]]
"""The attributes of a vertex array: of each the buffer, and the floats that a vertex takes."""


@dataclass(frozen=True)
class Capture:
    """One draw of transform feedback."""

    vertices: int
    """How many, for each instance."""
    instances: int
    """How often they are drawn."""
    first: int
    """The first of the vertices."""
    to: int
    """The byte of the buffer that it captures to."""


@dataclass
class _Uniforms:
    """Those of a program in a recording."""

    first: Mapping[str, Value]
    """What the first use wants."""
    at: int
    """The place among the commands where that is set."""
    last: Mapping[str, Value]
    """What the last use so far wanted."""


@dataclass
class Recorder:
    """Writes down what is asked of `device`, and leaves out what is so already.

    Nothing is known of the context before the first command: others may have used it.
    """

    device: Device
    _commands: list[Command] = field(default_factory=list)
    _steps: list[tuple[str, int]] = field(default_factory=list)
    """Each step's name, and the place of its first command."""
    _bound: dict[int, Range] = field(default_factory=dict)
    """What each storage binding has."""
    _units: dict[int, object] = field(default_factory=dict)
    """What each texture unit has."""
    _current: Program | None = None
    """The current program, where that is known."""
    _read: Marks = field(default_factory=Marks)
    """What was read since the last barrier."""
    _written: Marks = field(default_factory=Marks)
    """What compute shaders wrote since then."""
    _uniforms: dict[Program, _Uniforms] = field(default_factory=dict)
    _programs: dict[Program, None] = field(default_factory=dict)
    """Those whose uniforms were set."""

    def step(self, name: str) -> None:
        """What follows is the step called `name`."""
        self._steps.append((name, len(self._commands)))

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function`, of which nothing is known: the context may be another after it."""
        self._settle()
        self._close()
        self._commands.append((function, arguments))
        self._bound.clear()
        self._units.clear()
        self._current = None

    def uses(self, reads: Sequence[Place], writes: Sequence[Place] = ()) -> None:
        """What follows reads and writes these: a barrier first where earlier work must be over.

        writes: by a compute shader. GL itself keeps what transform feedback captures in order.
        """
        after = any(self._written.latest(one) >= 0 for one in (*reads, *writes))
        if after or any(self._read.latest(one) >= 0 for one in writes):
            self._settle()
        for one in reads:
            self._read.mark(one, 0)
        for one in writes:
            self._written.mark(one, 0)

    def _settle(self) -> None:
        """Let what follows see all that was written, where something was."""
        if self._written:
            context: Any = self.device.context  # the stubs of moderngl 5.8 leave it out
            self._commands.append((context.mglo.memory_barrier, (BARRIERS, False)))
        self._read.clear()
        self._written.clear()

    def copy(
        self, target: moderngl.Buffer, to: int, source: moderngl.Buffer, at: int, nbytes: int
    ) -> None:
        """Copy `nbytes` of `source` from the byte `at` on to `target` from the byte `to` on."""
        self.uses([(source.glo, at, at + nbytes), (target.glo, to, to + nbytes)])
        copy = self.device.context.copy_buffer  # which takes these by name only in moderngl 5.8
        self._commands.append(
            (partial(copy, target, source, nbytes, read_offset=at, write_offset=to), ())
        )

    def refresh(self, texture: Any, buffer: moderngl.Buffer, first: int) -> None:
        """Let `texture` hold what `buffer` holds now from the byte `first` on."""
        self.uses([(buffer.glo, first, END)])
        self._commands.append((texture.copy_from, (buffer, first)))
        self._units.pop(0, None)  # the copy goes by way of unit 0

    def texture(self, unit: int, texture: Any) -> None:
        """Make `texture` that of `unit`."""
        if self._units.get(unit) is not texture:
            self._units[unit] = texture
            self._commands.append((texture.bind, (unit,)))

    def bind(self, range: Range) -> None:
        """Bind a part of a buffer for compute shaders."""
        buffer, binding, offset, size = range
        if self._bound.get(binding) != range:
            self._bound[binding] = range
            bind: Any = buffer.mglo  # what its Python would call
            self._commands.append((bind.bind_to_storage_buffer, (binding, offset, size)))

    def uniforms(self, program: Program, values: Mapping[str, Value]) -> None:
        """Set the uniforms of `program`."""
        values = program.known(values)
        known = self._uniforms.get(program)
        if known is None:
            self._uniforms[program] = _Uniforms(values, len(self._commands), values)
            self._commands.append((program.set, (values,)))
            self._current = None  # it is this one only where there was something to set
        elif known.last is not values:
            self._use(program)
            self._commands += program.changes(known.last, values)
            known.last = values

    def _use(self, program: Program) -> None:
        """Make `program` the current one."""
        if self._current is not program:
            self._current = program
            self._commands.append(program.using())

    def dispatch(self, program: Program, groups: Groups) -> None:
        """Run a compute shader. Raises LimitError on more workgroups than the device allows."""
        self.run(program.dispatching(groups))
        self._current = program

    def capture(
        self,
        program: Program,
        array: moderngl.VertexArray,
        attributes: Attributes,
        draw: Capture,
        out: moderngl.Buffer,
    ) -> None:
        """Run a vertex shader for vertices of `array`, which is made of `attributes`.

        Raises DeviceError where what it captures does not fit into the buffer `out`.
        """
        self.run(program.capturing(array, draw.vertices, draw.instances, out, draw.first, draw.to))
        self._current = program

    def run(self, command: Command) -> None:
        """Have `command` run, whatever it is."""
        self._commands.append(command)

    def flush(self) -> None:
        """Let the device begin with what it was told so far."""
        self._commands.append((self.device.flush, ()))

    def recording(self) -> Recording:
        """All that was written down; whoever reads its results later sees them."""
        self._settle()
        self._close()
        ends = [at for _, at in self._steps[1:]] + [len(self._commands)]
        steps = [
            (name, self._commands[first:end])
            for (name, first), end in zip(self._steps, ends, strict=False)
        ]
        return Recording(self.device, steps, tuple(self._programs))

    def _close(self) -> None:
        """Have each program begin with its first uniforms; of later ones nothing is known."""
        for program, used in self._uniforms.items():
            if used.last is not used.first:
                back = program.changes(used.last, used.first)
                self._commands[used.at] = program.resume, (used.first, used.last, back)
        self._programs |= dict.fromkeys(self._uniforms)
        self._uniforms.clear()


class Recording:
    """Steps of commands on `device`, to be called inside `Device.perform`.

    programs: those whose uniforms it sets. Its first run, and with GLNN_DEBUG every run, asks GL
    for errors after each step. Raises DeviceError with the step's name where there are some.
    """

    def __init__(
        self,
        device: Device,
        steps: list[tuple[str, list[Command]]],
        programs: tuple[Program, ...],
    ) -> None:
        self._device, self._steps, self._programs = device, steps, programs
        self._commands = [command for _, commands in steps for command in commands]
        self._checked = False

    def __call__(self) -> None:
        try:
            if self._checked:
                for function, arguments in self._commands:
                    function(*arguments)
            else:
                self._run_checked()
        except BaseException:
            for program in self._programs:
                program.forget()
            raise

    @property
    def ran(self) -> bool:
        """Whether it ran, and GL was asked for errors; never with GLNN_DEBUG."""
        return self._checked

    def _run_checked(self) -> None:
        for name, commands in self._steps:
            for function, arguments in commands:
                function(*arguments)
            self._device.check_always(name)
        self._checked = not self._device.debug
