"""Backend of ES 3.0 transform feedback: vertex shaders whose outputs are captured to buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.backends.backend import Choice, Launch, Operand
from glnn.backends.gl import GlBackend
from glnn.backends.launch import FlushPolicy, GlLaunch, TextureSource
from glnn.core.symint import greatest, split_size
from glnn.errors import ShaderError
from glnn.gl import Buffer, DataTexture, Device, Program, Source
from glnn.gl.command_encoder import (
    BlockPart,
    BufferPart,
    CommandEncoder,
    FeedbackDraw,
    TextureOperand,
)
from glnn.gl.probe import refuses_mapped_captures
from glnn.kernels.binding import bind
from glnn.kernels.codegen.generated import Uniform
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import LaunchSize

Attributes = Mapping[str, tuple[BufferPart, int]]
"""The vertex attributes by name: the buffer, and the floats that a vertex reads of it."""
CAPTURED = 64  # floats: GL guarantees no more components a vertex


@dataclass(frozen=True)
class Draw:
    """A single draw: its vertices and instances, the first of each, and the byte it captures to."""

    vertices: int
    instances: int
    first: int
    first_instance: int
    offset: int


class FeedbackLaunch(GlLaunch):
    """A refresh of the textures that are copies, and draws that capture.

    A flush follows each of several draws: drivers kill batches of commands that take long.
    """

    def __init__(
        self,
        backend: TextureSource,
        program: Program,
        textures: Sequence[TextureOperand],
        uniforms: Mapping[str, Uniform],
        attributes: Attributes,
        draws: Sequence[Draw],
        out: BufferPart,
    ) -> None:
        super().__init__(program, backend, out)
        buffer_textures = (one.buffer for one in textures if not one.copied)
        reads = [*buffer_textures, *(part for part, _ in attributes.values())]
        # What a draw reads of a buffer that it captures to is undefined in GL.
        assert all(part.key != out.key for part in reads), program.name
        self._textures, self._attributes = textures, attributes
        has_instances = "first_instance" in uniforms
        self._draws = [
            (
                draw,
                {**uniforms, "first_instance": draw.first_instance} if has_instances else uniforms,
            )
            for draw in draws
        ]

    def uniform_sets(self) -> Iterable[Mapping[str, Uniform]]:
        return (uniforms for _, uniforms in self._draws)

    def record(self, encoder: CommandEncoder, flush_policy: FlushPolicy) -> None:
        encoder.textures(self._textures)
        for draw, uniforms in self._draws:
            encoder.uniforms(self._program, uniforms)
            capture = FeedbackDraw(draw.vertices, draw.instances, draw.first, draw.offset)
            encoder.capture(self._program, self._attributes, capture, self.out)
            if len(self._draws) > 1:
                encoder.flush()


class Feedback(GlBackend):
    """GLSL ES 3.0 vertex shaders and transform feedback (desktop GL 3.3 will do)."""

    name: ClassVar[str] = "feedback"

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        return None if device.capabilities.feedback else "it needs OpenGL ES 3.0 or OpenGL 3.3"

    @property
    def operand_bytes(self) -> int:
        return 4 * DataTexture.most_words(self.device.capabilities)

    def compile(self, source: Source) -> Program:
        return Program.feedback(self.device, source, ("result",))

    def capacity(self, floats: int) -> int:
        # A vertex takes and captures several vec4: the last may reach beyond the operands.
        return -(-super().capacity(floats) // CAPTURED) * CAPTURED

    def mappable(self) -> bool:
        return super().mappable() and not refuses_mapped_captures(self.device)

    def prepare(
        self,
        choice: Choice,
        spec: OpSpec,
        operands: Mapping[str, Operand],
        out: Operand,
        fixed_uniforms: bool = False,
    ) -> Launch:
        assert isinstance(choice, Kernel) and isinstance(out, (Buffer, BlockPart))
        buffers = {k: b for k, b in operands.items() if isinstance(b, (Buffer, BlockPart))}
        textures = self.texture_operands(spec, choice, buffers)
        samplers = {name: one.sampler for name, one in textures.items()}
        bound = bind(choice, spec, self.device.capabilities, samplers)
        program = self.program(choice, spec, spec.defines(choice), textures, bound, fixed_uniforms)
        return FeedbackLaunch(
            self,
            program,
            list(textures.values()),
            self.uniforms(program, choice, spec, textures),
            self._attributes(program, choice, spec, buffers),
            list(self._draws(program, choice, spec)),
            out,
        )

    def _attributes(
        self, program: Program, kernel: Kernel, spec: OpSpec, buffers: Mapping[str, BufferPart]
    ) -> Attributes:
        """Return the vertex attributes. Raises ShaderError on a wrong capture size."""
        parameters = {**kernel.defaults, **spec.defines(kernel)}
        attributes = {
            name: (buffers[name], floats.evaluate(parameters))
            for name, floats in kernel.attributes.items()
        }
        captures = self._captures(kernel, spec)
        if program.stride != 4 * captures:
            raise ShaderError(
                f"{kernel.declaration}: launch.captures: a vertex of {program.name} captures "
                f"{program.stride // 4} floats, not {captures}"
            )
        return attributes

    @staticmethod
    def _captures(kernel: Kernel, spec: OpSpec) -> int:
        """Return the floats that a vertex captures."""
        return kernel.launch.captures.evaluate({**kernel.defaults, **spec.defines(kernel)})

    @staticmethod
    def _instances(kernel: Kernel, spec: OpSpec) -> int:
        size = kernel.launch.instances
        return spec.sizes(kernel)[size] if size else 1

    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize:
        """Return the vertices of an instance, the instances, and 1."""
        floats, instances = self._floats(kernel, spec)
        return -(-floats // self._captures(kernel, spec)), instances, 1

    def cut_axes(self, kernel: Kernel, spec: OpSpec) -> int:
        return int(self._floats(kernel, spec)[0] % self._captures(kernel, spec) > 0)

    def _floats(self, kernel: Kernel, spec: OpSpec) -> tuple[int, int]:
        """Return the floats of an instance, and the instances."""
        instances = self._instances(kernel, spec)
        # The floats of instances are contiguous, without padding between them.
        if kernel.launch.instances:
            return prod(spec.result_shape) // instances, instances
        return spec.chosen_layouts(kernel)["out"].words(spec.results[0]), instances

    def right_until(self, kernel: Kernel, spec: OpSpec, first: int) -> int:
        return first // self._captures(kernel, spec)

    def _draws(self, program: Program, kernel: Kernel, spec: OpSpec) -> Iterator[Draw]:
        """Yield the draws of the result: one, or several of as many vertices as allowed."""
        vertices, instances, _ = self.launch_size(kernel, spec)
        most = self.part(kernel, spec)
        if most is None:
            yield Draw(vertices, instances, 0, 0, 0)
            return
        yield from draws_of(vertices, instances, most, program.stride)


def draws_of(vertices: int, instances: int, most: int, stride: int) -> Iterator[Draw]:
    """Yield draws of at most `most` vertices, each of which captures `stride` bytes."""
    instances_per_draw = max(most // max(greatest(vertices), 1), 1)
    for instance, last in split_size(instances, instances_per_draw):
        for first, end in split_size(vertices, most):  # several only where a draw has one instance
            offset = (instance * vertices + first) * stride
            yield Draw(end - first, last - instance, first, instance, offset)
