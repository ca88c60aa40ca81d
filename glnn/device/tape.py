"""What a recording asks of GL, as data: a process that never made a plan can run it.

All that it speaks of has a number: programs, textures, vertex arrays, sets of uniforms, and the
buffers, of which the blocks of memory come first and behind them the weights. A tape may come from
a file, so that it looks at itself: numbers that nothing has, and parts of buffers that are not
there, are refused before GL sees them. What a shader does with its uniforms nobody can tell from
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from glnn.device.members import Value
from glnn.device.places import END

MOST_WORDS = 1 << 40  # of a buffer
MOST = 1 << 31  # what GL counts: vertices, instances, workgroups, units, bindings
KINDS = ("shared", "mapped", "staged")
"""How the host gets at a block of memory: see `memory`."""
Command = tuple[Any, ...]
"""What is asked, and of what: see COMMANDS."""


class TapeError(ValueError):
    """What cannot be told as a tape, or is none."""


@dataclass(frozen=True)
class Block:
    """Memory that tensors share."""

    words: int
    """Its size, in words of 32 bits."""
    kind: str
    """One of KINDS."""
    own: bool
    """Whether each lane has one of its own."""

    def __post_init__(self) -> None:
        _expect(_whole(self.words, MOST_WORDS) and self.words > 0, f"a block of {self.words!r}")
        _expect(self.kind in KINDS and type(self.own) is bool, f"memory {self.kind!r}")


@dataclass(frozen=True)
class Shown:
    """A texture."""

    words: int
    """What it shows, in words of 32 bits."""
    texel: str
    """Its format: see `DataTexture`."""
    sampler: str
    """What it is to a shader."""
    buffer: int
    """Whose content it shows."""
    first: int
    """The byte that it begins at."""

    def __post_init__(self) -> None:
        texts = isinstance(self.texel, str) and isinstance(self.sampler, str)
        _expect(texts and _whole(self.words, MOST_WORDS), f"a texture of {self.words!r} words")


@dataclass(frozen=True)
class Drawn:
    """A vertex array."""

    program: int
    """For which it is."""
    attributes: tuple[tuple[str, int, int], ...]
    """Of each the name, the buffer, and the floats that a vertex takes."""

    def __post_init__(self) -> None:
        for name, _, floats in self.attributes:
            _expect(isinstance(name, str) and _whole(floats, 17), f"an attribute {name!r}")


@dataclass(frozen=True)
class Tape:
    """Steps of commands, and what they need. Raises TapeError where these do not fit together."""

    blocks: tuple[Block, ...]
    weights: tuple[int, ...]
    """The words of each."""
    programs: tuple[str, ...]
    """Their keys: see `Program.key`."""
    textures: tuple[Shown, ...]
    arrays: tuple[Drawn, ...]
    uniforms: tuple[Mapping[str, Value], ...]
    """Sets of them."""
    commands: tuple[Command, ...]

    def __post_init__(self) -> None:
        for words in self.weights:
            _expect(_whole(words, MOST_WORDS) and words > 0, f"a weight of {words!r} words")
        for key in self.programs:
            _expect(isinstance(key, str) and key.isalnum(), f"a program {key!r}")
        for shown in self.textures:
            self._part(shown.buffer, shown.first, 4 * shown.words)
        for drawn in self.arrays:
            _expect(_whole(drawn.program, len(self.programs)), f"program {drawn.program!r}")
            for _, buffer, _ in drawn.attributes:
                self._part(buffer, 0, 0)
        for values in self.uniforms:
            _expect(all(map(_value, values.values())), f"uniforms {values!r:.200}")
        for name, *arguments in self.commands:
            wanted = COMMANDS.get(name) if isinstance(name, str) else None
            _expect(wanted is not None and len(wanted) == len(arguments), f"a command {name!r:.80}")
            for check, argument in zip(wanted or (), arguments, strict=True):
                _expect(check(self, argument), f"{name} {argument!r:.200}")
            self._fits(name, arguments)

    def nbytes(self, buffer: int) -> int:
        """The bytes of a buffer."""
        count = len(self.blocks)
        return 4 * (self.blocks[buffer].words if buffer < count else self.weights[buffer - count])

    def own(self, buffer: int) -> bool:
        """Whether each lane has a buffer of its own."""
        return buffer < len(self.blocks) and self.blocks[buffer].own

    @property
    def bound(self) -> frozenset[int]:
        """The buffers that are needed as such: what is copied to textures alone is none of them."""
        found = {buffer for drawn in self.arrays for _, buffer, _ in drawn.attributes}
        for name, *arguments in self.commands:
            for check, argument in zip(COMMANDS[name], arguments, strict=True):
                found |= {argument} if check is _buffer else set()
        return frozenset(found)

    def _part(self, buffer: int, first: int, size: int) -> None:
        """Raise TapeError unless a buffer has the `size` bytes from the byte `first` on."""
        there = _buffer(self, buffer) and _whole(first, MOST_WORDS) and _whole(size, MOST_WORDS)
        fits = there and first + size <= self.nbytes(buffer)
        _expect(fits, f"{size!r} bytes from {first!r} of buffer {buffer!r}")

    def _fits(self, name: str, arguments: Sequence[Any]) -> None:
        """Raise TapeError where a command goes beyond what is there."""
        if name == "bind":
            buffer, _, first, size = arguments
            self._part(buffer, first, max(size, 0))
        elif name == "copy":
            target, to, source, at, size = arguments
            self._part(target, to, size)
            self._part(source, at, size)
        elif name == "refresh":
            shown = self.textures[arguments[0]]
            self._part(arguments[1], arguments[2], 4 * shown.words)
        elif name == "capture":
            array, vertices, _, first, _, out = arguments
            self._part(out, 0, 0)
            for _, buffer, floats in self.arrays[array].attributes:
                self._part(buffer, 0, 4 * floats * (first + vertices))

    def data(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            **asdict(self),
            "blocks": [[one.words, one.kind, one.own] for one in self.blocks],
            "textures": [[*vars(one).values()] for one in self.textures],
            "arrays": [[one.program, one.attributes] for one in self.arrays],
        }

    @classmethod
    def of(cls, data: Any) -> Tape:
        """What `data` gave, from JSON of which nothing is known. Raises TapeError."""
        try:
            arrays = [(program, map(tuple, those)) for program, those in data["arrays"]]
            return cls(
                tuple(Block(*one) for one in data["blocks"]),
                tuple(data["weights"]),
                tuple(data["programs"]),
                tuple(Shown(*one) for one in data["textures"]),
                tuple(Drawn(program, tuple(those)) for program, those in arrays),
                tuple({n: _tupled(v) for n, v in one.items()} for one in data["uniforms"]),
                tuple(tuple(map(_tupled, one)) for one in data["commands"]),
            )
        except TapeError:
            raise
        except Exception as error:  # of the wrong types anywhere
            raise TapeError(f"no tape: {error}") from None


def _tupled(value: Any) -> Any:
    """`value` with tuples in place of JSON's lists."""
    return tuple(map(_tupled, value)) if isinstance(value, (list, tuple)) else value


