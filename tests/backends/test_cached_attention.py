"""Attention over cached tokens against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import CachedAttention
from glnn.graph.operators.rotary import ROTARY_ORDERS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.tokens import (
    CONTEXT,
    heads_of,
    places_apart,
    places_of,
    table,
    turn,
    with_own_rows,
)

SHAPES = [(1, 1, 1, 2), (3, 2, 2, 6), (5, 6, 2, 8), (9, 4, 1, 64)]
"""Tokens, heads of queries, heads of the cache, width."""
ROTATING = "one_pass_rotary", "chunked_rotary", "split_keys_rotary", "stages", "feedback_stages"
"""Kernels that rotate queries."""
WHOLE = "chunked", "chunked_rotary", "split_keys", "split_keys_rotary"
"""Kernels for heads of whole vec4."""
OWN = WHOLE
"""Kernels that take the tokens' own keys and values from x."""


@pytest.mark.parametrize(("name", "kernel"), kernels("cached_attention"))
@pytest.mark.parametrize("order", [None, *ROTARY_ORDERS])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "width"), SHAPES)
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (3, 1.5), (1, 0.0)])
@pytest.mark.parametrize("own", [False, True])
def test_attention(
    opened, rng, name, kernel, order, tokens, heads, kv_heads, width, window, cap, own
) -> None:
    if (kernel in ROTATING) != bool(order) or (kernel in WHOLE and width % 4):
        pytest.skip("this kernel is for other cases")
    if own and kernel not in OWN:
        pytest.skip("this kernel has all keys from the cache")
    rows, scale, half = (tokens if own else 2) * CONTEXT, 1 / math.sqrt(width), kv_heads * width
    x, cache = rng((tokens, 3 + heads * width + 2 * half)), rng((rows, 2 * half))
    places = places_apart(tokens) if own else places_of(tokens, rows)
    angles = table(width // 2 * 2)
    operands = {"x": x, "cache": cache, "places": places}
    if order:
        operands["rotary"] = angles
    starts = {"keys_start": 2 + heads * width, "values_start": 3 + heads * width + half}
    op = CachedAttention(
        heads, kv_heads, width, CONTEXT, scale, window, cap, 1, order or "halves",
        **(starts if own else {}),
    )  # fmt: skip
    wide = cache.astype(np.float64)
    if own:  # the rows at the tokens' places are not read: those of others would be
        wide = with_own_rows(op, x, cache, places, angles if order else None)
        cache[places[places >= 0]] = np.nan
    backend = opened(name)
    if own and order and backend.device.capabilities.max_compute_shader_storage_blocks < 5:
        pytest.skip("this kernel reads four operands, and the result is the fifth block")
    got = run(backend, op, operands, kernel)
    expected = np.zeros((tokens, heads * width))
    for token, place in enumerate(places):
        if place < 0:
            continue
        first = place // CONTEXT * CONTEXT
        first = max(first, place - window + 1) if window else first
        for head, query in enumerate(heads_of(x, token, 1, heads, width)):
            if order:
                query = turn(query, angles[place % CONTEXT].tolist(), order)
            at = head * kv_heads // heads * width
            scores = []
            for row in range(first, place + 1):
                score = scale * sum(a * b for a, b in zip(query, wide[row, at:], strict=False))
                scores.append(cap * math.tanh(score / cap) if cap else score)
            powers = [math.exp(score) for score in scores]
            for power, row in zip(powers, range(first, place + 1), strict=True):
                value = wide[row, kv_heads * width + at : kv_heads * width + at + width]
                expected[token, head * width : (head + 1) * width] += power / sum(powers) * value
    assert oracle.error(got, expected) <= TOLERANCE


def test_starts_of_own_keys_and_values() -> None:
    with pytest.raises(ShapeError, match="keys_start and values_start must both be"):
        CachedAttention(1, 1, 4, 8, 1.0, keys_start=4)
    op = CachedAttention(1, 1, 4, 8, 1.0, keys_start=4, values_start=9)
    with pytest.raises(ShapeError, match=r"x \(1, 12\) ends before the keys and values of 1 heads"):
        op.shape_of({"x": (1, 12), "cache": (8, 8), "places": (1,)})


@pytest.mark.parametrize(("name", "kernel"), kernels("cached_attention"))
@pytest.mark.parametrize("place", [1499, 2047, 2600])
@pytest.mark.parametrize("width", [4, 64])
def test_long_sequences(opened, rng, name, kernel, place, width) -> None:
    """llvmpipe leaves loops after 65,535 turns, which one for each number would be beyond."""
    if kernel in ROTATING:
        pytest.skip("this kernel is for other cases")
    context, scale = 2700, 2 / width
    x, cache = 3 * rng((1, width)), rng((context, 2 * width))
    op = CachedAttention(1, 1, width, context, scale)
    operands = {"x": x, "cache": cache, "places": np.array([place], np.int32)}
    got = run(opened(name), op, operands, kernel)
    wide = cache[: place + 1].astype(np.float64)
    powers = np.exp(scale * wide[:, :width] @ x[0].astype(np.float64))
    expected = powers @ wide[:, width:] / powers.sum()
    assert oracle.error(got[0], expected) <= 3 * TOLERANCE


def test_kernels_are_examined_by_the_longest_sequence() -> None:
    op = CachedAttention(2, 1, 4, CONTEXT, 0.5)
    shapes = {"x": (3, 8), "cache": (2 * CONTEXT, 8), "places": (3,)}
    places = op.trial("places", np.array([5, -3, 7], np.int32), shapes)
    assert places.tolist() == [2 * CONTEXT - 1, 2 * CONTEXT - 3, 7]
