"""Adjoints of gathers with known indices: gradients are added at the places that were read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from glnn.graph.gradients.backward import Backward
from glnn.graph.graph import Value
from glnn.graph.operators import Resample, Transpose
from glnn.graph.operators.scatter import ScatterSorted, table
from glnn.types import Array, DType

EMPTY = 4  # of how many places in the table of sums one is to be taken at least


@dataclass(frozen=True)
class Places:
    """A sparse linear map along an axis: triples of source place, result and weight."""

    ids: Array
    """The place that each number came from."""
    results: Array
    """The result that it went to."""
    weights: Array
    """Factor of each number, float32."""

    @classmethod
    def of(cls, index: Array, weights: Array | None = None) -> Places:
        """Return the map of `index` (taps, results), negative for none, and of weights of the same
        shape.
        """
        results = np.broadcast_to(np.arange(index.shape[1]), index.shape)
        weights = np.ones(index.shape, np.float32) if weights is None else weights
        there = (index >= 0) & (weights != 0)
        return cls(index[there], results[there], weights[there])


def added_at(back: Backward, given: Value, axis: int, places: Places, size: int) -> Value:
    """The sums of the numbers of `given` along `axis` at each of `size` places, in their order."""
    shape = given.type.shape
    wanted = (*shape[:axis], size, *shape[axis + 1 :])
    if not places.ids.size or not prod(shape):
        return back.zeros(wanted)
    order = np.argsort(places.ids, kind="stable")
    counts = np.bincount(places.ids, minlength=size)
    most = int(counts.max())
    if most * size > EMPTY * max(order.size, size) and (places.weights == 1).all():
        return _scattered(back, given, axis, places, size)
    ids = places.ids[order]
    taps = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
    index, weights = np.zeros((most, size), np.int32), np.zeros((most, size), np.float32)
    index[taps, ids] = places.results[order]
    weights[taps, ids] = places.weights[order]
    operands = back.constant(index, DType.int32), back.constant(weights, DType.float32)
    return back(Resample(axis), given, *operands)


def _scattered(back: Backward, given: Value, axis: int, places: Places, size: int) -> Value:
    """The same where some places have many more numbers than others."""
    shape = given.type.shape
    before, behind = prod(shape[:axis]), prod(shape[axis + 1 :])
    rows = back.reshape(given, (before, shape[axis], behind))
    rows = back.reshape(back(Transpose((1, 0, 2)), rows), (shape[axis], before * behind))
    starts = table(places.ids, size)
    starts[size + 1 :] = places.results[starts[size + 1 :]]
    # Results that went nowhere are no updates; each of the others is one.
    index = back.constant(starts, DType.int32)
    zeros = back.zeros((size, before * behind))
    found = back(ScatterSorted(1, "add"), zeros, index, rows)
    found = back(Transpose((1, 0, 2)), back.reshape(found, (size, before, behind)))
    return back.reshape(found, (*shape[:axis], size, *shape[axis + 1 :]))
