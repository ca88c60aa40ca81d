"""Commands of GL as plain data, which may be saved, and bound to a device, to run.

Programs, textures, vertex arrays, sets of uniforms and buffers are numbers in it; buffers count
the blocks of memory first, then the weights. Sizes are numbers, or indices of expressions
(`SizeIndex`). A command buffer may come from a file, so that it is checked: numbers of what does
not exist are refused before GL sees them. What a shader does with its uniforms is not checked.
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
MOST = 1 << 31  # what GL counts: vertices, instances, workgroups, units, bindings
Command = tuple[Any, ...]
"""The name of a command, and its arguments: see COMMANDS."""
UniformValue = Size | float | tuple[Size, ...]


class FormatError(ValueError):
    """Data that is no command buffer or executable, or does not fit together."""


@dataclass(frozen=True)
class TextureView:
    """A texture that shows a part of a buffer."""

    buffer: int
    """The number of the buffer."""
    first: int
    """The byte that the part begins at, the same for all sizes."""
    words: Size
    """Its size, in words of 32 bits."""
    texel: str
    """The format: see `DataTexture`."""
    sampler: str
    """GLSL's name of the sampler by which a shader reads it."""


@dataclass(frozen=True)
class VertexInput:
    """A vertex array for a program: the buffers that its attributes are read from."""

    program: int
    attributes: tuple[tuple[str, int, int], ...]
    """The name of each attribute, its buffer, and the floats that a vertex takes."""


