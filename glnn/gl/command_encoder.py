"""CommandEncoder: writes a CommandBuffer, without redundant commands, with barriers."""

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
"""A part of a buffer: the buffer's key, the first byte, and the end."""
END = 1 << 62  # bytes: beyond the end of any buffer


class AccessLog:
    """The number of the last step that accessed each range of memory."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, dict[tuple[int, int], int]] = {}
        """The number of the last step, by buffer and by range."""

    def __bool__(self) -> bool:
        """Return True where any access is recorded."""
        return bool(self._steps)

    def mark(self, part: MemoryRange, number: int) -> None:
        """Record that the step `number` accesses `part`."""
        buffer, start, end = part
        steps = self._steps.setdefault(buffer, {})
        steps[start, end] = max(number, steps.get((start, end), -1))

    def latest(self, part: MemoryRange) -> int:
        """Return the last step that accessed memory which overlaps with `part`; -1 for none."""
        buffer, start, end = part
        steps = self._steps.get(buffer, {})
        return max((n for (a, b), n in steps.items() if a < end and start < b), default=-1)

    def clear(self) -> None:
        """Remove all records."""
        self._steps.clear()


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
        """The key of the buffer, the same for all its parts."""

    @property
    def byte_range(self) -> tuple[int, int]:
        """The first byte, and the bytes; -1 for all to the buffer's end."""

    @property
    def first(self) -> int:
        """The first byte."""


@dataclass(frozen=True)
class BlockPart:
    """A part of a block of memory that is not allocated yet, by the block's number."""

    block: int
    words: int
    byte_range: tuple[int, int] = (0, -1)
    """The first byte, and the bytes; -1 for all to the block's end."""

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
        return self.byte_range[0]


def memory_range(part: BufferPart) -> MemoryRange:
    """Return the range of memory of `part`."""
    first, nbytes = part.byte_range
    return part.key, first, END if nbytes == -1 else first + nbytes


@dataclass(frozen=True)
class TextureOperand:
    """An operand that a shader fetches from a texture."""

    buffer: BufferPart
    texel: str
    """The format: see `DataTexture`."""
    sampler: str
    """GLSL's name of the sampler."""
    changes: bool
    """True where its content may differ in every run; other content is copied once."""

    @property
    def copied(self) -> bool:
        """Return True where the texture is a copy: only a buffer texture is the buffer itself."""
        return not self.sampler.endswith("samplerBuffer")

    @property
    def source(self) -> MemoryRange | None:
        """The memory of its content; None where no step writes it."""
        return memory_range(self.buffer) if self.changes else None

    @property
    def read(self) -> MemoryRange | None:
        """The memory that the shader itself reads; None of a copy, or where no step writes it."""
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
    offset: int
    """The byte of the buffer that it captures to."""


@dataclass
class _ProgramUse:
    """The sets of uniforms that a program uses between two `host` commands."""

    first: int
    """The set of its first dispatch or draw."""
    command: int
    """The index of the command that sets it."""
    last: int
    """The set of its last dispatch or draw so far."""


