"""ES 3.1 compute shaders over storage buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from glnn.backends.backend import Choice, Performer, Store
from glnn.backends.gl import GlBackend
from glnn.device import Buffer, Device, Program, Source
from glnn.kernels.kernel import Kernel
from glnn.kernels.select import Problem
from glnn.ops.op import Op, Shapes

if TYPE_CHECKING:
    import moderngl


class ComputePerformer:
    """One dispatch: bind, set, dispatch, barrier."""

    def __init__(
        self,
        device: Device,
        program: Program,
        buffers: list[tuple[moderngl.Buffer, int]],
        uniforms: Mapping[str, int | float],
        groups: tuple[int, int, int],
        out: Buffer,
    ) -> None:
        self._device, self._program, self._buffers = device, program, buffers
        self._uniforms, self._groups, self._out = uniforms, groups, out

    def __call__(self) -> None:
        for buffer, binding in self._buffers:
            buffer.bind_to_storage_buffer(binding)
        self._program.set(self._uniforms)
        self._program.dispatch(self._groups)
        self._device.barrier()
        self._out.wrote()


class Compute(GlBackend):
    """GLSL ES 3.1 compute shaders (desktop GL 4.3 will do)."""

    name: ClassVar[str] = "compute"

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        return device.capabilities.why_no_compute()

    def compile(self, source: Source) -> Program:
        return Program.compute(self.device, source)

    def prepare(
        self, op: Op, choice: Choice, operands: Mapping[str, Store], shapes: Shapes, out: Store
    ) -> Performer:
        assert isinstance(choice, Kernel) and isinstance(out, Buffer)
        buffers = {k: b for k, b in {**operands, "out": out}.items() if isinstance(b, Buffer)}
        first = buffers[op.inputs[0]]
        problem = Problem.of(op, shapes, {op.inputs[0]: first.layout.name})
        program = self.program(choice, problem.defines())
        groups = choice.groups(problem.sizes(choice), choice.defaults)
        if choice.strided:
            last = len(choice.grid) - 1
            most = self.device.capabilities.max_compute_work_group_count[last]
            groups = tuple(min(g, most) if i == last else g for i, g in enumerate(groups))  # type: ignore[assignment]
        return ComputePerformer(
            self.device,
            program,
            [(b.push(self.device), choice.bindings[k]) for k, b in buffers.items()],
            self.uniforms(program, choice, problem, {}),
            groups,
            out,
        )
