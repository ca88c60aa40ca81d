"""Writing down what is asked of a device as a tape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glnn.device.buffer import Buffer
from glnn.device.functions import Command
from glnn.device.members import Value
from glnn.device.memory import MappedMemory, SharedMemory, StagedMemory
from glnn.device.places import Place, Range
from glnn.device.program import Program
from glnn.device.recording import Attributes, Capture, Groups, Recorder
from glnn.device.tape import Block, Drawn, Shown, Tape, TapeError
from glnn.device.texture import DataTexture

if TYPE_CHECKING:
    import moderngl


@dataclass
class Notes(Recorder):
    """A recorder that writes all it is asked down as data, and no commands.

    blocks: the memory that is written and read, and whether each lane has its own. weights: what
    is there before the first command and stays as it is; what is copied to a texture alone need
    not be on the device any more. Whatever else is asked for raises TapeError.
    """

    blocks: Sequence[tuple[SharedMemory, bool]] = ()
    weights: Sequence[Buffer] = ()
    _names: dict[int, int] = field(default_factory=dict)
    """The number of each buffer, by GL's name of it."""
    _told: list[tuple[Any, ...]] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    """Of programs, textures and vertex arrays, by their id."""
    _keys: list[str] = field(default_factory=list)
    """Of programs."""
    _textures: list[Shown] = field(default_factory=list)
    _arrays: list[Drawn] = field(default_factory=list)
    _sets: dict[str, tuple[int, Mapping[str, Value]]] = field(default_factory=dict)
    _held: list[object] = field(default_factory=list)
    """What has a number: an id is another's once its own object is gone."""

    def __post_init__(self) -> None:
        names: list[int | None] = [block.copy.glo for block, _ in self.blocks]
        names += [weight.copied for weight in self.weights]
        self._names = {name: number for number, name in enumerate(names) if name}

    def tape(self) -> Tape:
        """All that was written down."""
        return Tape(
            tuple(Block(block.size, _kind(block), own) for block, own in self.blocks),
            tuple(weight.size for weight in self.weights),
            tuple(self._keys),
            tuple(self._textures),
            tuple(self._arrays),
            tuple(values for _, values in self._sets.values()),
            tuple(self._told),
        )

    def step(self, name: str) -> None:
        self._told.append(("step", name))

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        raise TapeError("the host computes a step")

    def run(self, command: Command) -> None:
        raise TapeError("a command that is no data")

    def uses(self, reads: Sequence[Place], writes: Sequence[Place] = ()) -> None:
        self._told.append(("uses", *(tuple(map(self._place, some)) for some in (reads, writes))))

    def copy(
        self, target: moderngl.Buffer, to: int, source: moderngl.Buffer, at: int, nbytes: int
    ) -> None:
        self._told.append(("copy", self._buffer(target), to, self._buffer(source), at, nbytes))

    def refresh(self, texture: Any, buffer: moderngl.Buffer, first: int) -> None:
        self._told.append(("refresh", self._texture(texture), self._buffer(buffer), first))

    def texture(self, unit: int, texture: Any) -> None:
        self._told.append(("show", unit, self._texture(texture)))

    def bind(self, range: Range) -> None:
        buffer, binding, offset, size = range
        self._told.append(("bind", self._buffer(buffer), binding, offset, size))

    def uniforms(self, program: Program, values: Mapping[str, Value]) -> None:
        text = repr(sorted(values.items()))
        number, _ = self._sets.setdefault(text, (len(self._sets), dict(values)))
        self._told.append(("uniforms", self._program(program), number))

    def dispatch(self, program: Program, groups: Groups) -> None:
        self._told.append(("dispatch", self._program(program), *groups))

    def capture(
        self,
        program: Program,
        array: moderngl.VertexArray,
        attributes: Attributes,
        draw: Capture,
        out: moderngl.Buffer,
    ) -> None:
        number = self._numbered(array, self._arrays)
        if number == len(self._arrays):
            known = ((n, self._buffer(b), floats) for n, (b, floats) in attributes.items())
            self._arrays.append(Drawn(self._program(program), tuple(known)))
        ends = draw.vertices, draw.instances, draw.first, draw.to, self._buffer(out)
        self._told.append(("capture", number, *ends))

    def flush(self) -> None:
        self._told.append(("flush",))

    def _numbered(self, one: object, those: Sequence[object]) -> int:
        """The number of `one`: that of the next of `those` where it is new."""
        if id(one) not in self._numbers:
            self._held.append(one)
        return self._numbers.setdefault(id(one), len(those))

    def _program(self, program: Program) -> int:
        number = self._numbered(program, self._keys)
        if number == len(self._keys):
            if program.key is None:
                raise TapeError(f"a program {program.name!r} that was not kept")
            self._keys.append(program.key)
        return number

    def _buffer(self, buffer: moderngl.Buffer) -> int:
        return self._named(buffer.glo)

    def _named(self, name: int) -> int:
        if name not in self._names:
            raise TapeError("a buffer that is neither memory nor a weight")
        return self._names[name]

    def _place(self, place: Place) -> Place:
        name, *ends = place
        return self._named(name), ends[0], ends[1]

    def _texture(self, texture: DataTexture) -> int:
        number = self._numbered(texture, self._textures)
        if number == len(self._textures):
            source = texture.source()
            if not isinstance(source, Buffer):
                raise TapeError("a texture of what is gone")
            where = [i for i, weight in enumerate(self.weights) if weight is source]
            buffer = len(self.blocks) + where[0] if where else self._named(source.copied or 0)
            self._textures.append(Shown(*texture.asked, buffer, source.first))
        return number


def _kind(block: SharedMemory) -> str:
    if isinstance(block, StagedMemory):
        return "staged"
    return "mapped" if isinstance(block, MappedMemory) else "shared"
