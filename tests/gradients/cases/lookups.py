"""Lookups, scatters and weighted sums of places."""

from __future__ import annotations

import numpy as np

from glnn.graph.operators import (
    Gather,
    GatherElements,
    GatherND,
    Resample,
    ScatterElements,
    ScatterND,
)
from glnn.graph.operators.scatter import REDUCTIONS, Reduction, ScatterSorted, table
from tests.gradients.case import Case

ROWS = np.array([[3, 0, 3], [-1, 3, 1]], np.int32)
MANY = np.array([2] * 40 + [5, 6], np.int32)
ELEMENTS = np.array([[0, 2, 2], [4, -1, 2]], np.int32)
TUPLES = np.array([[[0, 1], [2, 1]], [[0, 1], [-1, -1]]], np.int32)
BATCHES = np.array([[[1], [1]], [[0], [2]], [[2], [-1]]], np.int32)
TAPS = np.array([[0, 1, 1, 4, 2], [1, 2, 2, 4, 0]], np.int32)
WEIGHTS = np.array([[0.5, 0.25, 1, 2, 0], [0.5, 0.75, -1, 3, 1]], np.float32)

SPREAD = np.array([[2], [0], [2], [-1]], np.int32)
HALVES = np.array([[2, 0, 0.5], [0, 3, 0], [1, -1, -2], [4, 0, 0]], np.float32)
ZERO_ROWS = np.array([[1, 0, 0.5], [0, 3, 2], [5, -1, 2], [2, 0, 2], [6, 7, 2]], np.float32)


def _scatters(how: Reduction) -> list[Case]:
    """Scatters that reduce so, with updates that meet."""
    sorted_, index = ScatterSorted(1, how), table(np.array([2, 0, 2, 4]), 5)

    def torch(t, x, index, new):
        names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
        return x.scatter_reduce(1, index.long() % 5, new, names[how])

    return [
        Case(
            f"elements: {how}",
            ScatterElements(1, how),
            ((3, 5), ELEMENTS, (2, 3)),
            torch=None if how == "none" else torch,
        ),
        Case(f"rows: {how}", ScatterND(how), ((5, 3), SPREAD, (4, 3))),
        Case(f"rows known: {how}", ScatterND(how), ((5, 3), SPREAD, (4, 3)), fixed=(1,)),
        Case(f"rows sorted: {how}", sorted_, ((5, 3), index, (4, 3)), fixed=(1,)),
    ]


CASES = [
    *(case for how in REDUCTIONS for case in _scatters(how)),
    Case("rows with zeros: mul", ScatterND("mul"), (ZERO_ROWS, SPREAD, HALVES)),
    Case("rows of nothing", ScatterND("add"), ((5, 3), np.zeros((0, 1), np.int32), (0, 3))),
    Case(
        "embedding",
        Gather(),
        ((5, 7), ROWS),
        torch=lambda t, x, index: x[index.long()],
    ),
    Case("embedding known", Gather(), ((5, 7), ROWS), fixed=(1,)),
    Case("embedding known, uneven", Gather(1), ((3, 31, 2), MANY), fixed=(1,)),
    Case(
        "embedding of many", Gather(), ((9001, 3), np.arange(-60, 70, dtype=np.int32)), large=True
    ),
    Case("gather columns", Gather(1), ((3, 5, 7), ROWS)),
    Case("gather columns known", Gather(-1), ((3, 5), ROWS), fixed=(1,)),
    Case("gather a number", Gather(0), ((5, 3), np.array(2, np.int32))),
    Case("gather nothing", Gather(0), ((5, 3), np.zeros((0, 2), np.int32))),
    Case(
        "gather elements",
        GatherElements(1),
        ((3, 5), ELEMENTS),
        torch=lambda t, x, index: x.gather(1, index.long() % 5),
    ),
    Case("gather elements known", GatherElements(1), ((3, 5), ELEMENTS), fixed=(1,)),
    Case("gather elements 0", GatherElements(0), ((5, 3), ELEMENTS[:, :2])),
    Case("gather tuples", GatherND(), ((3, 2, 5), TUPLES)),
    Case("gather tuples of batches", GatherND(1), ((3, 3, 2), BATCHES)),
    Case("gather tuples of batches known", GatherND(1), ((3, 3, 2), BATCHES), fixed=(1,)),
    Case("resample", Resample(1), ((3, 5, 2), TAPS, WEIGHTS), fixed=(1, 2)),
    Case("resample last", Resample(-1), ((2, 5), TAPS, WEIGHTS), fixed=(1, 2)),
]
