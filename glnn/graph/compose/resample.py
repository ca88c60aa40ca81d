"""Images of another size: each place's number is looked up, or lies between two of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glnn.graph.builder import constant
from glnn.graph.compose.add import Add
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operators import Gather, Pointwise
from glnn.types import Array

BETWEEN = call("lerp", Arg(0), Arg(1), Arg(2))


@dataclass(frozen=True)
class Places:
    """Where the places of a dimension lie along another: in float32, as PyTorch has it."""

    size: int
    """Places looked at."""
    count: int
    """Places wanted."""
    scale: float | None = None
    """Places wanted for each, where that is not count / size."""
    align_corners: bool = False
    """Whether the first and last places of both lie upon each other, instead of the ends."""

    @property
    def step(self) -> float:
        """How far one moves from place to place."""
        if self.align_corners:
            return (self.size - 1) / (self.count - 1) if self.count > 1 else 0.0
        return self.size / self.count if self.scale is None else 1 / self.scale

    @property
    def nearest(self) -> Array:
        """The index at or before each place, int32."""
        at: Array = np.floor(np.arange(self.count, dtype=np.float32) * np.float32(self.step))
        return np.minimum(at, self.size - 1).astype(np.int32)

    @property
    def nearest_exact(self) -> Array:
        """The index of the place whose middle is the nearest to that of each, int32."""
        middles = np.arange(self.count, dtype=np.float32) + np.float32(0.5)
        at: Array = np.floor(middles * np.float32(self.step))
        return np.minimum(at, self.size - 1).astype(np.int32)

    @property
    def between(self) -> tuple[Array, Array, Array]:
        """The indices before and behind each place, int32, and how far behind the first it lies."""
        at, step = np.arange(self.count, dtype=np.float32), np.float32(self.step)
        if self.align_corners:
            at = at * step
        else:
            half = np.float32(0.5)
            at = np.maximum((at + half) * step - half, np.float32(0))
        first = np.minimum(np.floor(at), self.size - 1).astype(np.int32)
        second = np.minimum(first + 1, self.size - 1).astype(np.int32)
        return first, second, np.clip(at - first, 0, 1).astype(np.float32)


def looked_up(add: Add, x: Value, axis: int, index: Array) -> Value:
    """The places of x along `axis` that `index`, int32, says."""
    return add(Gather(axis), x, constant(index))


def between(add: Add, x: Value, axis: int, places: Places) -> Value:
    """The numbers along `axis` at `places`, those between two being on the line through them."""
    first, second, weight = places.between
    spread = weight.reshape(-1, *(1,) * (len(x.type.dims) - 1 - axis))
    values = (looked_up(add, x, axis, index) for index in (first, second))
    return add(Pointwise(BETWEEN), *values, constant(spread))
