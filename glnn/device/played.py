"""A tape made on a device: its programs, its memory, and the recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from glnn.device.device import Device
from glnn.device.memory import MappedMemory, SharedMemory, StagedMemory
from glnn.device.program import Program
from glnn.device.recording import Capture, Recorder, Recording
from glnn.device.staging import allocated
from glnn.device.tape import Shown, Tape, TapeError
from glnn.device.texture import DataTexture

MEMORIES = {"shared": SharedMemory, "mapped": MappedMemory, "staged": StagedMemory}
Asked = tuple[int, str, str, int]
"""What a texture is for, and the byte of the buffer that it begins at."""


class Packed:
    """A weight on `device`, as its words lie in memory: a buffer, copies in textures, or both.

    size: the words of the buffer. content: those that it begins with; zeros are behind. Only
    inside `Device.perform`.
    """

    def __init__(self, device: Device, size: int, content: NDArray[np.uint32]) -> None:
        self._device, self._size, self._content = device, size, content
        self._buffer: Any = None
        self._textures: WeakValueDictionary[Asked, DataTexture] = WeakValueDictionary()

    def buffer(self) -> Any:
        """The buffer, which stays from now on."""
        if self._buffer is None:
            self._buffer = self._made()
        return self._buffer

    def _made(self) -> Any:
        return allocated(self._device, self._size, self._content)

    def texture(self, shown: Shown) -> DataTexture:
        """The texture that shows it; the same one for whoever asks for such a one."""
        asked = shown.words, shown.texel, shown.sampler, shown.first
        found = self._textures.get(asked)
        if found is None:
            found = DataTexture(self._device, *asked[:3])
            if not found.copied:
                found.copy_from(self.buffer(), shown.first)
            else:  # which needs the buffer no more
                passing = self._made() if self._buffer is None else self._buffer
                found.copy_from(passing, shown.first)
            self._textures[asked] = found
        return found


class Played:
    """What `tape` needs on `device`, for one run at a time. Only inside `Device.perform`.

    weights: those of the tape. beside: another one of this tape, with which all is shared that is
    not to be its own.

    Raises TapeError where the device is not such a one any more, DeviceError where GL meets an
    error, as where memory runs out, LimitError where a texture is too large.
    """

    def __init__(
        self,
        tape: Tape,
        device: Device,
        weights: Sequence[Packed],
        beside: Played | None = None,
    ) -> None:
        self.tape, self._device, self._weights = tape, device, tuple(weights)
        self._programs: list[Program] = self._restored() if beside is None else beside._programs
        self.memories: tuple[SharedMemory, ...] = tuple(
            MEMORIES[block.kind](block.words, device)
            if beside is None or block.own
            else beside.memories[i]
            for i, block in enumerate(tape.blocks)
        )
        bound = tape.bound
        for number, weight in enumerate(self._weights, len(tape.blocks)):
            if number in bound:  # before its textures, which are made of it then
                weight.buffer()
        self._textures: list[DataTexture] = [
            self._texture(shown)
            if beside is None or tape.own(shown.buffer)
            else beside._textures[i]
            for i, shown in enumerate(tape.textures)
        ]
        self._arrays: list[Any] = [
            self._array(i)
            if beside is None or any(tape.own(buffer) for _, buffer, _ in drawn.attributes)
            else beside._arrays[i]
            for i, drawn in enumerate(tape.arrays)
        ]
        self.recording: Recording = self._recorded()
        device.check_always("restore")

    def _restored(self) -> list[Program]:
        """The programs; those of which a tape has several are as many, with their own uniforms."""
        found = []
        for key in self.tape.programs:
            program = Program.restored(self._device, key)
            if program is None:
                raise TapeError(f"a tape has the program {key}, which is not kept")
            found.append(program)
        return found

    def _buffer(self, number: int) -> Any:
        count = len(self.memories)
        if number < count:
            return self.memories[number].copy
        return self._weights[number - count].buffer()

    def _texture(self, shown: Shown) -> DataTexture:
        count = len(self.memories)
        if shown.buffer >= count:
            return self._weights[shown.buffer - count].texture(shown)
        made = DataTexture(self._device, shown.words, shown.texel, shown.sampler)
        made.copy_from(self._buffer(shown.buffer), shown.first)
        return made

    def _array(self, number: int) -> Any:
        drawn = self.tape.arrays[number]
        attributes = {name: (self._buffer(b), floats) for name, b, floats in drawn.attributes}
        return self._programs[drawn.program].vertices(attributes)

    def _recorded(self) -> Recording:
        recorder = Recorder(self._device)
        for name, *arguments in self.tape.commands:
            getattr(self, f"_{name}")(recorder, *arguments)
        return recorder.recording()

    def _step(self, recorder: Recorder, name: str) -> None:
        recorder.step(name)

    def _uses(self, recorder: Recorder, *those: Sequence[tuple[int, int, int]]) -> None:
        reads, writes = ([(self._buffer(b).glo, *ends) for b, *ends in some] for some in those)
        recorder.uses(reads, writes)

    def _copy(
        self, recorder: Recorder, target: int, to: int, source: int, at: int, nbytes: int
    ) -> None:
        recorder.copy(self._buffer(target), to, self._buffer(source), at, nbytes)

    def _refresh(self, recorder: Recorder, texture: int, buffer: int, first: int) -> None:
        recorder.refresh(self._textures[texture], self._buffer(buffer), first)

    def _show(self, recorder: Recorder, unit: int, texture: int) -> None:
        recorder.texture(unit, self._textures[texture])

    def _bind(self, recorder: Recorder, buffer: int, *where: int) -> None:
        binding, offset, size = where
        recorder.bind((self._buffer(buffer), binding, offset, size))

    def _uniforms(self, recorder: Recorder, program: int, values: int) -> None:
        recorder.uniforms(self._programs[program], self.tape.uniforms[values])

    def _dispatch(self, recorder: Recorder, program: int, *groups: int) -> None:
        x, y, z = groups
        if self._programs[program].stride:
            raise TapeError("a tape dispatches a vertex shader")
        recorder.dispatch(self._programs[program], (x, y, z))

    def _capture(self, recorder: Recorder, array: int, *draw: int) -> None:
        program = self._programs[self.tape.arrays[array].program]
        out = self._buffer(draw[-1])
        recorder.capture(program, self._arrays[array], {}, Capture(*draw[:-1]), out)

    def _flush(self, recorder: Recorder) -> None:
        recorder.flush()
