"""Expressions of scalar functions: what is computed of the numbers at one place of some tensors.

An expression is a node of its own (`operators.Pointwise`) or the epilogue of a contraction. Kernels
get it as lines of GLSL, the numbers in it (`Scalar`) as uniforms: programs are the same for all.
Parts that are shared are there once: whatever walks an expression takes time as its parts are many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.types import Array, DType
from glnn.errors import ShapeError, shown
from glnn.graph.formula import read_formula
from glnn.graph.function import NUMBERS, Function, Number, kind_of
from glnn.graph.functions import FUNCTIONS

T = TypeVar("T")
MOST_CALLS = 64  # of one expression: longer ones are cut into several


class Expr:
    """A scalar expression of arguments."""

    arguments: tuple[Expr, ...] = ()
    """Arguments of a call; empty for other expressions."""

    def parts(self) -> Iterator[Expr]:
        """All parts, each once, arguments of a call before the call, the whole last."""
        return (part for part, _ in self._part_list)

    def fold(self, visit: Callable[[Expr, tuple[T, ...]], T]) -> list[T]:
        """Return the value of `visit` for each of `parts`, called with the part and its arguments'
        values.
        """
        result: list[T] = []
        for part, places in self._part_list:
            result.append(visit(part, tuple([result[place] for place in places])))
        return result

    def evaluate(self, *arrays: Array) -> Array:
        """The value by NumPy for these arguments, which broadcast. Never warns."""
        whole, values = self.expanded, list[Any]()
        with np.errstate(all="ignore"):
            for (part, places), spent in zip(whole._part_list, whole._last_uses, strict=True):
                if isinstance(part, Call):
                    values.append(part.row.evaluate(*[values[place] for place in places]))
                else:
                    values.append(arrays[part.index] if isinstance(part, Arg) else _value(part))
                for place in spent:
                    values[place] = None  # its memory, which a cache still has, is the next one's
        return np.asarray(values[-1])

    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        """The same with each part that `change` gives something for replaced by that."""

        def changed(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
            if (other := change(part)) is not None:
                return other
            if isinstance(part, Call) and any(
                new is not old for new, old in zip(arguments, part.arguments, strict=True)
            ):
                return Call(part.function, arguments)
            return part

        return self.fold(changed)[-1]

    def __call__(self, *arguments: Expr) -> Expr:
        """The expression of other arguments."""
        return self.replace(lambda part: arguments[part.index] if isinstance(part, Arg) else None)

    @property
    def numbers(self) -> tuple[Scalar, ...]:
        """The Scalars in it, in the order of `parts`."""
        return tuple(part for part in self.parts() if isinstance(part, Scalar))

    @property
    def scalars(self) -> tuple[Number, ...]:
        """The values of `numbers`."""
        return tuple(part.value for part in self.numbers)

    @cached_property
    def structure(self) -> str:
        """Text of the expression without the values of its Scalars: the same where a program is
        shared.
        """
        return self.text()

    @cached_property
    def arity(self) -> int:
        """Number of arguments: one more than the greatest index of an Arg."""
        return 1 + max((p.index for p in self.parts() if isinstance(p, Arg)), default=-1)

    @cached_property
    def calls(self) -> int:
        """Number of function calls."""
        return sum(isinstance(part, Call) for part in self.parts())

    @property
    def flops(self) -> int:
        """Floating-point operations for one number."""
        return sum(part.row.flops for part in self.expanded.parts() if isinstance(part, Call))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that it calls, each once, in the order in which they are needed."""
        names = dict.fromkeys(part.function for part in self.parts() if isinstance(part, Call))
        return tuple(FUNCTIONS[name] for name in names)

    @cached_property
    def expanded(self) -> Expr:
        """The same with what is defined by other functions (`Function.body`) written out."""
        if not any(row.body for row in self.functions):
            return self

        def written(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
            if not isinstance(part, Call):
                return part
            if part.row.body is not None:
                return formula(part.row.body).expanded(*arguments)
            return Call(part.function, arguments)

        return self.fold(written)[-1]

    def text(self) -> str:
        """`add(#0, mul(f0, #1))`: arguments by their number, Scalars by kind and number.

        A call that is needed more than once stands before: `t0 = exp(#0); mul(t0, t0)`.
        """
        uses = [0] * len(self._part_list)
        for _, places in self._part_list:
            for place in places:
                uses[place] += 1
        names: dict[int, str] = {
            id(s): f"{kind_of(s.value)[0]}{i}" for i, s in enumerate(self.numbers)
        }
        lines: list[str] = []
        counts = iter(uses)

        def written(part: Expr, arguments: tuple[str, ...]) -> str:
            used = next(counts)
            if not isinstance(part, Call):
                return names.get(id(part)) or str(part)
            text = f"{part.function}({', '.join(arguments)})"
            if used < 2:
                return text
            lines.append(f"t{len(lines)} = {text}")
            return f"t{len(lines) - 1}"

        last = self.fold(written)[-1]
        return "; ".join([*lines, last])

    def infer(self, dtypes: Sequence[DType]) -> DType:
        """The type of the result for arguments of these types; of numbers alone: their own.

        Raises ShapeError where a function does not take such arguments (numbers of different types
        never mix: casts are functions), where there are too few, or more calls than MOST_CALLS.
        """
        key = tuple(dtypes)
        result = self._results.get(key)
        if result is None:  # asked again for every shape
            if self.calls > MOST_CALLS:
                raise ShapeError(f"an expression has at most {MOST_CALLS} calls, got {self.calls}")
            result = self._results[key] = self.expanded.infer_parts(key)[-1]
        return result

    def infer_parts(self, dtypes: Sequence[DType]) -> list[DType]:
        """The type of each of `parts`, for arguments of these types. Raises as `infer`."""
        key = tuple(dtypes)
        inferred = self._inferred.get(key)
        if inferred is None:
            inferred = self._inferred[key] = tuple(self._infer_parts(key))
        return list(inferred)

    @cached_property
    def _results(self) -> dict[tuple[DType, ...], DType]:
        """Results of `infer`, by its arguments."""
        return {}

    @cached_property
    def _inferred(self) -> dict[tuple[DType, ...], tuple[DType, ...]]:
        """Results of `infer_parts`, by its arguments."""
        return {}

    def _infer_parts(self, dtypes: Sequence[DType]) -> list[DType]:
        """Compute `infer_parts`, part by part."""
        if self.arity > len(dtypes):
            raise ShapeError(f"{self.text()} is of {self.arity} arguments, got {len(dtypes)}")

        def typed(part: Expr, arguments: tuple[DType | str, ...]) -> DType | str:
            if isinstance(part, Arg):
                return dtypes[part.index]
            if not isinstance(part, Call):
                return kind_of(_value(part))
            numbers = [_value(a) for a in part.arguments if isinstance(a, Scalar | Constant)]
            part.row.check_numbers(arguments, numbers)
            return part.row.infer(arguments)

        return [NUMBERS[o] if isinstance(o, str) else o for o in self.fold(typed)]

    @cached_property
    def _part_list(self) -> tuple[tuple[Expr, tuple[int, ...]], ...]:
        """Each part with the places of its arguments; equal calls are one, and Scalars by identity.

        By identity, since whether two numbers happen to be equal must not make another program.
        """

        if not self.arguments:
            return ((self, ()),)

        def key(part: Expr) -> Any:
            return id(part) if isinstance(part, Scalar) else part._identity

        return parts_of(self, lambda part: part.arguments, key)

    @cached_property
    def _last_uses(self) -> tuple[tuple[int, ...], ...]:
        """For each part, the places of parts that nothing reads after it."""
        last = {place: i for i, (_, places) in enumerate(self._part_list) for place in places}
        spent: list[list[int]] = [[] for _ in self._part_list]
        for place, i in last.items():
            spent[i].append(place)
        return tuple(map(tuple, spent))

    @property
    def _identity(self) -> tuple[Any, ...]:
        """Return the attributes that tell this expression from others, except for its arguments."""
        raise NotImplementedError

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple((part._identity, places) for part, places in self._part_list)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)


