"""What runs a problem on a GL device: its textures, and its commands as they are recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count, repeat
from typing import TYPE_CHECKING

from glnn.backends.backend import Launch
from glnn.device import Buffer, DataTexture, Device
from glnn.device.recording import Recorder, Recording
from glnn.kernels.architecture import architecture

if TYPE_CHECKING:
    import moderngl

EAGER = ("Adreno",)
"""Architectures whose drivers are best told to begin with every launch."""


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
        self._texture.copy_from(buffer.push(device))

    def refresh(self, buffer: moderngl.Buffer) -> None:
        """Take what `buffer` holds now."""
        self._texture.copy_from(buffer)

    @staticmethod
    def record(all_of: Sequence[Fetched], recorder: Recorder) -> None:
        """Bring these up to date and make them the textures of the units from 0 on."""
        for one in all_of:
            if one._buffer is not None and one._texture.copied:
                recorder.refresh(one._texture, one._buffer.push(one._device))
        for unit, one in enumerate(all_of):  # only now: a copy goes by way of unit 0
            recorder.texture(unit, one._texture)

    @property
    def read(self) -> moderngl.Buffer | None:
        """The buffer whose memory the shader itself reads, where it may change."""
        if self._buffer is None or self._texture.copied:
            return None
        return self._buffer.push(self._device)


class GlLaunch(ABC):
    """What runs one problem on `device`, and the buffer of its result."""

    def __init__(self, name: str, device: Device, out: Buffer) -> None:
        self.name, self.out, self._device = name, out, device

    @abstractmethod
    def record(self, recorder: Recorder) -> None:
        """Write down what it asks of GL."""

    @cached_property
    def _recording(self) -> Recording:
        return recorded(self._device, [self])

    def __call__(self) -> None:
        self._recording()
        self.out.wrote()


def recorded(device: Device, launches: Iterable[Launch]) -> Recording:
    """`launches`, one after the other."""
    recorder = Recorder(device)
    batches = _batches(architecture(device.capabilities))
    left = next(batches)
    for launch in launches:
        if not left:
            recorder.flush()
            left = next(batches)
        if isinstance(launch, GlLaunch):
            recorder.step(launch.name)
            launch.record(recorder)
        else:
            recorder.step("host")
            recorder.call(launch)
        left -= 1
    return recorder.recording()


def _batches(family: str | None) -> Iterator[int]:
    """How many launches are sent off together before the next one is asked for, batch by batch.

    Drivers collect commands until somebody waits, which sends off the rest. Sending off the first
    launch, then two, then four has the device at work while others are still being asked for: on an
    H200 a flush costs 5 us, and one behind each launch doubles the time of tiny steps. Adreno's
    drivers gain by it: TensorFlow Lite flushes behind every dispatch, for up to twice the speed.
    """
    return repeat(1) if family in EAGER else (1 << i for i in count())
