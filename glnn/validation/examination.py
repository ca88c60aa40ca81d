"""Comparison of kernels with NumPy before their first use, as drivers miscompile silently.

A kernel computes few results with sums of full depth, from operands with NaN, infinities and the
ends of exp; and as many results as its largest launch will have. Where only large launches are
wrong, the largest right launch is searched for; where all are wrong, the kernel is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from time import perf_counter
from typing import Protocol

import numpy as np

from glnn.core.layout import Layout
from glnn.core.progress_bar import report_work
from glnn.core.types import Array, DType, Shape
from glnn.gl import Buffer, BufferBlock, Device
from glnn.gl.buffer import gather, repeat
from glnn.gl.transfer import Part
from glnn.graph.operator import upper
from glnn.kernels.capability_check import why_not_here, why_not_spec
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import (
    SLOWEST,
    Launched,
    LaunchSize,
    Verdict,
    Verdicts,
    allowed,
    is_no_larger,
    program_key,
    sizes_key,
    verdict_key,
    work,
)
from glnn.validation.comparison import quotient, squares
from glnn.validation.reference_case import (
    MOST,
    PERIOD,
    Pattern,
    ReferenceCase,
    Tolerance,
    compared_ranges,
    find_wrong,
    greatest,
    measured,
    special_value_operands,
)

SHORTEST = 5e-3  # seconds, below which a time says nothing about a kernel's pace
FAR = 1e-3  # of the greatest result: the first number that is off by more is the first wrong one
SURE = 0.5  # of the allowed error, up to which a float32 reference suffices
PIECE = 1 << 20  # results compared at once
POISON = np.full(1 << 10, np.nan, np.float32)
Piece = tuple[int, Array, Array]
"""The first position of a piece of the result's memory, the actual and the expected numbers."""


class ExaminedBackend(Protocol):
    """The part of a GL backend that an examination needs: see `glnn.backends.gl.GlBackend`."""

    @property
    def in_place(self) -> bool: ...

    @property
    def device(self) -> Device: ...

    @property
    def verdicts(self) -> Verdicts: ...

    @property
    def trusts_kernels(self) -> bool: ...

    @property
    def watched(self) -> bool: ...

    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize: ...

    def launched(self, kernel: Kernel, spec: OpSpec) -> Launched: ...

    def part(self, kernel: Kernel, spec: OpSpec) -> int | None: ...

    def right_until(self, kernel: Kernel, spec: OpSpec, first: int) -> int: ...

    def layouts(self, choice: Kernel, spec: OpSpec) -> Mapping[str, Layout]: ...

    def capacity(self, floats: int) -> int: ...

    def memory(self, floats: int) -> BufferBlock: ...

    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: BufferBlock | None = None,
        dtype: DType = DType.float32,
    ) -> Buffer: ...

    def keep(self, array: Array, layout: Layout) -> Buffer: ...

    def prepare(
        self, choice: Kernel, spec: OpSpec, operands: Mapping[str, Buffer], out: Buffer
    ) -> Callable[[], None]: ...

    def unset_uniforms(self, launch: Callable[[], None]) -> tuple[str, ...]: ...

    def finish(self) -> None: ...


@dataclass(frozen=True)
class Fault:
    """A wrong result of a kernel."""

    shapes: Mapping[str, Shape]
    """The shapes of the kernel's operands."""
    place: tuple[int, ...]
    """The index in the result of the number that is farthest off, or of the first NaN."""
    got: float
    """The actual number."""
    expected: float
    """The expected number."""
    error: float
    """The error of the whole result, relative to the magnitudes of the terms it sums."""

    @property
    def text(self) -> str:
        """The fault in a few words, for people."""
        sizes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return f"{self.got:.7g} at {self.place}, not {self.expected:.7g}, of {sizes}"


Tell = Callable[[Kernel, OpSpec, Fault], None]
"""Callback for a fault of a kernel on a spec, or on a similar one."""


