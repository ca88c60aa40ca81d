"""Kernels with parameters, as a command line asks for them: `depthwise WG_X=8,16 PX=2`."""

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
class Asked:
    """A kernel, and values of some of its parameters; the others are as they would be anyway."""

    kernel: Kernel
    values: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, op: str, text: str) -> Asked:
        """What `text` says: a name and values, with blanks between. Raises GlnnError."""
        name, *settings = text.split() or [""]
        known = {kernel.name: kernel for kernel in kernels_for(op, "compute")}
        if name not in known:
            raise GlnnError(f"--kernel: {op} has no kernel {name!r}")
        values = {}
        for setting in settings:
            found = _VALUES.fullmatch(setting)
            if found is None or found[1] not in known[name].tune:
                names = ", ".join(known[name].tune) or "no parameters"
                raise GlnnError(f"--kernel: {name} has {names}; expected NAME=1,2, got {setting}")
            values[found[1]] = tuple(map(int, found[2].split(",")))
        return cls(known[name], values)

    def able(self, backend: GlBackend, spec: OpSpec) -> Iterator[Kernel]:
        """The kernel with each combination of its values, where it can compute `spec`."""
        offers = backend.device.capabilities
        try:
            kernel = spec.adapted(self.kernel)
        except UnsupportedOpError:
            return
        kernel = fitted(kernel, offers) or kernel
        for chosen in product(*self.values.values()):
            one = kernel.with_parameters(**dict(zip(self.values, chosen, strict=True)))
            if why_not(one, spec, offers) is None:
                yield one