@dataclass(frozen=True)
class CommandBuffer:
    """Commands, and the programs, textures, vertex arrays and uniforms of their numbers."""

    programs: tuple[str | None, ...]
    """Their keys, `Program.key`; None for those of which no binary is kept."""
    textures: tuple[TextureView, ...]
    arrays: tuple[VertexInput, ...]
    uniforms: tuple[Mapping[str, UniformValue], ...]
    """Sets of uniforms."""
    commands: tuple[Command, ...]

    def check(self, buffers: int, sizes: int) -> None:
        """Raise FormatError unless all numbers exist, of so many buffers and expressions."""
        limits = _Limits(self, buffers, sizes)
        for key in self.programs:
            _expect(key is None or (isinstance(key, str) and key.isalnum()), f"program {key!r}")
        for view in self.textures:
            _expect(limits.buffer(view.buffer), f"buffer {view.buffer!r}")
            texts = isinstance(view.texel, str) and isinstance(view.sampler, str)
            fits = texts and _whole(view.first, 4 * MOST_WORDS) and limits.byte(view.words)
            _expect(fits, "such a texture")
        for array in self.arrays:
            _expect(limits.program(array.program), f"program {array.program!r}")
            for name, buffer, floats in array.attributes:
                fits = isinstance(name, str) and limits.buffer(buffer) and _whole(floats, 17)
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
        """Return all of it as JSON has it."""
        return {
            "programs": self.programs,
            "textures": [plain(tuple(vars(one).values())) for one in self.textures],
            "arrays": [[one.program, one.attributes] for one in self.arrays],
            "uniforms": [{k: plain(v) for k, v in one.items()} for one in self.uniforms],
            "commands": [plain(one) for one in self.commands],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommandBuffer:
        """Return the command buffer that `data` came from. Raises anything where there is none."""
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
    """Return `value` as JSON has it: a SizeIndex is an object of one member."""
    if isinstance(value, SizeIndex):
        return asdict(value)
    return [plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def size_of(value: Any) -> Any:
    """Return what `plain` made `value` of, with tuples in the place of lists."""
    if isinstance(value, dict):
        return SizeIndex(**value)
    return tuple(map(size_of, value)) if isinstance(value, (tuple, list)) else value


def _expect(right: bool, what: str) -> None:
    if not right:
        raise FormatError(f"there is no {what}")


def _whole(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


@dataclass(frozen=True)
class _Limits:
    """Checks of arguments, by the kinds that COMMANDS names."""

    commands: CommandBuffer
    buffers: int
    sizes: int

    def _size(self, value: object, below: int) -> bool:
        if isinstance(value, SizeIndex):
            return _whole(value.index, self.sizes)
        return _whole(value, below)

    def count(self, value: object) -> bool:
        return self._size(value, MOST)

    def byte(self, value: object) -> bool:
        return self._size(value, 4 * MOST_WORDS)

    def extent(self, value: object) -> bool:
        return value == -1 or self.byte(value)

    def text(self, value: object) -> bool:
        return isinstance(value, str)

    def buffer(self, value: object) -> bool:
        return _whole(value, self.buffers)

    def texture(self, value: object) -> bool:
        return _whole(value, len(self.commands.textures))

    def array(self, value: object) -> bool:
        return _whole(value, len(self.commands.arrays))

    def program(self, value: object) -> bool:
        return _whole(value, len(self.commands.programs))

    def uniforms(self, value: object) -> bool:
        return _whole(value, len(self.commands.uniforms))

    def value(self, value: object) -> bool:
        if isinstance(value, tuple):
            return all(map(self.value, value)) and not any(isinstance(one, float) for one in value)
        if isinstance(value, SizeIndex):
            return _whole(value.index, self.sizes)
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

step: what follows is of the step of that name. copy: to, and from, a byte of a buffer. refresh: a
texture that is a copy takes what its buffer holds now. texture, bind: to a unit, to a binding, a
part of a buffer. uniforms: the set that a program begins with, and the one that later commands
leave. capture: a draw of vertices, of instances, from the first vertex on, to a byte of a buffer.
host: call a function of the host's.
"""


T = TypeVar("T")


def _unbound() -> None:
    raise FormatError("commands must be bound before they run")


def _makers(values: Iterable[tuple[T, Any]]) -> list[tuple[T, Maker]]:
    """Return those of `values` in which sizes are, by their keys, as what makes them."""
    return [(key, make) for key, one in values if (make := maker(one)) is not None]


class BoundResources(Protocol):
    """Has the textures and vertex arrays of commands, by number."""

    textures: list[DataTexture]
    arrays: list[Any]


@dataclass(frozen=True)
class Replacements:
    """The numbers of buffers, textures and vertex arrays that are others than before."""

    buffers: AbstractSet[int]
    textures: AbstractSet[int]
    arrays: AbstractSet[int]

    def __bool__(self) -> bool:
        return bool(self.buffers or self.textures or self.arrays)

    def touches(self, command: Command) -> bool:
        """Return True where the call of `command` has one of them."""
        name, *arguments = command
        if name == "bind":
            return arguments[0] in self.buffers
        if name in ("texture", "refresh"):
            return arguments[-1] in self.textures
        if name == "copy":
            return arguments[0] in self.buffers or arguments[2] in self.buffers
        return name == "capture" and (arguments[0] in self.arrays or arguments[-1] in self.buffers)


class _SizedUniforms:
    """The calls that write uniforms of which some follow from sizes, put into `calls` once.

    A binding changes the numbers that they write, in the memory where these lie. written: the
    commands whose calls these are; sets: the sets of uniforms that they speak of.
    """

    def __init__(
        self,
        written: Sequence[Command],
        sets: Sequence[Mapping[str, Any]],
        programs: Sequence[Program],
        calls: list[GlCall],
    ) -> None:
        self.indices: set[int] = set()
        """The indices of the calls."""
        self._programs = programs
        self._known: dict[tuple[int, str, str], GlCall] = {}
        """The call for each value of a uniform, by the program and the value's text."""
        self._numbers: list[tuple[Any, int, int]] = []
        """Memory and the place in it of each number that a binding changes, and which that is."""
        self._makers: list[tuple[Program, str, Maker]] = []
        """The function that computes each uniform's value."""
        self._uses: list[UniformUse] = []
        """The uses after which uniforms are set that depend on sizes."""
        self._least: int | None = None
        """The least number that all of them take, once it is known that their values fit."""
        open_sets = frozenset(i for i, one in enumerate(sets) if depends(one))
        for i, (name, *arguments) in enumerate(written):
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
        """Return what writes a uniform of a program."""
        key = number, name, repr(value)  # by which 0 is neither -0 nor 0.0
        result = self._known.get(key)
        if result is None:
            result = self._known[key] = self._made(self._programs[number], name, value)
        return result

    def _made(self, program: Program, name: str, value: Any) -> GlCall:
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
        """Return what sets `first` of a program, before commands behind which `last` is set."""
        program = self._programs[number]
        use = UniformUse(last if depends(last) else program.intern_uniforms(last), [], [], [])
        for name, value in first.items():
            if name in program.uniforms:
                call = self._call(number, name, value)
                use.every.append(call)
                other = name not in last or repr(last[name]) != repr(value)
                use.back += [call] if other else []
                use.sized += [call] if other or depends(value) else []
        if depends(last):
            self._uses.append(use)
        return use

    def bind(self, numbers: Sequence[int]) -> None:
        """Have the calls write what follows from these numbers of the table of expressions."""
        if self._makers and not self._fits(numbers):
            for program, name, make in self._makers:  # raises what is wrong with that uniform
                program.uniform_call(name, make(numbers))
            unsigned = any(memory._type_ is c_uint for memory, _, _ in self._numbers)
            self._least = 0 if unsigned else -(1 << 31)
        for memory, i, place in self._numbers:
            memory[i] = numbers[place]
        for use in self._uses:
            use.last = object()

    def _fits(self, numbers: Sequence[int]) -> bool:
        """Return True where it is known that all of them fit in the uniforms."""
        return self._least is not None and self._least <= min(numbers) <= max(numbers) < 1 << 31


class _ReboundCalls:
    """The calls that another binding changes, with all that their arguments need but the numbers.

    Most of them bind a range of bytes, dispatch or capture: those take a third of a microsecond
    each here. count: of the numbers of a binding.
    """

    def __init__(self, count: int, device: Device) -> None:
        self.others: list[int] = []
        """The places of all other calls."""
        self._most = device.capabilities.max_compute_work_group_count
        self._ranges: list[tuple[int, Callable[..., object], int, int, int, int]] = []
        self._dispatches: dict[tuple[Callable[..., object], int, int, int], list[int]] = {}
        """The places of calls that are the same, by what runs the program and its groups."""
        self._captures: list[tuple[Any, ...]] = []
        self._count = count
        self._constants: dict[int, int] = {}

    def _index(self, size: Size) -> int:
        """Return the place of a size among the numbers of a binding and the constants behind."""
        if isinstance(size, SizeIndex):
            return size.index
        return self._count + self._constants.setdefault(size, len(self._constants))

    def add_range(self, call: int, buffer: Any, binding: int, first: Size, nbytes: Size) -> bool:
        """Add the call of that place; return False where it binds the rest of a buffer."""
        if nbytes == -1:
            return False
        ends = self._index(first), self._index(nbytes)
        bind = buffer.mglo.bind_to_storage_buffer  # what its Python would call
        self._ranges.append((call, bind, buffer.size, binding, *ends))
        return True

    def add_dispatch(self, call: int, program: Program, groups: Sequence[Size]) -> bool:
        """Add the call of that place; return False where it takes more than numbers of groups."""
        run, arguments = program.dispatch_call((0, 0, 0))
        if program.stride or arguments != (0, 0, 0):
            return False
        x, y, z = map(self._index, groups)
        self._dispatches.setdefault((run, x, y, z), []).append(call)
        return True

    def add_capture(
        self, call: int, program: Program, array: Any, out: Any, most: float, ends: Sequence[Size]
    ) -> bool:
        """Add the call of that place; return False where it takes more than numbers.

        most: the vertices that there are. ends: vertices, instances, first, offset.
        """
        draw, arguments = program.capture_call(array, 0, 0, out)
        targets, kind = arguments[:2]
        if not isinstance(targets, list):
            return False
        places = map(self._index, ends)
        self._captures.append((call, draw, targets, kind, program.stride, out.size, most, *places))
        return True

    def write(self, numbers: Sequence[int], calls: list[GlCall]) -> list[int]:
        """Put the calls for these numbers into `calls`, and return the places of those left.

        Among these are calls that are wrong for these numbers: what makes them says why.
        """
        values = [*numbers, *self._constants]
        left = list(self.others)
        for call, bind, size, binding, begin, length in self._ranges:
            first, nbytes = values[begin], values[length]
            if first >= 0 <= nbytes and first + nbytes <= size:
                calls[call] = bind, (binding, first, nbytes)
            else:
                left.append(call)
        most_x, most_y, most_z = self._most
        for (run, x, y, z), alike in self._dispatches.items():
            groups = values[x], values[y], values[z]
            if 0 <= groups[0] <= most_x and 0 <= groups[1] <= most_y and 0 <= groups[2] <= most_z:
                dispatch = run, groups
                for call in alike:
                    calls[call] = dispatch
            else:
                left += alike
        for call, draw, targets, kind, stride, size, most, *ends in self._captures:
            vertices, instances, first, to = (values[place] for place in ends)
            fits = first + vertices <= most and to + vertices * instances * stride <= size
            if fits and vertices >= 0 <= instances and first >= 0 <= to:
                calls[call] = draw, (targets, kind, vertices, first, instances, to)
            else:
                left.append(call)
        return left


class BoundCommands:
    """The calls of GL for `commands` on `device`. Only inside `Device.perform`.

    programs: by their numbers. buffer: returns the buffer of a number. shown: has textures and
    vertex arrays, which a binding may replace.

    The first run, and with GLNN_DEBUG every run, asks GL for errors after each step. Raises
    DeviceError with the step's name where there are some.
    """

    def __init__(
        self,
        device: Device,
        commands: CommandBuffer,
        programs: Sequence[Program],
        buffer: Callable[[int], Any],
        shown: BoundResources,
    ) -> None:
        self._device, self._commands, self._programs = device, commands, programs
        self.buffer, self._shown = buffer, shown
        self._functions: Sequence[Callable[[], None]] = ()
        self._numbers: Sequence[int] = ()
        self._steps: list[tuple[str, int]] = []
        self._written: list[Command] = []
        for command in commands.commands:
            if command[0] == "step":
                self._steps.append((command[1], len(self._written)))
            else:
                self._written.append(command)
        self._makers = [self._maker(command) for command in self._written]
        self._calls: list[GlCall] = [(_unbound, ())] * len(self._written)
        self._sized = _SizedUniforms(self._written, commands.uniforms, programs, self._calls)
        self._open = [i for i, one in enumerate(self._written) if self._is_open(i, one)]
        self._changes: _ReboundCalls | None = None
        self.checked = False
        """Whether it ran with GL asked for errors behind each step; never with GLNN_DEBUG."""
        self._bound_anew = False

    def _is_open(self, place: int, command: Command) -> bool:
        """Return True where the call of a command must be made anew for other sizes."""
        name, *arguments = command
        if place in self._sized.indices:
            return False
        if name == "refresh":
            return depends(self._commands.textures[arguments[0]].words)
        return name == "host" or bool(self._makers[place][2])

    def bind(
        self,
        numbers: Sequence[int],
        host: Sequence[Callable[[], None]] = (),
        replaced: Replacements | None = None,
    ) -> None:
        """Make the calls that depend on sizes, for these numbers of the table of expressions.

        host: the functions of `host` commands. replaced: what is another than for the binding
        before; None for the first one, by which all calls are made.
        """
        self._numbers, self._functions = numbers, host
        self._sized.bind(numbers)
        anew: list[int] = []
        if replaced is None:
            anew += (i for i in range(len(self._makers)) if i not in self._sized.indices)
        else:
            if replaced:
                anew += (i for i, one in enumerate(self._written) if replaced.touches(one))
            if self._changes is None or replaced:
                self._changes = self._changes_of_open()
            anew += self._changes.write(numbers, self._calls)
        # One call for all equal commands: a run reads less memory, which the CPU's caches hold.
        known: dict[Command | str, GlCall] = {}
        for i in anew:
            command = self._written[i]
            key = repr(command) if command[0] == "uniform" else command  # 0.0 is not -0.0, nor 0
            if key not in known:
                make, arguments, places = self._makers[i]
                if places:
                    arguments = list(arguments)
                    for place, value in places:
                        arguments[place] = value(numbers)
                known[key] = make(self, *arguments)
            self._calls[i] = known[key]
        self._bound_anew = True

    def _changes_of_open(self) -> _ReboundCalls:
        """Return the calls that depend on sizes, of the buffers that are bound now."""
        result = _ReboundCalls(len(self._numbers), self._device)
        for i in self._open:
            name, *arguments = self._written[i]
            known = False
            if name == "bind":
                buffer, binding, first, nbytes = arguments
                known = result.add_range(i, self.buffer(buffer), binding, first, nbytes)
            elif name == "dispatch":
                known = result.add_dispatch(i, self._programs[arguments[0]], arguments[1:])
            elif name == "capture":
                array, *ends, out = arguments
                inputs = self._commands.arrays[array]
                rows = (self.buffer(b).size // (4 * n) for _, b, n in inputs.attributes)
                draw = self._programs[inputs.program], self._shown.arrays[array], self.buffer(out)
                known = result.add_capture(i, *draw, min(rows, default=inf), ends)
            if not known:
                result.others.append(i)
        return result

    def _maker(
        self, command: Command
    ) -> tuple[Callable[..., GlCall], list[Any], list[tuple[int, Maker]]]:
        """Return what makes a command's call, its arguments, and which of these are open."""
        name, *arguments = command
        places = _makers(enumerate(arguments))
        return getattr(type(self), f"_{name}"), arguments, places  # bound methods would be a circle

    def __call__(self) -> None:
        try:
            if not self.checked:
                self._run_checked()
                return
            for function, arguments in self._calls:
                function(*arguments)
            if self._bound_anew:  # since the last run other parts of other buffers are used
                self._device.check_always("run")
                self._bound_anew = False
        except BaseException:
            for program in self._programs:
                program.invalidate_uniforms()
            raise

    def _run_checked(self) -> None:
        ends = [at for _, at in self._steps[1:]] + [len(self._calls)]
        for (name, first), end in zip(self._steps, ends, strict=False):
            for function, arguments in self._calls[first:end]:
                function(*arguments)
            self._device.check_always(name)
        self.checked = not self._device.debug
        self._bound_anew = False

    def _barrier(self) -> GlCall:
        context: Any = self._device.context  # the stubs of moderngl 5.8 leave it out
        return context.mglo.memory_barrier, (BARRIERS, False)

    def _copy(self, target: int, to: int, source: int, at: int, nbytes: int) -> GlCall:
        buffers = self.buffer(target), self.buffer(source)
        self._fits(buffers[0], to, nbytes)
        self._fits(buffers[1], at, nbytes)
        return self._device.copy_buffer, (*buffers, nbytes, at, to)

    def _refresh(self, texture: int) -> GlCall:
        view, shown = self._commands.textures[texture], self._shown.textures[texture]
        words = number(view.words, self._numbers)
        return shown.copy_from, (self.buffer(view.buffer), view.first, words)

    def _texture(self, unit: int, texture: int) -> GlCall:
        return self._shown.textures[texture].bind_call(unit)

    def _bind(self, buffer: int, binding: int, first: int, nbytes: int) -> GlCall:
        memory = self.buffer(buffer)
        self._fits(memory, first, 0 if nbytes == -1 else nbytes)
        bind: Any = memory.mglo  # what its Python would call
        return bind.bind_to_storage_buffer, (binding, first, nbytes)

    @staticmethod
    def _fits(buffer: Any, first: int, nbytes: int) -> None:
        if first < 0 or nbytes < 0 or first + nbytes > buffer.size:
            raise FormatError(f"{nbytes} bytes from {first} of a buffer of {buffer.size}")

    def _uniforms(self, program: int, first: int, last: int) -> GlCall:
        used, sets = self._programs[program], self._commands.uniforms
        known: Any = sets[first], sets[last]  # of numbers alone
        begin, end = map(used.intern_uniforms, known)
        every = used.changes({}, begin)
        return used.apply_uniforms, (UniformUse(end, used.changes(end, begin), every, every),)

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
        self, array: int, vertices: int, instances: int, first: int, to: int, out: int
    ) -> GlCall:
        inputs = self._commands.arrays[array]
        program = self._programs[inputs.program]
        if min(vertices, instances, first, to) < 0:
            raise FormatError(f"there is no draw of {(vertices, instances, first, to)}")
        for _, buffer, floats in inputs.attributes:  # else GL reads what lies behind it
            self._fits(self.buffer(buffer), 4 * floats * first, 4 * floats * vertices)
        draw = vertices, instances, self.buffer(out), first, to
        return program.capture_call(self._shown.arrays[array], *draw)

    def _flush(self) -> GlCall:
        return self._device.flush, ()

    def _host(self, place: int) -> GlCall:
        return self._functions[place], ()