class Trial:
    """A kernel prepared to compute a spec whose result is known.

    special_values: True to put special values among the operands. whole: True to have all samples
    differ, for small specs. seeds: seeds of the random operands; of several the one with the least
    cancellation in its results is taken. update: compare the new content of this operand, which the
    epilogue updates; None for the result.
    """

    fault: Fault | None = None
    """The fault of the last run; None where it was right."""

    def __init__(
        self,
        backend: ExaminedBackend,
        kernel: Kernel,
        spec: OpSpec,
        *,
        special_values: bool,
        whole: bool = False,
        seeds: Sequence[int] = (0,),
        update: str | None = None,
    ) -> None:
        self._backend, self._kernel, self._op_spec = backend, kernel, spec
        self._compared_spec = spec
        if update is not None and spec.epilogue is not None:
            self._compared_spec = replace(spec, epilogue=spec.epilogue.of_update(update))
        self._key = verdict_key(kernel, spec, backend.device.capabilities)
        self.size = prod(backend.launch_size(kernel, spec))
        case, self._tolerance = self._best_case(special_values, whole, seeds)
        layouts = backend.layouts(kernel, spec)
        self._memory = backend.memory(backend.capacity(layouts["out"].size(spec.result_shape)))
        dtype = spec.results[0].dtype
        self._out = backend.allocate(spec.result_shape, layouts["out"], self._memory, dtype)
        self._refills = list[Callable[[], None]]()
        self._stores = {
            name: self._allocate_operand(
                name, array, self._create_pattern(name, layouts[name], array.shape, case)
            )
            for name, array in case.operands.items()
        }
        compared = update or "out"
        layout = layouts[compared]
        self._pattern = self._create_pattern(compared, layout, case.result.shape, case)
        """The memory of the tensor that is compared."""
        self._result = self._out if update is None else self._stores[update]
        self._expect(case)

    def _expect(self, case: ReferenceCase) -> None:
        """Set the result of `case` as the expected one."""
        self._case = case
        self._expected = self._pattern.packed(case.result)
        self._greatest = greatest(case.result)

    def _best_case(
        self, special_values: bool, whole: bool, seeds: Sequence[int]
    ) -> tuple[ReferenceCase, Tolerance | None]:
        """Compute the reference case of the best seed; of several seeds, its tolerance, too."""
        self._whole, self._seed = whole, seeds[0]
        if len(seeds) == 1:
            return self._first_case(special_values, quick=True), None
        cases = (
            ReferenceCase.create(
                self._compared_spec, special_values=special_values, whole=whole, seed=seed
            )
            for seed in seeds
        )
        pairs = [(case, case.tolerance()) for case in cases]
        return min(pairs, key=lambda pair: pair[1].condition)

    def _first_case(self, special_values: bool, *, quick: bool) -> ReferenceCase:
        """Compute the reference case of the first seed."""
        return ReferenceCase.create(
            self._compared_spec,
            special_values=special_values,
            whole=self._whole,
            seed=self._seed,
            quick=quick,
        )

    def _compared_mask(self, tolerance: Tolerance) -> Array | None:
        """Return the mask of the numbers compared in a period of the result; None for all."""
        mask = self._pattern.element_mask
        if tolerance.unreliable is None:
            return mask
        reliable: Array = self._pattern.packed((~tolerance.unreliable).astype(np.float32)) != 0
        return reliable if mask is None else mask & reliable

    def _create_pattern(
        self, name: str, layout: Layout, few: Shape, case: ReferenceCase
    ) -> Pattern:
        """Return the pattern of the tensor `name`, which repeats one of the shape `few`."""
        return Pattern(layout, self._op_spec.shape(name), few, case.stacks.get(name, 1))

    def _allocate_operand(self, name: str, array: Array, pattern: Pattern) -> Buffer:
        """Allocate an operand and fill it from `array`, the whole operand or few samples of it."""
        backend, epilogue = self._backend, self._op_spec.epilogue
        in_result = backend.in_place and name == self._op_spec.op.updates
        if in_result or (epilogue is not None and name in epilogue.updated):  # filled in each run
            memory = self._memory if in_result else None
            store = backend.allocate(pattern.shape, pattern.layout, memory)
            self._refills.append(
                partial(pattern.fill, backend.device, store, pattern.packed(array))
            )
        elif pattern.repeats:
            store = backend.allocate(pattern.shape, pattern.layout, dtype=DType.from_array(array))
            pattern.fill(backend.device, store, pattern.packed(array))
            store.fixed = True
        else:
            store = backend.keep(pattern.whole(array), pattern.layout)
        return store  # only the device's copy is needed

    def look(self, part: int | None, pace: float | None) -> tuple[float, int | None]:
        """Run in launches of at most `part`; return the error, and the launch size that is right.

        The size is None where the whole result is right. The error is relative to the magnitudes of
        the terms that the results are sums of. pace: the kernel's throughput, where it is known.
        """
        verdicts, device = self._backend.verdicts, self._backend.device
        previous = verdicts.found.get(self._key)
        verdicts.found[self._key] = Verdict(part=part, pace=pace)  # by which launches are split
        try:
            self.largest_launch = self._backend.part(self._kernel, self._op_spec) or self.size
            self._perform = self._backend.prepare(
                self._kernel, self._op_spec, self._stores, self._out
            )
        finally:
            del verdicts.found[self._key]
            verdicts.found |= {} if previous is None else {self._key: previous}
        repeat(device, self._out, (0, 4 * self._out.size), POISON)
        for refill in self._refills:
            refill()
        self._perform()
        self.fault = None
        ranges, most = compared_ranges(self._pattern.size), allowed(self._kernel, self._op_spec)
        pieces, error = self._compare(ranges, self._tolerance or Tolerance())
        if self._case.quick and not error <= SURE * most:
            self._expect(self._first_case(self._case.special_values, quick=False))
            pieces, error = self._compare(ranges, Tolerance())
        if not error <= most and self._tolerance is None:
            self._tolerance = self._case.tolerance()
            pieces, error = self._compare(ranges, self._tolerance)
        if error <= most:
            return error, None
        self.fault = self._fault(pieces, error)
        first = self._first_wrong(pieces)
        words = first * self._out.words // self._out.layout.size(self._op_spec.result_shape)
        return error, self._backend.right_until(self._kernel, self._op_spec, words)

    def _compare(self, ranges: Sequence[Part], tolerance: Tolerance) -> tuple[list[Piece], float]:
        """Return the result in these ranges, and its error by `tolerance`."""
        self._mask = self._compared_mask(tolerance)
        pieces = list(self._pieces(ranges))
        sums = [squares(got, expected) for _, got, expected in pieces]
        error = quotient(sum(one for one, _ in sums), sum(one for _, one in sums))
        return pieces, error / tolerance.condition

    def _pieces(self, ranges: Sequence[Part]) -> Iterator[Piece]:
        """Yield the pieces of the result in these ranges; numbers not compared are as expected."""
        numbers = gather(self._backend.device, self._result, ranges)
        offset = 0
        for first, last in ranges:
            for start in range(first, last, PIECE):
                end = min(start + PIECE, last)
                got = measured(numbers[offset : offset + end - start])
                expected = measured(self._pattern.at(self._expected, start, end))
                if self._mask is not None:
                    got = np.where(self._pattern.at(self._mask, start, end), got, expected)
                offset += end - start
                yield start, got, expected

    def _first_wrong(self, pieces: Sequence[Piece]) -> int:
        """Return the first position of the result's memory that is far off; 0 where none is."""
        right_until = 0
        for start, got, expected in pieces:
            wrong = find_wrong(got, expected, FAR * self._greatest)
            if wrong.any():
                break
            right_until = start + len(got)
        else:
            return 0
        for first in range(right_until, start, MOST):  # between two of the compared ranges
            for position, got, expected in self._pieces([(first, min(first + MOST, start))]):
                if (off := find_wrong(got, expected, FAR * self._greatest)).any():
                    return position + int(off.argmax())
        return start + int(wrong.argmax())

    def _fault(self, pieces: Iterable[Piece], error: float) -> Fault:
        """Return the worst fault in `pieces`. error: the error of the whole result."""
        worst = -1.0, 0, 0.0, 0.0
        for start, numbers, references in pieces:
            with np.errstate(all="ignore"):
                distance = np.abs(numbers.astype(np.float64) - references)
            same = (numbers == references) | (np.isnan(numbers) & np.isnan(references))
            distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
            i = int(distance.argmax())
            if distance[i] > worst[0]:
                worst = float(distance[i]), start + i, float(numbers[i]), float(references[i])
        _, position, got, expected = worst
        return Fault(self._op_spec.shapes, self._pattern.element(position), got, expected, error)

    def details(self) -> str:
        """Return the worst number, and the uniforms without a value, as a suffix of a message."""
        unset = ", ".join(self._backend.unset_uniforms(self._perform))
        fault = f": {self.fault.text}" if self.fault else ""
        return fault + (f"; glnn sets no uniform {unset}, which is 0" if unset else "")

    def pace(self) -> float:
        """Measure the kernel's throughput, a lower bound, in units of `work` a second."""
        self._backend.finish()
        start = perf_counter()
        self._perform()
        self._backend.finish()
        seconds = perf_counter() - start
        least = SLOWEST if seconds < SHORTEST else 0.0  # so short a time is that of the launch
        return max(work(self._op_spec) / max(seconds, SHORTEST), least)


