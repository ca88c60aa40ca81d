"""Resize images: each result is looked up, or interpolated between two numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.core.types import Array, TensorType
from glnn.graph.builder import constant
from glnn.graph.compose.node_adder import AddNode
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Gather, Resample, Reshape, Slice

MOST_RANK = 8


@dataclass(frozen=True)
class SamplePositions:
    """Sample positions along one dimension of a resize: in float32, as PyTorch computes them."""

    size: int
    """Places looked at."""
    count: int
    """Places wanted."""
    scale: float | None = None
    """Places wanted for each, where that is not count / size."""
    align_corners: bool = False
    """True where the centres of the first and last elements coincide, instead of the outer
    edges.
    """

    @property
    def step(self) -> float:
        """Distance in the input between neighbouring elements of the result."""
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
    def neighbours(self) -> tuple[Array, Array, Array]:
        """The indices before and behind each place, int32, and how far behind the first it lies."""
        at = np.maximum(self.middles, np.float32(0))
        first = np.minimum(np.floor(at), self.size - 1).astype(np.int32)
        second = np.minimum(first + 1, self.size - 1).astype(np.int32)
        return first, second, np.clip(at - first, 0, 1).astype(np.float32)

    @property
    def middles(self) -> Array:
        """Return the position in the input of each result element's centre, float32, negative
        before the first.
        """
        at, step = np.arange(self.count, dtype=np.float32), np.float32(self.step)
        half = np.float32(0.5)
        return np.asarray(at * step if self.align_corners else (at + half) * step - half)


def gather_constant(add: AddNode, x: Value, axis: int, index: Array) -> Value:
    """Return the elements of x along `axis` at the constant `index`, int32."""
    return add(Gather(axis), x, constant(index))


def interpolate(add: AddNode, x: Value, axis: int, places: SamplePositions) -> Value:
    """The numbers along `axis` at `places`, those between two being on the line through them."""
    first, second, weight = places.neighbours
    return weighted_sum(add, x, axis, np.stack([first, second]), np.stack([1 - weight, weight]))


def gather_axes(add: AddNode, x: Value, indices: Mapping[int, Array]) -> Value:
    """The places of x along some axes that `indices`, int32, say: in one step where it can be.

    Each index must be of a place. A step is a slice of all axes along which places lie equally far
    apart, a repetition along all where each is there as often, or else what is looked up along one.
    """
    sliced = {axis: index for axis, index in indices.items() if _is_equally_spaced(index)}
    repeats = {
        axis: times
        for axis, index in indices.items()
        if axis not in sliced and (times := _repeat_count(index, _size(x, axis))) > 1
    }
    if sliced:
        x = _slice_axes(add, x, sliced)
    if repeats:
        x = repeat(add, x, repeats)
    for axis, index in indices.items():
        if axis not in sliced and axis not in repeats:
            x = gather_constant(add, x, axis, index)
    return x


def _size(x: Value, axis: int) -> int:
    return TensorType(x.type.dims[axis : axis + 1]).shape[0]


def _is_equally_spaced(index: Array) -> bool:
    """Return True where the indices advance in equal steps, other than 0."""
    steps = np.diff(index)
    return index.size > 0 and bool((steps == steps[:1]).all() and (steps[:1] != 0).all())


def _repeat_count(index: Array, size: int) -> int:
    """Return the number of times that each of `size` elements is repeated in a row; 0 where that
    differs.
    """
    count = index.size // max(size, 1)
    return count if np.array_equal(index, np.repeat(np.arange(size), count)) else 0


def _slice_axes(add: AddNode, x: Value, indices: Mapping[int, Array]) -> Value:
    steps = [int(index[1] - index[0]) if index.size > 1 else 1 for index in indices.values()]
    starts = [int(index[0]) for index in indices.values()]
    ends = [int(index[-1]) + (1 if s > 0 else -1) for index, s in zip(indices.values(), steps)]
    # Where a slice goes backwards to the first place, -1 would be the last one.
    sizes = [_size(x, axis) for axis in indices]
    ends = [end if end >= 0 else -size - 1 for end, size in zip(ends, sizes, strict=True)]
    return add(Slice(tuple(starts), tuple(ends), tuple(indices), tuple(steps)), x)


def repeat(add: AddNode, x: Value, counts: Mapping[int, int]) -> Value:
    """Repeat each place as often as `counts` says for its axis."""
    if x.type.symbols or len(x.type.dims) + len(counts) > MOST_RANK:
        for axis, count in counts.items():
            index = np.repeat(np.arange(_size(x, axis), dtype=np.int32), count)
            x = gather_constant(add, x, axis, index)
        return x
    dims = [[n, counts[i]] if i in counts else [n] for i, n in enumerate(x.type.shape)]
    apart = (n for pair in dims for n in (pair[0], *(1 for _ in pair[1:])))
    wide = tuple(n for pair in dims for n in pair)
    x = add(Expand(wide), add(Reshape(tuple(apart), True), x))
    return add(Reshape(tuple(prod(pair) for pair in dims), True), x)


def weighted_sum(add: AddNode, x: Value, axis: int, index: Array, weights: Array) -> Value:
    """Sums along `axis` of the numbers at `index`, int32, times `weights`: both (taps, places)."""
    if len(index) == 1 and (weights == 1).all():
        return gather_axes(add, x, {axis: index[0]})
    return add(Resample(axis), x, constant(index), constant(weights))
