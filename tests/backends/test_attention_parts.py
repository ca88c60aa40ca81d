"""Attention over parts of the cached tokens, against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import AttentionParts
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

SHAPES = [(1, 1, 1, 4), (3, 2, 2, 8), (5, 6, 2, 12), (9, 7, 1, 64), (2, 10, 2, 128)]
"""Tokens, heads of queries, heads of the cache, width."""
UNKNOWN = 1e38  # less than this a part without tokens has for its greatest score


def expected_parts(op: AttentionParts, x, cache, places, angles) -> np.ndarray:
    heads, kv_heads, width = op.heads, op.kv_heads, op.width
    found = np.zeros((len(places), heads, op.parts, width + 4))
    wide = cache.astype(np.float64)
    for token, place in enumerate(places):
        if place < 0:
            continue
        first = place // CONTEXT * CONTEXT
        first = max(first, place - op.window + 1) if op.window else first
        for head, query in enumerate(heads_of(x, token, op.start, heads, width)):
            if angles is not None:
                query = turn(query, angles[place % CONTEXT].tolist(), op.order)
            at = head * kv_heads // heads * width
            # The token itself is of the first part where x has its key and value.
            order = [place, *range(first, place)] if op.has_own_keys else range(first, place + 1)
            for row in order:
                score = op.scale * sum(a * b for a, b in zip(query, wide[row, at:], strict=False))
                score = op.cap * math.tanh(score / op.cap) if op.cap else score
                own = op.has_own_keys and row == place
                part = found[token, head, 0 if own else (row - first) // op.keys]
                if not part[width + 1]:
                    part[width] = score
                most = max(part[width], score)
                shrink, power = math.exp(part[width] - most), math.exp(score - most)
                value = wide[row, kv_heads * width + at : kv_heads * width + at + width]
                part[:width] = part[:width] * shrink + power * value
                part[width], part[width + 1] = most, part[width + 1] * shrink + power
            found[token, head, :, width + 2] = 1
    return found


@pytest.mark.parametrize(("name", "kernel"), kernels("attention_parts"))
@pytest.mark.parametrize("order", [None, *ROTARY_ORDERS])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "width"), SHAPES)
@pytest.mark.parametrize(("window", "cap", "keys"), [(0, 0.0, 5), (3, 1.5, 1), (7, 0.0, 300)])
@pytest.mark.parametrize("own", [False, True])
def test_parts(
    opened, rng, name, kernel, order, tokens, heads, kv_heads, width, window, cap, keys, own
) -> None:
    if (kernel != "split_kv") != bool(order) or (own and kernel == "stages"):
        pytest.skip("this kernel is for other cases")
    rows, scale, half = (tokens if own else 2) * CONTEXT, 1 / math.sqrt(width), kv_heads * width
    x, cache = rng((tokens, 3 + heads * width + 2 * half)), rng((rows, 2 * half))
    places = places_apart(tokens) if own else places_of(tokens, rows)
    angles = table(width // 2 * 2) if order else None
    operands = {"x": x, "cache": cache, "places": places}
    if angles is not None:
        operands["rotary"] = angles
    starts = {"keys_start": 2 + heads * width, "values_start": 3 + heads * width + half}
    op = AttentionParts(
        heads, kv_heads, width, CONTEXT, scale, window, cap, 1, order or "halves", keys,
        **(starts if own else {}),
    )  # fmt: skip
    known = cache.copy()
    if own:  # the rows at the tokens' places are not read: those of others would be
        known = with_own_rows(op, x, cache, places, angles)
        cache[places[places >= 0]] = np.nan
    backend = opened(name)
    if own and order and backend.device.capabilities.max_compute_shader_storage_blocks < 5:
        pytest.skip("this kernel reads four operands, and the result is the fifth block")
    got = run(backend, op, operands, kernel)
    got = got.reshape(tokens, heads, op.parts, width + 4).astype(np.float64)
    expected = expected_parts(op, x, known, places, angles)
    empty = expected[..., width + 1] == 0
    assert (got[empty][:, width] < -UNKNOWN).all()
    got[empty, width] = 0
    assert oracle.error(got, expected) <= TOLERANCE


def test_wrong_attributes() -> None:
    with pytest.raises(ShapeError, match="keys must be 1 or more, got 0"):
        AttentionParts(1, 1, 4, 8, 1.0, keys=0)
