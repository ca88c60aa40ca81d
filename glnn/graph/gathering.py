"""Moves of few numbers by NumPy: one gather with cached indices instead of chained views."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from glnn.core.types import Array, Shape

FEW = 1 << 14
"""Most numbers whose indices are cached: indices take two to eight times the bytes of numbers."""
OFTEN = 8
"""Runs with the same shapes after which numbers are gathered: finding indices takes some runs."""
OFFSET = 1 << 40  # between the numbers of the two arrays that `from_move` moves


def for_shapes(
    general: Callable[..., Any], make: Callable[..., Callable[..., Any] | None], runs: int = OFTEN
) -> Callable[..., Any]:
    """Return a function that computes the same as `general`, faster for repeated shapes.

    After `runs` successive calls with arrays of the same shapes, it calls the function that `make`
    returns for such arrays, unless that is None.
    """
    shapes: list[Shape] = []
    count, special = 0, None

    def perform(*arrays: Array) -> Any:
        nonlocal shapes, count, special
        current = [array.shape for array in arrays]
        if current != shapes:
            shapes, count, special = current, 0, None
        if count < runs:
            count += 1
            if count == runs:
                special = make(*arrays)
        return general(*arrays) if special is None else special(*arrays)

    return perform


class Gathering:
    """A function that gathers numbers of an array of `shape`.

    indices: of each number of the result, in the flat array; -1 for `fill`. The result has the
    shape of `indices`; it is a view where they are consecutive.
    """

    def __init__(self, shape: Shape, indices: Array, dtype: np.dtype[Any], fill: Any = 0) -> None:
        self._size, self._shape, flat = prod(shape), indices.shape, indices.reshape(-1)
        first = int(flat[0]) if flat.size else 0
        is_run = bool((flat == np.arange(first, first + flat.size)).all()) and first >= 0
        self._run = slice(first, first + flat.size) if is_run else None
        is_filled = indices < 0
        self._extended: Array | None = None  # a copy of the array, with `fill` behind it
        if is_filled.any():
            self._extended = np.empty(self._size + 1, dtype)
            self._extended[-1] = np.asarray(fill).astype(dtype)
        self._indices = np.where(is_filled, self._size, indices).astype(np.intp)

    @classmethod
    def from_move(
        cls, move: Callable[[Array], Array], shape: Shape, dtype: np.dtype[Any], fill: Any
    ) -> Gathering | None:
        """Return the Gathering equal to `move` on arrays of `shape`; None for too many numbers.

        It moves an array of indices, and another one with OFFSET added: where the results do not
        differ by OFFSET, the move fills.
        """
        if prod(shape) > 4 * FEW:
            return None
        numbers = np.arange(prod(shape), dtype=np.int64).reshape(shape)
        with np.errstate(all="ignore"):  # the number to fill with may be no integer
            first, second = np.asarray(move(numbers)), np.asarray(move(numbers + OFFSET))
        if first.size > FEW:
            return None
        return cls(shape, np.where(second - first == OFFSET, first, -1), dtype, fill)

    def __call__(self, x: Array) -> Array:
        if self._run is not None:
            return x.reshape(-1)[self._run].reshape(self._shape)
        if self._extended is None:
            return x.take(self._indices)
        self._extended[:-1] = x.reshape(-1)
        return self._extended.take(self._indices)
