"""Rotary embeddings against complex numbers in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Rotary
from glnn.graph.operators.rotary import ROTARY_ORDERS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.tokens import CONTEXT, heads_of, places_of, table, turn


@pytest.mark.parametrize(("name", "kernel"), kernels("rotary"))
@pytest.mark.parametrize("order", ROTARY_ORDERS)
@pytest.mark.parametrize(("tokens", "heads", "width"), [(1, 1, 2), (3, 3, 7), (5, 2, 64)])
def test_rotary(opened, rng, name, kernel, order, tokens, heads, width) -> None:
    x, places, angles = rng((tokens, 5 + heads * width)), places_of(tokens, 14), table(2)
    places = np.abs(places)
    op = Rotary(heads, width, CONTEXT, 2, order)
    got = run(opened(name), op, {"x": x, "places": places, "rotary": angles}, kernel)
    expected = [
        np.concatenate(
            [turn(h, angles[p % CONTEXT].tolist(), order) for h in heads_of(x, t, 2, heads, width)]
        )
        for t, p in enumerate(places)
    ]
    assert oracle.error(got, np.array(expected)) <= TOLERANCE
