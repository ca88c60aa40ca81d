"""Symbolic integers for sizes that differ from run to run, like PyTorch's `SymInt`.

A plan is made once, with a `SymInt` for each open size. Its `hint` is the size of the run that the
plan is made for. Arithmetic gives expressions. A comparison whose answer is not the same for all
sizes within the symbols' bounds is answered for the hint, and the answer becomes a guard: the plan
holds for the sizes that give all guards the same answers. Conversion to a number (`int`, an index,
a text) adds a guard that the expression equals its hint, so that no code can treat a number that
holds for one size as one that holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import count, pairwise
from math import gcd, prod
from operator import is_
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Atom = str | tuple["Expr", "Expr"]
"""A symbol, or the quotient of two expressions, rounded down."""
Monomial = tuple[Atom, ...]
"""A sorted product of atoms; () is 1."""
Expr = tuple[tuple[Monomial, int], ...]
"""A sorted sum of monomials with factors other than 0: equal expressions are equal tuples."""
Bounds = tuple[int, int]
T = TypeVar("T")
SIMPLE = (str, int, float, bytes, Enum, type(None))
"""Types whose instances contain no SymInt."""
PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
"""Exact types of most values without a SymInt, for the fastest check."""
WIDEST = 1 << 62  # stands for infinity in bounds
MOST_DEGREE, MOST_TERMS = 128, 1000  # of an expression in an executable that is read from a file
ORDER: Mapping[str, Callable[[float], bool]] = {"<": lambda d: d < 0, "==": lambda d: d == 0}
"""Comparisons of a difference with 0; all others are these or their negations."""


@dataclass(frozen=True)
class Guard:
    """A condition on sizes, `expr < 0` or `expr == 0`, with its answer for the hints."""

    expr: Expr
    relation: str
    """A key of ORDER."""
    answer: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True where these sizes of the symbols give the same answer."""
        return ORDER[self.relation](evaluate(self.expr, sizes)) == self.answer


