"""What runs a problem on a GL device: the commands that it asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from typing import Any, Protocol

from glnn.backends.backend import Launch
from glnn.device import Buffer, DataTexture, Device
from glnn.device.bound_commands import BoundCommands
from glnn.device.command_buffer import TextureView
from glnn.device.command_encoder import BufferPart, CommandEncoder
from glnn.device.places import Marks, Place
from glnn.kernels.architecture import EAGER, architecture


class TextureSource(Protocol):
    """A backend, as far as it makes textures of buffers."""

    device: Device

    def texture(self, buffer: Buffer, view: TextureView) -> DataTexture:
        """Return a texture that shows what `view` says of `buffer`."""


@dataclass(frozen=True)
class Touched:
    """The memory that a launch reads and writes."""

    reads: frozenset[Place]
    writes: frozenset[Place]


class Sending:
    """How often the commands of launches, and of turns of one launch, are sent off."""

    def __init__(self, device: Device) -> None:
        self._batches = _batches(architecture(device.capabilities), device.low)
        self._left = next(self._batches)

    def next(self, encoder: CommandEncoder) -> None:
        """One more follows: send off those before it where they are enough."""
        if not self._left:
            encoder.flush()
            self._left = next(self._batches)
        self._left -= 1


class GlLaunch(ABC):
    """What runs one problem on a backend, and where its result is."""

    def __init__(self, name: str, backend: TextureSource, out: BufferPart) -> None:
        self.name, self.out, self._backend = name, out, backend

    @abstractmethod
    def record(self, encoder: CommandEncoder, sending: Sending) -> None:
        """Write down what it asks of GL. sending: is asked before each turn but the first."""

    @property
    def touches(self) -> Touched | None:
        """What it reads and writes, where that says which launches may change places with it."""
        return None

    @cached_property
    def _commands(self) -> BoundCommands:
        return bound(self._backend, [self])

    def __call__(self) -> None:
        self._commands()
        if isinstance(self.out, Buffer):
            self.out.wrote()


class Shown:
    """The textures and vertex arrays of commands on buffers that are there."""

    def __init__(self) -> None:
        self.textures: list[DataTexture] = []
        self.arrays: list[Any] = []


def bound(backend: TextureSource, launches: Iterable[Launch]) -> BoundCommands:
    """Return `launches` on buffers that are there, one after the other."""
    encoder = CommandEncoder()
    host = encode(encoder, launches, backend.device)
    commands = encoder.finish()
    device, programs, shown = backend.device, tuple(encoder.programs), Shown()
    parts = [part for part in encoder.parts.values() if isinstance(part, Buffer)]

    def buffer(place: int) -> Any:
        return parts[place].push(device)

    shown.textures = [backend.texture(parts[view.buffer], view) for view in commands.textures]
    for one in commands.arrays:
        attributes = {name: (buffer(place), floats) for name, place, floats in one.attributes}
        shown.arrays.append(programs[one.program].vertices(attributes))
    made = BoundCommands(device, commands, programs, buffer, shown)
    made.bind((), host)
    return made


def encode(encoder: CommandEncoder, launches: Iterable[Launch], device: Device) -> list[Launch]:
    """Write down `launches`, one after the other; return those that are the host's."""
    sending, host = Sending(device), list[Launch]()
    for launch in launches:
        sending.next(encoder)
        if isinstance(launch, GlLaunch):
            encoder.step(launch.name)
            launch.record(encoder, sending)
        else:
            encoder.step("host")
            encoder.host(len(host))
            host.append(launch)
    return host


def in_levels(launches: Iterable[Launch]) -> list[Launch]:
    """`launches`, each as soon as what it waits for is done: fewer barriers are between them.

    It waits for what wrote what it touches, and for what read what it writes.
    """
    found: list[Launch] = []
    together: list[tuple[int, Launch]] = []
    wrote, read = Marks(), Marks()

    def end() -> None:
        found.extend(launch for _, launch in sorted(together, key=lambda each: each[0]))
        together.clear()
        wrote.clear()
        read.clear()

    for launch in launches:
        touched = launch.touches if isinstance(launch, GlLaunch) else None
        if touched is None:
            end()
            found.append(launch)
            continue
        before = [wrote.latest(one) for one in (*touched.reads, *touched.writes)]
        level = 1 + max(*before, *(read.latest(one) for one in touched.writes), -1)
        together.append((level, launch))
        for one in touched.writes:
            wrote.mark(one, level)
        for one in touched.reads:
            read.mark(one, level)
    end()
    return found


def _batches(family: str | None, low: bool = False) -> Iterator[int]:
    """How many launches are sent off together before the next one is asked for, batch by batch.

    Drivers collect commands until somebody waits, which sends off the rest. Sending off the first
    launch, then two, then four has the device at work while others are still being asked for: on an
    H200 a flush costs 5 us, and one behind each launch doubles the time of tiny steps. Adreno's
    drivers gain by it: TensorFlow Lite flushes behind every dispatch, for up to twice the speed.
    A device of low priority lets others' launches in between.
    """
    return repeat(1) if low or family in EAGER else (1 << i for i in count())