@dataclass
class CommandEncoder:
    """Writes commands, and leaves out those without effect, as the binding of a bound buffer.

    Nothing is assumed of the context before the first command: others may have used it. A barrier
    comes before a command that reads or writes what an earlier one wrote, or writes what an earlier
    one read.
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
    """The operand of each texture that is refreshed, kept alive as its `id` is a key."""
    _arrays: dict[VertexInput, int] = field(default_factory=dict)
    _sets: list[Mapping[str, UniformValue]] = field(default_factory=list)
    _set_numbers: dict[str, int] = field(default_factory=dict)
    _bound: dict[int, Command] = field(default_factory=dict)
    """The last `bind` command of each storage binding."""
    _units: dict[int, int] = field(default_factory=dict)
    """The texture of each unit."""
    _current: Program | None = None
    """The current program; None where unknown."""
    _reads: AccessLog = field(default_factory=AccessLog)
    """The reads since the last barrier."""
    _writes: AccessLog = field(default_factory=AccessLog)
    """The writes of compute shaders since the last barrier."""
    _uses: dict[Program, _ProgramUse] = field(default_factory=dict)

    def step(self, name: str) -> None:
        """Begin the step called `name`."""
        self._commands.append(("step", name))

    def host(self, number: int) -> None:
        """Call the host's function of that number, after which the context's state is unknown."""
        self._barrier()
        self._complete_uniforms()
        self._commands.append(("host", number))
        self._bound.clear()
        self._units.clear()
        self._current = None

    def declare_accesses(
        self, reads: Sequence[MemoryRange], writes: Sequence[MemoryRange] = ()
    ) -> None:
        """Declare what the next command reads and writes, and write a barrier if it needs one.

        writes: by a compute shader. GL itself orders the captures of transform feedback.
        """
        needs_barrier = any(self._writes.latest(one) >= 0 for one in (*reads, *writes))
        if needs_barrier or any(self._reads.latest(one) >= 0 for one in writes):
            self._barrier()
        for one in reads:
            self._reads.mark(one, 0)
        for one in writes:
            self._writes.mark(one, 0)

    def _barrier(self) -> None:
        """Write a barrier if there are writes since the last one."""
        if self._writes:
            self._commands.append(("barrier",))
        self._reads.clear()
        self._writes.clear()

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
                self._units.pop(0, None)  # the copy binds its texture to unit 0
        for unit, number in enumerate(numbers):  # after all copies, for that reason
            if self._units.get(unit) != number:
                self._units[unit] = number
                self._commands.append(("texture", unit, number))

    def _texture(self, operand: TextureOperand) -> int:
        size = self.sizes.size
        words = size(operand.buffer.words)
        part = self.buffer(operand.buffer), size(operand.buffer.first), words
        view = TextureView(*part, operand.texel, operand.sampler)
        # Launches do not share a copy that changes.
        refreshed = operand if operand.changes and operand.copied else None
        number = self._texture_numbers.setdefault((view, id(refreshed)), len(self._textures))
        if number == len(self._textures):
            self._textures.append(view)
            self._copies.append(refreshed)
        return number

    def bind(self, part: BufferPart, binding: int) -> None:
        """Bind a part of a buffer for compute shaders."""
        self.bind_range(part, binding, *part.byte_range)

    def bind_range(self, part: BufferPart, binding: int, first: int, nbytes: int) -> None:
        """Bind `nbytes` of the buffer of `part`, from its byte `first` on."""
        ends: tuple[Size, Size] = self.sizes.size((first, nbytes))
        command = "bind", self.buffer(part), binding, *ends
        if self._bound.get(binding) != command:
            self._bound[binding] = command
            self._commands.append(command)

    def uniforms(self, program: Program, values: Mapping[str, Value]) -> None:
        """Set the uniforms of `program`."""
        number, new_set = self._program(program), self._set(values)
        use = self._uses.get(program)
        if use is None:
            self._uses[program] = _ProgramUse(new_set, len(self._commands), new_set)
            self._commands.append(("uniforms", number, new_set, new_set))
            self._current = None  # unknown, as the call makes it current only if it sets something
        elif use.last != new_set:
            if self._current is not program:
                self._current = program
                self._commands.append(("use", number))
            old = self._sets[use.last]
            for name, value in self._sets[new_set].items():
                differs = name not in old or repr(old[name]) != repr(value)
                if differs and name in program.uniforms:
                    self._commands.append(("uniform", number, name, value))
            use.last = new_set

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
        """Run a vertex shader. attributes: the buffer of each, and its floats per vertex."""
        inputs = ((name, self.buffer(one), floats) for name, (one, floats) in attributes.items())
        array = VertexInput(self._program(program), tuple(inputs))
        number = self._arrays.setdefault(array, len(self._arrays))
        ends = draw.vertices, draw.instances, draw.first, draw.offset
        self._commands.append(("capture", number, *self.sizes.size(ends), self.buffer(out)))
        self._current = program

    def flush(self) -> None:
        """Flush, so that the device begins with the commands so far."""
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
        self._complete_uniforms()
        return CommandBuffer(
            tuple(program.key for program in self.programs),
            tuple(self._textures),
            tuple(self._arrays),
            tuple(self._sets),
            tuple(self._commands),
        )

    def fork(self) -> CommandEncoder:
        """Return an encoder for other commands, with the same numbers of programs and buffers."""
        result = CommandEncoder(self.sizes, dict(self.parts), dict(self.programs))
        result._numbers, result._sets = dict(self._numbers), list(self._sets)
        result._textures, result._arrays = list(self._textures), dict(self._arrays)
        result._texture_numbers = dict(self._texture_numbers)
        result._set_numbers = dict(self._set_numbers)
        return result

    def _complete_uniforms(self) -> None:
        """Write the last set into the `uniforms` command of each program, and end its use."""
        for program, use in self._uses.items():
            self._commands[use.command] = "uniforms", self.programs[program], use.first, use.last
        self._uses.clear()
