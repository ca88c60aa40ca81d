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
APART = ("NVIDIA",)
"""Architectures where programs may have the uniforms of one spec only: on an H200 to compile
again what was compiled before takes 2 ms once, to write a uniform 1.1 us of the host's in each run.
Large networks, which wait for the device, are 1 to 3 percent slower so."""
MOST_APART = 512  # programs of a device: every new size makes some
LAUNCH_UNIFORMS = ("first_group", "all_groups", "first_instance")
"""The uniforms that each launch of a spec has values of its own for."""


class Programs(Backend):
    """A backend whose kernels are programs of `device`, which can be tried in launches of any size.

    verdicts: the outcomes of comparisons with NumPy so far (`glnn.validation`).
    """

    device: Device
    verdicts: Verdicts

    def __init__(self, device: Device) -> None:
        self.device = device
        self._texts: dict[tuple[object, ...], tuple[object, ...]] = {}  # by what makes a text

    def program(
        self,
        kernel: Kernel,
        spec: OpSpec,
        defines: Mapping[str, int],
        fetched: Mapping[str, TextureOperand],
        bound: Bound,
        fixed_uniforms: bool = False,
    ) -> Program:
        """Return the program of `kernel` with the macros `defines`, compiled on first use.

        bound: the bindings of the epilogue's operands. Specs share a program; each set of uniforms
        has its own where a device confuses their values, or where `fixed_uniforms` is True and
        compiling is cheap.
        """
        programs: dict[tuple[object, ...], Program] = self.device.programs
        offers, parts = self.device.capabilities, defines.get("IN_PARTS", 0)
        fixed_uniforms = (
            fixed_uniforms and architecture(offers) in APART and len(programs) < MOST_APART
        )
        apart = fixed_uniforms or self.confuses_values()
        values = sorted(spec.uniforms(kernel).items()) if apart else ()
        asked = program_key(kernel, spec, offers), parts, str(bound), *values
        text = self._texts.get(asked)
        if text is None or text not in programs:
            source = self.source(kernel, spec, defines, fetched, bound)
            text = source.name, source.text, *values
            if text in programs:
                LOG.debug("%s was compiled before", source.name)
            else:
                programs[text] = self._made(source)
            self._texts[asked] = text
        return programs[text]

    def _made(self, source: Source) -> Program:
        """Build the program of `source`, compiled or from a binary; the device records which."""
        start = perf_counter()
        made = self.compile(source)
        span = Span(source.name, start, perf_counter())
        (self.device.compiled if made.compiled else self.device.restored).append(span)
        done = "compiled" if made.compiled else "restored"
        LOG.debug("%s %s in %s", done, source.name, duration(span.seconds))
        return made

    def source(
        self,
        kernel: Kernel,
        spec: OpSpec,
        defines: Mapping[str, int],
        fetched: Mapping[str, TextureOperand],
        bound: Bound,
    ) -> Source:
        header = self.device.capabilities.header(self.name, kernel.texture_buffers)
        samplers = {name: one.sampler for name, one in fetched.items()}
        made = spec.generated(kernel)
        texts = written(kernel, spec.epilogue, bound, spec.prologue)
        texts |= {} if made is None else made.texts
        return assemble(kernel, header, {**kernel.defaults, **defines}, samplers, texts)

    def confuses_values(self) -> bool:
        """Return True where the device may run a program with the uniforms of an earlier run."""
        return False

    def compile(self, source: Source) -> Program:
        """Compile and link `source`. Raises ShaderError with the driver's message."""
        raise NotImplementedError

    @staticmethod
    def uniforms(
        program: Program, kernel: Kernel, spec: OpSpec, fetched: Iterable[str]
    ) -> dict[str, Uniform]:
        """Return the values of the uniforms of `program`; texture units are numbered from 0.

        Uniforms that no kernel sets are left out: ANGLE reports all members of a shared
        declaration, also those that this variant of a shader never reads.
        """
        units = {name: unit for unit, name in enumerate(fetched)}
        known: dict[str, Uniform] = {
            **spec.uniforms(kernel),
            **units,
            **dict.fromkeys(LAUNCH_UNIFORMS, 0),
        }
        return {name: value for name, value in known.items() if name in program.uniforms}

    @property
    @abstractmethod
    def watched(self) -> bool:
        """Return True where the duration of a launch is limited."""

    @abstractmethod
    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize:
        """Return the largest launch by which `kernel` computes `spec`, if not made in parts."""

    @abstractmethod
    def cut_axes(self, kernel: Kernel, spec: OpSpec) -> int:
        """Return a bit for each axis along which that launch's last group has less to do."""

    def launched(self, kernel: Kernel, spec: OpSpec) -> Launched:
        """Return the launch size and cut axes of `spec`, in the form of `Verdict.right`."""
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
        """Return the launch size with right results, where floats from `first` on are wrong.

        Returns 0 where unknown.
        """
        return 0
