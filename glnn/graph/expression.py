"""Expressions of scalar functions, computed of the numbers at the same index of some tensors.

An expression is a node of its own (`operators.Pointwise`) or the epilogue of a contraction. Kernels
get it as lines of GLSL and its numbers (`Scalar`) as uniforms, so that expressions that differ only
in numbers share a program. Common parts are stored once: a traversal takes time in proportion to
the number of distinct parts.
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
MOST_CALLS = 64  # of one expression; longer ones are split into several


class Expr:
    """A scalar expression of arguments."""

    arguments: tuple[Expr, ...] = ()
    """Arguments of a call; empty for other expressions."""

    def parts(self) -> Iterator[Expr]:
        """Yield all distinct parts in postorder: the arguments of a call before the call, the whole
        expression last.
        """
        return (part for part, _ in self._part_list)

    def fold(self, visit: Callable[[Expr, tuple[T, ...]], T]) -> list[T]:
        """Return the value of each of `parts`: the result of `visit`, which is called with the part
        and the values of its arguments.
        """
        result: list[T] = []
        for part, indices in self._part_list:
            result.append(visit(part, tuple([result[index] for index in indices])))
        return result

    def evaluate(self, *arrays: Array) -> Array:
        """Return the value by NumPy for these arguments, which broadcast. Never warns."""
        whole, values = self.expanded, list[Any]()
        with np.errstate(all="ignore"):
            for (part, indices), dead in zip(whole._part_list, whole._last_uses, strict=True):
                if isinstance(part, Call):
                    values.append(part.row.evaluate(*[values[index] for index in indices]))
                else:
                    values.append(arrays[part.index] if isinstance(part, Arg) else _value(part))
                for index in dead:
                    values[index] = None  # the next call reuses its memory, still in a cache
        return np.asarray(values[-1])

    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        """Return the expression with each part replaced for which `change` returns another."""

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
        """Return the expression with `arguments` substituted for its own."""
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
        """Text of the expression without the values of its Scalars: the same for expressions that
        share a program.
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
        """The functions that it calls, each once, in the order of first use."""
        names = dict.fromkeys(part.function for part in self.parts() if isinstance(part, Call))
        return tuple(FUNCTIONS[name] for name in names)

    @cached_property
    def expanded(self) -> Expr:
        """The expression with calls of functions that others define (`Function.body`) inlined."""
        if not any(row.body for row in self.functions):
            return self

        def inline(part: Expr, arguments: tuple[Expr, ...]) -> Expr:
            if not isinstance(part, Call):
                return part
            if part.row.body is not None:
                return formula(part.row.body).expanded(*arguments)
            return Call(part.function, arguments)

        return self.fold(inline)[-1]

    def text(self) -> str:
        """Return the expression as text, `add(#0, mul(f0, #1))`: arguments by their index, Scalars
        by kind and number.

        A call that is used more than once comes first: `t0 = exp(#0); mul(t0, t0)`.
        """
        uses = [0] * len(self._part_list)
        for _, indices in self._part_list:
            for index in indices:
                uses[index] += 1
        names: dict[int, str] = {
            id(s): f"{kind_of(s.value)[0]}{i}" for i, s in enumerate(self.numbers)
        }
        lines: list[str] = []
        counts = iter(uses)

        def write(part: Expr, arguments: tuple[str, ...]) -> str:
            count = next(counts)
            if not isinstance(part, Call):
                return names.get(id(part)) or str(part)
            text = f"{part.function}({', '.join(arguments)})"
            if count < 2:
                return text
            lines.append(f"t{len(lines)} = {text}")
            return f"t{len(lines) - 1}"

        last = self.fold(write)[-1]
        return "; ".join([*lines, last])

    def infer(self, dtypes: Sequence[DType]) -> DType:
        """Return the type of the result for arguments of types `dtypes`; an expression of numbers
        alone has theirs.

        Raises ShapeError where a function does not take such arguments (numbers of different types
        never mix: casts are functions), where there are too few, or more calls than MOST_CALLS.
        """
        key = tuple(dtypes)
        result = self._result_types.get(key)
        if result is None:  # cached, since it is inferred again for every shape
            if self.calls > MOST_CALLS:
                raise ShapeError(f"an expression has at most {MOST_CALLS} calls, got {self.calls}")
            result = self._result_types[key] = self.expanded.infer_parts(key)[-1]
        return result

    def infer_parts(self, dtypes: Sequence[DType]) -> list[DType]:
        """Return the type of each of `parts` for arguments of types `dtypes`. Raises as `infer`."""
        key = tuple(dtypes)
        types = self._part_types.get(key)
        if types is None:
            types = self._part_types[key] = tuple(self._infer_parts(key))
        return list(types)

    @cached_property
    def _result_types(self) -> dict[tuple[DType, ...], DType]:
        """Results of `infer`, by its arguments."""
        return {}

    @cached_property
    def _part_types(self) -> dict[tuple[DType, ...], tuple[DType, ...]]:
        """Results of `infer_parts`, by its arguments."""
        return {}

    def _infer_parts(self, dtypes: Sequence[DType]) -> list[DType]:
        """Compute `infer_parts`, part by part."""
        if self.arity > len(dtypes):
            raise ShapeError(f"{self.text()} is of {self.arity} arguments, got {len(dtypes)}")

        def type_of(part: Expr, arguments: tuple[DType | str, ...]) -> DType | str:
            if isinstance(part, Arg):
                return dtypes[part.index]
            if not isinstance(part, Call):
                return kind_of(_value(part))
            numbers = [_value(a) for a in part.arguments if isinstance(a, Scalar | Constant)]
            part.row.check_numbers(arguments, numbers)
            return part.row.infer(arguments)

        return [NUMBERS[o] if isinstance(o, str) else o for o in self.fold(type_of)]

    @cached_property
    def _part_list(self) -> tuple[tuple[Expr, tuple[int, ...]], ...]:
        """The distinct parts in postorder, each with the indices of its arguments in this list.

        Calls are compared by equality, but Scalars by identity: whether two numbers happen to be
        equal must not make another program.
        """
        if not self.arguments:
            return ((self, ()),)

        def key(part: Expr) -> Any:
            return id(part) if isinstance(part, Scalar) else part._identity

        return parts_of(self, lambda part: part.arguments, key)

    @cached_property
    def _last_uses(self) -> tuple[tuple[int, ...], ...]:
        """For each part, the indices of parts that it is the last to read."""
        last_reader = {
            index: i for i, (_, indices) in enumerate(self._part_list) for index in indices
        }
        result: list[list[int]] = [[] for _ in self._part_list]
        for index, i in last_reader.items():
            result[i].append(index)
        return tuple(map(tuple, result))

    @property
    def _identity(self) -> tuple[Any, ...]:
        """The attributes that tell this expression from others, except for its arguments."""
        raise NotImplementedError

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple((part._identity, indices) for part, indices in self._part_list)

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
    """A number that is known when a graph is planned, a Python float, int or bool; a uniform in
    kernels.
    """

    value: Number

    @property
    def _identity(self) -> tuple[Any, ...]:
        return ("number", kind_of(self.value), repr(self.value))


