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
UniformValue = int | tuple[int, ...]
PIECE = 1 << 22  # words that are copied to the host at once
DRAWN = 1024  # vertices of a draw: softpipe captures wrongly from the 4,097th on
POISON = 0xFFFFFFFF  # a word that no test writes: NaN as a float
SCATTER = """uint scatter(uint i) {
    i = (i ^ (i >> 16)) * 0x7feb352du;
    return ((i ^ (i >> 15)) * 0x846ca68bu) >> 8;
}
"""
"""A hash of each index to 24 bits, which a float holds exactly."""


def scatter(indices: Words) -> Words:
    """Compute the function SCATTER for each of `indices`."""
    i = (indices ^ (indices >> np.uint32(16))) * np.uint32(0x7FEB352D)
    mixed: Words = ((i ^ (i >> np.uint32(15))) * np.uint32(0x846CA68B)) >> np.uint32(8)
    return mixed


def count_from(first: int, number: int) -> Words:
    """Return `number` indices from `first` on."""
    return np.arange(first, first + number, dtype=np.uint32)


class ScratchSpace:
    """Programs and memory on a device for tests of its limits. To be used inside `Device.perform`.

    most: the bytes that a test may take. patience: seconds after which a test may skip a part.
    note: the part that it skipped.
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
        """Allocate words on the device that begin with `content`, or are all POISON without it.

        Raises NoRoomError.
        """
        try:
            block = BufferBlock(words, self.device)
        except DeviceError as error:
            if self.device.lost is not None:
                raise
            raise NoRoomError(str(error)) from None
        if content is not None:
            self.device.write_buffer(block.copy, np.ascontiguousarray(content))
        else:
            piece = np.full(min(words, PIECE), POISON, np.uint32)
            for first in range(0, words, PIECE):
                self.device.write_buffer(block.copy, piece[: words - first], 4 * first)
        return block

    def dispatch(
        self,
        program: Program,
        groups: tuple[int, int, int],
        bound: Sequence[BufferBlock],
        uniforms: Mapping[str, UniformValue] | None = None,
    ) -> None:
        """Bind `bound` as storage blocks 0, 1, ..., run a compute shader, and wait for it."""
        for binding, memory in enumerate(bound):
            memory.copy.bind_to_storage_buffer(binding, 0, memory.nbytes)
        self.run(program, groups, uniforms or {})

    def run(
        self, program: Program, groups: tuple[int, int, int], uniforms: Mapping[str, UniformValue]
    ) -> None:
        """Run a compute shader with the buffers that are bound, wait, and raise GL's errors."""
        program.set(dict(uniforms))
        program.dispatch(groups)
        self.device.barrier()
        self.device.wait()
        self.device.check_always("try a limit")

    def capture(
        self, program: Program, vertices: int, uniforms: Mapping[str, UniformValue] | None = None
    ) -> Words:
        """Return the words that `vertices` vertices capture, in draws of at most DRAWN each.

        The shader's uniform `first` is the number of a draw's first vertex.
        """
        words = program.stride // 4
        result = np.empty(vertices * words, np.uint32)
        out, array = self.memory(min(vertices, DRAWN) * words), program.vertex_array()
        for first in range(0, vertices, DRAWN):
            count = min(DRAWN, vertices - first)
            self.device.write_buffer(out.copy, np.full(count * words, POISON, np.uint32))
            program.set({**(uniforms or {}), "first": first})
            program.capture(array, count, 1, out.copy)
            self.device.wait()
            part = result[first * words : (first + count) * words]
            out.copy.read_into(part, 4 * count * words)
        return result

    def read(self, memory: BufferBlock, words: int, start: int = 0) -> Iterator[tuple[int, Words]]:
        """Yield `words` of `memory` from `start` on, in pieces, each with its first index."""
        for first in range(start, start + words, PIECE):
            piece = np.empty(min(PIECE, start + words - first), np.uint32)
            memory.copy.read_into(piece, piece.nbytes, offset=4 * first)
            yield first, piece

    def plane(self, size: tuple[int, ...], content: Words) -> Any:
        """Make a texture of floats of the extents `size`, two or three."""
        context: Any = self.device.context
        make = context.texture if len(size) == 2 else context.texture_array
        texture: moderngl.Texture = make(size, 1, content.astype(np.float32), dtype="f4")
        texture.filter = (0x2600, 0x2600)  # nearest: else such a texture is incomplete
        self.device.check_always(f"allocate a texture of {' x '.join(map(str, size))}")
        return texture


def difference(got: Words, expected: Words, first: int = 0) -> str | None:
    """Describe the difference of `got` from `expected` in a few words; None where there is none."""
    wrong = np.flatnonzero(got != expected)
    if not wrong.size:
        return None
    i = int(wrong[0])
    return (
        f"{wrong.size} of {got.size} numbers are wrong, the first at {first + i}: "
        f"expected {expected[i]}, got {got[i]}"
    )


def floats(words: Words) -> Words:
    """Convert `words` below 2^24 to floats, which hold them exactly."""
    return words.astype(np.float32).view(np.uint32)
