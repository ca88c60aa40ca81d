"""Reference cases for kernels: operands, NumPy's result, and memory that repeats samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import prod

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout
from glnn.core.layout.layout import PACKED
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.gl import Buffer, Device
from glnn.gl.buffer import CHUNK, repeat
from glnn.gl.transfer import Part
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, Scalar, call
from glnn.graph.operator import Operator, SampleSubset
from glnn.kernels.op_spec import SAMPLE_EXTENTS, OpSpec
from glnn.kernels.reference import computed
from glnn.validation.comparison import ULP, nudged

PERIOD, FEWER = 7, 3  # different samples: primes, to notice offsets by powers of two
EXACT = 1 << 28  # flops up to which the reference is float64, which takes the CPU longer
LARGE = 1 << 25  # bytes above which, or above EXACT flops, only FEWER samples differ
SPECIAL = (np.nan, np.inf, -np.inf, 88.7, -88.7, 104.0, -104.0)  # float32's exp ends at 88.7, -104
RANDOM = 1_000_003  # random floats, which larger operands repeat: a prime, too
REACHES = 1, 16, 256  # of operands: a comparison with 5, or 99, is the same for all small numbers
CANCELLED = 5e-6  # of the greatest result: the error that float32 has by cancellation alone
WILD = 16  # times the greatest result or the median magnitude: larger results are not judged
JUMP = 1e-2  # of the greatest result: a change this large by one nudge is a discontinuity
FEW_RESULTS, SOME_RESULTS = 64, 4096  # below, magnitudes are estimated from 8 nudges, and from 2


@dataclass(frozen=True)
class ReferenceCase:
    """Operands for a trial, perhaps of few samples, and their result."""

    spec: OpSpec
    """The spec with all samples."""
    op: Operator
    """The operator for these operands: the spec's, or its version for few samples."""
    operands: Mapping[str, Array]
    """The operands, whole or of few samples, which memory repeats."""
    result: Array
    """NumPy's result."""
    stacks: Mapping[str, int]
    """The number of runs of each repeated tensor, `out` among them: see `Pattern`."""
    exact: bool
    """True where NumPy computed it in float64; False for float32, where float64 takes too long."""
    quick: bool
    """True where NumPy computed it in float32 on request, though float64 is possible."""
    special_values: bool
    """True where NaN, infinities and the ends of exp are among the operands."""

    @classmethod
    def create(
        cls, spec: OpSpec, *, special_values: bool, whole: bool, seed: int = 0, quick: bool = False
    ) -> ReferenceCase:
        """Draw operands for `spec` and compute the result by NumPy.

        special_values: True to put special values among the operands. whole: True to have all
        samples differ. seed: seed of the random operands. quick: True to compute in float32.
        """
        subset = None if whole else _few(spec, special_values)
        op, shapes, stacks = spec.op, spec.op_shapes, dict[str, int]()
        if subset is not None:
            op, shapes, stacks = subset.op, subset.shapes, dict(subset.stacks)
        operand_shapes = dict(shapes)
        if spec.epilogue is not None:
            operand_shapes |= spec.epilogue.shapes(op.shape_of(shapes))
        cases = (
            cls._draw(spec, op, operand_shapes, stacks, special_values, reach, seed, quick)
            for reach in REACHES
        )
        first = next(cases)
        return next((case for case in chain([first], cases) if _varies(case.result)), first)

    @classmethod
    def _draw(
        cls,
        spec: OpSpec,
        op: Operator,
        shapes: Mapping[str, Shape],
        stacks: Mapping[str, int],
        special_values: bool,
        reach: int,
        seed: int,
        quick: bool,
    ) -> ReferenceCase:
        """Draw operands of these shapes and compute `op`, the spec's or that of few samples."""
        operands = _operands(spec, shapes, special_values, reach, seed)
        types = {name: TensorType.from_array(operands[name]) for name in spec.op_shapes}
        cost = op.cost_of(types)
        exact = cost.flops <= EXACT
        precise, quick = operands, quick and exact
        if exact and not quick and (cost.flops or spec.epilogue):  # moves are exact in float32
            precise = {
                name: array.astype(np.float64) if array.dtype.kind == "f" else array
                for name, array in operands.items()
            }
        dtype = spec.results[0].dtype.numpy
        with np.errstate(all="ignore"):
            result = computed(op, precise, spec.epilogue)[0].astype(dtype, copy=False)
        return cls(spec, op, operands, result, stacks, exact and not quick, quick, special_values)

    def tolerance(self) -> Tolerance:
        """Estimate the errors of a right kernel, at several times the cost of the result.

        It is not needed where the error relative to the results is small enough.
        """
        types = {name: TensorType.from_array(self.operands[name]) for name in self.spec.op_shapes}
        if not (self.op.cost_of(types).flops or self.spec.epilogue):
            return Tolerance(1.0, None)
        expected = measured(self.result)
        unsure = np.zeros(self.result.shape, bool)
        if self.special_values and self.exact:
            dtype = self.spec.results[0].dtype.numpy
            with np.errstate(all="ignore"):
                rounded = computed(self.op, self.operands, self.spec.epilogue)[0].astype(dtype)
                unsure = find_wrong(measured(rounded), expected, CANCELLED * greatest(expected))
        unsure |= self._near_steps()
        condition = 1.0
        few = self.result.size < SOME_RESULTS
        if self.exact or few:
            draws = 8 if self.result.size < FEW_RESULTS else 2
            draws = draws if self.exact and (self.special_values or few) else 1
            condition = _condition(self.spec, self.op, self.operands, expected, unsure, draws)
        return Tolerance(condition, unsure if unsure.any() else None)

    def _near_steps(self) -> Array:
        """Return the mask of results that are near a step of the epilogue, as where it rounds.

        A right kernel may be on the other side of the step. Such results jump when the epilogue's
        argument changes by an error of float32.
        """
        epilogue = self.spec.epilogue
        if epilogue is None or not any(one.is_step for one in epilogue.expr.functions):
            return np.zeros(self.result.shape, bool)
        plain = {n: array for n, array in self.operands.items() if n not in epilogue.names}
        first = computed(self.op, plain, None)[0]
        if first.dtype.kind != "f":
            return np.zeros(self.result.shape, bool)
        error = CANCELLED * greatest(first)
        low, high = (
            measured(computed(self.op, self.operands, shift.then(epilogue))[0])
            for shift in (Epilogue(call("add", Arg(0), Scalar(one))) for one in (-error, error))
        )
        with np.errstate(all="ignore"):
            change = np.where(np.isfinite(high - low), np.abs(high - low), 0.0)
        mask: Array = change > WILD * float(np.median(change))
        return mask