@dataclass(eq=False)
class ShapeEnv:
    """The symbols of one plan, and the guards added while it is made.

    bounds: the least and the greatest size of each symbol.
    """

    bounds: dict[str, Bounds] = field(default_factory=dict)
    guards: dict[Guard, None] = field(default_factory=dict)
    number: int = field(default_factory=count().__next__)
    """A number unique to each ShapeEnv of the process."""
    guarded_bounds: dict[Atom, Bounds] = field(default_factory=dict)
    """Narrower bounds of symbols and quotients, which follow from the guards."""
    pinned: bool = False
    """True where a SymInt was converted to a number, so that the plan holds for its hint alone."""
    _ranges: dict[Expr, Bounds] = field(default_factory=dict)
    """Cache of `range`; cleared when bounds change."""
    _first_ranges: dict[Expr, Bounds] = field(default_factory=dict)
    _quotients: dict[tuple[Expr, Expr], tuple[Expr, Expr]] = field(default_factory=dict)

    def symbol(self, name: str, hint: int, bounds: Bounds) -> int:
        """Return a new symbol, or the only size where the bounds admit a single one.

        Raises ValueError where the hint is not within the bounds.
        """
        if not bounds[0] <= hint <= bounds[1]:
            raise ValueError(f"symbol {name!r}: {hint} is not within {bounds}")
        self.bounds[name] = bounds
        self._ranges.clear()
        if bounds[0] == bounds[1]:
            return hint
        return cast(int, SymInt(self, (((name,), 1),), hint))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True where a plan that was made with these symbols holds for `sizes`."""
        within = all(low <= sizes[name] <= high for name, (low, high) in self.bounds.items())
        return within and all(guard.holds(sizes) for guard in self.guards)

    def range(self, expr: Expr) -> Bounds:
        """Return the least and the greatest value of `expr` for all sizes within the bounds."""
        result = self._ranges.get(expr)
        if result is None:
            result = self._ranges[expr] = self._range(expr)
        return result

    def first_range(self, expr: Expr) -> Bounds:
        """Return the range of `expr` at the first call, even if later guards narrowed it.

        A plan needs one answer: the texture that a step's kernel was chosen with must be the one
        that the step's program, which is written later, declares.
        """
        result = self._first_ranges.get(expr)
        if result is None:
            result = self._first_ranges[expr] = self.range(expr)
        return result

    def quotient(self, lhs: Expr, rhs: Expr) -> tuple[Expr, Expr]:
        """Return `quotient` and `dividend`, for which lhs // rhs = quotient + dividend // rhs.

        `dividend` is () where it is certain to be less than `rhs`. Repeated calls give the same
        result, even if guards narrowed ranges meanwhile.
        """
        result = self._quotients.get((lhs, rhs))
        if result is None:
            quotient, dividend = _divide_terms(lhs, rhs)
            low, high = self.range(dividend)
            if low >= 0 and high < self.range(rhs)[0]:
                dividend = ()
            result = self._quotients[lhs, rhs] = quotient, dividend
        return result

    def _range(self, expr: Expr) -> Bounds:
        """Return the range of `expr` from the ranges of its terms, narrowed by its quotients.

        Where `expr` has the term f * (a // n), n * expr is bounded by the sum with f * a in its
        place: n * (a // n) is a less a remainder from 0 to n - 1.
        """
        low, high = self._sum_range(expr)
        for monomial, factor in expr:
            atom = monomial[0] if len(monomial) == 1 else ""
            if isinstance(atom, str) or len(atom[1]) != 1 or atom[1][0][0] != ():
                continue
            (_, divisor), dividend = atom[1][0], atom[0]
            if divisor < 2:
                continue
            other_terms = _plus(_plus((), expr, divisor), ((monomial, -factor * divisor),))
            least, most = self._sum_range(_plus(other_terms, dividend, factor))
            remainder = -factor * (divisor - 1)
            low = max(low, -((-least - min(remainder, 0)) // divisor))
            high = min(high, (most + max(remainder, 0)) // divisor)
        return max(low, -WIDEST), min(high, WIDEST)

    def _sum_range(self, expr: Expr) -> Bounds:
        """Return the range of `expr` as the sum of its monomials' ranges."""
        low = high = 0
        for monomial, factor in expr:
            least, most = 1, 1
            for atom in monomial:
                products = [a * b for a in (least, most) for b in self._atom_range(atom)]
                least, most = min(products), max(products)
            ends = factor * least, factor * most
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _without_common_factors(self, difference: Expr) -> Expr:
        """Divide `difference` by its positive common factors; its relation to 0 is unchanged."""
        if not difference:
            return difference
        (first, _), *others = difference
        common = list(first)
        for monomial, _ in others:
            atoms = list(monomial)
            common = [one for one in common if one in atoms and not atoms.remove(one)]  # type: ignore[func-returns-value]
        common = [one for one in common if self._atom_range(one)[0] > 0]
        divisor = gcd(*(factor for _, factor in difference))
        terms: dict[Monomial, int] = {}
        for monomial, factor in difference:
            atoms = list(monomial)
            for one in common:
                atoms.remove(one)
            terms[tuple(atoms)] = factor // divisor
        return _sorted(terms)

    def decide(self, difference: Expr, relation: str, hint_difference: int) -> bool:
        """Return True where `difference` is in `relation` to 0.

        Where that depends on the sizes, the answer is the one for `hint_difference`, the value of
        `difference` for the hints, and becomes a guard.
        """
        difference = self._without_common_factors(difference)
        low, high = self.range(difference)
        if relation == "<" and (high < 0 or low >= 0):
            return high < 0
        if relation == "==" and (low > 0 or high < 0 or low == high):
            return low == high == 0
        answer = ORDER[relation](hint_difference)
        if relation == "==" and difference[0][1] < 0:  # one guard for a == b and b == a
            difference = _plus((), difference, -1)
        self.guards[Guard(difference, relation, answer)] = None
        self._narrow_bounds(difference, relation, answer)
        return answer

    def _narrow_bounds(self, difference: Expr, relation: str, answer: bool) -> None:
        """Narrow the bounds of the symbol or quotient that a new guard compares with a number."""
        terms = dict(difference)
        offset = terms.pop((), 0)
        if len(terms) != 1:
            return
        ((monomial, factor),) = terms.items()
        if len(monomial) != 1 or abs(factor) != 1:
            return
        low, high = self._atom_range(monomial[0])
        limit = -offset * factor
        if relation == "==":
            low, high = (limit, limit) if answer else (low + (low == limit), high - (high == limit))
        elif answer == (factor > 0):  # atom < limit, or atom <= limit
            high = min(high, limit - answer)
        else:
            low = max(low, limit + answer)
        self.guarded_bounds[monomial[0]] = low, high
        self._ranges.clear()

    def _atom_range(self, atom: Atom) -> Bounds:
        low, high = self._declared_range(atom)
        guarded = self.guarded_bounds.get(atom, (low, high))
        return max(low, guarded[0]), min(high, guarded[1])

    def _declared_range(self, atom: Atom) -> Bounds:
        """Return the range of `atom` by the bounds of symbols, without what guards say of it."""
        if isinstance(atom, str):
            return self.bounds[atom]
        a, b = map(self.range, atom)
        if b[0] <= 0:
            return -WIDEST, WIDEST
        quotients = [x // y for x in a for y in b]
        return min(quotients), max(quotients)


def evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    """Evaluate `expr` with these sizes of the symbols."""
    return sum(
        factor * prod(_evaluate_atom(atom, sizes) for atom in atoms) for atoms, factor in expr
    )


def check(expr: Expr) -> None:
    """Raise ValueError where `expr`, read from an untrusted file, would take long to evaluate."""
    remaining_terms = MOST_TERMS

    def degree(expr: Expr) -> int:
        nonlocal remaining_terms
        most = 0
        for atoms, factor in expr:
            remaining_terms -= 1 + len(atoms)
            if type(factor) is not int or abs(factor) > WIDEST or remaining_terms < 0:
                raise ValueError("an expression of too many terms, or too large a factor")
            degrees = (1 if isinstance(one, str) else 1 + sum(map(degree, one)) for one in atoms)
            most = max(most, sum(degrees))
        return most

    if degree(expr) > MOST_DEGREE:
        raise ValueError("an expression of too high a degree")


def _evaluate_atom(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return sizes[atom]
    dividend, divisor = atom
    return evaluate(dividend, sizes) // evaluate(divisor, sizes)


def _sorted(terms: Mapping[Monomial, int]) -> Expr:
    return tuple(sorted(((m, f) for m, f in terms.items() if f), key=repr))


@lru_cache(maxsize=1 << 12)
def _plus(lhs: Expr, rhs: Expr, factor: int = 1) -> Expr:
    """Return lhs + factor * rhs."""
    terms = dict(lhs)
    for monomial, times in rhs:
        terms[monomial] = terms.get(monomial, 0) + factor * times
    return _sorted(terms)


@lru_cache(maxsize=1 << 12)
def _times(lhs: Expr, rhs: Expr) -> Expr:
    terms: dict[Monomial, int] = {}
    for left, a in lhs:
        for right, b in rhs:
            monomial = tuple(sorted(left + right, key=repr))
            terms[monomial] = terms.get(monomial, 0) + a * b
    return _sorted(terms)


def _divide_terms(lhs: Expr, rhs: Expr) -> tuple[Expr, Expr]:
    """Return the quotient of the terms of `lhs` that `rhs` divides, and the other terms.

    A number is divided into its quotient and its remainder.
    """
    if len(rhs) != 1:
        return ((((), 1),), ()) if lhs == rhs else ((), lhs)
    ((divisor, divisor_factor),) = rhs
    quotient: dict[Monomial, int] = {}
    undivided: dict[Monomial, int] = {}
    for monomial, factor in lhs:
        atoms = list(monomial)
        try:
            for atom in divisor:
                atoms.remove(atom)
        except ValueError:
            undivided[monomial] = factor
            continue
        count, remainder = divmod(factor, divisor_factor)
        if remainder and monomial:
            undivided[monomial] = factor
            continue
        quotient[tuple(atoms)] = quotient.get(tuple(atoms), 0) + count
        if remainder:
            undivided[monomial] = remainder
    return _sorted(quotient), _sorted(undivided)


class SymInt:
    """An expression of symbols in the place of an int."""

    __slots__ = ("env", "expr", "hint")

    def __init__(self, env: ShapeEnv, expr: Expr, hint: int) -> None:
        self.env, self.expr, self.hint = env, expr, hint

    def __deepcopy__(self, _: dict[int, Any]) -> SymInt:
        # It is immutable, and comparisons of a copy must add guards to the same ShapeEnv.
        return self

    def _create(self, expr: Expr, hint: int) -> Any:
        """Return `expr` as an int where it is constant, else as a SymInt."""
        if not expr:
            return 0
        if len(expr) == 1 and expr[0][0] == ():
            return expr[0][1]
        return SymInt(self.env, expr, hint)

    def _as_expr(self, operand: object) -> Expr | None:
        """Return `operand` as an expression; None for no integer, or one of another ShapeEnv."""
        if isinstance(operand, SymInt):
            return operand.expr if operand.env is self.env else None
        if isinstance(operand, int):
            return (((), int(operand)),) if operand else ()
        return None

    def __add__(self, other: Any) -> Any:
        expr = self._as_expr(other)
        if expr is None:
            return NotImplemented if not isinstance(other, float) else float(self) + other
        return self._create(_plus(self.expr, expr), self.hint + hint(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        expr = self._as_expr(other)
        if expr is None:
            return NotImplemented if not isinstance(other, float) else float(self) - other
        return self._create(_plus(self.expr, expr, -1), self.hint - hint(other))

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self._create(_plus((), self.expr, -1), -self.hint)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __mul__(self, other: Any) -> Any:
        expr = self._as_expr(other)
        if expr is None:
            return NotImplemented if not isinstance(other, float) else float(self) * other
        return self._create(_times(self.expr, expr), self.hint * hint(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        expr = self._as_expr(other)
        return NotImplemented if expr is None else self._quotient(self.expr, expr, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        expr = self._as_expr(other)
        return NotImplemented if expr is None else self._quotient(expr, self.expr, other, self)

    def _quotient(self, lhs: Expr, rhs: Expr, dividend: Any, divisor: Any) -> Any:
        """Return dividend // divisor, whose expressions are `lhs` and `rhs`."""
        a, b = hint(dividend), hint(divisor)
        if not b:
            raise ZeroDivisionError("integer division by a size of zero")
        if b < 0:
            return int(dividend) // int(divisor)
        if self.env.range(rhs)[0] <= 0:  # guard that the divisor is positive
            self.env.decide(_plus((), rhs, -1), "<", -b)
        quotient, undivided = self.env.quotient(lhs, rhs)
        if not undivided:
            return self._create(quotient, a // b)
        atom: Atom = (undivided, rhs)
        return self._create(_plus(quotient, (((atom,), 1),)), a // b)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        quotient = self // other
        return quotient, self - quotient * other

    def __rdivmod__(self, other: Any) -> Any:
        quotient = other // self
        return quotient, other - quotient * self

    def __truediv__(self, other: Any) -> float:
        return cast(float, int(self) / other)

    def __rtruediv__(self, other: Any) -> float:
        return cast(float, other / int(self))

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and 0 <= other <= 4:
            return prod([self] * other)
        return int(self) ** other

    def __lshift__(self, other: int) -> Any:
        return self * (1 << other)

    def __rshift__(self, other: int) -> Any:
        return self // (1 << other)

    def __and__(self, other: int) -> int:
        return int(self) & other

    __rand__ = __and__

    def __or__(self, other: int) -> int:
        return int(self) | other

    __ror__ = __or__

    def _compare(self, operand: Any, relation: str, factor: int) -> Any:
        """Return True where `factor` times (self - operand) is in `relation` to 0."""
        if isinstance(operand, float):
            return ORDER[relation](factor * (int(self) - operand))
        expr = self._as_expr(operand)
        if expr is None:
            return NotImplemented
        difference = _plus((), _plus(self.expr, expr, -1), factor)
        return self.env.decide(difference, relation, factor * (self.hint - hint(operand)))

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<", 1)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "<", -1)

    def __le__(self, other: Any) -> Any:
        greater = self._compare(other, "<", -1)
        return greater if greater is NotImplemented else not greater

    def __ge__(self, other: Any) -> Any:
        less = self._compare(other, "<", 1)
        return less if less is NotImplemented else not less

    def __eq__(self, other: Any) -> Any:
        return self._compare(other, "==", 1)

    def __ne__(self, other: Any) -> Any:
        equal = self._compare(other, "==", 1)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        # Not the hint's hash: a lookup in a cache would compare with numbers, which adds guards.
        return hash((self.env.number, self.expr))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __int__(self) -> int:
        """Return the hint, and add the guard that it is the value: the plan holds for it alone."""
        self.env.pinned = True
        difference = _plus(self.expr, (((), self.hint),) if self.hint else (), -1)
        self.env.decide(difference, "==", 0)
        return self.hint

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, form: str) -> str:
        return format(int(self), form)

    def __repr__(self) -> str:
        return f"SymInt({self.expr!r}, env {self.env.number})"


def hint(size: Any) -> int:
    """Return the size at hand, adding no guard: for decisions that are correct for any size."""
    return size.hint if isinstance(size, SymInt) else int(size)


def range_of(size: Any) -> Bounds:
    """Return the least and the greatest value of a size within its symbols' bounds."""
    if isinstance(size, SymInt):
        return size.env.first_range(size.expr)
    return int(size), int(size)


def greatest(size: Any) -> int:
    """Return the greatest value of a size within its symbols' bounds."""
    return range_of(size)[1]


def split_size(size: Any, most: int) -> list[tuple[int, int]]:
    """Divide a size into as many parts of at most `most` as its greatest value needs.

    Returns the start and end of each part; some parts are empty where the size is small.
    """
    count = max(-(-greatest(size) // most), 1)
    return list(pairwise([size * i // count for i in range(count + 1)]))


def same(lhs: object, rhs: object) -> bool:
    """Return True where two sizes, or tuples of sizes, are equal whatever the symbols' sizes are.

    It adds no guard: for callers that stay correct where equal sizes count as different.
    """
    if type(lhs) is int and type(rhs) is int:
        return lhs == rhs
    if isinstance(lhs, (tuple, list)) and isinstance(rhs, (tuple, list)):
        return len(lhs) == len(rhs) and (lhs is rhs or all(map(same, lhs, rhs)))
    if not is_integer(lhs) or not is_integer(rhs):
        return lhs == rhs
    if isinstance(lhs, SymInt) and isinstance(rhs, SymInt) and lhs.env is not rhs.env:
        return False
    difference: Any = lhs - rhs
    if isinstance(difference, SymInt):
        return difference.env.first_range(difference.expr) == (0, 0)
    return bool(difference == 0)


def divides(unit: int, size: int) -> bool:
    """Return True where `size` is a multiple of `unit` whatever the symbols' sizes are."""
    if type(size) is int and type(unit) is int:
        return size % unit == 0
    if isinstance(unit, SymInt) and not isinstance(size, SymInt):
        return same(size, 0)
    return same(size % unit, 0)


def at_most(size: int, most: int) -> bool:
    """Return True where `size` is `most` or less whatever the symbols' sizes are."""
    excess: Any = size - most
    return greatest(excess) <= 0


def common_unit(size: Any, unit: int) -> int:
    """Return the greatest divisor of `unit` that divides `size` for all sizes of the symbols."""
    if type(size) is int:
        return gcd(size, unit)
    return next(n for n in range(unit, 0, -1) if unit % n == 0 and divides(n, size))


def as_constant(size: Any) -> int:
    """Return `size` as an int, adding a guard where it is a SymInt.

    For small numbers that are the same for most sizes, as a count of parts: unlike `int`, it does
    not set `ShapeEnv.pinned`.
    """
    if not isinstance(size, SymInt):
        return int(size)
    assert size == size.hint
    return size.hint


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for ints that are no bools, and for SymInts."""
    if type(value) is int:
        return True
    return isinstance(value, SymInt) or (isinstance(value, int) and not isinstance(value, bool))


def integers(values: object, dtype: Any = np.int64) -> NDArray[Any]:
    """Return an array of integers: of `dtype`, or of objects where some are SymInts."""
    return np.array(values, object) if _any_symbolic(values) else np.asarray(values, dtype)


def _any_symbolic(values: object) -> bool:
    if isinstance(values, np.ndarray):
        return is_symbolic(values)
    if isinstance(values, (tuple, list)):
        return any(map(_any_symbolic, values))
    return isinstance(values, SymInt)


def is_symbolic(array: NDArray[Any] | np.generic) -> bool:
    """Return True for arrays of integers, some of which are SymInts."""
    return array.dtype == object and any(isinstance(one, SymInt) for one in array.flat)


def holds_symbols(values: Iterable[object]) -> bool:
    """Return True where SymInts are among `values`, or in tuples among them."""
    return any(
        isinstance(one, SymInt) or (isinstance(one, tuple) and holds_symbols(one)) for one in values
    )


def as_integer(value: Any) -> int:
    """Return `value`, an element of an array of integers, as an int or unchanged if a SymInt."""
    return cast(int, value) if isinstance(value, SymInt) else int(value)


def plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return an object `array` of plain ints as int64; any other unchanged."""
    are_ints = array.dtype == object and array.size and all(type(one) is int for one in array.flat)
    return array.astype(np.int64) if are_ints else array


class SymFloat(float):
    """A size as a float for a uniform; its value is the current size."""

    size: SymInt

    @classmethod
    def create(cls, size: Any) -> float:
        """Return `size` as a float; a SymFloat where it is a SymInt."""
        if not isinstance(size, SymInt):
            return float(size)
        result = cls(size.hint)
        result.size = size
        return result


WITHOUT_SIZES = "_without_sizes"
"""The attribute that marks a frozen dataclass without any SymInt, so that it is searched once."""


class Substitution:
    """Replacement of each SymInt by a number in tuples, mappings and dataclasses.

    Values without a SymInt are returned unchanged. number: function from a SymInt to its number.
    """

    def __init__(self, number: Callable[[SymInt], int]) -> None:
        self._number = number
        self._done: dict[int, tuple[Any, Any]] = {}

    @classmethod
    def by_sizes(cls, sizes: Mapping[str, int]) -> Substitution:
        """Return the substitution by the sizes of all symbols."""
        return cls(lambda one: evaluate(one.expr, sizes))

    def __call__(self, value: T) -> T:
        """Return `value` with numbers in the place of each SymInt."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, SymInt):
            return cast(T, self._number(value))
        if isinstance(value, SymFloat):
            return cast(T, float(self._number(value.size)))
        if isinstance(value, SIMPLE):
            return value
        entry = self._done.get(id(value))
        if entry is None:
            # The entry keeps `value` alive, so that no other object gets its id.
            entry = self._done[id(value)] = value, self._made(value)
        return cast(T, entry[1])

    def _made(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            parts = [part if type(part) in PLAIN else self(part) for part in value]
            same = all(map(is_, parts, value))
            return value if same else type(value)(parts)
        names, can_be_marked = _dataclass_fields(type(value))  # type: ignore[arg-type]
        if names:
            memo: dict[str, Any] = vars(value) if can_be_marked else {}
            if WITHOUT_SIZES in memo:
                return value
            values = [getattr(value, name) for name in names]
            changed = [part if type(part) in PLAIN else self(part) for part in values]
            if not all(map(is_, changed, values)):
                return replace(value, **dict(zip(names, changed, strict=True)))
            memo[WITHOUT_SIZES] = True
            return value
        if isinstance(value, Mapping):
            pairs = {self(k): self(v) for k, v in value.items()}
            items = zip(pairs.items(), value.items(), strict=True)
            same = all(k is a and v is b for (k, v), (a, b) in items)
            return value if same else pairs
        if isinstance(value, np.ndarray) and value.dtype == object:
            array = np.empty(value.shape, object)
            array.reshape(-1)[:] = [self(one) for one in value.reshape(-1)]
            return array
        return value


@lru_cache(maxsize=1 << 10)
def _dataclass_fields(kind: type) -> tuple[tuple[str, ...], bool]:
    """Return the field names of the dataclass `kind`, and True where instances can be marked.

    Returns no names for any other type. Only frozen instances with a `__dict__` can be marked.
    """
    if not is_dataclass(kind):
        return (), False
    frozen = kind.__dataclass_params__.frozen and kind.__dictoffset__ != 0  # type: ignore[attr-defined]
    return tuple(one.name for one in fields(kind) if one.init), frozen
