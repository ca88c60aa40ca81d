"""ES 3.1 compute shaders over storage buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from glnn.backends.backend import Choice, Performer, Store
from glnn.backends.gl import Fetched, GlBackend
from glnn.device import Buffer, Device, Program, Source
from glnn.kernels.kernel import Kernel
from glnn.kernels.select import Problem
from glnn.layout import Layout
from glnn.ops.op import Op, Shapes

if TYPE_CHECKING:
    import moderngl


@dataclass(frozen=True)
class Dispatch:
    """One dispatch: where each buffer is bound, which part of it, the uniforms, the workgroups."""

    buffers: Sequence[tuple[moderngl.Buffer, int, int, int]]
    uniforms: Mapping[str, int | float]
    groups: tuple[int, int, int]

    def __call__(self, program: Program) -> None:
        for buffer, binding, offset, size in self.buffers:
            buffer.bind_to_storage_buffer(binding, offset=offset, size=size)
        program.set(self.uniforms)
        program.dispatch(self.groups)


class ComputePerformer:
    """Bind, set, dispatch, barrier; before it what is computed in place is copied to the result."""

    def __init__(
        self,
        device: Device,
        program: Program,
        dispatches: Sequence[Dispatch],
        textures: Sequence[Fetched],
        in_place: Buffer | None,
        out: Buffer,
    ) -> None:
        self._device, self._program, self._dispatches = device, program, dispatches
        self._textures, self._in_place, self._out = textures, in_place, out

    def __call__(self) -> None:
        if self._in_place is not None:
            self._out.copy_from(self._in_place, self._device)
        Fetched.bind(self._textures)
        for dispatch in self._dispatches:
            dispatch(self._program)
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

    def layouts(
        self, choice: Choice, op: Op, shapes: Shapes, layouts: Mapping[str, str]
    ) -> Mapping[str, Layout]:
        assert isinstance(choice, Kernel)
        problem = Problem.of(op, shapes, layouts)
        return problem.chosen_layouts(choice, problem.split(choice, self.device.capabilities))

    def prepare(
        self, op: Op, choice: Choice, operands: Mapping[str, Store], shapes: Shapes, out: Store
    ) -> Performer:
        assert isinstance(choice, Kernel) and isinstance(out, Buffer)
        buffers = {k: b for k, b in {**operands, "out": out}.items() if isinstance(b, Buffer)}
        given = {k: b.layout.name for k, b in buffers.items() if k in op.inputs}
        problem = Problem.of(op, shapes, given)
        blocks = self.device.capabilities.max_compute_shader_storage_blocks
        places = choice.places(operands, blocks)
        in_place = choice.in_place if choice.in_place not in places else None
        if op.updates in buffers and in_place in buffers:
            in_place = None  # the result's memory is the operand's
        defines = problem.defines() | ({"IN_PLACE": 1} if in_place in buffers else {})
        textures = self.fetched(op, choice, buffers)
        program = self.program(choice, defines, textures)
        uniforms = self.uniforms(program, choice, problem, textures)
        return ComputePerformer(
            self.device,
            program,
            self._dispatches(choice, problem, buffers, places, uniforms),
            list(textures.values()),
            buffers.get(in_place) if in_place else None,
            out,
        )

    def _dispatches(
        self,
        kernel: Kernel,
        problem: Problem,
        buffers: Mapping[str, Buffer],
        places: Mapping[str, int],
        uniforms: Mapping[str, int | float],
    ) -> list[Dispatch]:
        """The dispatches that compute `problem`: one, or one for each part of a split."""
        split = problem.split(kernel, self.device.capabilities)
        bound = {name: buffers[name].push(self.device) for name in places}
        sizes = problem.sizes(kernel)
        if split is None:
            whole = [(buffer, places[name], 0, -1) for name, buffer in bound.items()]
            return [Dispatch(whole, uniforms, self._groups(kernel, sizes))]
        dispatches: list[Dispatch] = []
        for part in split.parts(problem.shapes):
            ranges = [
                (buffer, places[name], 4 * part.ranges[name][0], 4 * part.ranges[name][1])
                for name, buffer in bound.items()
            ]
            changed = {name: part.sizes.get(name, value) for name, value in uniforms.items()}
            groups = self._groups(kernel, {**sizes, **part.sizes})
            dispatches.append(Dispatch(ranges, changed, groups))
        return dispatches

    def _groups(self, kernel: Kernel, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """The workgroups to dispatch: the last dimension is cut short where that is walked."""
        groups = list(kernel.groups(sizes, kernel.defaults))
        if kernel.strided:
            last = len(kernel.grid) - 1
            most = self.device.capabilities.max_compute_work_group_count[last]
            groups[last] = min(groups[last], most)
        return groups[0], groups[1], groups[2]