LOG = logging.getLogger(__name__)
LEAST_PART = 64  # vertices or workgroups: smaller launches cost more than what they compute
SHORT = 64  # terms of a sum in trials of large launches: no tile is longer
SEEDS = 1, 2, 3, 4  # of the operands of a second trial
MORE = 64  # samples of a second trial, where the first one had few
WRITTEN = 1.0  # seconds after which new verdicts are written, as the process may be killed
CONFIRMED = 1 << 16  # numbers of a spec up to which all samples differ in a second trial


def examine_choices(backend: ExaminedBackend, choices: Iterable[tuple[object, OpSpec]]) -> bool:
    """Compare the kernels of a plan with NumPy where no verdict is known, the largest first.

    Returns True where some are wrong: they are not chosen again, so that others must be chosen.
    Choices that are no kernels are not compared, and none where kernels are trusted.
    """
    if backend.trusts_kernels:
        return False
    pairs = [(one, spec) for one, spec in choices if isinstance(one, Kernel)]
    pairs.sort(key=lambda pair: -prod(backend.launched(*pair)[:3]))  # they cover smaller ones
    with report_work("examining", total=len(pairs)) as work:
        return examine(backend, work.counted(pairs))


def are_right(backend: ExaminedBackend, choices: Iterable[tuple[object, OpSpec]]) -> bool:
    """Return True where all kernels are right for these specs, though chosen for others.

    Kernels without a verdict are compared with NumPy.
    """
    pairs, offers = list(choices), backend.device.capabilities
    if examine_choices(backend, pairs):
        return False
    verdicts = [backend.verdicts.find(k, one, offers) for k, one in pairs if isinstance(k, Kernel)]
    return all(one.wrong is None and one.part is None for one in verdicts)


