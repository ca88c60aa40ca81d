"""What runs a problem on a GL device: its textures, and its commands as they are recorded."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from typing import TYPE_CHECKING

from glnn.backends.backend import Launch
from glnn.device import Buffer, DataTexture, Device
from glnn.device.places import Marks, Place, place
from glnn.device.recording import Recorder, Recording
from glnn.kernels.architecture import EAGER, architecture

if TYPE_CHECKING:
    import moderngl


class Fetched:
    """An operand that a shader fetches from a texture.

    sampler: what it is to the shader. changes: whether it may be another one in every run. What
    does not is copied here, and its buffer is not needed any more.
    """

    def __init__(
        self, device: Device, buffer: Buffer, texel: str, sampler: str, changes: bool
    ) -> None:
        self.sampler = sampler
        self._device, self._texture = device, DataTexture(device, buffer.words, texel, sampler)
        self._buffer = buffer if changes else None
        self._texture.source = weakref.ref(buffer)
        self._texture.copy_from(buffer.push(device), buffer.first)

    def refresh(self, buffer: moderngl.Buffer) -> None:
        """Take what `buffer` holds now."""
        self._texture.copy_from(buffer)

    @staticmethod
    def record(all_of: Sequence[Fetched], recorder: Recorder) -> None:
        """Bring these up to date and make them the textures of the units from 0 on."""
        for one in all_of:
            if one._buffer is not None and one._texture.copied:
                copy = one._buffer.push(one._device)
                recorder.refresh(one._texture, copy, one._buffer.first)
        for unit, one in enumerate(all_of):  # only now: a copy goes by way of unit 0
            recorder.texture(unit, one._texture)

    @property
    def source(self) -> Place | None:
        """The memory that it shows, where that may change."""
        return None if self._buffer is None else place(self._buffer.range(self._device, 0))

    @property
    def read(self) -> Place | None:
        """The memory that the shader itself reads, where it may change."""
        return None if self._texture.copied else self.source


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

    def next(self, recorder: Recorder) -> None:
        """One more follows: send off those before it where they are enough."""
        if not self._left:
            recorder.flush()
            self._left = next(self._batches)
        self._left -= 1


class GlLaunch(ABC):
    """What runs one problem on `device`, and the buffer of its result."""

    def __init__(self, name: str, device: Device, out: Buffer) -> None:
        self.name, self.out, self._device = name, out, device

    @abstractmethod
    def record(self, recorder: Recorder, sending: Sending) -> None:
        """Write down what it asks of GL. sending: is asked before each turn but the first."""

    @property
    def touches(self) -> Touched | None:
        """What it reads and writes, where that says which launches may change places with it."""
        return None

    @cached_property
    def _recording(self) -> Recording:
        return recorded(self._device, [self])

    def __call__(self) -> None:
        self._recording()
        self.out.wrote()


def recorded(device: Device, launches: Iterable[Launch]) -> Recording:
    """`launches`, one after the other."""
    recorder = Recorder(device)
    record(recorder, launches)
    return recorder.recording()


def record(recorder: Recorder, launches: Iterable[Launch]) -> None:
    """Write down `launches`, one after the other."""
    sending = Sending(recorder.device)
    for launch in launches:
        sending.next(recorder)
        if isinstance(launch, GlLaunch):
            recorder.step(launch.name)
            launch.record(recorder, sending)
        else:
            recorder.step("host")
            recorder.call(launch)


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
