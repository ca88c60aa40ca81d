"""The search for the fastest kernel of one spec on one device.

Every candidate's result is checked before it is ranked. All kernels are tried with their
defaults; then, from each of the fastest few, one parameter after the other is varied for as long as
that helps (all combinations on request). A kernel that is far too slow for a smaller spec is not
tried on larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import inf, prod

import numpy as np

from glnn.backends import Launch
from glnn.backends.gl import GlBackend
from glnn.compiler import prepare
from glnn.core.layout import Layout
from glnn.core.types import Array, DType
from glnn.errors import GlnnError, UnsupportedOpError
from glnn.gl import Buffer
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import fitted
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import choose, why_not
from glnn.kernels.tuned import TunedChoice
from glnn.kernels.verdicts import allowed
from glnn.profiling.timing import time_work
from glnn.runtime.store import Store
from glnn.validation.comparison import relative_error
from glnn.validation.reference_case import ReferenceCase, Tolerance

VARIED = 3  # kernels whose parameters are varied
GAIN = 0.99  # a candidate must be below this part of the best time to replace it
HOPELESS = 2.5  # times the best time: a slower candidate is not measured precisely
FAR = 8.0  # times the best time: a slower kernel is not tried on larger specs
TELLING = 1 << 14  # elements of a result: fewer do not keep a device busy


@dataclass
class Tuning:
    """The result of tuning one spec.

    best: the fastest. tried: seconds of every candidate that was right, by its description.
    refused: why others were not ranked. skipped: kernels that were not tried.
    """

    spec: OpSpec
    best: TunedChoice
    tried: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()

    @property
    def much_slower(self) -> frozenset[str]:
        """The kernels that are far slower than the best, whatever their parameters."""
        least: dict[str, float] = {}
        for described, seconds in self.tried.items():
            name = described.split()[0]
            least[name] = min(seconds, least.get(name, inf))
        slow = {name for name, seconds in least.items() if seconds > FAR * self.best.seconds}
        return self.skipped | slow

    @property
    def gain(self) -> float | None:
        """The speed-up of the best candidate over the default."""
        default = self.best.default_seconds
        return None if default is None else default / self.best.seconds


def tune(
    backend: GlBackend,
    spec: OpSpec,
    *,
    exhaustive: bool = False,
    skip: Container[str] = (),
    advance: Callable[[str], None] = lambda candidate: None,
) -> Tuning:
    """Find the fastest kernel of `backend` for `spec`; nothing is saved.

    exhaustive: try all combinations of parameters. skip: kernels not to try, but for the default.
    advance: called with every candidate's description before it is tried. Raises
    UnsupportedOpError or LimitError where no kernel can compute the spec, GlnnError where none
    computes it right.
    """
    return backend.perform(lambda: _tune(backend, spec, exhaustive, skip, advance))


def _tune(
    backend: GlBackend,
    spec: OpSpec,
    exhaustive: bool,
    skip: Container[str],
    advance: Callable[[str], None],
) -> Tuning:
    search = _Search(backend, spec, advance)
    default = choose(backend.name, spec, backend.device.capabilities)
    default_seconds = search.seconds(default)
    kernels = list(search.starts(default))
    skipped = frozenset(k.name for k in kernels if k.name in skip and k.name != default.name)
    starts = sorted((k for k in kernels if k.name not in skipped), key=search.seconds)
    varied: set[str] = set()
    for start in starts:
        hopeful = search.seconds(start) < inf and search.seconds(start) <= HOPELESS * search.least()
        if start.stages:  # the parameters are those of the stages' own specs
            continue
        if len(varied) < VARIED and start.path.name not in varied and hopeful:
            varied.add(start.path.name)
            search.vary(start, exhaustive)
    kernel, seconds = search.best()
    choice = TunedChoice.from_kernel(
        kernel, seconds, None if default_seconds == inf else default_seconds
    )
    tried = {name: time for name, (_, time) in search.tried.items() if time < inf}
    return Tuning(spec, choice, tried, search.refused, skipped)


def far_slower(spec: OpSpec, tunings: Iterable[Tuning]) -> frozenset[str]:
    """Return the kernels that `tunings` of smaller specs show to be far too slow for `spec`.

    Only matrix products of many results and no long sums count, as few results need other kernels
    than many.
    """
    slow: set[str] = set()
    sizes = spec.op.sizes(spec.shapes)
    for tuning in tunings:
        op, theirs = tuning.spec.op, tuning.spec.op.sizes(tuning.spec.shapes)
        if (
            op.name != spec.op.name
            or "k" not in theirs
            or theirs["k"] > min(theirs["m"], theirs["n"])
        ):
            continue
        if prod(tuning.spec.result_shape) < TELLING or tuning.spec.layouts != spec.layouts:
            continue
        if all(size <= sizes[name] for name, size in theirs.items()):
            slow |= tuning.much_slower
    return frozenset(slow)


class _Search:
    """The candidates tried so far, and the operands that they compute."""

    def __init__(self, backend: GlBackend, spec: OpSpec, advance: Callable[[str], None]) -> None:
        self._backend, self._op_spec, self._advance = backend, spec, advance
        self._declared = {
            k.name: k for k in kernels_for(spec.op.name, backend.name) if not k.document
        }
        self._case = ReferenceCase.create(spec, special_values=False, whole=True)
        self._operands = self._case.operands
        self._tolerance: Tolerance | None = None  # computed where a result is not near enough
        self._stores: dict[tuple[str, Layout], Buffer] = {}
        self.tried: dict[str, tuple[Kernel, float]] = {}
        self.refused: dict[str, str] = {}

    def starts(self, default: Kernel) -> Iterator[Kernel]:
        """Yield every kernel with its default parameters here that can replace `default`."""
        offers = self._backend.device.capabilities
        for declared in self._declared.values():
            try:
                kernel = fitted(self._op_spec.adapted(declared), offers)
            except UnsupportedOpError:
                continue
            if kernel and self._reason(kernel) is None and self._needs_no_reorder(kernel, default):
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
        kernel, seconds = min(self.tried.values(), key=lambda one: one[1], default=(None, inf))
        if kernel is None or seconds == inf:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            raise GlnnError(f"{self._op_spec.op.name}: no kernel gives a right result: {why}")
        return kernel, seconds

    def least(self) -> float:
        """The seconds of the fastest candidate so far."""
        return min((seconds for _, seconds in self.tried.values()), default=inf)

    def seconds(self, kernel: Kernel) -> float:
        """Measure one run of `kernel`; infinite where it cannot run or its result is wrong."""
        key = describe(kernel)
        if key not in self.tried:
            reason = self._reason(kernel)
            seconds = inf
            if reason is None:
                self._advance(key)
                try:
                    seconds = self._measure(kernel)
                except GlnnError as error:
                    reason = str(error).splitlines()[0]
            if reason is not None:
                self.refused[key] = reason
            self.tried[key] = kernel, seconds
        return self.tried[key][1]

    def _reason(self, kernel: Kernel) -> str | None:
        return why_not(kernel, self._op_spec, self._backend.device.capabilities)

    def _needs_no_reorder(self, kernel: Kernel, default: Kernel) -> bool:
        """Return True where `kernel` needs no reorders, or only those that `default` needs."""
        first, out = self._end_layouts(kernel)
        layout = self._op_spec.first_layout
        needs_none = first == layout and out in ("R", "R4", layout)
        return needs_none or (first, out) == self._end_layouts(default)

    def _end_layouts(self, kernel: Kernel) -> tuple[str, str]:
        """Return the layouts of the first input and of the result of `kernel`."""
        layouts = self._op_spec.chosen_layouts(kernel)
        fixed = self._op_spec.op.parameters
        names = (name for name in self._op_spec.shapes if name not in fixed)
        first = next((layouts[name].name for name in names), "R")
        return first, layouts["out"].name

    def _measure(self, kernel: Kernel) -> float:
        work, out = self._prepare(kernel)
        work()
        most = allowed(kernel, self._op_spec)
        if not (error := self._error(out.pull(), most)) <= most:
            raise GlnnError(f"its result is off by {error:.1e}")
        # Drivers may keep a buffer that was read back on the host: another one is timed.
        work, _ = self._prepare(kernel)
        return time_work(self._backend, work, 5, hopeless=HOPELESS * self.least()).seconds

    def _error(self, got: Array, most: float) -> float:
        """Return the error relative to the results or, above `most`, to the terms of their sums."""
        expected = self._case.result
        if (error := relative_error(got, expected)) <= most:
            return error
        if self._tolerance is None:
            self._tolerance = self._case.tolerance()
        if (unreliable := self._tolerance.unreliable) is not None:
            got = np.where(unreliable, expected, got)
        return relative_error(got, expected) / self._tolerance.condition

    def _prepare(self, kernel: Kernel) -> tuple[Launch, Store]:
        """Prepare `kernel` with its inputs in its layouts; return the launch and the result."""
        op, shapes, epilogue = self._op_spec.op, self._op_spec.shapes, self._op_spec.epilogue
        if kernel.stages:
            chosen = self._op_spec.chosen_layouts(kernel)
            names = {name: chosen[name].name for name in shapes if name not in op.parameters}
            return prepare(op, self._operands, self._backend, kernel.name, names, epilogue)
        layouts = self._backend.layouts(kernel, self._op_spec)
        stores = {name: self._store(name, layouts[name]) for name in self._operands}
        out = self._backend.allocate(self._op_spec.result_shape, layouts["out"])
        return self._backend.prepare(kernel, self._op_spec, stores, out), out

    def _store(self, name: str, layout: Layout) -> Buffer:
        key = name, layout
        if key not in self._stores:
            array = self._operands[name]
            dtype = DType.from_array(array)
            self._stores[key] = self._backend.allocate(array.shape, layout, dtype=dtype)
            self._stores[key].set(array)
            self._backend.upload(self._stores[key])
        return self._stores[key]


def describe(kernel: Kernel) -> str:
    """Return a kernel's name and parameters, in a line."""
    return " ".join([kernel.name, *parameters(kernel.defaults)])


def parameters(values: Mapping[str, int]) -> list[str]:
    """Format parameters for people."""
    return [f"{name}={value}" for name, value in values.items()]
