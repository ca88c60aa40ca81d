"""Kernels held against NumPy before their first result is used: drivers are wrong in silence.

A kernel computes one problem with as many results as the largest that it will be asked for, with
NaN, infinities and the ends of exp among its operands. Where only large launches are wrong, the
largest that is right is found; where all are, the kernel is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from glnn.ops.op import Shape

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
    offers, seen = backend.device.capabilities, backend.verdicts
    unseen: dict[str, _Examination] = {}
    for kernel, problem in asked:
        assert isinstance(kernel, Kernel)
        launch = backend.launch(kernel, problem)
        if seen.find(kernel, problem, offers).covers(launch):
            continue
        key = verdict_key(kernel, problem, offers)
        if key not in unseen or unseen[key].launch < launch:
            unseen[key] = _Examination(backend, kernel, problem, launch)
    found = {key: examination.verdict() for key, examination in unseen.items()}
    if found:
        seen.keep(found)
    return any(verdict.wrong is not None for verdict in found.values())


class _Examination:
    """One kernel, and the problem that it is seen with."""

    def __init__(self, backend: GlBackend, kernel: Kernel, problem: Problem, launch: int) -> None:
        self._backend, self._kernel, self.launch = backend, kernel, launch
        self._problem = self._thinned(problem)
        self._key = verdict_key(kernel, problem, backend.device.capabilities)

    def _thinned(self, problem: Problem) -> Problem:
        """A problem of as many results that the same program computes with less work."""
        shapes = problem.op.thinned(problem.shapes)
        thin = Problem.of(problem.op, shapes, problem.layouts)
        kernel, offers = self._kernel, self._backend.device.capabilities
        same = verdict_key(kernel, thin, offers) == verdict_key(kernel, problem, offers)
        return thin if same and self._backend.launch(kernel, thin) == self.launch else problem

    def verdict(self) -> Verdict:
        """What is found. Raises what preparing the kernel raises."""
        operands, self._expected = self._operands()
        self._stores(operands)
        error, wrong_from = self._look(None)
        if wrong_from is None:
            return Verdict(self.launch, pace=self._pace())
        part = wrong_from or self.launch // 2
        while part >= LEAST_PART:
            _, first = self._look(part)
            if first is None:
                return Verdict(self.launch, part, self._pace())
            part = min(first or part, part // 2)
        offers = self._backend.device.capabilities
        return Verdict(wrong=f"its results on {offers.renderer} are wrong: off by {error:.1e}")

    def _operands(self) -> tuple[dict[str, Array], Array]:
        """The operands and the result that is expected: of a few samples, over and over."""
        op, shapes = self._problem.op, self._problem.shapes
        n = self._problem.output[0]
        names = op.along(shapes) if n > PERIOD else ()
        generator = np.random.default_rng(2026)
        few: dict[str, Array] = {}
        for name, shape in shapes.items():
            taken = (PERIOD, *shape[1:]) if name in names else shape
            few[name] = generator.standard_normal(taken, dtype=np.float32)
            if name in op.spoiled:
                _spoil(few[name])
        kind = np.float64 if op.flops({k: v.shape for k, v in few.items()}) <= EXACT else np.float32
        with np.errstate(all="ignore"):
            expected = op.reference({name: array.astype(kind) for name, array in few.items()})
        operands = {name: _repeated(array, shapes[name]) for name, array in few.items()}
        return operands, _repeated(expected, self._problem.output)

    def _stores(self, operands: Mapping[str, Array]) -> None:
        """Put `operands` on the device, and poison the memory of the result."""
        backend, op, kernel = self._backend, self._problem.op, self._kernel
        shapes = self._problem.shapes
        layouts = backend.layouts(kernel, op, shapes, self._problem.layouts)
        out = layouts["out"]
        memory = backend.memory(backend.capacity(out.size(self._problem.output)))
        self._out = backend.allocate(self._problem.output, out, memory)
        poison = np.full(self._out.size, np.nan, np.float32)
        self._out.push(backend.device).write(poison)
        self._operand_stores: dict[str, Buffer] = {}
        for name, array in operands.items():
            if name not in op.inputs:
                self._operand_stores[name] = backend.keep(array, layouts[name])
                continue
            place = memory if name == op.updates else None
            store = backend.allocate(array.shape, layouts[name], place)
            store.set(array)
            backend.upload(store)
            self._operand_stores[name] = store

    def _prepared(self, part: int | None) -> Any:
        self._backend.verdicts.found[self._key] = Verdict(part=part)
        return self._backend.prepare(
            self._problem.op, self._kernel, self._operand_stores, self._problem.shapes, self._out
        )

    def _look(self, part: int | None) -> tuple[float, int | None]:
        """The error of launches of at most `part`, and what part of one is right; None: all."""
        self._perform = self._prepared(part)
        self._perform()
        got = self._out.pull()
        error = relative_error(got, self._expected)
        if error <= self._kernel.tolerance:
            return error, None
        with np.errstate(all="ignore"):
            finite = np.isfinite(self._expected)
            scale = np.abs(self._expected[finite]).max(initial=0.0)
            wrong = ~(np.abs(got - self._expected) <= FAR * scale) & finite
            wrong |= ~finite & ~(np.isnan(got) & np.isnan(self._expected) | (got == self._expected))
        packed = self._out.layout.pack(wrong.astype(np.float32))
        first = int(np.argmax(packed != 0))
        return error, self._backend.right_until(self._kernel, self._problem, first)

    def _pace(self) -> float | None:
        """What it does in a second, where launches must not take long."""
        if not self._backend.watched:
            return None
        self._backend.finish()
        start = perf_counter()
        self._perform()
        self._backend.finish()
        return work(self._problem) / max(perf_counter() - start, 1e-9)


def _repeated(array: Array, shape: Shape) -> Array:
    """`array` over and over along its first dimension, as often as `shape` wants."""
    return array if array.shape == shape else np.resize(array, shape)


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
