"""Caches of keys and values: updates, rotary embeddings and attention, against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glnn.graph.operators import CachedAttention, CacheUpdate, Rotary
from glnn.graph.operators.kv_cache import ROTARY_ORDERS
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CONTEXT = 7
SHAPES = [(1, 1, 1, 2), (3, 2, 2, 6), (5, 6, 2, 8), (9, 4, 1, 64)]
"""Tokens, heads of queries, heads of the cache, width."""
ROTATING = "one_pass_rotary", "stages", "feedback_stages"
"""Kernels that rotate queries."""


def table(turned: int) -> np.ndarray:
    """Cosines and sines of angles by position."""
    angles = np.arange(CONTEXT)[:, None] / 10 ** np.linspace(0, 2, turned // 2)
    return np.concatenate((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


def turn(head: list[float], cosines_and_sines: list[float], order: str) -> list[float]:
    """A head's numbers, rotated by plain complex numbers."""
    count = len(cosines_and_sines) // 2
    found = list(head)
    for i in range(count):
        a, b = (i, i + count) if order == "halves" else (2 * i, 2 * i + 1)
        unit = complex(cosines_and_sines[i], cosines_and_sines[count + i])
        number = complex(head[a], head[b]) * unit
        found[a], found[b] = number.real, number.imag
    return found


def places_of(tokens: int, rows: int) -> np.ndarray:
    """Rows of tokens, none twice, one of them of no token."""
    found = np.random.default_rng(tokens).permutation(rows)[:tokens].astype(np.int32)
    found[tokens // 2] = -1 if tokens > 1 else found[0]
    return found


def heads_of(x: np.ndarray, token: int, start: int, heads: int, width: int) -> list[list[float]]:
    row = x[token].astype(np.float64).tolist()
    return [row[start + h * width : start + (h + 1) * width] for h in range(heads)]


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


@pytest.mark.parametrize(("name", "kernel"), kernels("cached_attention"))
@pytest.mark.parametrize("order", [None, *ROTARY_ORDERS])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "width"), SHAPES)
@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (3, 1.5)])
def test_attention(
    opened, rng, name, kernel, order, tokens, heads, kv_heads, width, window, cap
) -> None:
    if (kernel in ROTATING) != bool(order):
        pytest.skip("this kernel is for the other case")
    rows, scale = 2 * CONTEXT, 1 / math.sqrt(width)
    x, cache = rng((tokens, 2 + heads * width)), rng((rows, 2 * kv_heads * width))
    places, angles = places_of(tokens, rows), table(width // 2 * 2)
    operands = {"x": x, "cache": cache, "places": places}
    if order:
        operands["rotary"] = angles
    op = CachedAttention(heads, kv_heads, width, CONTEXT, scale, window, cap, 1, order or "halves")
    got = run(opened(name), op, operands, kernel)
    expected = np.zeros((tokens, heads * width))
    wide = cache.astype(np.float64)
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
