"""Expressions compiled to NumPy calls, for repeated evaluation on arrays of known types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.types import Array

Step = Callable[[list[Any]], Any]


class CompiledExpression:
    """The value of `expr` for arguments of the types `dtypes`.

    What types of numbers and which functions they are is found once, where `Expr.evaluate` finds it
    for each array. Called with an array of each type, which broadcast; within `np.errstate`.
    """

    def __init__(self, expr: Expr, dtypes: Sequence[np.dtype[Any]]) -> None:
        whole = expr.expanded
        empty: list[Any] = []  # each part of arrays without numbers, which tells its type
        self._fixed, self._steps = list[Any](), list[Step]()
        parts = list(enumerate(whole._part_list))
        with np.errstate(all="ignore"):
            for _, (part, given) in parts:
                if isinstance(part, Arg):
                    empty.append(np.zeros(0, dtypes[part.index]))
                elif isinstance(part, Scalar | Constant):
                    empty.append(part.value)
                else:
                    assert isinstance(part, Call)
                    empty.append(part.row.evaluate(*(empty[place] for place in given)))
        numbers = [i for i, one in enumerate(empty) if not isinstance(one, np.ndarray)]
        calls = [i for i, (part, _) in parts if isinstance(part, Call) and i not in numbers]
        uses = [(i, place) for i in calls for place in whole._part_list[i][1] if place in numbers]
        slots: dict[object, int] = {}
        for use in uses:  # a number takes the type of what it is used with
            slots[use] = len(dtypes) + len(self._fixed)
            self._fixed.append(_typed(whole, empty, *use))
        first = len(dtypes) + len(self._fixed)
        own = {i: first + n for n, i in enumerate(calls)}
        own |= {i: part.index for i, (part, _) in parts if isinstance(part, Arg)}
        for i in calls:
            part, given = whole._part_list[i]
            assert isinstance(part, Call)
            places = [slots.get((i, place), own.get(place, 0)) for place in given]
            self._steps.append(_step(part, [empty[place] for place in given], places))
        root = len(empty) - 1
        self.dtype = np.asarray(empty[root]).dtype
        """The type of the value."""
        self.fresh = root in calls
        """True where the value is a new array, and not an argument or a number."""
        self._root = None if root in numbers else own[root]
        self._number = empty[root] if root in numbers else None

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(expr: Expr, dtypes: tuple[np.dtype[Any], ...]) -> CompiledExpression:
        """Return the one for `expr` and `dtypes`, which any number of threads may call."""
        return CompiledExpression(expr, dtypes)

    def __call__(self, *arrays: Array) -> Any:
        if self._root is None:
            return self._number
        values: list[Any] = [*arrays, *self._fixed]
        for step in self._steps:
            values.append(step(values))
        return values[self._root]


def _typed(whole: Expr, empty: Sequence[Any], call: int, place: int) -> Any:
    """The number at `place` as the function called at `call` is given it."""
    part, given = whole._part_list[call]
    assert isinstance(part, Call)
    rest = [empty[one] for one in given[part.row.condition :]]
    dtypes = {one.dtype for one in rest if isinstance(one, np.ndarray)}
    if len(dtypes) != 1 or place not in given[part.row.condition :]:
        return empty[place]
    return np.asarray(empty[place], next(iter(dtypes)))


def _step(part: Call, empty: Sequence[Any], places: Sequence[int]) -> Step:
    """The call of what `places` of a list hold, without looking at types again."""
    rest = empty[part.row.condition :]
    dtypes = {one.dtype for one in rest if isinstance(one, np.ndarray)}
    function: Any = part.row.numpy if len(dtypes) == 1 else part.row.evaluate
    assert function is not None
    if len(places) == 1:
        (a,) = places
        return lambda values: function(values[a])
    if len(places) == 2:
        a, b = places
        return lambda values: function(values[a], values[b])
    return lambda values: function(*[values[place] for place in places])
