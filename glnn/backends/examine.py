"""Kernels held against NumPy before their first result is used: drivers are wrong in silence.

A kernel computes a small problem with NaN, infinities and the ends of exp among its operands, and
one with as many results as the largest that it will be asked for. Where only large launches are
wrong, the largest that is right is found; where all are, the kernel is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends.backend import Choice
from glnn.device import Buffer
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import Verdict, verdict_key, work
from glnn.ops.error import relative_error

if TYPE_CHECKING:
    from glnn.backends.gl import GlBackend

Array = NDArray[Any]
PERIOD = 7  # samples that differ: a prime, so that what is off by a power of two is seen
LEAST_PART = 64  # vertices or workgroups: below, launches cost more than what they compute
EXACT = 1 << 28  # flops: above, the reference is float32, as float64 takes the CPU too long
FAR = 1e-3  # of the greatest result: what is off by more is where a launch begins to be wrong
SPECIAL = (np.nan, np.inf, -np.inf, 88.7, -88.7, 104.0, -104.0)  # float32's exp ends at 88.7, -104


def examine(backend: GlBackend, asked: Iterable[tuple[Choice, Problem]]) -> bool:
    """Look at the kernels that were not seen yet with launches as large as such problems take.

    What is found is kept. Returns whether some are not to be used: others must be chosen then.
    """
    offers = backend.device.capabilities
    unseen: dict[str, tuple[Kernel, Problem, int]] = {}
    for kernel, problem in asked:
        assert isinstance(kernel, Kernel)
        launch = backend.launch(kernel, problem)
        if not backend.verdicts.find(kernel, problem, offers).covers(launch):
            key = verdict_key(kernel, problem, offers)
            if key not in unseen or unseen[key][2] < launch:
                unseen[key] = kernel, problem, launch
    found = {key: _verdict(backend, *what) for key, what in unseen.items()}
    if found:
        backend.verdicts.keep(found)
    return any(verdict.wrong is not None for verdict in found.values())


def _verdict(backend: GlBackend, kernel: Kernel, problem: Problem, launch: int) -> Verdict:
    """What is found of `kernel`. Raises what preparing it raises."""
    part: int | None = None
    pace: float | None = None
    for trial in _trials(backend, kernel, problem, launch):
        error, right = trial.look(part)
        while right is not None:
            most = launch if part is None else part
            part = right if 0 < right < most else most // 2
            if part < LEAST_PART:
                where = backend.device.capabilities.renderer
                return Verdict(wrong=f"its results on {where} are wrong, off by {error:.1e}")
            error, right = trial.look(part)
        pace = trial.pace()
    return Verdict(launch, part, pace)


def _trials(backend: GlBackend, kernel: Kernel, problem: Problem, launch: int) -> Iterator[_Trial]:
    """The problems that `kernel` is seen with: a few samples, and then a launch as large as asked.

    Only one where there are few samples anyway.
    """
    op, offers = problem.op, backend.device.capabilities

    def thinned(steps: int) -> Problem:
        thin = Problem.of(op, op.thinned(problem.shapes, steps), problem.layouts)
        same = verdict_key(kernel, thin, offers) == verdict_key(kernel, problem, offers)
        return thin if same and backend.launch(kernel, thin) == launch else problem

    names = op.along(problem.shapes)
    if names and problem.output[0] > PERIOD:
        few = {name: (PERIOD, *problem.shapes[name][1:]) for name in names}
        small = Problem.of(op, {**problem.shapes, **few}, problem.layouts)
        yield _Trial(backend, kernel, small, spoiled=True)
        yield _Trial(backend, kernel, thinned(1), spoiled=False)
    else:
        yield _Trial(backend, kernel, thinned(2), spoiled=True)


class _Trial:
    """A kernel made ready to compute a problem whose result is known.

    spoiled: whether special values are among the operands.
    """

    def __init__(
        self, backend: GlBackend, kernel: Kernel, problem: Problem, *, spoiled: bool
    ) -> None:
        self._backend, self._kernel, self._problem = backend, kernel, problem
        self._key = verdict_key(kernel, problem, backend.device.capabilities)
        operands, self._expected = _known(problem, spoiled)
        op, layouts = (
            problem.op,
            backend.layouts(kernel, problem.op, problem.shapes, problem.layouts),
        )
        memory = backend.memory(backend.capacity(layouts["out"].size(problem.output)))
        self._out = backend.allocate(problem.output, layouts["out"], memory)
        poison = np.full(self._out.size, np.nan, np.float32)
        self._out.push(backend.device).write(poison)
        self._stores: dict[str, Buffer] = {}
        for name, array in operands.items():
            if name not in op.inputs:
                self._stores[name] = backend.keep(array, layouts[name])
                continue
            place = memory if name == op.updates else None
            store = self._stores[name] = backend.allocate(array.shape, layouts[name], place)
            store.set(array)
            backend.upload(store)

    def look(self, part: int | None) -> tuple[float, int | None]:
        """The error of launches of at most `part`, and up to where one is right; None: it is."""
        op, verdicts = self._problem.op, self._backend.verdicts
        before = verdicts.found.get(self._key)
        verdicts.found[self._key] = Verdict(part=part)  # what launches are made by
        try:
            self._perform = self._backend.prepare(
                op, self._kernel, self._stores, self._problem.shapes, self._out
            )
        finally:
            del verdicts.found[self._key]
            verdicts.found |= {} if before is None else {self._key: before}
        self._perform()
        got = self._out.pull()
        error = relative_error(got, self._expected)
        if error <= self._kernel.allowed:
            return error, None
        packed = self._out.layout.pack(_wrong(got, self._expected))
        first = int(np.argmax(packed != 0))
        return error, self._backend.right_until(self._kernel, self._problem, first)

    def pace(self) -> float | None:
        """What the kernel does in a second, where launches must not take long."""
        if not self._backend.watched:
            return None
        self._backend.finish()
        start = perf_counter()
        self._perform()
        self._backend.finish()
        return work(self._problem) / max(perf_counter() - start, 1e-9)


def _known(problem: Problem, spoiled: bool) -> tuple[dict[str, Array], Array]:
    """Operands, and the result to be expected: those of a few samples, over and over."""
    op, shapes = problem.op, problem.shapes
    names = op.along(shapes) if problem.output[0] > PERIOD else ()
    generator = np.random.default_rng(2026)
    few: dict[str, Array] = {}
    for name, shape in shapes.items():
        taken = (PERIOD, *shape[1:]) if name in names else shape
        few[name] = generator.standard_normal(taken, dtype=np.float32)
        if spoiled and name in op.spoiled:
            _spoil(few[name])
    exact = op.flops({name: array.shape for name, array in few.items()}) <= EXACT
    kind = np.float64 if exact else np.float32
    with np.errstate(all="ignore"):
        result = op.reference({name: array.astype(kind) for name, array in few.items()})
        expected = result.astype(np.float32)
    operands = {
        name: array if array.shape == shapes[name] else np.resize(array, shapes[name])
        for name, array in few.items()
    }
    return operands, np.resize(expected, problem.output)


def _spoil(array: Array) -> None:
    """Put one special value into each sample but the first; half of a single one's stay."""
    generator = np.random.default_rng(1)
    if array.ndim > 1 and len(array) > 1:
        for row, value in zip(array[1:], SPECIAL, strict=False):
            row.reshape(-1)[generator.integers(row.size)] = value
    elif array.size > 1:
        flat = array.reshape(-1)
        places = generator.permutation(flat.size)[: min(flat.size // 2, len(SPECIAL))]
        flat[places] = SPECIAL[: len(places)]


def _wrong(got: Array, expected: Array) -> Array:
    """1 where `got` is far from `expected`, else 0."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        scale = np.abs(expected[finite]).max(initial=0.0)
        near = np.where(finite, np.abs(got - expected) <= FAR * scale, got == expected)
        near |= np.isnan(got) & np.isnan(expected)
    return np.asarray(~near, np.float32)