@dataclass(frozen=True)
class Tolerance:
    """Bounds on the error of results, and the results that cannot be judged."""

    condition: float = 1.0
    """Norm of the magnitudes of the terms that the results are sums of, over the results' norm.

    At least 1. Where terms cancel it is large, and so is the relative error of a right kernel.
    """
    unreliable: Array | None = None
    """Mask of results that float32 cannot represent reliably; None without any."""


def _condition(
    spec: OpSpec,
    op: Operator,
    operands: Mapping[str, Array],
    expected: Array,
    unsure: Array,
    draws: int,
) -> float:
    """Return `Tolerance.condition` of the results `expected`; mark unreliable ones in `unsure`.

    NumPy computes the results from operands whose numbers are each off by a random part of an ulp
    or so. Whatever the operator and the epilogue, the change of a result in ulps estimates the root
    of the sum of the squares of its terms, rounding included.
    """
    dtype, exact = spec.results[0].dtype.numpy, expected.astype(np.float64)
    finite = np.isfinite(exact)
    squares, most = np.zeros(exact.shape), greatest(expected)
    # First the draws in which equal numbers of all operands are nudged alike.
    order = (*range(0, draws, 2), *range(1, draws, 2))
    for done, draw in enumerate(order):
        near = {
            name: nudged(array, draw, name if draw % 2 and name not in op.compared_operands else "")
            for name, array in operands.items()
        }
        with np.errstate(all="ignore"):
            got = computed(op, near, spec.epilogue)[0].astype(dtype).astype(np.float64)
            same = (got == exact) | (np.isnan(got) & np.isnan(exact))
            unsure |= ~np.where(finite, np.isfinite(got), same)
            change = np.where(finite & np.isfinite(got), (got - exact) / ULP, 0.0)
            if draw % 2:  # equal operands differ now, unlike a kernel's: steps may be crossed
                largest = JUMP * np.maximum(most, np.sqrt(squares / done)) / ULP
                change = np.where(np.abs(change) > largest, 0.0, change)
            squares += change * change
    norms = np.maximum(squares / draws, np.where(finite, exact * exact, 0.0))
    judged = finite & ~unsure
    if judged.any():
        bound = WILD * max(most, float(np.sqrt(np.median(norms[judged]))))
        unsure |= judged & (norms > bound * bound)
        judged &= ~unsure
    terms, results = float(norms[judged].sum()), float(np.square(exact[judged]).sum())
    return max(1.0, float(np.sqrt(terms / results if results else terms)))


