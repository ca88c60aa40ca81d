"""ONNX operators of texts and sequences that the host computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from glnn.errors import ShapeError
from glnn.onnx.regular_expression import Automaton
from glnn.types import Array, boxed

Attributes = Mapping[str, Any]


def _texts(attributes: Attributes, name: str) -> list[str]:
    return [one.decode() for one in attributes.get(name, ())]


def _map_texts(function: Callable[[str], Any], x: Array, dtype: Any) -> Array:
    """Return what `function` gives for each text of x."""
    found = np.empty(x.size, dtype)
    for i, text in enumerate(x.reshape(-1).tolist()):
        found[i] = function(text)
    return found.reshape(x.shape)


def regex_full_match(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return whether each text as a whole matches a pattern of RE2's."""
    try:
        pattern = attributes["pattern"].decode()
    except UnicodeDecodeError:
        raise ShapeError("RegexFullMatch: the pattern must be UTF-8") from None
    return [_map_texts(Automaton(pattern).matches, x, np.bool_)]


def string_normalizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the texts that are no stop words, in lower or upper case where that is asked for.

    x: (n) or (1, n). One empty text where none is left.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
        raise ShapeError(f"StringNormalizer: texts must be (n) or (1, n), got {x.shape}")
    change = attributes.get("case_change_action", b"NONE").decode()
    cases: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    if change not in cases:
        raise ShapeError(
            f"StringNormalizer: case_change_action must be LOWER, UPPER or NONE, got {change!r}"
        )
    key = str if attributes.get("is_case_sensitive", 0) else str.lower
    stops = set(map(key, _texts(attributes, "stopwords")))
    kept = [cases[change](one) for one in x.reshape(-1).tolist() if key(one) not in stops]
    found = np.array(kept or [""], object)
    return [found[None] if x.ndim == 2 else found]


def string_split(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the parts of each text along a new last dimension, and how many they are, int64."""
    delimiter = attributes.get("delimiter", b"").decode() or None
    most = attributes.get("maxsplit", -1)
    # Without a delimiter, no part has whitespace at its ends.
    texts = [one if delimiter else one.strip() for one in x.reshape(-1).tolist()]
    split = [one.split(delimiter, most) for one in texts]
    counts = np.array([len(one) for one in split], np.int64)
    found = np.full((x.size, counts.max(initial=0)), "", object)
    for row, parts in zip(found, split, strict=True):
        row[: len(parts)] = parts
    return [found.reshape(*x.shape, found.shape[1]), counts.reshape(x.shape)]


def tf_idf_vectorizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return how often each n-gram of a pool is in x, or the weights of these: (n) or (rows, n).

    x: (n) or (rows, n) of integers or texts. Between the parts of an n-gram as many others may
    stand, the same number everywhere, as `max_skip_count` says.
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"TfIdfVectorizer: x must have one or two dimensions, got {x.shape}")
    places = attributes["ngram_indexes"]
    grams = {
        gram: place
        for gram, place in zip(_pool(attributes), places, strict=True)
        if gram is not None
    }
    counts = np.zeros((len(x) if x.ndim == 2 else 1, max(places) + 1), np.float32)
    lengths = range(attributes["min_gram_length"], attributes["max_gram_length"] + 1)
    for row, items in zip(counts, x.reshape(len(counts), -1).tolist(), strict=True):
        for length in lengths:
            # Single items have nothing between them.
            for step in range(1, attributes["max_skip_count"] + 2 if length > 1 else 2):
                for start in range(len(items) - (length - 1) * step):
                    gram = tuple(items[start : start + (length - 1) * step + 1 : step])
                    if gram in grams:
                        row[grams[gram]] += 1
    mode = attributes["mode"]
    if mode == b"IDF":
        counts = (counts > 0).astype(np.float32)
    if mode != b"TF" and "weights" in attributes:
        weights = np.ones(counts.shape[1], np.float32)
        # The weight of an n-gram stands where the n-gram does in the pool.
        weights[np.array(places)] = attributes["weights"]
        counts = counts * weights
    return [counts if x.ndim == 2 else counts[0]]


def _pool(attributes: Attributes) -> Iterator[tuple[Any, ...] | None]:
    """Yield the n-grams of a pool in order; None for lengths that are not asked for."""
    pool = _texts(attributes, "pool_strings") or list(attributes.get("pool_int64s", ()))
    starts = [*attributes["ngram_counts"], len(pool)]
    lengths = range(attributes["min_gram_length"], attributes["max_gram_length"] + 1)
    for length, (start, end) in enumerate(pairwise(starts), 1):
        for at in range(start, end, length):
            yield tuple(pool[at : at + length]) if length in lengths else None


def sequence_insert(
    attributes: Attributes, version: int, items: Array, item: Array, position: Array | None = None
) -> list[Array]:
    """Return a sequence with `item` before a place, at the end unless said."""
    found = list(items.item())
    at = len(found) if position is None else int(position.item())
    if not -len(found) <= at <= len(found):
        raise ShapeError(f"SequenceInsert: a sequence of {len(found)} has no place {at}")
    found.insert(at, item)
    return [boxed(found)]


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "RegexFullMatch"): regex_full_match,
    ("", "SequenceInsert"): sequence_insert,
    ("", "StringNormalizer"): string_normalizer,
    ("", "StringSplit"): string_split,
    ("", "TfIdfVectorizer"): tf_idf_vectorizer,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
