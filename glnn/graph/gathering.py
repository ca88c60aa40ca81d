"""Moves of few numbers by NumPy: a single look-up with cached indices instead of chained views."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from glnn.core.types import Array, Shape

FEW = 1 << 14
"""Numbers up to which places are kept: they take twice to eight times as many bytes as these."""
OFTEN = 8
"""Runs after which places are looked up, not moved: to find them takes as long as some runs."""
BEYOND = 1 << 40  # what the places of a second look lie behind those of the first


def for_shapes(
    general: Callable[..., Any], make: Callable[..., Callable[..., Any] | None], runs: int = OFTEN
) -> Callable[..., Any]:
    """Return a function of arrays that does what `general` does, whatever their shapes are.

    Where the same shapes came `runs` times, one after the other, what `make` gives for such arrays
    does it, if that is not None.
    """
    shapes: list[Shape] = []
    came, special = 0, None

    def perform(*arrays: Array) -> Any:
        nonlocal shapes, came, special
        current = [one.shape for one in arrays]
        if current != shapes:
            shapes, came, special = current, 0, None
        if came < runs:
            came += 1
            if came == runs:
                special = make(*arrays)
        return general(*arrays) if special is None else special(*arrays)

    return perform


class Gathering:
    """The numbers of an array at `places`, or `fill` where these are -1.

    places: of the result, each a place of the flat array of `shape`. Called with that array; gives
    one of the shape of `places`, a view where they follow one another.
    """

    def __init__(self, shape: Shape, places: Array, dtype: np.dtype[Any], fill: Any = 0) -> None:
        self._size, self._shape, flat = prod(shape), places.shape, places.reshape(-1)
        first = int(flat[0]) if flat.size else 0
        run = bool((flat == np.arange(first, first + flat.size)).all()) and first >= 0
        self._run = slice(first, first + flat.size) if run else None
        outside = places < 0
        self._room: Array | None = None
        if outside.any():
            self._room = np.empty(self._size + 1, dtype)
            self._room[-1] = np.asarray(fill).astype(dtype)
        self._indices = np.where(outside, self._size, places).astype(np.intp)

    @classmethod
    def from_move(
        cls, move: Callable[[Array], Array], shape: Shape, dtype: np.dtype[Any], fill: Any
    ) -> Gathering | None:
        """Return what `move` does with arrays of `shape`; None where it is of too many numbers."""
        if prod(shape) > 4 * FEW:
            return None
        numbers = np.arange(prod(shape), dtype=np.int64).reshape(shape)
        with np.errstate(all="ignore"):  # what is filled in may be none of the integers
            first, second = np.asarray(move(numbers)), np.asarray(move(numbers + BEYOND))
        if first.size > FEW:
            return None
        # Where both are the same, it is no number of x.
        return cls(shape, np.where(second - first == BEYOND, first, -1), dtype, fill)

    def __call__(self, x: Array) -> Array:
        if self._run is not None:
            return x.reshape(-1)[self._run].reshape(self._shape)
        if self._room is None:
            return x.take(self._indices)
        self._room[:-1] = x.reshape(-1)
        return self._room.take(self._indices)