def _varies(result: Array) -> bool:
    """Return True where its numbers differ, so that a misplaced one would be noticed."""
    first, few = result.flat[:1], result.flat[:SOME_RESULTS]  # few suffice as a rule
    return result.size < 2 or bool((few != first).any() or (result != first).any())


def _few(spec: OpSpec, special_values: bool) -> SampleSubset | None:
    """Return `spec` with few samples; None where it has no more samples.

    special_values: see `ReferenceCase.create`.
    """
    for count in (PERIOD, FEWER):
        few = spec.op.reduce_samples(spec.op_shapes, count)
        if few is None:
            return None
        along = (name for name, extent in spec.extents.items() if extent in SAMPLE_EXTENTS)
        stacks = {**few.stacks, **dict.fromkeys(along, few.stacks["out"])}
        cost = few.op.cost_of(few.shapes)
        is_costly = cost.flops > EXACT or cost.bytes > LARGE
        # Each special value needs a sample of its own.
        needs_all = special_values and not stacks.keys().isdisjoint(special_value_operands(spec))
        if needs_all or not is_costly or count == FEWER:
            is_smaller = few.op.shape_of(few.shapes)[0] < spec.result_shape[0]
            return replace(few, stacks=stacks) if is_smaller else None
    return None


def special_value_operands(spec: OpSpec) -> list[str]:
    """Return the names of the operands that may contain special values."""
    names = (*spec.op.nan_operands, *spec.extents)
    return [n for n in names if n in spec.shapes and spec.types[n].dtype.kind == "float"]


def _operands(
    spec: OpSpec, shapes: Mapping[str, Shape], special_values: bool, reach: int, seed: int
) -> dict[str, Array]:
    """Draw random operands of these shapes: floats up to `reach`, integers up to 100 times it."""
    generator, stream, offset = np.random.default_rng(2026 + seed), _stream(seed), 0
    result: dict[str, Array] = {}
    for name, shape in shapes.items():
        kind = spec.types[name].dtype
        if kind.kind != "float":
            least, most = 0, 1
            if kind is not DType.bool:
                bounds = np.iinfo(kind.numpy)
                least, most = bounds.min, bounds.max  # negative numbers, too
                if spec.layouts.get(name) != PACKED.name and name not in spec.int8_operands:
                    most = min(100 * reach - 1, most)
                    least = 0 if reach == 1 else max(-most, least)
            numbers: Array = generator.integers(least, most + 1, shape)
        else:
            start, size = offset % RANDOM, prod(shape)
            drawn, offset = stream.part(start, size), offset + size
            numbers = drawn.reshape(shape) * np.float32(reach)
        operand = spec.op.trial(name, np.asarray(numbers, kind.numpy), spec.shapes)
        if special_values and name in special_value_operands(spec):
            _insert_special_values(operand, 1 + seed)
        result[name] = operand
    return result


