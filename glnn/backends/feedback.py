"""ES 3.0 transform feedback: vertex shaders read, and what they capture lands in buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

from glnn.backends.backend import Choice, Performer, Store
from glnn.backends.gl import Fetched, GlBackend
from glnn.device import Buffer, Device, Program, Source
from glnn.errors import ShaderError
from glnn.kernels.kernel import Kernel
from glnn.kernels.select import Problem
from glnn.ops.op import Op, Shapes

if TYPE_CHECKING:
    import moderngl

CAPTURED = 64  # floats: GL guarantees no more components a vertex


class FeedbackPerformer:
    """One draw: refresh the textures that are copies, bind, set, capture."""

    def __init__(
        self,
        device: Device,
        program: Program,
        textures: Sequence[Fetched],
        uniforms: Mapping[str, int | float],
        draw: tuple[moderngl.VertexArray, int, int],
        out: Buffer,
    ) -> None:
        self._program, self._textures, self._uniforms = program, textures, uniforms
        self._draw, self._out = draw, out
        self._captured = out.push(device)

    def __call__(self) -> None:
        Fetched.bind(self._textures)
        self._program.set(self._uniforms)
        self._program.capture(*self._draw, self._captured)
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
        # A vertex takes and captures several vec4: the last may reach beyond the operands.
        return -(-super().capacity(floats) // CAPTURED) * CAPTURED

    def prepare(
        self, op: Op, choice: Choice, operands: Mapping[str, Store], shapes: Shapes, out: Store
    ) -> Performer:
        assert isinstance(choice, Kernel) and isinstance(out, Buffer)
        buffers = {k: b for k, b in operands.items() if isinstance(b, Buffer)}
        given = {k: b.layout.name for k, b in buffers.items() if k in op.inputs}
        problem = Problem.of(op, shapes, given)
        textures = self.fetched(op, choice, buffers)
        program = self.program(choice, problem, problem.defines(), textures)
        return FeedbackPerformer(
            self.device,
            program,
            list(textures.values()),
            self.uniforms(program, choice, problem, textures),
            self._draw(program, choice, problem, buffers, out),
            out,
        )

    def _draw(
        self,
        program: Program,
        kernel: Kernel,
        problem: Problem,
        buffers: Mapping[str, Buffer],
        out: Buffer,
    ) -> tuple[moderngl.VertexArray, int, int]:
        """The attributes, the vertices of an instance and the instances that make up `out`."""
        parameters = {**kernel.defaults, **problem.defines()}
        attributes = {
            name: (buffers[name].push(self.device), kernel.evaluate(floats, parameters))
            for name, floats in kernel.attributes.items()
        }
        instances = problem.sizes(kernel)[kernel.instances] if kernel.instances else 1
        # Those of an instance follow those of the one before: no padding may come between.
        floats = prod(out.shape) // instances if kernel.instances else out.layout.size(out.shape)
        captures = kernel.evaluate(kernel.captures, parameters)
        if program.stride != 4 * captures:
            raise ShaderError(
                f"{kernel.declaration}: captures: a vertex of {program.name} captures "
                f"{program.stride // 4} floats, not {captures}"
            )
        vertices = -(-floats // captures)
        return program.vertices(attributes), vertices, instances
