"""Attention as one kernel, against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators.attention import Attention, Walk
from tests import oracle
from tests.backends.harness import kernels, run

SIZES = (  # batch, heads, queries, keys, width, columns
    (1, 1, 1, 1, 1, 1),
    (1, 2, 3, 7, 3, 5),
    (2, 3, 7, 3, 8, 8),
    (1, 1, 127, 129, 20, 20),
    (2, 1, 33, 65, 64, 64),
    (1, 2, 129, 31, 80, 12),
    (1, 1, 5, 200, 128, 130),
)


def exact(q, k, v, scale=1.0, mask=0.0):
    """Of (batch, heads, tokens, numbers), in float64."""
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q.astype(float), k.astype(float)) + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bhqk,bhkd->bhqd", weights, v.astype(float))


def dense(heads, tokens, numbers):
    """Of (batch, heads, tokens, numbers), one behind the other."""
    return Walk(0, heads * tokens * numbers, tokens * numbers, numbers)


@pytest.mark.parametrize(("name", "kernel"), kernels("attention"))
def test_any_sizes(opened, rng, name, kernel) -> None:
    for batch, heads, queries, keys, width, columns in SIZES:
        q, k, v = (
            rng((batch, heads, tokens, numbers))
            for tokens, numbers in ((queries, width), (keys, width), (keys, columns))
        )
        walks = (
            dense(heads, queries, width),
            dense(heads, keys, width),
            dense(heads, keys, columns),
        )
        given, mask = {"q": q, "k": k, "v": v}, np.zeros((1, 1))
        if kernel.endswith("masked"):
            given["mask"] = mask = 4 * rng((batch, queries, keys))
            mask = mask[:, None]
            walks = (*walks, Walk(0, queries * keys, 0, keys))
        op = Attention(batch, heads, queries, keys, width, columns, walks, 0.7)
        got = run(opened(name), op, given, kernel)
        expected = exact(q, k, v, 0.7, mask).transpose(0, 2, 1, 3)
        assert oracle.error(got, expected) <= 1e-5, (queries, keys, width, columns)