class Stream:
    """A cycle of RANDOM floats between -1 and 1, drawn as needed, for operands."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._drawn = np.empty(0, np.float32)

    def part(self, start: int, size: int) -> Array:
        """Return `size` floats of the cycle, beginning at number `start`."""
        drawn = self._first(min(start + size, RANDOM))
        numbers = drawn[start : start + size]
        if len(numbers) < size:
            numbers = np.resize(np.concatenate((drawn[start:], drawn[:start])), size)
        return numbers

    def _first(self, count: int) -> Array:
        """Return at least the first `count` floats."""
        if count > len(self._drawn):
            missing = min(max(count, 2 * len(self._drawn)), RANDOM) - len(self._drawn)
            new = self._generator.random(missing, np.float32) * 2 - 1
            self._drawn = np.concatenate((self._drawn, new))
        return self._drawn


@lru_cache(maxsize=1)
def _stream(seed: int) -> Stream:
    """Return the stream of a seed, cached."""
    return Stream(seed)


def _insert_special_values(array: Array, seed: int) -> None:
    """Put one special value into each sample but the first, or several into a single sample, at
    most into half of its numbers.
    """
    generator = np.random.default_rng(seed)
    if array.ndim > 1 and len(array) > 1 and array.size:
        for row, value in zip(array[1:], SPECIAL, strict=False):
            row.reshape(-1)[generator.integers(row.size)] = value
    elif array.size > 1:
        flat = array.reshape(-1)
        indices = generator.choice(flat.size, min(flat.size // 2, len(SPECIAL)), replace=False)
        flat[indices] = SPECIAL[: len(indices)]


def measured(array: Array) -> Array:
    """Return `array` in a type for computing differences: integers and bools as float64."""
    return array if array.dtype == np.float32 else array.astype(np.float64)


def greatest(array: Array) -> float:
    """Return the greatest magnitude of its finite numbers."""
    numbers = measured(array)
    most = max(float(numbers.max(initial=0)), -float(numbers.min(initial=0)))
    if np.isfinite(most):
        return most
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def find_wrong(got: Array, expected: Array, most: float) -> Array:
    """Return the mask of numbers of `got` that are off by more than `most`, NaN and infinities
    included.
    """
    with np.errstate(all="ignore"):
        near = np.where(np.isfinite(expected), np.abs(got - expected) <= most, got == expected)
        near |= np.isnan(got) & np.isnan(expected)
    return np.asarray(~near)


MOST = 1 << 22  # numbers up to which all are compared; of more:
ENDS = 1 << 20  # the first and the last ENDS,
STRETCHES, SPAN = 256, 1 << 13  # SPAN at random in each of STRETCHES equal stretches,
AROUND = 1 << 10  # and AROUND before and behind each power of two


@dataclass(frozen=True)
class Pattern:
    """Memory of an array of `shape` that repeats an array of the shape `few`, with fewer samples.

    stacks: the number of runs of all samples behind one another along the first dimension; each
    repeats the samples of the same run of the smaller array.
    """

    layout: Layout
    shape: Shape
    few: Shape
    stacks: int = 1

    @cached_property
    def repeats(self) -> bool:
        """Return True where its memory is periodic, because samples are contiguous blocks."""
        of = _block(self.layout, self.few)
        return self.shape != self.few and of is not None and of == _block(self.layout, self.shape)

    @cached_property
    def size(self) -> int:
        """The count of numbers in its memory, without the last sample's padding."""
        return self.runs * self.length

    @property
    def runs(self) -> int:
        """The count of runs in its memory."""
        return self.stacks if self.repeats else 1

    @cached_property
    def length(self) -> int:
        """The count of numbers in a run."""
        return self._numbers(self.shape)

    @cached_property
    def period(self) -> int:
        """The period of the numbers in a run."""
        return self._numbers(self.few) if self.repeats else self.length

    def _numbers(self, shape: Shape) -> int:
        block = _block(self.layout, shape)
        if not self.repeats or block is None:
            return self.layout.size(shape)
        return shape[0] // self.stacks * block

    def packed(self, few: Array) -> Array:
        """Return one period of each run, packed from the elements `few`; padding is 0."""
        array = few if self.repeats else self.whole(few)
        return self.layout.pack(array)[: self.runs * self.period].reshape(self.runs, -1)

    def whole(self, few: Array) -> Array:
        """Return the whole array, repeating the samples of `few`."""
        if self.shape == self.few:
            return few
        runs = few.reshape(self.stacks, len(few) // self.stacks, *few.shape[1:])
        samples = np.arange(self.shape[0] // self.stacks) % runs.shape[1]
        return runs[:, samples].reshape(self.shape)

    @cached_property
    def element_mask(self) -> Array | None:
        """The mask of the elements in a period, False for padding; None where there is none."""
        if self.layout.size(self.shape) == prod(self.shape):
            return None
        mask = self.packed(np.ones(self.few, np.float32)) != 0
        return None if mask.all() else mask

    def at(self, packed: Array, first: int, last: int) -> Array:
        """Return the numbers from `first` up to `last` of memory with these periods."""
        run, start = divmod(first, self.length)
        count = last - first
        if start + count > self.length:
            runs = packed[run : -(-last // self.length)]
            whole = runs.take(np.arange(self.length) % self.period, axis=1).reshape(-1)
            return np.asarray(whole[start : start + count])
        start %= self.period
        if start + count <= self.period:
            return np.asarray(packed[run, start : start + count])
        return _cycled(packed[run], start, count)

    def fill(self, device: Device, buffer: Buffer, packed: Array) -> None:
        """Fill the memory of `buffer` with these periods, repeated."""
        if self.runs > 1 and packed.itemsize * self.size <= CHUNK:
            packed = self.at(packed, 0, self.size)[None]
        size = packed.itemsize * self.size // len(packed)
        for run, numbers in enumerate(packed):
            repeat(device, buffer, (run * size, (run + 1) * size), numbers)
        buffer.mark_written()

    def element(self, number: int) -> tuple[int, ...]:
        """Return the index in the array of the element at position `number` of its memory."""
        shape = self.few if self.repeats else self.shape
        order = self.layout.pack(np.arange(prod(shape), dtype=np.int32).reshape(shape))
        periods = order[: self.runs * self.period].reshape(self.runs, -1)
        index = int(self.at(periods, number, number + 1)[0])
        place = tuple(map(int, np.unravel_index(index, shape)))
        return (number * self.shape[0] // self.size, *place[1:]) if self.repeats else place


def _block(layout: Layout, shape: Shape) -> int | None:
    """Return the stride along the first axis; None where samples are not contiguous blocks."""
    first, *rest = layout.dims(shape) or (None,)
    if first is None or first.axis or first.step > 1 or not all(dim.axis for dim in rest):
        return None
    return first.stride


def _cycled(period: Array, start: int, count: int) -> Array:
    """Return `count` numbers of the repeated `period`, beginning at its number `start`."""
    result = np.empty(count, period.dtype)
    head = min(len(period) - start, count)
    result[:head] = period[start : start + head]
    whole, rest = divmod(count - head, len(period))
    end = count - rest
    result[head:end].reshape(whole, len(period))[:] = period
    result[end:] = period[:rest]
    return result


def compared_ranges(size: int) -> list[Part]:
    """Return the ranges that are compared of `size` numbers: all, if there are few."""
    if size <= MOST:
        return [(0, size)]
    random = np.random.default_rng(size)
    wanted = [(0, ENDS), (size - ENDS, size)]
    for i in range(STRETCHES):
        first, last = size * i // STRETCHES, size * (i + 1) // STRETCHES
        start = int(random.integers(first, last - SPAN))
        wanted.append((start, start + SPAN))
    for power in (1 << i for i in range(ENDS.bit_length() - 1, size.bit_length())):
        wanted.append((power - AROUND, min(power + AROUND, size)))
    result: list[Part] = []
    for first, last in sorted(wanted):
        if result and first <= result[-1][1]:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result