def examine(
    backend: ExaminedBackend, choices: Iterable[tuple[Kernel, OpSpec]], tell: Tell | None = None
) -> bool:
    """Compare kernels with NumPy where no verdict covers launches as large as these specs'.

    The verdicts are stored. tell: callback for wrong results. Returns True where some kernels must
    not be used, so that others must be chosen.
    """
    offers, verdicts = backend.device.capabilities, backend.verdicts
    wrong, new, written = False, dict[str, Verdict](), perf_counter()
    wide = dict[str, Verdict]()
    try:
        for kernel, spec in choices:
            launch = backend.launched(kernel, spec)
            earlier = verdicts.find(kernel, spec, offers)
            if earlier.covers(launch):
                continue
            verdict = _verdict(backend, kernel, spec, launch, earlier, wide, tell)
            name = f"{kernel.op}/{kernel.name}"
            LOG.info("examined %s in a launch of %s: %s", name, launch[:3], verdict.outcome)
            # A wrong kernel is wrong at these sizes: other sizes are examined by themselves.
            key = sizes_key if verdict.wrong is not None else verdict_key
            entry = {key(kernel, spec, offers): verdict}
            verdicts.take(entry)
            new |= entry
            wrong |= verdict.wrong is not None
            if verdict.wrong is not None or perf_counter() - written > WRITTEN:
                verdicts.keep(new)
                new, written = {}, perf_counter()
    finally:
        if new:
            verdicts.keep(new)
    return wrong