def _expect(right: bool, what: str) -> None:
    if not right:
        raise TapeError(f"a tape has no {what}")


def _whole(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


def _value(value: object) -> bool:
    """Whether `value` is that of a uniform."""
    if isinstance(value, tuple):
        return all(type(one) is int and abs(one) <= MOST for one in value)
    return (type(value) is int and abs(value) <= MOST) or type(value) is float


def _count(_: Tape, value: object) -> bool:
    return _whole(value, MOST)


def _byte(_: Tape, value: object) -> bool:
    return _whole(value, 4 * MOST_WORDS)


def _size(_: Tape, value: object) -> bool:
    return value == -1 or _whole(value, 4 * MOST_WORDS)


def _text(_: Tape, value: object) -> bool:
    return isinstance(value, str)


def _buffer(tape: Tape, value: object) -> bool:
    return _whole(value, len(tape.blocks) + len(tape.weights))


def _texture(tape: Tape, value: object) -> bool:
    return _whole(value, len(tape.textures))


def _array(tape: Tape, value: object) -> bool:
    return _whole(value, len(tape.arrays))


def _program(tape: Tape, value: object) -> bool:
    return _whole(value, len(tape.programs))


def _set(tape: Tape, value: object) -> bool:
    return _whole(value, len(tape.uniforms))


def _places(tape: Tape, value: object) -> bool:
    """Whether these are parts of buffers: of each the number, the first byte and its end."""
    return isinstance(value, tuple) and all(
        isinstance(one, tuple)
        and len(one) == 3
        and _buffer(tape, one[0])
        and _whole(one[1], END)
        and _whole(one[2], END + 1)
        for one in value
    )


COMMANDS: Mapping[str, tuple[Callable[[Tape, object], bool], ...]] = {
    "step": (_text,),
    "uses": (_places, _places),
    "copy": (_buffer, _byte, _buffer, _byte, _byte),
    "refresh": (_texture, _buffer, _byte),
    "show": (_count, _texture),
    "bind": (_buffer, _count, _byte, _size),
    "uniforms": (_program, _set),
    "dispatch": (_program, _count, _count, _count),
    "capture": (_array, _count, _count, _count, _byte, _buffer),
    "flush": (),
}
"""The commands of `Recorder` that a tape has, and what each is of."""