@dataclass(frozen=True, eq=False)
class Arg(Expr):
    """The argument number `index`."""

    index: int

    def __str__(self) -> str:
        return f"#{self.index}"

    @property
    def _identity(self) -> tuple[Any, ...]:
        return ("argument", self.index)


@dataclass(frozen=True, eq=False)
class Scalar(Expr):
    """A number that is known when a graph is planned: float, int or bool as Python has it."""

    value: Number

    @property
    def _identity(self) -> tuple[Any, ...]:
        return ("number", kind_of(self.value), repr(self.value))


@dataclass(frozen=True, eq=False)
class Constant(Expr):
    """A number that belongs to a function's formula, as 0.5 in GELU's: it is text in kernels."""

    value: Number

    def __str__(self) -> str:
        return repr(self.value)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return ("constant", kind_of(self.value), repr(self.value))


@dataclass(frozen=True, eq=False)
class Call(Expr):
    """The function of FUNCTIONS called `function`, of expressions."""

    function: str
    arguments: tuple[Expr, ...] = ()

    def __post_init__(self) -> None:
        if (row := FUNCTIONS.get(self.function)) is None:
            raise ShapeError(f"unknown function {shown(self.function)}")
        if len(self.arguments) != row.arity:
            raise ShapeError(
                f"{self.function} takes {row.arity} arguments, got {len(self.arguments)}"
            )

    @property
    def row(self) -> Function:
        """The function's row."""
        return FUNCTIONS[self.function]

    @property
    def _identity(self) -> tuple[Any, ...]:
        return ("call", self.function)


