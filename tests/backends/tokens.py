"""Tokens, places and angles for tests of caches of keys and values."""

from __future__ import annotations

import numpy as np

CONTEXT = 7


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


def places_apart(tokens: int) -> np.ndarray:
    """Rows of tokens of a sequence each, one of them of no token."""
    places = places_of(tokens, tokens * CONTEXT)
    apart = places % CONTEXT + np.arange(tokens, dtype=np.int32) * CONTEXT
    return np.where(places < 0, places, apart)


def with_own_rows(op, x: np.ndarray, cache: np.ndarray, places: np.ndarray, angles) -> np.ndarray:
    """The cache in float64 with the keys and values that x has of the tokens themselves."""
    found = cache.astype(np.float64)
    for token, place in enumerate(places):
        if place < 0:
            continue
        keys = heads_of(x, token, op.keys_start, op.kv_heads, op.width)
        values = heads_of(x, token, op.values_start, op.kv_heads, op.width)
        if angles is not None:
            keys = [turn(key, angles[place % CONTEXT].tolist(), op.order) for key in keys]
        found[place] = np.ravel([keys, values])
    return found
