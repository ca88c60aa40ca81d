"""The search for the fastest kernel of one problem on one device.

Every candidate's result is checked before it is ranked. All kernels are tried with their
defaults; from each of the fastest few, one parameter after the other is then varied for as long as
that helps (all combinations on request).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import inf

import numpy as np
from numpy.typing import NDArray

from glnn.backends.gl import GlBackend
from glnn.device import Buffer
from glnn.errors import GlnnError
from glnn.kernels import kernels_for
from glnn.kernels.kernel import Kernel
from glnn.kernels.select import Problem, choose, fitted, why_not
from glnn.kernels.tuned import TunedChoice
from glnn.layout import Layout
from glnn.profiling.timing import time_work
from glnn.profiling.verify import relative_error

Array = NDArray[np.float32]
TOLERANCE = 1e-5
EXACT = 1 << 32  # flops: above, the reference is float32, as float64 takes the CPU too long
VARIED = 3  # kernels whose parameters are varied
GAIN = 0.99  # of the best time so far: what is not below is no gain
HOPELESS = 2.5  # times the best: not measured any closer


@dataclass
class Tuning:
    """What was found for one problem.

    best: the fastest. tried: seconds of every candidate that was right, by its description.
    refused: why others were not ranked.
    """

    problem: Problem
    best: TunedChoice
    tried: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default the best is."""
        default = self.best.default_seconds
        return None if default is None else default / self.best.seconds


def tune(
    backend: GlBackend,
    problem: Problem,
    *,
    exhaustive: bool = False,
    advance: Callable[[str], None] = lambda candidate: None,
) -> Tuning:
    """The fastest kernel of `backend` for `problem`; nothing is kept.

    exhaustive: try all combinations of parameters. advance: called with every candidate's
    description before it is tried. Raises UnsupportedOpError or LimitError where no kernel can
    compute the problem, GlnnError where none computes it right.
    """
    backend.activate()
    search = _Search(backend, problem, advance)
    default = choose(backend.name, problem, backend.device.capabilities)
    default_seconds = search.seconds(default)
    starts = sorted(search.starts(), key=search.seconds)
    varied: set[str] = set()
    for start in starts:
        if len(varied) < VARIED and start.path.name not in varied and search.seconds(start) < inf:
            varied.add(start.path.name)
            search.vary(start, exhaustive)
    kernel, seconds = search.best()
    choice = TunedChoice(
        kernel.name,
        kernel.defaults,
        seconds,
        None if default_seconds == inf else default_seconds,
    )
    tried = {name: found for name, (_, found) in search.tried.items() if found < inf}
    return Tuning(problem, choice, tried, search.refused)


class _Search:
    """The candidates tried so far, and what they are tried on."""

    def __init__(
        self, backend: GlBackend, problem: Problem, advance: Callable[[str], None]
    ) -> None:
        self._backend, self._problem, self._advance = backend, problem, advance
        self._declared = {
            k.name: k for k in kernels_for(problem.op.name, backend.name) if not k.halves
        }
        generator = np.random.default_rng(0)
        self._operands = {
            name: generator.random(shape, dtype=np.float32) - np.float32(0.5)
            for name, shape in problem.shapes.items()
        }
        kind = np.float64 if problem.op.flops(problem.shapes) <= EXACT else np.float32
        self._expected = problem.op.reference(
            {name: array.astype(kind) for name, array in self._operands.items()}
        )
        self._stores: dict[tuple[str, Layout], Buffer] = {}
        self.tried: dict[str, tuple[Kernel, float]] = {}
        self.refused: dict[str, str] = {}

    def starts(self) -> Iterator[Kernel]:
        """Every kernel with its defaults here that can compute the problem as it lies."""
        offers = self._backend.device.capabilities
        for declared in self._declared.values():
            kernel = fitted(declared, offers)
            if kernel and self._reason(kernel) is None and self._lies(kernel):
                yield kernel

    def vary(self, start: Kernel, exhaustive: bool) -> None:
        """Try other parameters than those of `start`."""
        declared = self._declared[start.name]
        if exhaustive:
            for values in product(*declared.tune.values()):
                self.seconds(start.with_parameters(**dict(zip(declared.tune, values, strict=True))))
            return
        improved = True
        while improved:
            improved = False
            for name, values in declared.tune.items():
                for value in values:
                    candidate = start.with_parameters(**{name: value})
                    if self.seconds(candidate) < GAIN * self.seconds(start):
                        start, improved = candidate, True

    def best(self) -> tuple[Kernel, float]:
        """The fastest candidate and its seconds."""
        kernel, seconds = min(self.tried.values(), key=lambda found: found[1], default=(None, inf))
        if kernel is None or seconds == inf:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            raise GlnnError(f"{self._problem.op.name}: no kernel gives a right result: {why}")
        return kernel, seconds

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of one run of `kernel`; infinite where it cannot run or its result is wrong."""
        key = describe(kernel)
        if key not in self.tried:
            reason = self._reason(kernel)
            found = inf
            if reason is None:
                self._advance(key)
                try:
                    found = self._measure(kernel)
                except GlnnError as error:
                    reason = str(error).splitlines()[0]
            if reason is not None:
                self.refused[key] = reason
            self.tried[key] = kernel, found
        return self.tried[key][1]

    def _reason(self, kernel: Kernel) -> str | None:
        return why_not(kernel, self._problem, self._backend.device.capabilities)

    def _lies(self, kernel: Kernel) -> bool:
        """Whether it takes the input as it lies and gives the result row major."""
        first = self._problem.op.inputs[0]
        layouts = self._problem.chosen_layouts(kernel)
        lies = self._problem.layouts.get(first, "R")
        return layouts[first].name == lies and layouts["out"].name in ("R", lies)

    def _measure(self, kernel: Kernel) -> float:
        op, shapes = self._problem.op, self._problem.shapes
        layouts = self._backend.layouts(kernel, op, shapes, self._problem.layouts)
        stores = {name: self._store(name, layouts[name]) for name in self._operands}
        out = self._backend.allocate(self._problem.output, layouts["out"])
        self._backend.prepare(op, kernel, stores, shapes, out)()
        error = relative_error(out.pull(), self._expected)
        if not error <= TOLERANCE:
            raise GlnnError(f"its result is off by {error:.1e}")
        # A result that was read back may stay on the host: another is timed.
        out = self._backend.allocate(self._problem.output, layouts["out"])
        work = self._backend.prepare(op, kernel, stores, shapes, out)
        best = min((seconds for _, seconds in self.tried.values()), default=inf)
        return time_work(self._backend, work, 5, hopeless=HOPELESS * best).seconds

    def _store(self, name: str, layout: Layout) -> Buffer:
        key = name, layout
        if key not in self._stores:
            array = self._operands[name]
            self._stores[key] = self._backend.allocate(array.shape, layout)
            self._stores[key].set(array)
            self._backend.upload(self._stores[key])
        return self._stores[key]


def describe(kernel: Kernel) -> str:
    """A kernel's name and parameters, in a line."""
    return " ".join([kernel.name, *parameters(kernel.defaults)])


def parameters(values: Mapping[str, int]) -> list[str]:
    """Parameters as people write them."""
    return [f"{name}={value}" for name, value in values.items()]