def _verdict(
    backend: ExaminedBackend,
    kernel: Kernel,
    spec: OpSpec,
    launch: Launched,
    earlier: Verdict,
    wide: dict[str, Verdict],
    tell: Tell | None,
) -> Verdict:
    """Return the verdict on `kernel`, extending `earlier`. Raises what preparing it raises.

    wide: the launches, by program, whose results were right, for sums of any depth.
    """
    program = program_key(kernel, spec, backend.device.capabilities)
    renderer, part = backend.device.capabilities.renderer, earlier.part
    covered = not backend.watched and wide.get(program, Verdict()).covers(launch)
    wrong = f"its results on {renderer} are wrong, off by"
    try:
        trial: Trial | None = None
        for tried, special_values, update in _specs_to_try(backend, kernel, spec, launch, earlier):
            if covered and part is None and (trial or earlier.right):
                break  # sums of this length were tried
            trial = None  # first, so that the next one can have its memory
            trial = Trial(backend, kernel, tried, special_values=special_values, update=update)
            error, right = trial.look(part, earlier.pace)
            if right is not None:
                fault = trial.fault
                trial = None
                again = wrong_again(
                    backend, kernel, tried, special_values, part, earlier.pace, update
                )
                trial = Trial(backend, kernel, tried, special_values=special_values, update=update)
                error, right = trial.look(part, earlier.pace)
                if not again:  # wrong by chance: its terms cancel, or few numbers are off
                    right = None
                elif tell and fault:
                    tell(kernel, spec, fault)
            while right is not None:
                largest = trial.largest_launch
                if largest <= LEAST_PART:
                    return Verdict(wrong=f"{wrong} {error:.1e}{trial.details()}")
                part = max(min(right or largest, largest // 2), LEAST_PART)
                error, right = trial.look(part, earlier.pace)
            right_launch = trial.largest_launch
            if backend.watched and trial.size > 1:  # split launches may use another program
                half = max(right_launch // 2, 1)
                error, right = trial.look(half, earlier.pace)
                if right is not None:
                    return Verdict(wrong=f"{wrong} {error:.1e} in launches of {half}")
        pace = None
        if trial and backend.watched:
            pace = trial.pace()
            if trial.look(part, pace)[1] is not None:  # in launches as large as `pace` allows
                part, pace = right_launch, None
    except Exception:  # a lost device may raise any
        if backend.device.lost is not None:
            key = verdict_key(kernel, spec, backend.device.capabilities)
            backend.verdicts.keep({key: Verdict(wrong=f"{renderer} was reset while it ran")})
        raise
    if part is None:
        wide[program] = wide.get(program, Verdict()).and_right(launch)
    return Verdict(earlier.right, part, pace).and_right(launch)


def wrong_again(
    backend: ExaminedBackend,
    kernel: Kernel,
    spec: OpSpec,
    special_values: bool,
    part: int | None,
    pace: float | None,
    update: str | None = None,
) -> bool:
    """Return True where a kernel that was wrong once is wrong with other operands, too.

    It is tried with as many samples, then with more. Of several random sets of operands the one
    with the least cancellation in its results is taken. update: see Trial.
    """
    small = sum(map(prod, spec.shapes.values())) + prod(spec.result_shape) <= CONFIRMED
    specs = [spec]
    if small and spec.op.sample_operands(spec.op_shapes):
        few = spec.result_shape[0]
        more = spec.of_samples(max(2 * few, min(CONFIRMED // prod(spec.result_shape[1:]), MORE)))
        offers = backend.device.capabilities
        fault = why_not_spec(kernel, more) or why_not_here(kernel, more, offers)
        if fault is None and verdict_key(kernel, more, offers) == verdict_key(kernel, spec, offers):
            specs.append(more)
    for tried in specs:
        trial = Trial(
            backend,
            kernel,
            tried,
            special_values=special_values,
            whole=small,
            seeds=SEEDS,
            update=update,
        )
        if trial.look(part, pace)[1] is not None:
            return True
    return False


def _specs_to_try(
    backend: ExaminedBackend, kernel: Kernel, spec: OpSpec, launch: Launched, earlier: Verdict
) -> Iterator[tuple[OpSpec, bool, str | None]]:
    """Yield the specs to try `kernel` on, each with the `special_values` and `update` of its Trial.

    First few results of full-depth sums, with special values, where `earlier` has no right launch;
    then a launch as large as `launch`, of short sums, without special values.
    """
    offers = backend.device.capabilities
    program = program_key(kernel, spec, offers)

    def fits(candidate: OpSpec) -> bool:
        """Return True where the same program can compute `candidate` here."""
        fault = why_not_spec(kernel, candidate) or why_not_here(kernel, candidate, offers)
        return fault is None and program_key(kernel, candidate, offers) == program

    def is_large(candidate: OpSpec) -> bool:
        """Return True where it can in a launch at least as large as `launch`."""
        return fits(candidate) and is_no_larger(launch, backend.launched(kernel, candidate))

    whole, shapes = spec.op.whole_problem(spec.op_shapes)
    if whole is not spec.op and is_large(wider := replace(spec, op=whole).resized(shapes)):
        spec = wider
    op, shapes = spec.op, spec.op_shapes
    depth = op.depth(shapes)
    large = spec.resized(op.of_depth(shapes, min(depth, SHORT)))
    large = large if large is spec or is_large(large) else spec
    updates = None, *(() if spec.epilogue is None else spec.epilogue.updated)
    if earlier.right:
        yield from ((large, False, update) for update in updates)
        return
    few: dict[str, Shape] = dict(shapes)
    if spec.result_shape[:1] > (PERIOD,):
        few |= {name: (PERIOD, *shapes[name][1:]) for name in op.sample_operands(shapes)}
    deep = [op.of_depth(few, one, few=True) for one in (upper(depth), depth)]
    small = next(filter(fits, map(spec.resized, chain(map(op.shrink, deep), deep))), spec)
    if special_value_operands(spec) or (op.has_depth and small != large):
        yield from ((small, True, update) for update in updates)
    yield from ((large, False, update) for update in updates)
