"""Evaluate expressions with NumPy block by block, so that intermediate results stay in a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from glnn.graph.compiled_expression import CompiledExpression
from glnn.graph.expression import Expr
from glnn.types import Array, Shape

NUMBERS = 1 << 16  # of a block: some of them, of 4 bytes, are what a core's cache holds


def evaluated(
    expr: Expr,
    arrays: Sequence[Array],
    shape: Shape,
    dtype: np.dtype[np.generic],
    out: Array | None = None,
) -> Array:
    """Return `expr` of `arrays`, which broadcast to `shape`, as a new array. Never warns.

    out: of that shape and dtype, where the result is to lie; it may be one of `arrays`, but may not
    share memory with others.
    """
    if out is None:
        out = np.empty(shape, dtype)
    if prod(shape) <= NUMBERS:
        out[...] = expr.evaluate(*arrays)
        return out
    for place in blocks(shape):
        parts = (array[_within(array.shape, place, len(shape))] for array in arrays)
        out[place] = expr.evaluate(*parts)
    return out


def compiled(
    expr: Expr, dtypes: Sequence[np.dtype[Any]], dtype: np.dtype[Any]
) -> Callable[..., Array]:
    """Return what evaluates `expr` of arrays of `dtypes` in one go, as a new array of `dtype`.

    It is called with the shape that these broadcast to, and them. Of more than NUMBERS numbers
    `evaluated` is faster: blocks of them fit a cache.
    """
    value = CompiledExpression.of(expr, tuple(dtypes))
    fresh = value.fresh and value.dtype == dtype

    def compute(shape: Shape, *arrays: Array) -> Array:
        found = value(*arrays)
        return found if fresh and shape and found.shape == shape else _spread(found, shape, dtype)

    return compute


def _spread(found: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return `found` broadcast to `shape`, as a new array."""
    out = np.empty(shape, dtype)
    out[...] = found
    return out


def blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the index of each block of an array of `shape`: NUMBERS numbers, or one row if longer.

    All have a slice for each of the first axes, the same number of them.
    """
    inner = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    last = next((axis for axis, size in enumerate(inner) if size <= NUMBERS), len(shape) - 1)
    steps = [*(1 for _ in range(last)), max(NUMBERS // max(inner[last], 1), 1)]
    sizes = zip(shape, steps, strict=False)
    yield from product(
        *([slice(i, i + step) for i in range(0, size, step)] for size, step in sizes)
    )


def runs(count: int, each: int) -> Iterator[slice]:
    """Return slices of blocks of `count` things of `each` numbers: of NUMBERS, or of one thing
    where that is more.
    """
    step = max(NUMBERS // max(each, 1), 1)
    return (slice(i, i + step) for i in range(0, count, step))


def _within(own: Shape, place: tuple[slice, ...], rank: int) -> tuple[slice, ...]:
    """Return the index into an array of shape `own` that broadcasts to the block at `place` of an
    array of `rank` dimensions.
    """
    missing = rank - len(own)
    pairs = zip(own, place[missing:], strict=False)
    return tuple(slice(None) if size == 1 else part for size, part in pairs)
