"""Operands of a problem, and the result that NumPy has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from glnn.graph.operator import Few, Operator
from glnn.kernels.problem import Problem
from glnn.kernels.reference import computed
from glnn.layout.layout import PACKED
from glnn.types import Array, DType, Shape, TensorType

PERIOD, FEWER = 7, 3  # samples that differ: primes, so that what is off by a power of two is seen
EXACT = 1 << 28  # flops: above, the reference is float32, as float64 takes the CPU too long
LARGE = 1 << 25  # bytes: above, or above so many flops, FEWER samples differ
SPECIAL = (np.nan, np.inf, -np.inf, 88.7, -88.7, 104.0, -104.0)  # float32's exp ends at 88.7, -104
REACHES = 1, 16, 256  # of operands: a comparison with 5, or 99, is the same for all small numbers
CANCELLED = 5e-6  # of the greatest result: what float32 itself loses is no kernel's fault


@dataclass(frozen=True)
class Known:
    """Operands of few samples, and their result."""

    operands: Mapping[str, Array]
    """Of each operand all of it, or a few samples, which are to be repeated."""
    result: Array
    """What NumPy makes of these."""
    open: Array | None
    """Where float32 does not hold the result; None where it does everywhere."""
    stacks: Mapping[str, int]
    """Of each operand, and of `out`, that is to be repeated, in how many runs: see `Few`."""

    @classmethod
    def of(cls, problem: Problem, *, spoiled: bool, whole: bool) -> Known:
        """What is known of `problem`.

        spoiled: whether special values are among the operands. whole: whether all samples differ.
        """
        few = None if whole else _few(problem, spoiled)
        op, shapes, stacks = problem.op, problem.own, dict[str, int]()
        if few is not None:
            op, shapes, stacks = few.op, few.shapes, dict(few.stacks)
        taken = dict(shapes)
        if problem.epilogue is not None:
            taken |= problem.epilogue.shapes(op.shape_of(shapes))
        tried = (cls._of(problem, op, taken, stacks, spoiled, reach) for reach in REACHES)
        first = next(tried)
        return next((one for one in chain([first], tried) if _varies(one.result)), first)

    @classmethod
    def _of(
        cls,
        problem: Problem,
        op: Operator,
        shapes: Mapping[str, Shape],
        stacks: Mapping[str, int],
        spoiled: bool,
        reach: int,
    ) -> Known:
        """What is known of `op`, `problem`'s or one of few samples, by operands of these shapes."""
        operands = _operands(problem, shapes, spoiled, reach)
        types = {name: TensorType.of(operands[name]) for name in problem.own}
        cost = op.cost_of(types)
        exact = cost.flops <= EXACT
        precise = operands
        if exact and (cost.flops or problem.epilogue):  # what is moved alone stays as it is
            precise = {
                name: array.astype(np.float64) if array.dtype.kind == "f" else array
                for name, array in operands.items()
            }
        dtype = problem.results[0].dtype.numpy
        with np.errstate(all="ignore"):
            result = computed(op, precise, problem.epilogue)[0].astype(dtype)
            if not (spoiled and exact):
                return cls(operands, result, None, stacks)
            rounded, expected = computed(op, operands, problem.epilogue)[0], measured(result)
            unsure = far(rounded, expected, CANCELLED * greatest(expected))  # or overflows
        return cls(operands, result, unsure if unsure.any() else None, stacks)


def _varies(result: Array) -> bool:
    """Whether its numbers differ, where there are several: else no place is told apart."""
    return result.size < 2 or bool((result != result.flat[0]).any())


def _few(problem: Problem, spoiled: bool) -> Few | None:
    """Few samples of `problem`; None where it has no more. spoiled: see `Known.of`."""
    for count in (PERIOD, FEWER):
        few = problem.op.few(problem.own, count)
        if few is None:
            return None
        full = (name for name, extent in problem.extents.items() if extent == "full")
        stacks = {**few.stacks, **dict.fromkeys(full, few.stacks["out"])}
        cost = few.op.cost_of(few.shapes)
        much = cost.flops > EXACT or cost.bytes > LARGE
        apart = spoiled and not stacks.keys().isdisjoint(spoilable(problem))
        if apart or not much or count == FEWER:  # a special value needs a sample of its own
            less = few.op.shape_of(few.shapes)[0] < problem.output[0]
            return replace(few, stacks=stacks) if less else None
    return None


def spoilable(problem: Problem) -> list[str]:
    """The operands that special values may be among."""
    names = (*problem.op.spoiled, *problem.extents)
    return [n for n in names if n in problem.shapes and problem.types[n].dtype.kind == "float"]


def _operands(
    problem: Problem, shapes: Mapping[str, Shape], spoiled: bool, reach: int
) -> dict[str, Array]:
    """Random operands of these shapes: floats up to `reach`, integers up to 100 times that."""
    generator = np.random.default_rng(2026)
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        kind = problem.types[name].dtype
        if kind.kind != "float":
            least, most = 0, 1
            if kind is not DType.bool:
                bounds = np.iinfo(kind.numpy)
                least, most = bounds.min, bounds.max  # the sign, too
                if problem.layouts.get(name) != PACKED.name and name not in problem.bytes:
                    most = min(100 * reach - 1, most)
                    least = 0 if reach == 1 else max(-most, least)
            numbers: Array = generator.integers(least, most + 1, shape)
        else:
            numbers = np.asarray(generator.random(shape, dtype=np.float32))
            numbers *= 2 * reach
            numbers -= reach
        made = problem.op.trial(name, np.asarray(numbers, kind.numpy), problem.shapes)
        if spoiled and name in spoilable(problem):
            _spoil(made)
        found[name] = made
    return found


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


def measured(array: Array) -> Array:
    """`array` in numbers that may be far from each other: integers and bools as float64."""
    return array if array.dtype == np.float32 else array.astype(np.float64)


def greatest(array: Array) -> float:
    """The greatest of its finite numbers."""
    numbers = measured(array)
    most = max(float(numbers.max(initial=0)), -float(numbers.min(initial=0)))
    if np.isfinite(most):
        return most
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def far(got: Array, expected: Array, most: float) -> Array:
    """Where `got` is off by more than `most`, or another NaN or infinity."""
    with np.errstate(all="ignore"):
        near = np.where(np.isfinite(expected), np.abs(got - expected) <= most, got == expected)
        near |= np.isnan(got) & np.isnan(expected)
    return np.asarray(~near)
