"""CommandBuffer: GL commands as plain data. BoundCommands: the same bound to a device, to run.

A command names programs, textures, vertex arrays, sets of uniforms and buffers by number; the
numbers of buffers count the blocks of memory first, then the weights. Sizes are numbers, or indices
of expressions (`SizeIndex`). A command buffer may come from a file, so it is checked: numbers
without an object are refused before GL sees them. What a shader does with its uniforms is not
checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_uint
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Protocol, TypeVar

from glnn.core.size_table import Maker, Size, SizeIndex, depends, maker, number
from glnn.gl.context import GlCall
from glnn.gl.device import BARRIERS, Device
from glnn.gl.program import Program, UniformUse
from glnn.gl.texture import DataTexture

MOST_WORDS = 1 << 40  # of a buffer
MOST = 1 << 31  # of GL's counts: vertices, instances, workgroups, units, bindings
Command = tuple[Any, ...]
"""The name of a command, and its arguments: see COMMANDS."""
UniformValue = Size | float | tuple[Size, ...]


class FormatError(ValueError):
    """Data that is no command buffer or executable, or is inconsistent."""


@dataclass(frozen=True)
class TextureView:
    """A texture of a part of a buffer."""

    buffer: int
    """The number of the buffer."""
    first: int
    """The first byte of the part, the same for all sizes."""
    words: Size
    """Its size, in words of 32 bits."""
    texel: str
    """The format: see `DataTexture`."""
    sampler: str
    """GLSL's name of the sampler by which a shader reads it."""


@dataclass(frozen=True)
class VertexInput:
    """A vertex array for a program: the buffers of its attributes."""

    program: int
    attributes: tuple[tuple[str, int, int], ...]
    """The name of each attribute, its buffer, and its floats per vertex."""


