"""Expressions that are evaluated over and over: alike calls of neighbouring operands are one call.

Steps of recurrent layers are of few numbers, so that each call of NumPy takes longer than its
arithmetic. The gates of a unit are alike: their sums lie side by side, so the sum of all gates and
inputs is one call, and the sigmoid of three gates another one. This is the superword-level
parallelism of compilers (Larsen and Amarasinghe 2000), of arrays instead of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from glnn.array_functions import writes_to
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.function import Function, Number
from glnn.types import Array

Work = Callable[[], object]


@dataclass(frozen=True)
class _Place:
    """Entries `start` to before `stop` of a bank, an array of equally shaped ones."""

    bank: int
    start: int
    stop: int


Operand = _Place | Number


@dataclass(frozen=True)
class _Instruction:
    """A call of `row` on packs of entries; its result is a bank of its own."""

    row: Function
    operands: tuple[Operand, ...]
    count: int
    dtype: np.dtype[Any]
    plain: bool
    """True where all operands that are arrays have one type, so that nothing is cast in between."""


@dataclass(frozen=True)
class PackedProgram:
    """Instructions for some expressions, whose arguments lie in banks, one behind the other.

    banks: the number of arguments in each of the banks that are given. results: of each expression,
    where its value lies.
    """

    banks: tuple[int, ...]
    instructions: tuple[_Instruction, ...]
    results: tuple[Operand, ...]
    dtype: np.dtype[Any]

    def bind(self, banks: Sequence[Array], out: Array) -> list[Work]:
        """Return calls that, in order, compute all expressions from `banks` into `out`.

        banks: each (arguments, *shape). out: (expressions, *shape), which shares no memory with
        these. All are of the program's type. The calls may be repeated when the banks change.
        """
        rooms, shape = list(banks), out.shape[1:]
        into = {p.bank: i for i, p in enumerate(self.results) if isinstance(p, _Place)}
        done: set[int] = set()
        work: list[Work] = []

        def found(operand: Operand, dtype: np.dtype[Any] | None) -> Any:
            if isinstance(operand, _Place):
                return rooms[operand.bank][operand.start : operand.stop]
            return operand if dtype is None else np.asarray(operand, dtype)

        for number, one in enumerate(self.instructions, len(self.banks)):
            last = into.get(number)
            if last is not None and one.count == 1 and one.dtype == out.dtype:
                room = out[last : last + 1]
                done.add(last)
            else:
                room = np.empty((one.count, *shape), one.dtype)
            rooms.append(room)
            first = one.row.condition
            dtype = self._dtype(one) if one.plain else None
            given = [found(o, dtype if i >= first else None) for i, o in enumerate(one.operands)]
            work.append(_call(one, given, room))
        for i, place in enumerate(self.results):
            if i not in done:
                work.append(_copy(out[i : i + 1], found(place, out.dtype)))
        return work

    def _dtype(self, one: _Instruction) -> np.dtype[Any]:
        """The type of the arrays among the operands of `one`, and of numbers beside them."""
        given = self.banks
        for operand in one.operands[one.row.condition :]:
            if isinstance(operand, _Place):
                inner = operand.bank - len(given)
                return self.dtype if inner < 0 else self.instructions[inner].dtype
        return self.dtype


def _call(one: _Instruction, given: Sequence[Any], room: Array) -> Work:
    """The call that `one` is."""
    function = one.row.numpy
    assert function is not None
    if one.plain and writes_to(function):
        return lambda: function(*given, out=room)
    compute = function if one.plain else one.row.evaluate
    return lambda: np.copyto(room, compute(*given), casting="unsafe")


def _copy(target: Array, source: Any) -> Work:
    return lambda: np.copyto(target, source, casting="unsafe")


@lru_cache(maxsize=256)
def packed_program(
    exprs: tuple[Expr, ...], banks: tuple[int, ...], dtype: np.dtype[Any]
) -> PackedProgram:
    """Return the program of `exprs`, whose arguments fill `banks`, all of them of type `dtype`.

    Arg(0) is the first of the first bank. There are no more arguments than the banks have places.
    """
    return _Packing(banks, dtype).program(exprs)


class _Packing:
    """The making of a program."""

    def __init__(self, banks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._banks, self._dtype = banks, dtype
        self._places: dict[int, Operand] = {}  # by what a part is numbered
        self._types: dict[int, Any] = {}  # an array without numbers, or a number
        self._calls: dict[int, tuple[Function, tuple[int, ...]]] = {}
        self._numbered: dict[Any, int] = {}
        self._instructions: list[_Instruction] = []

    def program(self, exprs: Sequence[Expr]) -> PackedProgram:
        """The program of `exprs`."""
        last = [self._numbers(expr.expanded) for expr in exprs]
        waiting = dict(self._calls)
        while waiting:
            ready = {n: one for n, one in waiting.items() if all(o in self._places for o in one[1])}
            for run in self._runs(ready):
                self._add(run)
            waiting = {n: one for n, one in waiting.items() if n not in ready}
        results = tuple(self._places[number] for number in last)
        return PackedProgram(self._banks, tuple(self._instructions), results, self._dtype)

    def _numbers(self, expr: Expr) -> int:
        """Number all parts of `expr`, equal ones of other expressions alike; return its own."""

        def visit(part: Expr, given: tuple[int, ...]) -> int:
            key = part.value if isinstance(part, Scalar | Constant) else part._identity
            number = self._numbered.setdefault(
                (type(part).__name__, repr(key), given), len(self._numbered)
            )
            if number in self._types:
                return number
            if isinstance(part, Arg):
                self._places[number] = self._argument(part.index)
                self._types[number] = np.zeros(0, self._dtype)
            elif isinstance(part, Scalar | Constant):
                self._places[number] = self._types[number] = part.value
            else:
                assert isinstance(part, Call)
                self._types[number] = part.row.evaluate(*(self._types[n] for n in given))
                if isinstance(self._types[number], np.ndarray):
                    self._calls[number] = part.row, given
                else:  # of numbers alone
                    self._places[number] = self._types[number]
            return number

        return expr.fold(visit)[-1]

    def _argument(self, index: int) -> _Place:
        for bank, count in enumerate(self._banks):
            if index < count:
                return _Place(bank, index, index + 1)
            index -= count
        raise IndexError(f"argument {index} is beyond the banks {self._banks}")

    def _runs(self, ready: dict[int, tuple[Function, tuple[int, ...]]]) -> list[list[int]]:
        """The calls that are `ready`, those together that can be one."""

        def order(number: int) -> tuple[Any, ...]:
            row, given = ready[number]
            places = [self._places[n] for n in given]
            return row.name, [
                (0, p.bank, p.start) if isinstance(p, _Place) else (1, repr(p), 0) for p in places
            ]

        runs: list[list[int]] = []
        for number in sorted(ready, key=order):
            if runs and self._follows(ready[runs[-1][-1]], ready[number]):
                runs[-1].append(number)
            else:
                runs.append([number])
        return runs

    def _follows(
        self, one: tuple[Function, tuple[int, ...]], other: tuple[Function, tuple[int, ...]]
    ) -> bool:
        """Return True where each operand of `other` lies behind that of `one`, or is its number."""
        if one[0] is not other[0]:
            return False
        for before, after in zip(one[1], other[1], strict=True):
            here, there = self._places[before], self._places[after]
            if isinstance(here, _Place) and isinstance(there, _Place):
                if (here.bank, here.stop) != (there.bank, there.start):
                    return False
            elif isinstance(here, _Place) or before != after:
                return False
        return True

    def _add(self, run: Sequence[int]) -> None:
        """Make one instruction of the calls in `run`."""
        row, first = self._calls[run[0]]
        _, last = self._calls[run[-1]]
        operands: list[Operand] = []
        for start, stop in zip(first, last, strict=True):
            here, there = self._places[start], self._places[stop]
            if isinstance(here, _Place) and isinstance(there, _Place):
                operands.append(_Place(here.bank, here.start, there.stop))
            else:
                operands.append(here)
        arrays = [self._types[n] for n in first[row.condition :]]
        dtypes = {array.dtype for array in arrays if isinstance(array, np.ndarray)}
        condition = not row.condition or isinstance(self._types[first[0]], np.ndarray)
        bank = len(self._banks) + len(self._instructions)
        self._instructions.append(
            _Instruction(
                row,
                tuple(operands),
                len(run),
                self._types[run[0]].dtype,
                len(dtypes) == 1 and condition,
            )
        )
        for i, number in enumerate(run):
            self._places[number] = _Place(bank, i, i + 1)
