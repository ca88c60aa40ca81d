"""ES 3.0 transform feedback: vertex shaders read, and what they capture lands in buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.backends.backend import Choice, Launch
from glnn.backends.gl import GlBackend
from glnn.backends.launch import Fetched, GlLaunch, Sending
from glnn.device import Buffer, Device, Program, Source
from glnn.device.probe import refuses_mapped_captures
from glnn.device.recording import Attributes, Capture, Recorder
from glnn.errors import ShaderError
from glnn.kernels.binding import bind
from glnn.kernels.generate.generated import Uniform
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import LaunchSize
from glnn.running.store import Store

CAPTURED = 64  # floats: GL guarantees no more components a vertex


@dataclass(frozen=True)
class Draw:
    """One draw: its vertices and instances, the first of each, and the byte it captures to."""

    vertices: int
    instances: int
    first: int
    first_instance: int
    offset: int


class FeedbackLaunch(GlLaunch):
    """Refresh the textures that are copies, and capture draw by draw.

    Draws of which there are several are sent off one by one: drivers end what takes long.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        textures: Sequence[Fetched],
        uniforms: Mapping[str, Uniform],
        attributes: Attributes,
        draws: Sequence[Draw],
        out: Buffer,
    ) -> None:
        super().__init__(program.name, device, out)
        self._program, self._textures = program, textures
        self._attributes, self._array = attributes, program.vertices(attributes)
        # New uniforms only where there are instances to be told apart.
        apart = "first_instance" in uniforms
        self._draws = [
            (draw, {**uniforms, "first_instance": draw.first_instance} if apart else uniforms)
            for draw in draws
        ]

    def record(self, recorder: Recorder, sending: Sending) -> None:
        Fetched.record(self._textures, recorder)
        out = self.out.push(self._device)
        for draw, uniforms in self._draws:
            recorder.uniforms(self._program, uniforms)
            capture = Capture(draw.vertices, draw.instances, draw.first, draw.offset)
            recorder.capture(self._program, self._array, self._attributes, capture, out)
            if len(self._draws) > 1:
                recorder.flush()


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

    def mappable(self) -> bool:
        return super().mappable() and not refuses_mapped_captures(self.device)

    def prepare(
        self,
        choice: Choice,
        problem: Problem,
        operands: Mapping[str, Store],
        out: Store,
        own: bool = False,
    ) -> Launch:
        assert isinstance(choice, Kernel) and isinstance(out, Buffer)
        buffers = {k: b for k, b in operands.items() if isinstance(b, Buffer)}
        textures = self.fetched(problem, choice, buffers)
        samplers = {name: one.sampler for name, one in textures.items()}
        bound = bind(choice, problem, self.device.capabilities, samplers)
        program = self.program(choice, problem, problem.defines(choice), textures, bound, own)
        return FeedbackLaunch(
            self.device,
            program,
            list(textures.values()),
            self.uniforms(program, choice, problem, textures),
            self._attributes(program, choice, problem, buffers),
            list(self._draws(program, choice, problem)),
            out,
        )

    def _attributes(
        self, program: Program, kernel: Kernel, problem: Problem, buffers: Mapping[str, Buffer]
    ) -> Attributes:
        """What is drawn: the operands that are attributes."""
        parameters = {**kernel.defaults, **problem.defines(kernel)}
        attributes = {
            name: (buffers[name].push(self.device), floats.of(parameters))
            for name, floats in kernel.attributes.items()
        }
        captures = self._captures(kernel, problem)
        if program.stride != 4 * captures:
            raise ShaderError(
                f"{kernel.declaration}: launch.captures: a vertex of {program.name} captures "
                f"{program.stride // 4} floats, not {captures}"
            )
        return attributes

    @staticmethod
    def _captures(kernel: Kernel, problem: Problem) -> int:
        """The floats that a vertex captures."""
        return kernel.launch.captures.of({**kernel.defaults, **problem.defines(kernel)})

    @staticmethod
    def _instances(kernel: Kernel, problem: Problem) -> int:
        along = kernel.launch.instances
        return problem.sizes(kernel)[along] if along else 1

    def launch_size(self, kernel: Kernel, problem: Problem) -> LaunchSize:
        """The vertices of an instance, and the instances."""
        floats, instances = self._floats(kernel, problem)
        return -(-floats // self._captures(kernel, problem)), instances, 1

    def cut_axes(self, kernel: Kernel, problem: Problem) -> int:
        return int(self._floats(kernel, problem)[0] % self._captures(kernel, problem) > 0)

    def _floats(self, kernel: Kernel, problem: Problem) -> tuple[int, int]:
        """The floats of an instance, and the instances."""
        instances = self._instances(kernel, problem)
        # Those of an instance follow those of the one before: no padding may come between.
        if kernel.launch.instances:
            return prod(problem.output) // instances, instances
        return problem.chosen_layouts(kernel)["out"].words(problem.results[0]), instances

    def right_until(self, kernel: Kernel, problem: Problem, first: int) -> int:
        return first // self._captures(kernel, problem)

    def _draws(self, program: Program, kernel: Kernel, problem: Problem) -> Iterator[Draw]:
        """The draws that make up the result: one, or several of as many vertices as may be."""
        vertices, instances, _ = self.launch_size(kernel, problem)
        most = self.part(kernel, problem) or vertices * instances
        together = max(most // vertices, 1) if vertices else instances
        for instance in range(0, instances, together):
            if most >= vertices:
                offset = instance * vertices * program.stride
                yield Draw(vertices, min(together, instances - instance), 0, instance, offset)
                continue
            for first in range(0, vertices, most):
                offset = (instance * vertices + first) * program.stride
                yield Draw(min(most, vertices - first), 1, first, instance, offset)
