"""ES 3.0 transform feedback: vertex shaders fetch from textures and capture into buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from glnn.backends.backend import Choice, Performer, Store
from glnn.backends.gl import GlBackend
from glnn.device import Buffer, DataTexture, Device, Program, Source
from glnn.kernels.kernel import TEXELS, Kernel
from glnn.kernels.select import Problem
from glnn.ops.op import Op, Shapes

CAPTURED = 64  # floats: GL guarantees no more components a vertex


class FeedbackPerformer:
    """One draw: refresh the inputs' textures from their buffers, bind, set, capture."""

    def __init__(
        self,
        device: Device,
        program: Program,
        inputs: list[tuple[Buffer, DataTexture]],
        textures: list[DataTexture],
        uniforms: Mapping[str, int | float],
        out: Buffer,
        vectors: int,
    ) -> None:
        self._device, self._program, self._inputs = device, program, inputs
        self._textures, self._uniforms, self._out = textures, uniforms, out
        self._captured = out.push(device)
        self._vertices = -(-out.layout.size(out.shape) // (4 * vectors))

    def __call__(self) -> None:
        for buffer, texture in self._inputs:
            texture.copy_from(buffer.push(self._device))
        for unit, texture in enumerate(self._textures):
            texture.bind(unit)
        self._program.set(self._uniforms)
        self._program.capture(self._vertices, self._captured)
        self._out.wrote()


class Feedback(GlBackend):
    """GLSL ES 3.0 vertex shaders and transform feedback (desktop GL 3.3 will do)."""

    name: ClassVar[str] = "feedback"

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        return None if device.capabilities.feedback else "it needs OpenGL ES 3.0 or OpenGL 3.3"

    def compile(self, source: Source) -> Program:
        return Program.feedback(self.device, source, ("result",))

    def capacity(self, floats: int) -> int:
        # A vertex captures several vec4: the last may reach beyond the result.
        floats = -(-super().capacity(floats) // CAPTURED) * CAPTURED
        # Whatever texture a kernel reads this through, the copy takes whole rows of it.
        width = DataTexture.WIDTH
        texels = {c: -(-floats // c) for c in TEXELS.values()}
        return max(c * (t if t < width else -(-t // width) * width) for c, t in texels.items())

    def prepare(
        self, op: Op, choice: Choice, operands: Mapping[str, Store], shapes: Shapes, out: Store
    ) -> Performer:
        assert isinstance(choice, Kernel) and isinstance(out, Buffer)
        buffers = {k: b for k, b in operands.items() if isinstance(b, Buffer)}
        first = buffers[op.inputs[0]]
        problem = Problem.of(op, shapes, {op.inputs[0]: first.layout.name})
        program = self.program(choice, problem.defines())
        textures: dict[str, DataTexture] = {}
        for name, buffer in buffers.items():
            textures[name] = DataTexture(
                self.device, buffer.layout.size(buffer.shape), TEXELS[choice.textures[name]]
            )
            if name in op.parameters:  # fixed: copied once, here
                textures[name].copy_from(buffer.push(self.device))
        return FeedbackPerformer(
            self.device,
            program,
            [(buffers[name], textures[name]) for name in op.inputs if name in buffers],
            list(textures.values()),
            self.uniforms(program, choice, problem, {k: i for i, k in enumerate(textures)}),
            out,
            choice.evaluate(choice.vectors, choice.defaults),
        )
