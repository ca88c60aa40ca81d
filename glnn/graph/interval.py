"""Interval arithmetic: bounds of a value's numbers, and rules for the bounds of functions.

The ends of intervals of integers are Python's ints, which never overflow. The ends of intervals of
floats are floats, and NaN may always be among the numbers. Interval arithmetic as in Moore 1966,
"Interval Analysis", chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np

from glnn.core.symint import is_symbolic, range_of
from glnn.core.types import Array, DType
from glnn.errors import ShapeError

Number = int | float
Rule = Callable[..., "Interval | None"]
"""Rule that maps the intervals of a function's arguments to that of its value; None if unknown."""


@dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`. Raises ShapeError where `low` is above `high`."""

    low: Number
    high: Number

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ShapeError(f"an interval is from low to high, got {self.low} to {self.high}")

    @classmethod
    def of_type(cls, dtype: DType) -> Interval:
        """Return the interval of all numbers of `dtype`."""
        if dtype is DType.bool:
            return cls(0, 1)
        if dtype.numpy.kind not in "iu":  # floats, and types of the host alone
            return cls(-inf, inf)
        limits = np.iinfo(dtype.numpy)
        return cls(int(limits.min), int(limits.max))

    @classmethod
    def of_array(cls, array: Array) -> Interval:
        """Return the interval of the numbers of `array`; 0 alone where it is empty."""
        if not array.size:
            return cls(0, 0)
        if is_symbolic(array):
            ends = [*map(range_of, array.flat)]
            return cls(min(low for low, _ in ends), max(high for _, high in ends))
        if array.dtype.kind not in "iub":
            return cls(-inf, inf)
        return cls(int(array.min()), int(array.max()))

    @classmethod
    def of_number(cls, number: Number) -> Interval:
        """Return the interval of `number`; of a float, with the float32 that it is rounded to."""
        if not isinstance(number, float):
            return cls(int(number), int(number))
        with np.errstate(over="ignore"):
            rounded = float(np.float32(number))
        return cls(-inf, inf) if number != number else hull_of(number, rounded)

    def within(self, container: Interval) -> bool:
        """Return True where `container` contains this interval."""
        return container.low <= self.low and self.high <= container.high

    def stored(self, dtype: DType) -> Interval:
        """Return the interval after a cast to `dtype`; integers out of its range wrap around."""
        type_range = Interval.of_type(dtype)
        if dtype.kind == "float":
            return Interval(float(self.low), float(self.high))
        return self if self.within(type_range) else type_range

    def times(self, least: int, most: int) -> Interval:
        """Return the interval of sums of `least` to `most` numbers of this interval."""
        if not self.whole:
            return Interval(-inf, inf)
        return hull_of(*(end * count for end in (self.low, self.high) for count in (least, most)))

    @property
    def whole(self) -> bool:
        """True where both ends are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


INT32 = Interval.of_type(DType.int32)


def hull_of(*numbers: Number) -> Interval:
    """Return the smallest interval that contains all of `numbers`."""
    return Interval(min(numbers), max(numbers))


def hull(intervals: Sequence[Interval]) -> Interval:
    """Return the smallest interval that contains all of `intervals`."""
    return hull_of(*(end for one in intervals for end in (one.low, one.high)))


def powers(interval: Interval, count: int) -> Interval | None:
    """Return the interval of products of `count` numbers; None where it is unknown."""
    size = max(abs(interval.low), abs(interval.high), 1)
    if not interval.whole or (size > 1 and count > 64):
        return None
    most = size if size == 1 else size**count
    return Interval(-most if interval.low < 0 else 0, most)


def corners(function: Callable[..., Number]) -> Rule:
    """Return the interval of an exact `function`, monotone in each argument, from its values at the
    ends.
    """

    def rule(*intervals: Interval) -> Interval:
        ends = product(*((one.low, one.high) for one in intervals))
        return hull_of(*(function(*corner) for corner in ends))

    return rule


def integers(rule: Rule) -> Rule:
    """Restrict `rule` to integers; floats are rounded, for which it does not hold."""
    return lambda *args: rule(*args) if all(one.whole for one in args) else None


def magnitude(x: Interval) -> Interval:
    """Return the interval of absolute values."""
    low, high = abs(x.low), abs(x.high)
    return Interval(0 if x.low <= 0 <= x.high else min(low, high), max(low, high))


def sign(x: Number) -> int:
    """Return the sign of x: -1, 0 or 1."""
    return (x > 0) - (x < 0)


def square(x: Interval) -> Interval:
    """Return the interval of integers' squares."""
    size = magnitude(x)
    return Interval(size.low * size.low, size.high * size.high)


def choice(_: Interval, x: Interval, y: Interval) -> Interval:
    """Return the interval of a choice between x and y."""
    return hull((x, y))


def quotient(a: Interval, b: Interval) -> Interval:
    """Return the interval of integer quotients rounded towards 0; a quotient by 0 is 0."""
    bounds = [0] if b.low <= 0 <= b.high else []
    for by in {b.low, b.high, -1, 1}:
        if by and b.low <= by <= b.high:
            bounds += [_towards_zero(int(end), int(by)) for end in (a.low, a.high)]
    return hull_of(*bounds)


def rest(a: Interval, b: Interval) -> Interval:
    """Return the interval of remainders of integer division rounded towards 0, with the sign of
    a.
    """
    most = max(abs(b.low), abs(b.high), 1) - 1
    return Interval(max(min(a.low, 0), -most), min(max(a.high, 0), most))


def modulo(a: Interval, b: Interval) -> Interval:
    """Return the interval of remainders of integer division rounded down, with the sign of b."""
    return Interval(min(b.low + 1, 0), max(b.high - 1, 0))


def bits(a: Interval, b: Interval) -> Interval:
    """Return the interval of bitwise and, or and xor of integers."""
    both = hull((a, b))
    most = 2 ** max(int(both.high).bit_length(), (~int(both.low)).bit_length()) - 1
    return Interval(0 if both.low >= 0 else -most - 1, most)


def left_shift(a: Interval, by: Interval) -> Interval | None:
    """Return the interval of integers shifted left; None where a shift is not in 0 to 63."""
    if not 0 <= by.low <= by.high < 64:
        return None
    return corners(lambda x, places: x << places)(a, by)


def right_shift(a: Interval, by: Interval) -> Interval:
    """Return the interval of integers shifted right, an arithmetic shift that rounds down."""
    return Interval(min(a.low, 0), max(a.high, -1))


def cast(dtype: DType) -> Rule:
    """Return the rule of a cast to `dtype`: to integers, floats are truncated and clamped, and NaN
    becomes 0.
    """
    type_range = Interval.of_type(dtype)

    def to_integer(x: Interval) -> Interval:
        if x.whole:
            return x
        ends = (int(min(max(end, type_range.low), type_range.high)) for end in (x.low, x.high))
        return hull_of(*ends, 0)

    def to_float(x: Interval) -> Interval | None:
        with np.errstate(over="ignore"):
            ends = [float(dtype.numpy.type(end)) for end in (x.low, x.high)]
        return hull_of(*ends)

    return to_float if dtype.kind == "float" else to_integer


def _towards_zero(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return -size if (a < 0) != (b < 0) else size
