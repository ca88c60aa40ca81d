"""ES 3.1 compute shaders over storage buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from operator import or_
from typing import ClassVar

from glnn.backends.backend import Choice, Launch, Operand
from glnn.backends.gl import GlBackend
from glnn.backends.launch import FlushPolicy, GlLaunch, MemoryAccess, TextureSource
from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout
from glnn.core.symint import greatest, hint, is_integer, split_size
from glnn.gl import Buffer, Device, Program, Source, confuses_values
from glnn.gl.command_encoder import (
    END,
    BlockPart,
    BufferPart,
    CommandEncoder,
    MemoryRange,
    TextureOperand,
    memory_range,
)
from glnn.graph.operators.concat import MOST_INPUTS
from glnn.kernels.binding import bind
from glnn.kernels.codegen.generated import Uniform
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import LaunchSize

Groups = tuple[int, int, int]
Range = tuple[BufferPart, int, int, int]
"""A buffer, its binding, the first byte, and the bytes; -1 for all to the end."""


@dataclass(frozen=True)
class Dispatch:
    """A single dispatch: the bound ranges of buffers, the uniforms, the workgroups."""

    buffers: Sequence[Range]
    uniforms: Mapping[str, Uniform]
    groups: Groups
    flush: bool = False
    """True where a flush follows, as drivers kill batches of commands that take long."""
    dependent: bool = False
    """True where it reads what earlier dispatches wrote to the same result."""


class ComputeLaunch(GlLaunch):
    """Dispatches of one spec, after a copy of an operand that is updated in place.

    in_place: the operand that the kernel reads in the result's memory. updated: the operands that
    its epilogue writes beside the result.
    """

    def __init__(
        self,
        backend: TextureSource,
        program: Program,
        dispatches: Sequence[Dispatch],
        textures: Sequence[TextureOperand],
        in_place: BufferPart | None,
        out: BufferPart,
        updated: Sequence[BufferPart] = (),
    ) -> None:
        super().__init__(program, backend, out)
        self._dispatches, self._textures, self._in_place = dispatches, textures, in_place
        self._writes = [memory_range(one) for one in (out, *updated)]

    @property
    def memory_access(self) -> MemoryAccess:
        reads = [*self._bound_ranges, *filter(None, (one.source for one in self._textures))]
        reads += [] if self._in_place is None else [memory_range(self._in_place)]
        return MemoryAccess(frozenset(reads), frozenset(self._writes))

    def uniform_sets(self) -> Iterable[Mapping[str, Uniform]]:
        return (dispatch.uniforms for dispatch in self._dispatches)

    @cached_property
    def _bound_ranges(self) -> list[MemoryRange]:
        """The memory ranges that the dispatches bind."""
        ranges = (range for dispatch in self._dispatches for range in dispatch.buffers)
        memory_ranges = (
            (part.key, first, END if nbytes == -1 else first + nbytes)
            for part, _, first, nbytes in ranges
        )
        return list(dict.fromkeys(memory_ranges))

    def record(self, encoder: CommandEncoder, flush_policy: FlushPolicy) -> None:
        out, in_place = self.out, self._in_place
        if in_place is not None and memory_range(in_place) != memory_range(out):
            encoder.copy(out, in_place)
        encoder.textures(self._textures)
        reads = [*self._bound_ranges, *filter(None, (one.read for one in self._textures))]
        encoder.declare_accesses(reads, self._writes)
        for dispatch in self._dispatches:
            if dispatch.dependent:
                flush_policy.before_launch(encoder)
                encoder.declare_accesses(reads, self._writes)
            for part, binding, first, nbytes in dispatch.buffers:
                encoder.bind_range(part, binding, first, nbytes)
            encoder.uniforms(self._program, dispatch.uniforms)
            encoder.dispatch(self._program, dispatch.groups)
            if dispatch.flush:
                encoder.flush()


class Compute(GlBackend):
    """GLSL ES 3.1 compute shaders (desktop GL 4.3 will do)."""

    name: ClassVar[str] = "compute"
    operands: ClassVar[int] = 15  # beside the result: most devices have 16 storage blocks
    in_place: ClassVar[bool] = True
    subviews: ClassVar[bool] = True
    joins: ClassVar[int] = MOST_INPUTS  # a dispatch for each of them

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        return device.capabilities.why_no_compute()

    @property
    def binds(self) -> int:
        return min(self.operands, self.device.capabilities.max_compute_shader_storage_blocks - 1)

    @property
    def adjoining(self) -> int:
        return self.device.capabilities.max_shader_storage_block_size

    @property
    def operand_bytes(self) -> int:
        return self.device.capabilities.max_shader_storage_block_size

    def operand_in_result(self, choice: Choice, spec: OpSpec) -> str | None:
        assert isinstance(choice, Kernel)
        return bind(choice, spec, self.device.capabilities, {}).in_place

    def compile(self, source: Source) -> Program:
        return Program.compute(self.device, source)

    def confuses_values(self) -> bool:
        return confuses_values(self.device)

    def layouts(self, choice: Choice, spec: OpSpec) -> Mapping[str, Layout]:
        assert isinstance(choice, Kernel)
        return spec.chosen_layouts(choice, spec.split(choice, self.device.capabilities))

    def prepare(
        self,
        choice: Choice,
        spec: OpSpec,
        operands: Mapping[str, Operand],
        out: Operand,
        fixed_uniforms: bool = False,
    ) -> Launch:
        assert isinstance(choice, Kernel) and isinstance(out, (Buffer, BlockPart))
        stores = {**operands, "out": out}.items()
        buffers = {k: b for k, b in stores if isinstance(b, (Buffer, BlockPart))}
        bound = bind(choice, spec, self.device.capabilities, {})
        bindings = {**choice.bindings_of(operands), **bound.bindings}
        part = self.part(choice, spec)
        defines = spec.defines(choice) | ({} if part is None else {"IN_PARTS": 1})
        textures = self.texture_operands(spec, choice, buffers)
        program = self.program(choice, spec, defines, textures, bound, fixed_uniforms)
        uniforms = self.uniforms(program, choice, spec, textures)
        return ComputeLaunch(
            self,
            program,
            list(self._dispatches(choice, spec, buffers, bindings, uniforms, part)),
            list(textures.values()),
            buffers[bound.in_place] if bound.in_place else None,
            out,
            [buffers[name] for name in (spec.epilogue.updated if spec.epilogue else ())],
        )

    def _dispatches(
        self,
        kernel: Kernel,
        spec: OpSpec,
        buffers: Mapping[str, BufferPart],
        bindings: Mapping[str, int],
        uniforms: Mapping[str, Uniform],
        most: int | None,
    ) -> Iterator[Dispatch]:
        """Yield the dispatches that compute `spec`: one, or those of each part of a split.

        most: the most workgroups of one dispatch; None without a limit.
        """
        split = spec.split(kernel, self.device.capabilities)
        bound = {n: (buffers[n], number, *buffers[n].byte_range) for n, number in bindings.items()}
        sizes = spec.sizes(kernel)
        generated = spec.generated(kernel)
        for launch in () if generated is None else generated.launches:
            launch_uniforms = {
                name: launch.uniforms.get(name, value) for name, value in uniforms.items()
            }
            names = (launch.operand, "out") if launch.operand else bound
            operands = [bound[name] for name in names]
            counts = {k: v for k, v in launch.uniforms.items() if is_integer(v)}
            groups = self._groups(kernel, {**sizes, **counts})
            yield from split_dispatch(
                operands, launch_uniforms, groups, most, dependent=launch.after
            )
        if generated is not None and generated.launches:
            return
        if split is None:
            groups = self._groups(kernel, sizes)
            yield from split_dispatch([*bound.values()], uniforms, groups, most)
            return
        for part in split.parts(spec.shapes):
            ranges = [
                (buffer, binding, start + 4 * part.ranges[name][0], 4 * part.ranges[name][1])
                for name, (buffer, binding, start, _) in bound.items()
            ]
            part_uniforms = {name: part.sizes.get(name, value) for name, value in uniforms.items()}
            groups = self._groups(kernel, {**sizes, **part.sizes})
            yield from split_dispatch(ranges, part_uniforms, groups, most)

    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize:
        """Return the workgroups along x, y and z, as if no dimension were a grid-stride loop."""
        grids = self._grid_sizes(kernel, spec)
        groups = [kernel.launch.groups(sizes, kernel.defaults) for sizes in grids]
        x, y, z = (max(counts) for counts in zip(*groups, strict=True))
        return x, y, z

    def cut_axes(self, kernel: Kernel, spec: OpSpec) -> int:
        grids = self._grid_sizes(kernel, spec)
        return reduce(or_, (kernel.launch.partial_axes(sizes, kernel.defaults) for sizes in grids))

    def _grid_sizes(self, kernel: Kernel, spec: OpSpec) -> Iterable[Mapping[str, int]]:
        """Return the distinct sizes by which the grids of `kernel` for `spec` are computed.

        There are several where the spec is split, or the kernel has several launches.
        """
        generated, split = spec.generated(kernel), spec.split(kernel, self.device.capabilities)
        overrides: Iterable[Mapping[str, Uniform]] = [{}]
        if generated is not None and generated.launches:
            overrides = [launch.uniforms for launch in generated.launches]
        elif split is not None:
            overrides = [part.sizes for part in split.parts(spec.shapes)]
        sizes, names = spec.sizes(kernel), set(kernel.launch.sizes)
        distinct = {tuple((k, n) for k, n in one.items() if k in names) for one in overrides}
        return [sizes | {k: n for k, n in one if is_integer(n)} for one in distinct]

    def launches(self, kernel: Kernel, spec: OpSpec) -> int:
        generated = spec.generated(kernel)
        if generated is not None and generated.launches:
            return sum(not launch.brief for launch in generated.launches)
        split = spec.split(kernel, self.device.capabilities)
        return 1 if split is None else sum(1 for _ in split.parts(spec.shapes))

    def _groups(self, kernel: Kernel, sizes: Mapping[str, int]) -> Groups:
        """Return the workgroups to dispatch; a dimension with a grid-stride loop is limited."""
        groups = list(kernel.launch.groups(sizes, kernel.defaults))
        if kernel.launch.resident:
            groups[len(kernel.launch.grid) - 1] = self.device.capabilities.multiprocessors or 1
        elif kernel.launch.strided:
            last = len(kernel.launch.grid) - 1
            most = self.device.capabilities.max_compute_work_group_count[last]
            turns = -(-greatest(groups[last]) // most)  # of the loop, for the largest sizes
            if hint(groups[last]) is groups[last]:
                groups[last] = min(groups[last], most)
            elif turns > 1:
                groups[last] = -(-groups[last] // turns)
        return groups[0], groups[1], groups[2]


def split_dispatch(
    buffers: Sequence[Range],
    uniforms: Mapping[str, Uniform],
    groups: Groups,
    most: int | None,
    *,
    dependent: bool = False,
) -> Iterator[Dispatch]:
    """Yield the dispatch of `groups`, or several of at most `most` workgroups each.

    dependent: True where it reads what earlier dispatches wrote; its parts are independent of each
    other.
    """
    if most is None:
        yield Dispatch(buffers, uniforms, groups, dependent=dependent)
        return
    counts: list[int] = []
    for count in map(greatest, groups):  # as many as possible along x, then along y, then along z
        counts.append(max(min(count, most // prod(counts)), 1))
    shares = [split_size(n, most) for n, most in zip(groups, counts, strict=True)]
    for i, ((z, z_end), (y, y_end), (x, x_end)) in enumerate(product(*reversed(shares))):
        launch = {"first_group": (x, y, z), "all_groups": groups}
        part_uniforms = {name: launch.get(name, value) for name, value in uniforms.items()}
        part = x_end - x, y_end - y, z_end - z
        is_split = max(map(len, shares)) > 1
        yield Dispatch(buffers, part_uniforms, part, is_split, dependent and not i)
