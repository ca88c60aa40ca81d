"""A kernel made ready to compute a problem whose result is known, and held against that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

from glnn.backends.examined import Examined
from glnn.device import Buffer
from glnn.graph.error import relative_error, repeated_error
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import Verdict, allowed, verdict_key, work
from glnn.layout.layout import PACKED
from glnn.types import Array, DType, Shape, TensorType

PERIOD = 7  # samples that differ: a prime, so that what is off by a power of two is seen
SLOWEST = 4e9  # units of `work` a second: what a board does that nothing is known of
SHORTEST = 5e-3  # seconds that tell of a kernel's pace
EXACT = 1 << 28  # flops: above, the reference is float32, as float64 takes the CPU too long
FAR = 1e-3  # of the greatest result: what is off by more is where a launch begins to be wrong
SPECIAL = (np.nan, np.inf, -np.inf, 88.7, -88.7, 104.0, -104.0)  # float32's exp ends at 88.7, -104
CANCELLED = 5e-6  # of the greatest result: what float32 itself loses is no kernel's fault


@dataclass(frozen=True)
class Fault:
    """A result that is wrong."""

    shapes: Mapping[str, Shape]
    """Of each operand that the kernel was given."""
    place: tuple[int, ...]
    """Where in the result: the number that is farthest off, or the first that is no number."""
    got: float
    """What is there."""
    expected: float
    """What should be."""
    error: float
    """The relative error of the whole result."""

    @property
    def text(self) -> str:
        """What is wrong, in a few words."""
        sizes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return f"{self.got:.7g} at {self.place}, not {self.expected:.7g}, of {sizes}"


Tell = Callable[[Kernel, Problem, Fault], None]
"""Is told of what was wrong with a kernel that was to compute a problem, or one like it."""


class Trial:
    """A kernel made ready to compute a problem whose result is known.

    spoiled: whether special values are among the operands. whole: whether all samples differ, for
    problems that are small.
    """

    fault: Fault | None = None
    """What was wrong the last time; None where nothing was."""

    def __init__(
        self,
        backend: Examined,
        kernel: Kernel,
        problem: Problem,
        *,
        spoiled: bool,
        whole: bool = False,
    ) -> None:
        self._backend, self._kernel, self._problem = backend, kernel, problem
        self._key = verdict_key(kernel, problem, backend.device.capabilities)
        self.size = prod(backend.launch_size(kernel, problem))
        operands, self._few, self._open = _known(problem, spoiled, whole)
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
        self.fault = None
        if error <= allowed(self._kernel, self._problem):
            return error, None
        self.fault = self._fault(got, error)
        wrong = _far(got, np.resize(self._few, got.shape), FAR)
        packed = self._out.layout.pack(wrong.astype(np.float32))
        first = int(np.argmax(packed != 0)) * self._out.words // packed.size
        return error, self._backend.right_until(self._kernel, self._problem, first)

    def _fault(self, got: Array, error: float) -> Fault:
        """Where `got`, of that `error`, is wrong the most."""
        expected = np.resize(self._few, got.shape)
        with np.errstate(all="ignore"):
            away = np.abs(got.astype(np.float64) - expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        away = np.where(same, 0.0, np.where(np.isnan(away), np.inf, away))
        place = np.unravel_index(int(away.argmax()), got.shape)
        numbers = float(got[place]), float(expected[place])
        return Fault(self._problem.shapes, tuple(map(int, place)), *numbers, error)

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


def _known(problem: Problem, spoiled: bool, whole: bool) -> tuple[dict[str, Array], Array, Array]:
    """Operands of a few samples, over and over; their result; where float32 does not hold it.

    whole: of as many samples as the problem has.
    """
    op, shapes = problem.op, problem.shapes
    few_suffice = not whole and problem.output[:1] > (PERIOD,)
    names = problem.along if few_suffice else ()
    generator = np.random.default_rng(2026)
    few: dict[str, Array] = {}
    for name, shape in shapes.items():
        taken = (PERIOD, *shape[1:]) if name in names else shape
        kind = problem.types[name].dtype
        if kind.kind != "float":
            least, most = 0, 1 if kind is DType.bool else 99
            packed = problem.layouts.get(name) == PACKED.name or name in problem.bytes
            if kind is not DType.bool and packed:
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
