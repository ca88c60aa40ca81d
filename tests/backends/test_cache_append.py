"""Caches with a token more for each sequence, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import CacheAppend
from glnn.graph.operators.rotary import ROTARY_ORDERS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.tokens import CONTEXT, heads_of, table, turn


@pytest.mark.parametrize(("name", "kernel"), kernels("cache_append"))
@pytest.mark.parametrize("order", [None, *ROTARY_ORDERS])
@pytest.mark.parametrize(
    ("rows", "heads", "tokens", "width"), [(1, 1, 1, 1), (1, 3, 129, 8), (3, 2, 7, 6)]
)
def test_appends(opened, rng, name, kernel, order, rows, heads, tokens, width) -> None:
    turned = width // 4 * 2 + 2
    if order and turned > width:
        pytest.skip("a head of one number cannot be rotated")
    if order and "rotary" not in kernel:
        pytest.skip("a kernel without angles")
    x, past = rng((rows, 5 + heads * width)), rng((rows, heads, tokens, width))
    operands, angles = {"x": x, "past": past}, table(turned)
    places = ((np.arange(rows) * 5 + 3) % CONTEXT).astype(np.int32)
    if order:
        operands |= {"places": places, "rotary": angles}
    op = CacheAppend(heads, width, CONTEXT, 3, order or "halves")
    got = run(opened(name), op, operands, kernel)
    expected = np.empty((rows, heads, tokens + 1, width))
    expected[:, :, :tokens] = past
    for row, place in enumerate(places):
        new = heads_of(x, row, 3, heads, width)
        if order:
            new = [turn(one, angles[place].tolist(), order) for one in new]
        expected[row, :, tokens] = new
    assert oracle.error(got, expected) <= TOLERANCE


def test_operands_that_do_not_fit() -> None:
    op = CacheAppend(2, 4, 1, 3)
    assert op.shape_of({"x": (5, 11), "past": (5, 2, 7, 4)}) == (5, 2, 8, 4)
    for shapes, text in {
        (("x", (5, 10)), ("past", (5, 2, 7, 4))): "ends before 2 heads of 4 from 3 on",
        (("x", (5, 11)), ("past", (4, 2, 7, 4))): r"past must be \(5, 2, tokens, 4\), got \(4, 2",
        (("x", (5, 11)), ("past", (5, 2, 4))): r"past",
        (("x", (5, 11)), ("past", (5, 2, 7, 4)), ("places", (5,))): "both be there or neither",
    }.items():
        with pytest.raises(ShapeError, match=text):
            op.shape_of(dict(shapes))