def call(function: str, *arguments: Expr | Number) -> Call:
    """The function so called of expressions and numbers."""
    return Call(function, tuple(a if isinstance(a, Expr) else Scalar(a) for a in arguments))


def replace_part(expr: Expr, part: Expr, by: Expr) -> Expr:
    """Return `expr` with `by` wherever it has `part`."""
    return expr.replace(lambda one: by if one == part else None)


@cache
def formula(text: str) -> Expr:
    """The expression that `text` is, `0.5 * a * (1.0 + erf(a))`, as `read_formula` reads it.

    a to d are its arguments 0 to 3, da to dd the arguments 4 to 7; numbers are Constants.
    """
    return read_formula(text, Arg, Constant, Call)


def _value(part: Expr) -> Number:
    assert isinstance(part, Scalar | Constant)
    return part.value


def parts_of(
    whole: T, reads: Callable[[T], Sequence[T]], key: Callable[[T], Hashable]
) -> tuple[tuple[T, tuple[int, ...]], ...]:
    """Return all parts of `whole`, each with the places of those that it reads, itself last.

    key: what a part is but for those; of equal ones that read the same, one is listed. Nothing
    calls itself.
    """
    listed: list[tuple[T, tuple[int, ...]]] = []
    places: dict[int, int] = {}  # by identity
    known: dict[Hashable, int] = {}
    stack = [whole]
    while stack:
        part = stack[-1]
        read_parts = reads(part)
        if waiting := [read for read in read_parts if id(read) not in places]:
            stack += reversed(waiting)
            continue
        stack.pop()
        if id(part) in places:
            continue
        at = tuple(places[id(read)] for read in read_parts)
        if (identity := (key(part), at)) not in known:
            known[identity] = len(listed)
            listed.append((part, at))
        places[id(part)] = known[identity]
    return tuple(listed)


SUM = call("add", Arg(0), Arg(1))
"""Sum of two tensors, or of a result and its bias."""
PRODUCT = call("mul", Arg(0), Arg(1))
SCALE_AND_SHIFT = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
"""Batch normalisation of each channel at inference."""