@dataclass(frozen=True, eq=False)
class Constant(Expr):
    """A number that belongs to a function's formula, as 0.5 in GELU's; text in kernels."""

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
    """Return a call of `function`; numbers among the arguments become Scalars."""
    return Call(function, tuple(a if isinstance(a, Expr) else Scalar(a) for a in arguments))


def replace_part(expr: Expr, part: Expr, by: Expr) -> Expr:
    """Return `expr` with each part that equals `part` replaced by `by`."""
    return expr.replace(lambda candidate: by if candidate == part else None)


@cache
def formula(text: str) -> Expr:
    """Return the expression of the formula `text`, as `0.5 * a * (1.0 + erf(a))`; see
    `read_formula`.

    a to d are the arguments 0 to 3, da to dd the arguments 4 to 7; numbers are Constants.
    """
    return read_formula(text, Arg, Constant, Call)


def _value(part: Expr) -> Number:
    assert isinstance(part, Scalar | Constant)
    return part.value


def parts_of(
    whole: T, reads: Callable[[T], Sequence[T]], key: Callable[[T], Hashable]
) -> tuple[tuple[T, tuple[int, ...]], ...]:
    """Return the distinct parts of `whole` in postorder, each with the indices in this list of the
    parts that it reads; `whole` comes last.

    reads: the parts that a part reads; there are no cycles. key: all that tells a part from others
    besides what it reads; of parts that have the same key and read the same, one is listed. It does
    not recurse.
    """
    result: list[tuple[T, tuple[int, ...]]] = []
    index_of: dict[int, int] = {}  # by the identity of a part
    index_of_key: dict[Hashable, int] = {}
    stack = [whole]
    while stack:
        part = stack[-1]
        read_parts = reads(part)
        if unvisited := [read for read in read_parts if id(read) not in index_of]:
            stack += reversed(unvisited)
            continue
        stack.pop()
        if id(part) in index_of:
            continue
        indices = tuple(index_of[id(read)] for read in read_parts)
        if (identity := (key(part), indices)) not in index_of_key:
            index_of_key[identity] = len(result)
            result.append((part, indices))
        index_of[id(part)] = index_of_key[identity]
    return tuple(result)


SUM = call("add", Arg(0), Arg(1))
"""Sum of two tensors, or of a result and its bias."""
PRODUCT = call("mul", Arg(0), Arg(1))
SCALE_AND_SHIFT = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
"""Batch normalisation of each channel at inference."""
