"""Small programs for tests of a device: sources, memory, textures and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import DeviceError, NoRoomError
from glnn.gl import BufferBlock, Device, Program, Source

if TYPE_CHECKING:
    import moderngl

Words = NDArray[np.uint32]
Given = int | tuple[int, ...]
"""The value of a uniform."""
PIECE = 1 << 22  # words that come to the host at once
DRAWN = 1024  # vertices of a draw: softpipe captures wrongly from the 4,097th on
POISON = 0xFFFFFFFF  # which no number here is: as a float, NaN
SCATTER = """uint scatter(uint i) {
    i = (i ^ (i >> 16)) * 0x7feb352du;
    return ((i ^ (i >> 15)) * 0x846ca68bu) >> 8;
}
"""
"""A number of 24 bits for each place, so that also a float has all of it."""


def scatter(places: Words) -> Words:
    """Compute the function SCATTER for each of `places`."""
    i = (places ^ (places >> np.uint32(16))) * np.uint32(0x7FEB352D)
    mixed: Words = ((i ^ (i >> np.uint32(15))) * np.uint32(0x846CA68B)) >> np.uint32(8)
    return mixed


def count_from(first: int, number: int) -> Words:
    """Return `number` places from `first` on."""
    return np.arange(first, first + number, dtype=np.uint32)


class ScratchSpace:
    """A device that limits are tried on. To be used inside `Device.perform`.

    most: the bytes that one try may take. patience: seconds after which a try is content with
    less. note: what it left out then.
    """

    note: str | None = None

    def __init__(self, device: Device, most: int, patience: float = inf) -> None:
        self.device, self.patience = device, patience
        device.activate()
        free = device.memory_available()
        self.most = most if free is None else min(most, free // 4)

    def compute(self, body: str) -> Program:
        """Compile a compute shader. Raises ShaderError where the driver refuses it."""
        return Program.compute(self.device, self._source("compute", SCATTER + body))

    def feedback(self, body: str) -> Program:
        """Compile a vertex shader that captures `result`.

        Raises ShaderError where the driver refuses it.
        """
        return Program.feedback(self.device, self._source("feedback", SCATTER + body), ("result",))

    def _source(self, stage: str, body: str) -> Source:
        text = self.device.capabilities.header(stage) + body
        origin = tuple(("doctor", line) for line, _ in enumerate(text.splitlines(), 1))
        return Source("doctor", text, origin)

    def memory(self, words: int, content: Words | None = None) -> BufferBlock:
        """Allocate words on the device, `content` at the beginning, or all POISON without.

        Raises NoRoomError.
        """
        try:
            made = BufferBlock(words, self.device)
        except DeviceError as error:
            if self.device.lost is not None:
                raise
            raise NoRoomError(str(error)) from None
        if content is not None:
            self.device.write_buffer(made.copy, np.ascontiguousarray(content))
        else:
            piece = np.full(min(words, PIECE), POISON, np.uint32)
            for first in range(0, words, PIECE):
                self.device.write_buffer(made.copy, piece[: words - first], 4 * first)
        return made

    def dispatch(
        self,
        program: Program,
        groups: tuple[int, int, int],
        bound: Sequence[BufferBlock],
        uniforms: Mapping[str, Given] | None = None,
    ) -> None:
        """Run a compute shader over `bound`, storage blocks 0, 1, ..., and wait for it."""
        for binding, memory in enumerate(bound):
            memory.copy.bind_to_storage_buffer(binding, 0, memory.nbytes)
        self.ran(program, groups, uniforms or {})

    def ran(
        self, program: Program, groups: tuple[int, int, int], uniforms: Mapping[str, Given]
    ) -> None:
        """Run a compute shader with what is bound, wait, and raise what GL says of it."""
        program.set(dict(uniforms))
        program.dispatch(groups)
        self.device.barrier()
        self.device.wait()
        self.device.check_always("try a limit")

    def capture(
        self, program: Program, vertices: int, uniforms: Mapping[str, Given] | None = None
    ) -> Words:
        """Return the words that `vertices` capture, in draws of at most DRAWN each.

        The shader's uniform `first` is the number of a draw's first vertex.
        """
        each = program.stride // 4
        result = np.empty(vertices * each, np.uint32)
        out, array = self.memory(min(vertices, DRAWN) * each), program.vertex_array()
        for first in range(0, vertices, DRAWN):
            count = min(DRAWN, vertices - first)
            self.device.write_buffer(out.copy, np.full(count * each, POISON, np.uint32))
            program.set({**(uniforms or {}), "first": first})
            program.capture(array, count, 1, out.copy)
            self.device.wait()
            part = result[first * each : (first + count) * each]
            out.copy.read_into(part, 4 * count * each)
        return result

    def read(self, memory: BufferBlock, words: int, start: int = 0) -> Iterator[tuple[int, Words]]:
        """Yield `words` of `memory` from `start` on, in pieces, each with its first place."""
        for first in range(start, start + words, PIECE):
            piece = np.empty(min(PIECE, start + words - first), np.uint32)
            memory.copy.read_into(piece, piece.nbytes, offset=4 * first)
            yield first, piece

    def plane(self, size: tuple[int, ...], content: Words) -> Any:
        """Make a texture of floats of the extents `size`, two or three."""
        context: Any = self.device.context
        make = context.texture if len(size) == 2 else context.texture_array
        made: moderngl.Texture = make(size, 1, content.astype(np.float32), dtype="f4")
        made.filter = (0x2600, 0x2600)  # nearest: else such a texture is incomplete
        self.device.check_always(f"allocate a texture of {' x '.join(map(str, size))}")
        return made


def difference(got: Words, expected: Words, first: int = 0) -> str | None:
    """Describe the difference of `got` from `expected` in a few words; None where there is none."""
    wrong = np.flatnonzero(got != expected)
    if not wrong.size:
        return None
    at = int(wrong[0])
    return (
        f"{wrong.size} of {got.size} numbers are wrong, the first at {first + at}: "
        f"expected {expected[at]}, got {got[at]}"
    )


def floats(words: Words) -> Words:
    """Convert `words` below 2^24 to floats, which hold them exactly."""
    return words.astype(np.float32).view(np.uint32)
