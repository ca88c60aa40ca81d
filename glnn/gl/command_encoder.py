"""CommandEncoder: writes a CommandBuffer, without commands that would change nothing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from glnn.core.size_table import Size, SizeTable
from glnn.gl.command_buffer import (
    Command,
    CommandBuffer,
    TextureView,
    UniformValue,
    VertexInput,
)
from glnn.gl.program import Program, Value

MemoryRange = tuple[Hashable, int, int]
"""A part of a buffer: what tells that from others, the first byte, and the one behind the last."""
END = 1 << 62  # behind the last byte of any buffer


class AccessLog:
    """The last step that accessed each range of memory, by its number; -1 where none did."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[tuple[int, int], int]] = {}

    def __bool__(self) -> bool:
        """Return True where any range is marked."""
        return bool(self._found)

    def mark(self, part: MemoryRange, number: int) -> None:
        """Mark `part` with the step `number`, unless a later one is there."""
        name, *ends = part
        marks = self._found.setdefault(name, {})
        key = ends[0], ends[1]
        marks[key] = max(number, marks.get(key, -1))

    def latest(self, part: MemoryRange) -> int:
        """Return the last step that accessed memory which overlaps with `part`."""
        name, start, stop = part
        marks = self._found.get(name, {})
        return max((n for (a, b), n in marks.items() if a < stop and start < b), default=-1)

    def clear(self) -> None:
        """Remove all marks."""
        self._found.clear()


Groups = tuple[int, int, int]
"""The workgroups of a dispatch along x, y and z."""


class BufferPart(Protocol):
    """A part of a buffer that holds a tensor."""

    @property
    def words(self) -> int:
        """The size of the tensor, in words of 32 bits."""

    @property
    def shared(self) -> bool:
        """Return True where other tensors have parts of the same buffer."""

    @property
    def fixed(self) -> bool:
        """Return True where the content never changes."""

    @property
    def key(self) -> Hashable:
        """A key that is the same for all parts of one buffer."""

    @property
    def part(self) -> tuple[int, int]:
        """The first byte, and how many; -1 for all that follow."""

    @property
    def first(self) -> int:
        """The first byte."""


@dataclass(frozen=True)
class BlockPart:
    """A part of a block of memory that is not allocated yet, by the block's number."""

    block: int
    words: int
    part: tuple[int, int] = (0, -1)
    """The first byte, and how many; -1 for all that follow."""

    @property
    def shared(self) -> bool:
        return True

    @property
    def fixed(self) -> bool:
        return False

    @property
    def key(self) -> Hashable:
        return self.block

    @property
    def first(self) -> int:
        return self.part[0]


def memory_range(part: BufferPart) -> MemoryRange:
    """Return the range of memory that `part` is."""
    first, size = part.part
    return part.key, first, END if size == -1 else first + size


@dataclass(frozen=True)
class TextureOperand:
    """An operand that a shader fetches from a texture."""

    buffer: BufferPart
    texel: str
    """The format: see `DataTexture`."""
    sampler: str
    """GLSL's name of the sampler."""
    changes: bool
    """Whether it may be another one in every run; what does not is copied once."""

    @property
    def copied(self) -> bool:
        """Return True where the texture has memory of its own, as buffer textures have not."""
        return not self.sampler.endswith("samplerBuffer")

    @property
    def source(self) -> MemoryRange | None:
        """The memory that it shows, where a step may write that; None where nobody does."""
        return memory_range(self.buffer) if self.changes else None

    @property
    def read(self) -> MemoryRange | None:
        """The memory that the shader reads directly, where a step may write that: not of a copy."""
        return None if self.copied else self.source


@dataclass(frozen=True)
class FeedbackDraw:
    """A transform feedback draw."""

    vertices: int
    """The number of vertices of each instance."""
    instances: int
    """The number of instances."""
    first: int
    """The first of the vertices."""
    to: int
    """The byte of the buffer that it captures to."""


@dataclass
class _ProgramUse:
    """The sets of uniforms that a program uses between two `host` commands."""

    first: int
    """The set that its first use wants."""
    at: int
    """The place among the commands where that is set."""
    last: int
    """The set that the last use so far wanted."""


