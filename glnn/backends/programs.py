"""Programs of kernels: each source is compiled once for a device."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from time import perf_counter

from glnn.backends.backend import Backend
from glnn.core.trace_spans import Span, duration
from glnn.gl import Device, Program, Source
from glnn.gl.command_encoder import TextureOperand
from glnn.kernels.architecture import architecture
from glnn.kernels.binding import written
from glnn.kernels.codegen.expression import Bound
from glnn.kernels.codegen.generated import Uniform
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.source import assemble
from glnn.kernels.verdicts import Launched, LaunchSize, Verdicts, program_key

LOG = logging.getLogger(__name__)
FIXED_UNIFORMS = ("NVIDIA",)
"""Architectures where a program may be built for the uniforms of one spec: on an H200 to build a
program again takes 2 ms once, to write a uniform 1.1 us of the host's time in each run. Large
networks, which wait for the device, are 1 to 3 percent slower with such programs."""
MAX_FIXED = (
    512  # programs of a device, above which none is built for one spec: each size needs some
)
LAUNCH_UNIFORMS = ("first_group", "all_groups", "first_instance")
"""The uniforms whose values differ between the launches of a spec."""


class Programs(Backend):
    """A backend whose kernels are programs of `device`, launched in any size.

    verdicts: the outcomes of comparisons with NumPy so far (`glnn.validation`).
    """

    device: Device
    verdicts: Verdicts

    def __init__(self, device: Device) -> None:
        self.device = device
        self._program_keys: dict[tuple[object, ...], tuple[object, ...]] = {}
        """The key in `Device.programs`, by what the program's text depends on."""

    def program(
        self,
        kernel: Kernel,
        spec: OpSpec,
        defines: Mapping[str, int],
        textures: Mapping[str, TextureOperand],
        bound: Bound,
        fixed_uniforms: bool = False,
    ) -> Program:
        """Return the program of `kernel` with the macros `defines`, compiled on first use.

        textures: the operands that it fetches from textures. bound: the bindings of the epilogue's
        operands. Specs share a program; each set of uniforms has a program of its own where the
        device confuses their values, or where `fixed_uniforms` is True and compiling is cheap.
        """
        programs: dict[tuple[object, ...], Program] = self.device.programs
        offers, parts = self.device.capabilities, defines.get("IN_PARTS", 0)
        fixed_uniforms = (
            fixed_uniforms and architecture(offers) in FIXED_UNIFORMS and len(programs) < MAX_FIXED
        )
        own_program = fixed_uniforms or self.confuses_values()
        values = sorted(spec.uniforms(kernel).items()) if own_program else ()
        spec_key = program_key(kernel, spec, offers), parts, str(bound), *values
        key = self._program_keys.get(spec_key)
        if key is None or key not in programs:
            source = self.source(kernel, spec, defines, textures, bound)
            key = source.name, source.text, *values
            if key in programs:
                LOG.debug("%s was compiled before", source.name)
            else:
                programs[key] = self._build(source)
            self._program_keys[spec_key] = key
        return programs[key]

    def _build(self, source: Source) -> Program:
        """Build the program of `source`, compiled or from a binary; the device records which."""
        start = perf_counter()
        program = self.compile(source)
        span = Span(source.name, start, perf_counter())
        (self.device.compiled if program.compiled else self.device.restored).append(span)
        done = "compiled" if program.compiled else "restored"
        LOG.debug("%s %s in %s", done, source.name, duration(span.seconds))
        return program

    def source(
        self,
        kernel: Kernel,
        spec: OpSpec,
        defines: Mapping[str, int],
        textures: Mapping[str, TextureOperand],
        bound: Bound,
    ) -> Source:
        """Return the shader's text of `kernel` for `spec`."""
        header = self.device.capabilities.header(self.name, kernel.texture_buffers)
        samplers = {name: one.sampler for name, one in textures.items()}
        generated = spec.generated(kernel)
        texts = written(kernel, spec.epilogue, bound, spec.prologue)
        texts |= {} if generated is None else generated.texts
        return assemble(kernel, header, {**kernel.defaults, **defines}, samplers, texts)

    def confuses_values(self) -> bool:
        """Return True where the device may run a program with the uniforms of an earlier run."""
        return False

    def compile(self, source: Source) -> Program:
        """Compile and link `source`. Raises ShaderError with the driver's message."""
        raise NotImplementedError

    @staticmethod
    def uniforms(
        program: Program, kernel: Kernel, spec: OpSpec, textures: Iterable[str]
    ) -> dict[str, Uniform]:
        """Return the values of the uniforms of `program`; texture units are numbered from 0.

        Uniforms that no kernel sets are left out: ANGLE reports all members of a shared
        declaration, also those that this variant of a shader never reads.
        """
        units = {name: unit for unit, name in enumerate(textures)}
        values: dict[str, Uniform] = {
            **spec.uniforms(kernel),
            **units,
            **dict.fromkeys(LAUNCH_UNIFORMS, 0),
        }
        return {name: value for name, value in values.items() if name in program.uniforms}

    @property
    @abstractmethod
    def watched(self) -> bool:
        """Return True where the duration of a launch is limited."""

    @abstractmethod
    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize:
        """Return the size of the largest launch of `kernel` for `spec`, before it is split."""

    @abstractmethod
    def cut_axes(self, kernel: Kernel, spec: OpSpec) -> int:
        """Return a bit for each axis along which the last workgroup is partial."""

    def launched(self, kernel: Kernel, spec: OpSpec) -> Launched:
        """Return the launch size and the cut axes of `spec`, as `Verdict.right` has them."""
        key = "launched", kernel, self.device.capabilities
        if key not in spec.memo:
            spec.memo[key] = (
                *self.launch_size(kernel, spec),
                self.cut_axes(kernel, spec),
            )
        result: Launched = spec.memo[key]
        return result

    @abstractmethod
    def part(self, kernel: Kernel, spec: OpSpec) -> int | None:
        """Return the largest allowed launch of `kernel`; None where it is not limited.

        Larger launches either gave wrong results or would take too long.
        """

    def right_until(self, kernel: Kernel, spec: OpSpec, first: int) -> int:
        """Return the launch size up to which results are right; 0 where unknown.

        first: the first wrong float of the result.
        """
        return 0
