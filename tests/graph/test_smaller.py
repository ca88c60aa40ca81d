"""Operands of fewer results, by which special values are seen: sums stay as long as they were."""

from __future__ import annotations

from math import gcd

import pytest

from glnn.graph.expression import Arg, call
from glnn.graph.operator import MANY, UNIT, shrink_size
from glnn.graph.operators import Conv2d, Gather, Matmul, Normalize, Pointwise, Pool2d, Resample

OPERATORS = {
    "conv": (Conv2d((2, 1), (3, 3, 3, 3)), {"x": (1, 3, 224, 161), "weight": (8, 3, 7, 7)}),
    "grouped": (Conv2d(groups=6), {"x": (1, 6, 90, 30), "weight": (6, 1, 5, 5)}),
    "pool": (Pool2d("max", (3, 3), (2, 2), (1, 1, 1, 1)), {"x": (1, 5, 112, 77)}),
    "channels": (Pool2d("average", None), {"x": (1, 960, 7, 9)}),
    "rows": (Normalize(dims=1), {"x": (1, 56, 60, 96), "weight": (96,), "bias": (96,)}),
    "resized": (Resample(2), {"x": (1, 41, 20, 80), "index": (2, 320), "weight": (2, 320)}),
    "product": (Matmul(), {"x": (36 * 100, 64), "weight": (36, 10, 64)}),
    "pointwise": (Pointwise(call("add", Arg(0), Arg(1))), {"x0": (2, 99, 60), "x1": (99, 1)}),
}


@pytest.mark.parametrize("size", [0, 1, 7, MANY, MANY + 1, 40, 41, 224, 6625])
def test_fewer_has_the_same_powers_of_two(size) -> None:
    assert shrink_size(size) == size if size <= MANY else MANY <= shrink_size(size) < MANY + UNIT
    assert gcd(shrink_size(size), UNIT) == gcd(size, UNIT)


def test_a_table_is_smaller() -> None:
    shapes = {"x": (30522, 384), "index": (1, 128)}
    assert Gather(0).shrink(shapes) == {"x": (shrink_size(30522), 384), "index": (1, 128)}


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_fewer(name) -> None:
    op, shapes = OPERATORS[name]
    small = op.shrink(shapes)
    before, after = op.shape_of(shapes), op.shape_of(small)
    assert len(before) == len(after) and op.depth(small) == op.depth(shapes)
    assert all(a == b or MANY <= a < b for a, b in zip(after, before, strict=True))
    assert after != before and op.shrink(small) == small