@dataclass(frozen=True)
class CommandBuffer:
    """Commands, and the programs, textures, vertex arrays and uniforms that they number."""

    programs: tuple[str | None, ...]
    """The keys of programs (`Program.key`); None for those without a stored binary."""
    textures: tuple[TextureView, ...]
    arrays: tuple[VertexInput, ...]
    uniforms: tuple[Mapping[str, UniformValue], ...]
    """Sets of uniforms."""
    commands: tuple[Command, ...]

    def check(self, buffers: int, sizes: int) -> None:
        """Raise FormatError unless all numbers in commands exist.

        buffers, sizes: how many buffers and expressions there are.
        """
        limits = _Limits(self, buffers, sizes)
        for key in self.programs:
            _expect(key is None or (isinstance(key, str) and key.isalnum()), f"program {key!r}")
        for view in self.textures:
            _expect(limits.buffer(view.buffer), f"buffer {view.buffer!r}")
            texts = isinstance(view.texel, str) and isinstance(view.sampler, str)
            fits = texts and _is_index(view.first, 4 * MOST_WORDS) and limits.byte(view.words)
            _expect(fits, "such a texture")
        for array in self.arrays:
            _expect(limits.program(array.program), f"program {array.program!r}")
            for name, buffer, floats in array.attributes:
                fits = isinstance(name, str) and limits.buffer(buffer) and _is_index(floats, 17)
                _expect(fits, f"attribute {name!r:.80}")
        for values in self.uniforms:
            _expect(all(map(limits.value, values.values())), f"uniforms {values!r:.200}")
        for name, *arguments in self.commands:
            kinds = COMMANDS.get(name) if isinstance(name, str) else None
            known = kinds is not None and len(kinds) == len(arguments)
            _expect(known, f"command {name!r:.80} of {len(arguments)} arguments")
            for kind, argument in zip(kinds or (), arguments, strict=True):
                _expect(getattr(limits, kind)(argument), f"{name} of {argument!r:.200}")

    def to_json(self) -> dict[str, Any]:
        """Return all of it as data for JSON."""
        return {
            "programs": self.programs,
            "textures": [plain(tuple(vars(one).values())) for one in self.textures],
            "arrays": [[one.program, one.attributes] for one in self.arrays],
            "uniforms": [{k: plain(v) for k, v in one.items()} for one in self.uniforms],
            "commands": [plain(one) for one in self.commands],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommandBuffer:
        """Return the command buffer that `to_json` returned; any exception for other data."""
        return cls(
            tuple(data["programs"]),
            tuple(TextureView(*size_of(one)) for one in data["textures"]),
            tuple(
                VertexInput(program, tuple((str(n), b, f) for n, b, f in attributes))
                for program, attributes in data["arrays"]
            ),
            tuple({name: size_of(v) for name, v in one.items()} for one in data["uniforms"]),
            tuple(size_of(one) for one in data["commands"]),
        )


def plain(value: Any) -> Any:
    """Return `value` as data for JSON, where a SizeIndex is an object of one member."""
    if isinstance(value, SizeIndex):
        return asdict(value)
    return [plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def size_of(value: Any) -> Any:
    """Return the value of which `plain` returned `value`, with tuples in the place of lists."""
    if isinstance(value, dict):
        return SizeIndex(**value)
    return tuple(map(size_of, value)) if isinstance(value, (tuple, list)) else value


def _expect(exists: bool, what: str) -> None:
    if not exists:
        raise FormatError(f"there is no {what}")


def _is_index(value: object, count: int) -> bool:
    return type(value) is int and 0 <= value < count


@dataclass(frozen=True)
class _Limits:
    """Checks of arguments: a method for each kind that COMMANDS names."""

    commands: CommandBuffer
    buffers: int
    sizes: int

    def _size(self, value: object, limit: int) -> bool:
        if isinstance(value, SizeIndex):
            return _is_index(value.index, self.sizes)
        return _is_index(value, limit)

    def count(self, value: object) -> bool:
        return self._size(value, MOST)

    def byte(self, value: object) -> bool:
        return self._size(value, 4 * MOST_WORDS)

    def extent(self, value: object) -> bool:
        return value == -1 or self.byte(value)

    def text(self, value: object) -> bool:
        return isinstance(value, str)

    def buffer(self, value: object) -> bool:
        return _is_index(value, self.buffers)

    def texture(self, value: object) -> bool:
        return _is_index(value, len(self.commands.textures))

    def array(self, value: object) -> bool:
        return _is_index(value, len(self.commands.arrays))

    def program(self, value: object) -> bool:
        return _is_index(value, len(self.commands.programs))

    def uniforms(self, value: object) -> bool:
        return _is_index(value, len(self.commands.uniforms))

    def value(self, value: object) -> bool:
        if isinstance(value, tuple):
            return all(map(self.value, value)) and not any(isinstance(one, float) for one in value)
        if isinstance(value, SizeIndex):
            return _is_index(value.index, self.sizes)
        return (type(value) is int and abs(value) <= MOST) or type(value) is float


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "step": ("text",),
    "barrier": (),
    "copy": ("buffer", "byte", "buffer", "byte", "byte"),
    "refresh": ("texture",),
    "texture": ("count", "texture"),
    "bind": ("buffer", "count", "byte", "extent"),
    "uniforms": ("program", "uniforms", "uniforms"),
    "uniform": ("program", "text", "value"),
    "use": ("program",),
    "dispatch": ("program", "count", "count", "count"),
    "capture": ("array", "count", "count", "count", "byte", "buffer"),
    "flush": (),
    "host": ("count",),
}
"""The commands, and the kind of each argument: a method of `_Limits`.

step: begins the step of that name. copy: the target's buffer and byte, the source's, and the bytes.
refresh: copies its buffer anew to a texture that is a copy. texture: the unit, and the texture.
bind: the buffer, the binding, the first byte, and the bytes. uniforms: the set that a program
begins with, and the set that later `uniform` commands leave. dispatch: the workgroups along x, y
and z. capture: the vertex array, the vertices, the instances, the first vertex, the byte of the
buffer to capture to, and that buffer. host: calls a function of the host's.
"""


T = TypeVar("T")


def _unbound() -> None:
    raise FormatError("commands must be bound before they run")


def _makers(values: Iterable[tuple[T, Any]]) -> list[tuple[T, Maker]]:
    """Return the functions that compute those of `values` that depend on sizes, by their keys."""
    return [(key, make) for key, one in values if (make := maker(one)) is not None]


class BoundResources(Protocol):
    """The textures and vertex arrays of bound commands, by number."""

    textures: list[DataTexture]
    arrays: list[Any]


@dataclass(frozen=True)
class Replacements:
    """The numbers of the buffers, textures and vertex arrays that a binding replaces."""

    buffers: AbstractSet[int]
    textures: AbstractSet[int]
    arrays: AbstractSet[int]

    def __bool__(self) -> bool:
        return bool(self.buffers or self.textures or self.arrays)

    def touches(self, command: Command) -> bool:
        """Return True where the call of `command` uses one of them."""
        name, *arguments = command
        if name == "bind":
            return arguments[0] in self.buffers
        if name in ("texture", "refresh"):
            return arguments[-1] in self.textures
        if name == "copy":
            return arguments[0] in self.buffers or arguments[2] in self.buffers
        return name == "capture" and (arguments[0] in self.arrays or arguments[-1] in self.buffers)


class _SizedUniforms:
    """The calls for `commands` that write uniforms which depend on sizes, put into `calls` once.

    GL reads the values from memory, and a binding changes the numbers in it. sets: the sets of
    uniforms, by number.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        sets: Sequence[Mapping[str, Any]],
        programs: Sequence[Program],
        calls: list[GlCall],
    ) -> None:
        self.indices: set[int] = set()
        """The indices of the calls."""
        self._programs = programs
        self._cached_calls: dict[tuple[int, str, str], GlCall] = {}
        """The call for each value of a uniform, by program, name and text of the value."""
        self._numbers: list[tuple[Any, int, int]] = []
        """Each number that a binding changes: its memory, its index there, and the index of its
        expression."""
        self._makers: list[tuple[Program, str, Maker]] = []
        """Each uniform that depends on sizes: its program, name, and the function of its value."""
        self._uses: list[UniformUse] = []
        """The uses whose last set depends on sizes."""
        self._minimum: int | None = None
        """The least number that every uniform here can hold; None until a binding was checked."""
        open_sets = frozenset(i for i, one in enumerate(sets) if depends(one))
        for i, (name, *arguments) in enumerate(commands):
            if name == "uniform" and depends(arguments[2]):
                calls[i] = self._call(*arguments)
            elif name == "uniforms" and not open_sets.isdisjoint(arguments[1:]):
                program, first, last = arguments
                use = self._use(program, sets[first], sets[last])
                calls[i] = programs[program].apply_uniforms, (use,)
            else:
                continue
            self.indices.add(i)

    def _call(self, number: int, name: str, value: Any) -> GlCall:
        """Return the call that writes a uniform of a program."""
        key = number, name, repr(value)  # a text, in which 0 is neither -0 nor 0.0
        result = self._cached_calls.get(key)
        if result is None:
            result = self._create_call(self._programs[number], name, value)
            self._cached_calls[key] = result
        return result

    def _create_call(self, program: Program, name: str, value: Any) -> GlCall:
        make = maker(value)
        if make is None:
            return program.uniform_call(name, value)
        values = value if isinstance(value, tuple) else (value,)
        memory = program.uniform_memory(name, len(values))
        self._makers.append((program, name, make))
        for i, one in enumerate(values):
            if isinstance(one, SizeIndex):
                self._numbers.append((memory, i, one.index))
            else:
                memory[i] = one
        return program.uniform_call_from(name, memory)

    def _use(self, number: int, first: Mapping[str, Any], last: Mapping[str, Any]) -> UniformUse:
        """Return a use of a program that begins with the set `first` and ends with `last`."""
        program = self._programs[number]
        use = UniformUse(last if depends(last) else program.intern_uniforms(last), [], [], [])
        for name, value in first.items():
            if name in program.uniforms:
                call = self._call(number, name, value)
                use.all_calls.append(call)
                differs = name not in last or repr(last[name]) != repr(value)
                use.calls_from_last += [call] if differs else []
                use.calls_from_other_sizes += [call] if differs or depends(value) else []
        if depends(last):
            self._uses.append(use)
        return use

    def bind(self, numbers: Sequence[int]) -> None:
        """Have the calls write the uniforms for these values of the expressions."""
        if self._makers and not self._fits(numbers):
            for program, name, make in self._makers:  # raises for a value that does not fit
                program.uniform_call(name, make(numbers))
            unsigned = any(memory._type_ is c_uint for memory, _, _ in self._numbers)
            self._minimum = 0 if unsigned else -(1 << 31)
        for memory, i, expression in self._numbers:
            memory[i] = numbers[expression]
        for use in self._uses:
            use.last = object()

    def _fits(self, numbers: Sequence[int]) -> bool:
        """Return True where all of `numbers` are known to fit in the uniforms."""
        minimum = self._minimum
        return minimum is not None and minimum <= min(numbers) <= max(numbers) < 1 << 31


class _ReboundCalls:
    """The calls that depend on sizes, prepared so that a binding only fills in the numbers.

    Most of them bind a range of bytes, dispatch or capture: these take a third of a microsecond
    each here. count: how many expressions there are.
    """

    def __init__(self, count: int, device: Device) -> None:
        self.others: list[int] = []
        """The indices of the calls that are not prepared."""
        self._max_groups = device.capabilities.max_compute_work_group_count
        self._ranges: list[tuple[int, Callable[..., object], int, int, int, int]] = []
        """Index of the call, function, size of the buffer, binding, and the indices of the first
        byte and of the bytes."""
        self._dispatches: dict[tuple[Callable[..., object], int, int, int], list[int]] = {}
        """The indices of equal calls, by the function and the indices of the workgroups."""
        self._captures: list[tuple[Any, ...]] = []
        self._count = count
        self._constants: dict[int, int] = {}

    def _index(self, size: Size) -> int:
        """Return the index of a size in the expressions and the constants behind these."""
        if isinstance(size, SizeIndex):
            return size.index
        return self._count + self._constants.setdefault(size, len(self._constants))

    def add_range(self, call: int, buffer: Any, binding: int, first: Size, nbytes: Size) -> bool:
        """Prepare the call of that index; return False where it binds all bytes to the end."""
        if nbytes == -1:
            return False
        ends = self._index(first), self._index(nbytes)
        bind = buffer.mglo.bind_to_storage_buffer  # which moderngl's Python wraps
        self._ranges.append((call, bind, buffer.size, binding, *ends))
        return True

    def add_dispatch(self, call: int, program: Program, groups: Sequence[Size]) -> bool:
        """Prepare the call of that index; return False where it takes more than workgroups."""
        run, arguments = program.dispatch_call((0, 0, 0))
        if program.stride or arguments != (0, 0, 0):
            return False
        x, y, z = map(self._index, groups)
        self._dispatches.setdefault((run, x, y, z), []).append(call)
        return True

    def add_capture(
        self, call: int, program: Program, array: Any, out: Any, most: float, ends: Sequence[Size]
    ) -> bool:
        """Prepare the call of that index; return False where it takes more than numbers.

        most: the vertices in the buffers. ends: vertices, instances, first vertex, byte of `out`.
        """
        draw, arguments = program.capture_call(array, 0, 0, out)
        targets, kind = arguments[:2]
        if not isinstance(targets, list):
            return False
        indices = map(self._index, ends)
        self._captures.append((call, draw, targets, kind, program.stride, out.size, most, *indices))
        return True

    def write(self, numbers: Sequence[int], calls: list[GlCall]) -> list[int]:
        """Put the calls for these numbers into `calls`; return the indices of those left out.

        Calls that are invalid for these numbers are left out, too: creating them raises the error.
        """
        values = [*numbers, *self._constants]
        left_out = list(self.others)
        for call, bind, size, binding, begin, length in self._ranges:
            first, nbytes = values[begin], values[length]
            if first >= 0 <= nbytes and first + nbytes <= size:
                calls[call] = bind, (binding, first, nbytes)
            else:
                left_out.append(call)
        most_x, most_y, most_z = self._max_groups
        for (run, x, y, z), equal_calls in self._dispatches.items():
            groups = values[x], values[y], values[z]
            if 0 <= groups[0] <= most_x and 0 <= groups[1] <= most_y and 0 <= groups[2] <= most_z:
                dispatch = run, groups
                for call in equal_calls:
                    calls[call] = dispatch
            else:
                left_out += equal_calls
        for call, draw, targets, kind, stride, size, most, *ends in self._captures:
            vertices, instances, first, offset = (values[index] for index in ends)
            fits = first + vertices <= most and offset + vertices * instances * stride <= size
            if fits and vertices >= 0 <= instances and first >= 0 <= offset:
                calls[call] = draw, (targets, kind, vertices, first, instances, offset)
            else:
                left_out.append(call)
        return left_out


class BoundCommands:
    """The GL calls for `commands` on `device`. Only inside `Device.perform`.

    programs: the programs by number. buffer: returns the buffer of a number. resources: the
    textures and vertex arrays, which a binding may replace.

    The first run, and with GLNN_DEBUG every run, checks for GL errors after each step, and raises
    DeviceError with the step's name.
    """

    def __init__(
        self,
        device: Device,
        commands: CommandBuffer,
        programs: Sequence[Program],
        buffer: Callable[[int], Any],
        resources: BoundResources,
    ) -> None:
        self._device, self._commands, self._programs = device, commands, programs
        self.buffer, self._resources = buffer, resources
        self._host_functions: Sequence[Callable[[], None]] = ()
        self._numbers: Sequence[int] = ()
        self._steps: list[tuple[str, int]] = []
        """The name of each step, and the index of its first call."""
        self._callable_commands: list[Command] = []
        """The commands but `step`: each has a call."""
        for command in commands.commands:
            if command[0] == "step":
                self._steps.append((command[1], len(self._callable_commands)))
            else:
                self._callable_commands.append(command)
        callables = self._callable_commands
        self._makers = [self._maker(command) for command in callables]
        self._calls: list[GlCall] = [(_unbound, ())] * len(callables)
        self._sized_uniforms = _SizedUniforms(callables, commands.uniforms, programs, self._calls)
        self._open_calls = [i for i, one in enumerate(callables) if self._is_open(i, one)]
        """The indices of the calls that are made anew for other sizes."""
        self._rebound_calls: _ReboundCalls | None = None
        self.checked = False
        """True once it ran with a check for GL errors after each step; never with GLNN_DEBUG."""
        self._needs_check = False
        """True from a binding until a run after it was checked for GL errors."""

    def _is_open(self, index: int, command: Command) -> bool:
        """Return True where the call of a command must be made anew for other sizes."""
        name, *arguments = command
        if index in self._sized_uniforms.indices:
            return False
        if name == "refresh":
            return depends(self._commands.textures[arguments[0]].words)
        return name == "host" or bool(self._makers[index][2])

    def bind(
        self,
        numbers: Sequence[int],
        host: Sequence[Callable[[], None]] = (),
        replaced: Replacements | None = None,
    ) -> None:
        """Make the calls for these values of the expressions.

        host: the functions of `host` commands. replaced: what differs from the binding before,
        whose other calls stay unless they depend on sizes; None to make all calls.
        """
        self._numbers, self._host_functions = numbers, host
        self._sized_uniforms.bind(numbers)
        commands = self._callable_commands
        stale: list[int] = []
        if replaced is None:
            stale += (i for i in range(len(commands)) if i not in self._sized_uniforms.indices)
        else:
            if replaced:
                stale += (i for i, one in enumerate(commands) if replaced.touches(one))
            if self._rebound_calls is None or replaced:
                self._rebound_calls = self._prepare_open_calls()
            stale += self._rebound_calls.write(numbers, self._calls)
        # One call for all equal commands: a run reads less memory, which the CPU's caches hold.
        calls: dict[Command | str, GlCall] = {}
        for i in stale:
            command = commands[i]
            key = repr(command) if command[0] == "uniform" else command  # 0.0 is not -0.0, nor 0
            if key not in calls:
                make, arguments, open_arguments = self._makers[i]
                if open_arguments:
                    arguments = list(arguments)
                    for index, value in open_arguments:
                        arguments[index] = value(numbers)
                calls[key] = make(self, *arguments)
            self._calls[i] = calls[key]
        self._needs_check = True

    def _prepare_open_calls(self) -> _ReboundCalls:
        """Prepare the calls that depend on sizes, for the buffers that are bound now."""
        result = _ReboundCalls(len(self._numbers), self._device)
        for i in self._open_calls:
            name, *arguments = self._callable_commands[i]
            is_prepared = False
            if name == "bind":
                buffer, binding, first, nbytes = arguments
                is_prepared = result.add_range(i, self.buffer(buffer), binding, first, nbytes)
            elif name == "dispatch":
                is_prepared = result.add_dispatch(i, self._programs[arguments[0]], arguments[1:])
            elif name == "capture":
                array, *ends, out = arguments
                inputs = self._commands.arrays[array]
                rows = (self.buffer(b).size // (4 * n) for _, b, n in inputs.attributes)
                program, vertex_array = (
                    self._programs[inputs.program],
                    self._resources.arrays[array],
                )
                draw = program, vertex_array, self.buffer(out), min(rows, default=inf), ends
                is_prepared = result.add_capture(i, *draw)
            if not is_prepared:
                result.others.append(i)
        return result

    def _maker(
        self, command: Command
    ) -> tuple[Callable[..., GlCall], list[Any], list[tuple[int, Maker]]]:
        """Return the function that makes a command's call, its arguments, and the functions of
        those that depend on sizes, by index.
        """
        name, *arguments = command
        open_arguments = _makers(enumerate(arguments))
        make = getattr(type(self), f"_{name}")  # a bound method would be a reference cycle
        return make, arguments, open_arguments

    def __call__(self) -> None:
        try:
            if not self.checked:
                self._run_checked()
                return
            for function, arguments in self._calls:
                function(*arguments)
            if self._needs_check:
                self._device.check_always("run")
                self._needs_check = False
        except BaseException:
            for program in self._programs:
                program.invalidate_uniforms()
            raise

    def _run_checked(self) -> None:
        ends = [first for _, first in self._steps[1:]] + [len(self._calls)]
        for (name, first), end in zip(self._steps, ends, strict=False):
            for function, arguments in self._calls[first:end]:
                function(*arguments)
            self._device.check_always(name)
        self.checked = not self._device.debug
        self._needs_check = False

    def _barrier(self) -> GlCall:
        context: Any = self._device.context  # the stubs of moderngl 5.8 leave it out
        return context.mglo.memory_barrier, (BARRIERS, False)

    def _copy(
        self, target: int, write_offset: int, source: int, read_offset: int, nbytes: int
    ) -> GlCall:
        buffers = self.buffer(target), self.buffer(source)
        self._check_range(buffers[0], write_offset, nbytes)
        self._check_range(buffers[1], read_offset, nbytes)
        return self._device.copy_buffer, (*buffers, nbytes, read_offset, write_offset)

    def _refresh(self, texture: int) -> GlCall:
        view, copy = self._commands.textures[texture], self._resources.textures[texture]
        words = number(view.words, self._numbers)
        return copy.copy_from, (self.buffer(view.buffer), view.first, words)

    def _texture(self, unit: int, texture: int) -> GlCall:
        return self._resources.textures[texture].bind_call(unit)

    def _bind(self, buffer: int, binding: int, first: int, nbytes: int) -> GlCall:
        memory = self.buffer(buffer)
        self._check_range(memory, first, 0 if nbytes == -1 else nbytes)
        mglo: Any = memory.mglo  # which moderngl's Python wraps
        return mglo.bind_to_storage_buffer, (binding, first, nbytes)

    @staticmethod
    def _check_range(buffer: Any, first: int, nbytes: int) -> None:
        if first < 0 or nbytes < 0 or first + nbytes > buffer.size:
            raise FormatError(f"{nbytes} bytes from {first} of a buffer of {buffer.size}")

    def _uniforms(self, number: int, first: int, last: int) -> GlCall:
        program, sets = self._programs[number], self._commands.uniforms
        fixed_sets: Any = sets[first], sets[last]  # of numbers alone: see _SizedUniforms
        begin, end = map(program.intern_uniforms, fixed_sets)
        all_calls = program.changes({}, begin)
        use = UniformUse(end, program.changes(end, begin), all_calls, all_calls)
        return program.apply_uniforms, (use,)

    def _uniform(self, program: int, name: str, value: UniformValue) -> GlCall:
        untyped: Any = value
        return self._programs[program].uniform_call(name, untyped)

    def _use(self, program: int) -> GlCall:
        return self._programs[program].use_call()

    def _dispatch(self, program: int, x: int, y: int, z: int) -> GlCall:
        if self._programs[program].stride:
            raise FormatError("a vertex shader cannot be dispatched")
        if min(x, y, z) < 0:
            raise FormatError(f"there are no {(x, y, z)} workgroups")
        return self._programs[program].dispatch_call((x, y, z))

    def _capture(
        self, array: int, vertices: int, instances: int, first: int, offset: int, out: int
    ) -> GlCall:
        inputs = self._commands.arrays[array]
        program = self._programs[inputs.program]
        if min(vertices, instances, first, offset) < 0:
            raise FormatError(f"there is no draw of {(vertices, instances, first, offset)}")
        for _, buffer, floats in inputs.attributes:  # else GL reads beyond its end
            self._check_range(self.buffer(buffer), 4 * floats * first, 4 * floats * vertices)
        draw = vertices, instances, self.buffer(out), first, offset
        return program.capture_call(self._resources.arrays[array], *draw)

    def _flush(self) -> GlCall:
        return self._device.flush, ()

    def _host(self, index: int) -> GlCall:
        return self._host_functions[index], ()
