"""CommandBuffer: commands of GL as plain data, which may be saved.

Programs, textures, vertex arrays, sets of uniforms and buffers are numbers in it; buffers count
the blocks of memory first, then the weights. Sizes are numbers, or indices of expressions
(`SizeIndex`). A command buffer may come from a file, so that it is checked: numbers of what does
not exist are refused before GL sees them. What a shader does with its uniforms is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glnn.size_table import Size, SizeIndex

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

    def data(self) -> dict[str, Any]:
        """Return all of it as JSON has it."""
        return {
            "programs": self.programs,
            "textures": [plain(tuple(vars(one).values())) for one in self.textures],
            "arrays": [[one.program, one.attributes] for one in self.arrays],
            "uniforms": [{k: plain(v) for k, v in one.items()} for one in self.uniforms],
            "commands": [plain(one) for one in self.commands],
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> CommandBuffer:
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
