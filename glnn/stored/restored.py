"""Runners of executables that were read from disk, and their weights on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from glnn.device import DataTexture, Device
from glnn.device.command_buffer import FormatError, TextureView
from glnn.device.program import Program
from glnn.device.staging import allocated
from glnn.runtime.buffer_set import Resources
from glnn.runtime.executable import Executable
from glnn.runtime.runner import Runner
from glnn.runtime.store import OnDevice
from glnn.settings import Settings
from glnn.types import Array, Shape


class PackedWeight:
    """A weight on `device`, as its words lie in memory: a buffer, copies in textures, or both.

    size: the words of the buffer. content: those that it begins with; zeros are behind. Only
    inside `Device.perform`.
    """

    def __init__(self, device: Device, size: int, content: NDArray[np.uint32]) -> None:
        self._device, self._size, self._content = device, size, content
        self._buffer: Any = None
        self._textures: WeakValueDictionary[TextureView, DataTexture] = WeakValueDictionary()

    def buffer(self) -> Any:
        """Return the buffer, which stays from now on."""
        if self._buffer is None:
            self._buffer = self._made()
        return self._buffer

    def _made(self) -> Any:
        return allocated(self._device, self._size, self._content)

    def texture(self, view: TextureView) -> DataTexture:
        """Return the texture that shows it; the same one for whoever asks for such a one."""
        key = TextureView(0, view.first, view.words, view.texel, view.sampler)
        found = self._textures.get(key)
        if found is None:
            if not (isinstance(view.words, int) and isinstance(view.first, int)):
                raise FormatError("a weight is of no known size")
            found = DataTexture(self._device, view.words, view.texel, view.sampler)
            # A copy needs the buffer no more.
            kept = not found.copied or self._buffer is not None
            found.copy_from(self.buffer() if kept else self._made(), view.first)
            self._textures[key] = found
        return found


def restored(
    executable: Executable,
    device: Device,
    weights: Sequence[PackedWeight],
    fixed: Mapping[str, Array],
    shapes: Mapping[str, Shape],
) -> Runner:
    """Return what runs `executable` on `device`, whose `weights` are there.

    fixed: the arrays of the outputs that no run changes. shapes: those of the first run's inputs.
    Only inside `Device.perform`. Raises FormatError where the device is not such a one any more,
    and what Runner raises.
    """
    programs = [_program(device, key) for key in executable.commands.programs]
    resources = Resources(device, programs, weights, lambda: available(device))
    return Runner(
        executable,
        OnDevice(device),
        resources,
        tuple(shapes[one.input][one.axis] for one in executable.symbols),
        fixed=lambda name, buffers: np.array(fixed[name]),
        taken=executable.nbytes,
    )


def _program(device: Device, key: str | None) -> Program:
    """Return a program; those of which an executable has several have their own uniforms."""
    found = None if key is None else Program.restored(device, key)
    if found is None:
        raise FormatError(f"there is no program {key}, or the driver does not take it")
    return found


def available(device: Device) -> int | None:
    """Return the bytes that plans may take on `device`; None where nobody knows."""
    allowed = Settings.from_environment().memory
    return device.memory_available() if allowed is None else allowed
