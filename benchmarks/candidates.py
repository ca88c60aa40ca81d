"""Kernels and parameters that a command line selects, as `depthwise WG_X=8,16 PX=2`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from glnn.backends.gl import GlBackend
from glnn.errors import GlnnError, UnsupportedOpError
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import fitted
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not

_VALUES = re.compile(r"(\w+)=(\d+(?:,\d+)*)", re.ASCII)


@dataclass(frozen=True)
class KernelSelection:
    """A kernel, and the values to try of some of its parameters; the others keep their defaults."""

    kernel: Kernel
    values: Mapping[str, tuple[int, ...]]

    @classmethod
    def parse(cls, op: str, text: str) -> KernelSelection:
        """Parse a kernel's name and `NAME=1,2` for parameters, separated by blanks.

        Raises GlnnError.
        """
        name, *settings = text.split() or [""]
        kernels = {kernel.name: kernel for kernel in kernels_for(op, "compute")}
        if name not in kernels:
            raise GlnnError(f"--kernel: {op} has no kernel {name!r}")
        values = {}
        for setting in settings:
            match = _VALUES.fullmatch(setting)
            if match is None or match[1] not in kernels[name].tune:
                names = ", ".join(kernels[name].tune) or "no parameters"
                raise GlnnError(f"--kernel: {name} has {names}; expected NAME=1,2, got {setting}")
            values[match[1]] = tuple(map(int, match[2].split(",")))
        return cls(kernels[name], values)

    def candidates(self, backend: GlBackend, spec: OpSpec) -> Iterator[Kernel]:
        """Yield the kernel with each combination of values with which it can compute `spec`."""
        capabilities = backend.device.capabilities
        try:
            kernel = spec.adapted(self.kernel)
        except UnsupportedOpError:
            return
        kernel = fitted(kernel, capabilities) or kernel
        for values in product(*self.values.values()):
            candidate = kernel.with_parameters(**dict(zip(self.values, values, strict=True)))
            if why_not(candidate, spec, capabilities) is None:
                yield candidate
