"""BoundCommands: a command buffer as a list of calls of GL, which runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from glnn.device.command_buffer import Command, CommandBuffer, FormatError, UniformValue
from glnn.device.device import BARRIERS, Device
from glnn.device.functions import Command as Call
from glnn.device.members import Value
from glnn.device.program import Program
from glnn.device.texture import DataTexture
from glnn.size_table import Maker, depends, maker, number

T = TypeVar("T")


def _unbound() -> None:
    raise FormatError("commands must be bound before they run")


def _makers(values: Iterable[tuple[T, Any]]) -> list[tuple[T, Maker]]:
    """Return those of `values` in which sizes are, by their keys, as what makes them."""
    return [(key, make) for key, one in values if (make := maker(one)) is not None]


class Shown(Protocol):
    """Has the textures and vertex arrays of commands, by number."""

    textures: list[DataTexture]
    arrays: list[Any]


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
        shown: Shown,
    ) -> None:
        self._device, self._commands, self._programs = device, commands, programs
        self.buffer, self._shown = buffer, shown
        self._functions: Sequence[Callable[[], None]] = ()
        self._numbers: Sequence[int] = ()
        self._sets: list[Any] = list(commands.uniforms)
        self._open_sets = frozenset(i for i, one in enumerate(commands.uniforms) if depends(one))
        self._steps: list[tuple[str, int]] = []
        self._written: list[Command] = []
        for command in commands.commands:
            if command[0] == "step":
                self._steps.append((command[1], len(self._written)))
            else:
                self._written.append(command)
        self._makers = [self._maker(command) for command in self._written]
        self._set_parts = [
            (i, commands.uniforms[i], _makers(commands.uniforms[i].items()))
            for i in sorted(self._open_sets)
        ]
        self._open = [i for i, one in enumerate(self._written) if self._is_open(one)]
        self._calls: list[Call] = [(_unbound, ())] * len(self._written)
        self.checked = False
        """Whether it ran with GL asked for errors behind each step; never with GLNN_DEBUG."""
        self._bound_anew = False

    def _is_open(self, command: Command) -> bool:
        """Return True where the call of a command must be made anew for other sizes."""
        name, *arguments = command
        if name == "uniforms":
            return not self._open_sets.isdisjoint(arguments[1:])
        if name == "refresh":
            return depends(self._commands.textures[arguments[0]].words)
        return name == "host" or depends(command)

    def bind(
        self,
        numbers: Sequence[int],
        host: Sequence[Callable[[], None]] = (),
        *,
        others: bool = True,
    ) -> None:
        """Make the calls that depend on sizes, for these numbers of the table of expressions.

        host: the functions of `host` commands. others: whether buffers, textures or vertex arrays
        were replaced, so that all calls are made.
        """
        self._numbers, self._functions = numbers, host
        for i, values, open_values in self._set_parts:
            known: dict[str, Any] = dict(values)
            for name, value in open_values:
                known[name] = value(numbers)
            self._sets[i] = known
        for i in range(len(self._makers)) if others else self._open:
            make, arguments, places = self._makers[i]
            if places:
                arguments = list(arguments)
                for place, value in places:
                    arguments[place] = value(numbers)
            self._calls[i] = make(self, *arguments)
        self._bound_anew = True

    def _maker(
        self, command: Command
    ) -> tuple[Callable[..., Call], list[Any], list[tuple[int, Maker]]]:
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
                program.forget()
            raise

    def _run_checked(self) -> None:
        ends = [at for _, at in self._steps[1:]] + [len(self._calls)]
        for (name, first), end in zip(self._steps, ends, strict=False):
            for function, arguments in self._calls[first:end]:
                function(*arguments)
            self._device.check_always(name)
        self.checked = not self._device.debug
        self._bound_anew = False

    def _barrier(self) -> Call:
        context: Any = self._device.context  # the stubs of moderngl 5.8 leave it out
        return context.mglo.memory_barrier, (BARRIERS, False)

    def _copy(self, target: int, to: int, source: int, at: int, nbytes: int) -> Call:
        copy, buffers = self._device.context.copy_buffer, (self.buffer(target), self.buffer(source))
        ends: Any = {"read_offset": at, "write_offset": to}  # by name only in moderngl 5.8
        self._fits(buffers[0], to, nbytes)
        self._fits(buffers[1], at, nbytes)
        return partial(copy, *buffers, nbytes, **ends), ()

    def _refresh(self, texture: int) -> Call:
        view, shown = self._commands.textures[texture], self._shown.textures[texture]
        words = number(view.words, self._numbers)
        return shown.copy_from, (self.buffer(view.buffer), view.first, words)

    def _texture(self, unit: int, texture: int) -> Call:
        return self._shown.textures[texture].binding(unit)

    def _bind(self, buffer: int, binding: int, first: int, nbytes: int) -> Call:
        found = self.buffer(buffer)
        self._fits(found, first, 0 if nbytes == -1 else nbytes)
        bind: Any = found.mglo  # what its Python would call
        return bind.bind_to_storage_buffer, (binding, first, nbytes)

    @staticmethod
    def _fits(buffer: Any, first: int, nbytes: int) -> None:
        if first < 0 or nbytes < 0 or first + nbytes > buffer.size:
            raise FormatError(f"{nbytes} bytes from {first} of a buffer of {buffer.size}")

    def _uniforms(self, program: int, first: int, last: int) -> Call:
        used = self._programs[program]
        begin, end = (self._set(used, one) for one in (first, last))
        if first == last:
            return used.set, (begin,)
        return used.resume, (begin, end, used.changes(end, begin))

    def _set(self, program: Program, place: int) -> Mapping[str, Value]:
        found = self._sets[place]
        return found if place in self._open_sets else program.known(found)

    def _uniform(self, program: int, name: str, value: UniformValue) -> Call:
        found: Any = value
        return self._programs[program].writing(name, found)

    def _use(self, program: int) -> Call:
        return self._programs[program].using()

    def _dispatch(self, program: int, x: int, y: int, z: int) -> Call:
        if self._programs[program].stride:
            raise FormatError("a vertex shader cannot be dispatched")
        if min(x, y, z) < 0:
            raise FormatError(f"there are no {(x, y, z)} workgroups")
        return self._programs[program].dispatching((x, y, z))

    def _capture(
        self, array: int, vertices: int, instances: int, first: int, to: int, out: int
    ) -> Call:
        inputs = self._commands.arrays[array]
        program = self._programs[inputs.program]
        if min(vertices, instances, first, to) < 0:
            raise FormatError(f"there is no draw of {(vertices, instances, first, to)}")
        for _, buffer, floats in inputs.attributes:  # else GL reads what lies behind it
            self._fits(self.buffer(buffer), 4 * floats * first, 4 * floats * vertices)
        draw = vertices, instances, self.buffer(out), first, to
        return program.capturing(self._shown.arrays[array], *draw)

    def _flush(self) -> Call:
        return self._device.flush, ()

    def _host(self, place: int) -> Call:
        return self._functions[place], ()
