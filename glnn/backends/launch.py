"""Launches on a GL device: the commands that compute a spec; their order, flushes and binding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any, Protocol

from glnn.backends.backend import Launch
from glnn.core.cached_property import cached_property
from glnn.gl import Buffer, DataTexture, Device, Program
from glnn.gl.command_buffer import BoundCommands, TextureView
from glnn.gl.command_encoder import AccessLog, BufferPart, CommandEncoder, MemoryRange
from glnn.kernels.architecture import EAGER, architecture
from glnn.kernels.codegen.generated import Uniform


class TextureSource(Protocol):
    """The part of a backend that makes textures from buffers."""

    device: Device

    def texture(self, buffer: Buffer, view: TextureView) -> DataTexture:
        """Return a texture of the part of `buffer` that `view` describes."""


@dataclass(frozen=True)
class MemoryAccess:
    """The memory that a launch reads and writes."""

    reads: frozenset[MemoryRange]
    writes: frozenset[MemoryRange]


class FlushPolicy:
    """Schedule of flushes between launches, and between the dispatches of a launch."""

    def __init__(self, device: Device) -> None:
        self._batches = _batch_sizes(architecture(device.capabilities), device.low_priority)
        self._left = next(self._batches)
        """Launches until the next flush."""

    def before_launch(self, encoder: CommandEncoder) -> None:
        """Flush where the launches since the last flush are enough; call it before each launch."""
        if not self._left:
            encoder.flush()
            self._left = next(self._batches)
        self._left -= 1


class GlLaunch(ABC):
    """A launch of one spec on a GL backend, and the buffer of its result."""

    def __init__(self, program: Program, backend: TextureSource, out: BufferPart) -> None:
        self._program, self.out, self._backend = program, out, backend

    @property
    def name(self) -> str:
        """The program's name."""
        return self._program.name

    @abstractmethod
    def record(self, encoder: CommandEncoder, flush_policy: FlushPolicy) -> None:
        """Record the GL commands. flush_policy: consulted before each dispatch but the first."""

    @property
    def memory_access(self) -> MemoryAccess | None:
        """The memory that it reads and writes; None where it must not be reordered."""
        return None

    @abstractmethod
    def uniform_sets(self) -> Iterable[Mapping[str, Uniform]]:
        """Return the uniforms of each dispatch or draw, by name."""

    @property
    def unset_uniforms(self) -> tuple[str, ...]:
        """The names of the program's uniforms that no dispatch or draw sets."""
        return tuple(sorted(self._program.uniforms - {n for s in self.uniform_sets() for n in s}))

    @cached_property
    def _commands(self) -> BoundCommands:
        return bind_launches(self._backend, [self])

    def __call__(self) -> None:
        self._commands()
        if isinstance(self.out, Buffer):
            self.out.mark_written()


class LaunchResources:
    """The textures and vertex arrays of commands on allocated buffers."""

    def __init__(self) -> None:
        self.textures: list[DataTexture] = []
        self.arrays: list[Any] = []


def bind_launches(backend: TextureSource, launches: Iterable[Launch]) -> BoundCommands:
    """Return the commands of `launches`, in order, bound to allocated buffers."""
    encoder = CommandEncoder()
    host = encode(encoder, launches, backend.device)
    commands = encoder.finish()
    device, programs, resources = backend.device, tuple(encoder.programs), LaunchResources()
    buffers = [part for part in encoder.parts.values() if isinstance(part, Buffer)]

    def buffer(number: int) -> Any:
        return buffers[number].push(device)

    resources.textures = [backend.texture(buffers[view.buffer], view) for view in commands.textures]
    for array in commands.arrays:
        attributes = {name: (buffer(i), floats) for name, i, floats in array.attributes}
        resources.arrays.append(programs[array.program].vertex_array(attributes))
    result = BoundCommands(device, commands, programs, buffer, resources)
    result.bind((), host)
    return result


def encode(encoder: CommandEncoder, launches: Iterable[Launch], device: Device) -> list[Launch]:
    """Record `launches` in order; return those that run on the host."""
    flush_policy, host = FlushPolicy(device), list[Launch]()
    for launch in launches:
        flush_policy.before_launch(encoder)
        if isinstance(launch, GlLaunch):
            encoder.step(launch.name)
            launch.record(encoder, flush_policy)
        else:
            encoder.step("host")
            encoder.host(len(host))
            host.append(launch)
    return host


def order_by_level(launches: Iterable[Launch]) -> list[Launch]:
    """Reorder `launches`, each as early as its dependences allow, for fewer barriers.

    A launch depends on those that write memory which it accesses, and on those that read memory
    which it writes. Its level is one above the greatest level of these.
    """
    result: list[Launch] = []
    levels: list[tuple[int, Launch]] = []
    writes, reads = AccessLog(), AccessLog()

    def append_sorted() -> None:
        result.extend(launch for _, launch in sorted(levels, key=lambda each: each[0]))
        levels.clear()
        writes.clear()
        reads.clear()

    for launch in launches:
        access = launch.memory_access if isinstance(launch, GlLaunch) else None
        if access is None:
            append_sorted()
            result.append(launch)
            continue
        dependences = [writes.latest(one) for one in (*access.reads, *access.writes)]
        level = 1 + max(*dependences, *(reads.latest(one) for one in access.writes), -1)
        levels.append((level, launch))
        for one in access.writes:
            writes.mark(one, level)
        for one in access.reads:
            reads.mark(one, level)
    append_sorted()
    return result


def _batch_sizes(family: str | None, low: bool = False) -> Iterator[int]:
    """Yield the number of launches up to each flush.

    Drivers collect commands until a wait, which flushes the rest. Flushing after the first launch,
    then after two, then after four keeps the device busy while the host records others: on an H200
    a flush costs 5 us, and one after each launch doubles the time of tiny steps. Adreno's drivers
    gain by it: TensorFlow Lite flushes after every dispatch, for up to twice the speed. A device of
    low priority flushes after every launch, so that other processes get their turn.
    """
    return repeat(1) if low or family in EAGER else (1 << i for i in count())
