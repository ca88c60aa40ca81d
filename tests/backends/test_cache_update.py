"""Keys and values of new tokens put into caches, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import CacheUpdate
from glnn.graph.operators.rotary import ROTARY_ORDERS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.tokens import CONTEXT, heads_of, places_of, table, turn


@pytest.mark.parametrize(("name", "kernel"), kernels("cache_update"))
@pytest.mark.parametrize("order", [None, *ROTARY_ORDERS])
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 1), (2, 3, 6), (9, 2, 8)])
def test_updates(opened, rng, name, kernel, order, tokens, heads, width) -> None:
    turned = width // 4 * 2 + 2
    if order and turned > width:
        pytest.skip("a head of one number cannot be rotated")
    numbers, rows = 3 + 2 * heads * width, 2 * CONTEXT
    x, cache = rng((tokens, numbers)), rng((rows, 2 * heads * width))
    places = places_of(tokens, rows)
    operands = {"x": x, "cache": cache, "places": places}
    angles = table(turned)
    if order:
        operands["rotary"] = angles
    op = CacheUpdate(heads, width, CONTEXT, 1, 2 + heads * width, order or "halves")
    got = run(opened(name), op, operands, kernel)
    expected = cache.astype(np.float64)
    for token, place in enumerate(places):
        if place < 0:
            continue
        keys = heads_of(x, token, 1, heads, width)
        if order:
            keys = [turn(key, angles[place % CONTEXT].tolist(), order) for key in keys]
        values = heads_of(x, token, 2 + heads * width, heads, width)
        expected[place] = np.concatenate([*keys, *values])
    assert oracle.error(got, expected) <= TOLERANCE