@dataclass
class CommandEncoder:
    """Writes commands down, and leaves out those that change nothing, as binding a bound buffer.

    Nothing is assumed of the context before the first command: others may have used it. Barriers
    are written where what follows must see, or must not overwrite, what came before.
    """

    sizes: SizeTable = field(default_factory=SizeTable)
    """The table to which expressions of sizes are added."""
    parts: dict[Hashable, BufferPart] = field(default_factory=dict)
    """A part of each buffer, by its key, in the order of the buffers' numbers."""
    programs: dict[Program, int] = field(default_factory=dict)
    """The number of each program."""
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    """The number of each buffer."""
    _commands: list[Command] = field(default_factory=list)
    _textures: list[TextureView] = field(default_factory=list)
    _texture_numbers: dict[tuple[TextureView, int], int] = field(default_factory=dict)
    _copies: list[TextureOperand | None] = field(default_factory=list)
    """Operands with a texture of their own, kept alive since their `id` is a key."""
    _arrays: dict[VertexInput, int] = field(default_factory=dict)
    _sets: list[Mapping[str, UniformValue]] = field(default_factory=list)
    _set_numbers: dict[str, int] = field(default_factory=dict)
    _bound: dict[int, Command] = field(default_factory=dict)
    """What each storage binding has."""
    _units: dict[int, int] = field(default_factory=dict)
    """The texture of each unit."""
    _current: Program | None = None
    """The current program; None where that is not known."""
    _read: AccessLog = field(default_factory=AccessLog)
    """The memory that was read since the last barrier."""
    _written: AccessLog = field(default_factory=AccessLog)
    """The memory that compute shaders wrote since then."""
    _uses: dict[Program, _ProgramUse] = field(default_factory=dict)

    def step(self, name: str) -> None:
        """Begin the step called `name`."""
        self._commands.append(("step", name))

    def host(self, number: int) -> None:
        """Call the host's function of that number; then nothing of the context is known."""
        self._barrier()
        self._close()
        self._commands.append(("host", number))
        self._bound.clear()
        self._units.clear()
        self._current = None

    def declare_accesses(
        self, reads: Sequence[MemoryRange], writes: Sequence[MemoryRange] = ()
    ) -> None:
        """Say what the next command reads and writes; a barrier comes first where it must wait.

        writes: by a compute shader. GL itself keeps what transform feedback captures in order.
        """
        after = any(self._written.latest(one) >= 0 for one in (*reads, *writes))
        if after or any(self._read.latest(one) >= 0 for one in writes):
            self._barrier()
        for one in reads:
            self._read.mark(one, 0)
        for one in writes:
            self._written.mark(one, 0)

    def _barrier(self) -> None:
        """Put a barrier if something was written since the last one."""
        if self._written:
            self._commands.append(("barrier",))
        self._read.clear()
        self._written.clear()

    def copy(self, target: BufferPart, source: BufferPart) -> None:
        """Copy the tensor in `source` to `target`."""
        nbytes = 4 * source.words
        self.declare_accesses(
            [(one.key, one.first, one.first + nbytes) for one in (source, target)]
        )
        ends = self.buffer(target), target.first, self.buffer(source), source.first, nbytes
        self._commands.append(("copy", *self.sizes.size(ends)))

    def textures(self, views: Sequence[TextureOperand]) -> None:
        """Refresh textures that are copies, and bind all to units from 0 on."""
        numbers = [self._texture(one) for one in views]
        for one, number in zip(views, numbers, strict=True):
            if one.changes and one.copied:
                self.declare_accesses([(one.buffer.key, one.buffer.first, END)])
                self._commands.append(("refresh", number))
                self._units.pop(0, None)  # the copy goes by way of unit 0
        for unit, number in enumerate(numbers):  # only now, for that reason
            if self._units.get(unit) != number:
                self._units[unit] = number
                self._commands.append(("texture", unit, number))

    def _texture(self, one: TextureOperand) -> int:
        size = self.sizes.size
        words = size(one.buffer.words)
        part = self.buffer(one.buffer), size(one.buffer.first), words
        view = TextureView(*part, one.texel, one.sampler)
        # A copy that changes is of the launch that has it made.
        refreshed = one if one.changes and one.copied else None
        number = self._texture_numbers.setdefault((view, id(refreshed)), len(self._textures))
        if number == len(self._textures):
            self._textures.append(view)
            self._copies.append(refreshed)
        return number

    def bind(self, part: BufferPart, binding: int) -> None:
        """Bind a part of a buffer for compute shaders."""
        self.bind_range(part, binding, *part.part)

    def bind_range(self, part: BufferPart, binding: int, first: int, nbytes: int) -> None:
        """Bind `nbytes` of the buffer of `part`, from the byte `first` of it on."""
        ends: tuple[Size, Size] = self.sizes.size((first, nbytes))
        command = "bind", self.buffer(part), binding, *ends
        if self._bound.get(binding) != command:
            self._bound[binding] = command
            self._commands.append(command)

    def uniforms(self, program: Program, values: Mapping[str, Value]) -> None:
        """Set the uniforms of `program`."""
        number, wanted = self._program(program), self._set(values)
        known = self._uses.get(program)
        if known is None:
            self._uses[program] = _ProgramUse(wanted, len(self._commands), wanted)
            self._commands.append(("uniforms", number, wanted, wanted))
            self._current = None  # it is this one only where there was something to set
        elif known.last != wanted:
            if self._current is not program:
                self._current = program
                self._commands.append(("use", number))
            old = self._sets[known.last]
            for name, value in self._sets[wanted].items():
                other = name not in old or repr(old[name]) != repr(value)
                if other and name in program.uniforms:
                    self._commands.append(("uniform", number, name, value))
            known.last = wanted

    def _set(self, values: Mapping[str, Value]) -> int:
        sized: Mapping[str, UniformValue] = self.sizes.size(values)
        number = self._set_numbers.setdefault(repr(sorted(sized.items())), len(self._sets))
        if number == len(self._sets):
            self._sets.append(sized)
        return number

    def dispatch(self, program: Program, groups: Groups) -> None:
        """Run a compute shader."""
        self._commands.append(("dispatch", self._program(program), *self.sizes.size(groups)))
        self._current = program

    def capture(
        self,
        program: Program,
        attributes: Mapping[str, tuple[BufferPart, int]],
        draw: FeedbackDraw,
        out: BufferPart,
    ) -> None:
        """Run a vertex shader. attributes: the buffer, and the floats that a vertex takes."""
        known = ((name, self.buffer(one), floats) for name, (one, floats) in attributes.items())
        array = VertexInput(self._program(program), tuple(known))
        number = self._arrays.setdefault(array, len(self._arrays))
        ends = draw.vertices, draw.instances, draw.first, draw.to
        self._commands.append(("capture", number, *self.sizes.size(ends), self.buffer(out)))
        self._current = program

    def flush(self) -> None:
        """Send the commands so far to the device, so that it begins with them."""
        self._commands.append(("flush",))

    def buffer(self, part: BufferPart) -> int:
        """Return the number of the buffer of `part`."""
        number = self._numbers.setdefault(part.key, len(self._numbers))
        self.parts.setdefault(part.key, part)
        return number

    def _program(self, program: Program) -> int:
        return self.programs.setdefault(program, len(self.programs))

    def finish(self) -> CommandBuffer:
        """Return the command buffer; it ends with a barrier, so that results can be read."""
        self._barrier()
        self._close()
        return CommandBuffer(
            tuple(program.key for program in self.programs),
            tuple(self._textures),
            tuple(self._arrays),
            tuple(self._sets),
            tuple(self._commands),
        )

    def fork(self) -> CommandEncoder:
        """Return an encoder for other commands, with the same numbers of programs and buffers."""
        made = CommandEncoder(self.sizes, dict(self.parts), dict(self.programs))
        made._numbers, made._sets = dict(self._numbers), list(self._sets)
        made._textures, made._arrays = list(self._textures), dict(self._arrays)
        made._texture_numbers = dict(self._texture_numbers)
        made._set_numbers = dict(self._set_numbers)
        return made

    def _close(self) -> None:
        """Complete the `uniforms` command of each program, and forget what they are set to."""
        for program, use in self._uses.items():
            self._commands[use.at] = "uniforms", self.programs[program], use.first, use.last
        self._uses.clear()
