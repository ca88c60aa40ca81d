"""Kernels held against NumPy before their first result is used: drivers are wrong in silence.

A kernel computes few results, of sums as long as it will be asked for, with NaN, infinities and the
ends of exp among its operands; and as many as the largest launch that it will be asked for has.
Where only large launches are wrong, ones that are right are found; where all are, the kernel is not
used.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from math import prod
from time import perf_counter

import numpy as np

from glnn.backends.backend import Backend, Choice, Memory
from glnn.device import Buffer, Device
from glnn.errors import DeviceError
from glnn.graph.error import relative_error, repeated_error
from glnn.graph.operator import upper
from glnn.kernels.admit import why_not_here, why_not_problem
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import (
    LaunchSize,
    Verdict,
    Verdicts,
    allowed,
    program_key,
    verdict_key,
    within,
    work,
)
from glnn.layout import Layout
from glnn.layout.layout import PACKED
from glnn.types import Array, DType, Shape, TensorType

LOG = logging.getLogger(__name__)
PERIOD = 7  # samples that differ: a prime, so that what is off by a power of two is seen
LEAST_PART = 64  # vertices or workgroups: below, launches cost more than what they compute
SHORT = 64  # numbers a sum: what large launches are seen with, and tiles are no longer
SLOWEST = 4e9  # units of `work` a second: what a board does that nothing is known of
SHORTEST = 5e-3  # seconds that tell of a kernel's pace
EXACT = 1 << 28  # flops: above, the reference is float32, as float64 takes the CPU too long
FAR = 1e-3  # of the greatest result: what is off by more is where a launch begins to be wrong
SPECIAL = (np.nan, np.inf, -np.inf, 88.7, -88.7, 104.0, -104.0)  # float32's exp ends at 88.7, -104
CANCELLED = 5e-6  # of the greatest result: what float32 itself loses is no kernel's fault


class Examined(Backend):
    """A backend whose kernels can be seen at work, in launches of any size, on its device.

    verdicts: what was found of them so far.
    """

    device: Device
    verdicts: Verdicts

    @property
    @abstractmethod
    def watched(self) -> bool:
        """Whether launches are not to take long."""

    @abstractmethod
    def launch_size(self, kernel: Kernel, problem: Problem) -> LaunchSize:
        """The largest launch by which `kernel` computes `problem`, if none is made in parts."""

    @abstractmethod
    def part(self, kernel: Kernel, problem: Problem) -> int | None:
        """The most that one launch of `kernel` may be here; None where nothing stands in its way.

        Either larger ones were seen to be wrong, or they would take too long.
        """

    def right_until(self, kernel: Kernel, problem: Problem, first: int) -> int:
        """What part of a launch is right, of which floats from `first` on are wrong; 0: unknown."""
        return 0

    @abstractmethod
    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> Buffer: ...

    @abstractmethod
    def keep(self, array: Array, layout: Layout, words: Array | None = None) -> Buffer: ...


def examine(backend: Examined, asked: Iterable[tuple[Choice, Problem]]) -> bool:
    """Look at the kernels that were not seen yet with launches as large as such problems take.

    What is found is kept. Returns whether some are not to be used: others must be chosen then.
    """
    offers, verdicts = backend.device.capabilities, backend.verdicts
    wrong = False
    for kernel, problem in asked:
        assert isinstance(kernel, Kernel)
        launch = backend.launch_size(kernel, problem)
        known = verdicts.find(kernel, problem, offers)
        if not known.covers(launch):
            found = _verdict(backend, kernel, problem, launch, known)
            name = f"{kernel.op}/{kernel.name}"
            LOG.info("examined %s in a launch of %s: %s", name, launch, found.outcome)
            verdicts.keep({verdict_key(kernel, problem, offers): found})
            wrong |= found.wrong is not None
    return wrong


def _verdict(
    backend: Examined, kernel: Kernel, problem: Problem, launch: LaunchSize, known: Verdict
) -> Verdict:
    """What is found of `kernel`, of which `known` is known. Raises what preparing it raises."""
    where, part = backend.device.capabilities.renderer, known.part
    wrong = f"its results on {where} are wrong, off by"
    try:
        for trial in _trials(backend, kernel, problem, launch):
            error, right = trial.look(part, known.pace)
            while right is not None:
                most = trial.sent
                if most <= LEAST_PART:
                    return Verdict(wrong=f"{wrong} {error:.1e}")
                part = max(min(right or most, most // 2), LEAST_PART)
                error, right = trial.look(part, known.pace)
            sent = trial.sent
            if backend.watched and trial.size > 1:  # in parts another program may compute it
                error, right = trial.look(max(sent // 2, 1), known.pace)
                if right is not None:
                    return Verdict(wrong=f"{wrong} {error:.1e} in launches of {max(sent // 2, 1)}")
        pace = trial.pace() if backend.watched else None
        if backend.watched and trial.look(part, pace)[1] is not None:  # as long as may be now
            part, pace = sent, None
    except DeviceError:
        if backend.device.lost is not None:
            key = verdict_key(kernel, problem, backend.device.capabilities)
            backend.verdicts.keep({key: Verdict(wrong=f"{where} was reset while it ran")})
        raise
    return Verdict(known.right, part, pace).and_right(launch)


def _trials(
    backend: Examined, kernel: Kernel, problem: Problem, launch: LaunchSize
) -> Iterator[_Trial]:
    """The problems that `kernel` is seen with: few results of whole sums, with special values; and
    a launch as large as asked, of short sums.
    """
    op, offers, shapes = problem.op, backend.device.capabilities, problem.shapes
    program = program_key(kernel, problem, offers)

    def fits(other: Problem) -> bool:
        """Whether the same program can compute it here."""
        fault = why_not_problem(kernel, other) or why_not_here(kernel, other, offers)
        return fault is None and program_key(kernel, other, offers) == program

    depth = op.depth(shapes)
    few: dict[str, Shape] = dict(shapes)
    if problem.output[:1] > (PERIOD,):
        few |= {name: (PERIOD, *shapes[name][1:]) for name in op.along(shapes)}
    for deep in (upper(depth), depth):
        small = problem.resized(op.of_depth(few, deep, few=True))
        if fits(small):
            yield _Trial(backend, kernel, small, spoiled=True)
            break
    else:
        yield _Trial(backend, kernel, problem, spoiled=True)
    large = problem.resized(op.of_depth(shapes, min(depth, SHORT)))
    enough = fits(large) and within(launch, backend.launch_size(kernel, large))
    yield _Trial(backend, kernel, large if enough else problem, spoiled=False)


class _Trial:
    """A kernel made ready to compute a problem whose result is known.

    spoiled: whether special values are among the operands.
    """

    def __init__(
        self, backend: Examined, kernel: Kernel, problem: Problem, *, spoiled: bool
    ) -> None:
        self._backend, self._kernel, self._problem = backend, kernel, problem
        self._key = verdict_key(kernel, problem, backend.device.capabilities)
        self.size = prod(backend.launch_size(kernel, problem))
        operands, self._few, self._open = _known(problem, spoiled)
        op = problem.op
        layouts = backend.layouts(kernel, problem)
        memory = backend.memory(backend.capacity(layouts["out"].size(problem.output)))
        dtype = problem.results[0].dtype
        self._out = backend.allocate(problem.output, layouts["out"], memory, dtype)
        self._updated = operands.get(op.updates or "")
        self._stores: dict[str, Buffer] = {}
        for name, array in operands.items():
            if name == op.updates:
                self._stores[name] = backend.allocate(array.shape, layouts[name], memory)
            else:  # only the device's copy is needed
                self._stores[name] = backend.keep(array, layouts[name])

    def look(self, part: int | None, pace: float | None) -> tuple[float, int | None]:
        """The error of launches of at most `part`, and up to where one is right; None: it is.

        pace: what the kernel is known to do in a second.
        """
        op, verdicts = self._problem.op, self._backend.verdicts
        before = verdicts.found.get(self._key)
        verdicts.found[self._key] = Verdict(part=part, pace=pace)  # what launches are made by
        try:
            self.sent = self._backend.part(self._kernel, self._problem) or self.size
            self._perform = self._backend.prepare(
                self._kernel, self._problem, self._stores, self._out
            )
        finally:
            del verdicts.found[self._key]
            verdicts.found |= {} if before is None else {self._key: before}
        poison = np.full(self._out.size, np.nan, np.float32)
        self._out.push(self._backend.device).write(poison)
        if op.updates and self._updated is not None:
            self._stores[op.updates].set(self._updated)
            self._backend.upload(self._stores[op.updates])
        self._perform()
        got = _measured(self._out.pull())
        if self._open.any():
            got = np.where(np.resize(self._open, got.shape), np.resize(self._few, got.shape), got)
        error = self._error(got)
        if error <= allowed(self._kernel, self._problem):
            return error, None
        wrong = _far(got, np.resize(self._few, got.shape), FAR)
        packed = self._out.layout.pack(wrong.astype(np.float32))
        first = int(np.argmax(packed != 0)) * self._out.words // packed.size
        return error, self._backend.right_until(self._kernel, self._problem, first)

    def _error(self, got: Array) -> float:
        """How far `got` is from the few samples over and over: see `relative_error`."""
        alike = got.shape == self._few.shape
        return relative_error(got, self._few) if alike else repeated_error(got, self._few)

    def pace(self) -> float:
        """What the kernel does in a second, at the least."""
        self._backend.finish()
        start = perf_counter()
        self._perform()
        self._backend.finish()
        seconds = perf_counter() - start
        least = SLOWEST if seconds < SHORTEST else 0.0  # so short, it tells of the launch alone
        return max(work(self._problem) / max(seconds, SHORTEST), least)


def _known(problem: Problem, spoiled: bool) -> tuple[dict[str, Array], Array, Array]:
    """Operands of a few samples, over and over; their result; where float32 does not hold it."""
    op, shapes = problem.op, problem.shapes
    names = problem.along if problem.output[:1] > (PERIOD,) else ()
    generator = np.random.default_rng(2026)
    few: dict[str, Array] = {}
    for name, shape in shapes.items():
        taken = (PERIOD, *shape[1:]) if name in names else shape
        kind = problem.types[name].dtype
        if kind.kind != "float":
            least, most = 0, 1 if kind is DType.bool else 99
            if kind is not DType.bool and problem.layouts.get(name) == PACKED.name:
                least, most = np.iinfo(kind.numpy).min, np.iinfo(kind.numpy).max  # the sign, too
            numbers: Array = generator.integers(least, most + 1, taken)
        else:
            numbers = 2 * generator.random(taken, dtype=np.float32) - 1
        few[name] = op.trial(name, np.asarray(numbers, kind.numpy), shapes)
        if spoiled and kind.kind == "float" and name in (*op.spoiled, *problem.extents):
            _spoil(few[name])
    types = {name: TensorType.of(array) for name, array in few.items() if name in problem.own}
    exact = op.cost_of(types).flops <= EXACT
    precise = {
        name: array.astype(np.float64) if exact and array.dtype.kind == "f" else array
        for name, array in few.items()
    }
    with np.errstate(all="ignore"):
        expected = _measured(problem.compute(precise).astype(problem.results[0].dtype.numpy))
        unsure = np.zeros(1, bool)
        if spoiled and exact:
            unsure = _far(problem.compute(few), expected, CANCELLED)  # or overflows on the way
    operands = {
        name: array if array.shape == shapes[name] else np.resize(array, shapes[name])
        for name, array in few.items()
    }
    return operands, expected, unsure


def _measured(array: Array) -> Array:
    """`array` in numbers that may be far from each other: integers and bools as float64."""
    return array if array.dtype == np.float32 else array.astype(np.float64)


def _spoil(array: Array) -> None:
    """Put one special value into each sample but the first; half of a single one's stay."""
    generator = np.random.default_rng(1)
    if array.ndim > 1 and len(array) > 1 and array.size:
        for row, value in zip(array[1:], SPECIAL, strict=False):
            row.reshape(-1)[generator.integers(row.size)] = value
    elif array.size > 1:
        flat = array.reshape(-1)
        places = generator.permutation(flat.size)[: min(flat.size // 2, len(SPECIAL))]
        flat[places] = SPECIAL[: len(places)]


def _far(got: Array, expected: Array, far: float) -> Array:
    """Where `got` is off by more than `far` of the greatest result, or another NaN or infinity."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        scale = np.abs(expected[finite]).max(initial=0.0)
        near = np.where(finite, np.abs(got - expected) <= far * scale, got == expected)
        near |= np.isnan(got) & np.isnan(expected)
    return np.asarray(~near)
