"""Nodes of texts, narrow types, sequences and classical models; ONNX Runtime says the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from glnn.onnx.operators.dtypes import CODES, type_from_text
from tests.onnx.reference_integers import Array, Case, Cases, Types


def dtype_of(name: str) -> np.dtype[Any]:
    return type_from_text(f"tensor({name})").dtype.numpy


def texts(*lines: Any) -> Array:
    return np.array(lines, object)


WORDS = texts(["", "a b  c", " é ü "], ["a-b-", "日本 語", "x.y"])


def regex_full_match(version: int, types: Types) -> Cases:
    for pattern in (r"[a-z ]+", r".*", r"\w+-\w-", r"日本.*", ""):
        yield Case([WORDS], [None], {"pattern": pattern})
        yield Case([np.array("a b  c", object)], [None], {"pattern": pattern})
    yield Case([WORDS[:0]], [None], {"pattern": "a"})


def string_concat(version: int, types: Types) -> Cases:
    yield Case([WORDS, WORDS], [None])
    yield Case([WORDS, texts("!", "", "ß")], [None])
    yield Case([np.array("a", object), texts("b", "c")], [None])
    yield Case([WORDS[:0], texts("!", "", "ß")], [None])
    yield Case([np.array("a", object), np.array("b", object)], [None])


def string_normalizer(version: int, types: Types) -> Cases:
    words = texts("monday", "Tuesday", "MONDAY", "wednesday", "", "a b")
    for change, sensitive, stop in itertools.product(
        ("NONE", "LOWER", "UPPER"), (0, 1), (["monday"], ["Tuesday", "x"])
    ):
        attributes: dict[str, Any] = {"case_change_action": change, "locale": "C"}
        attributes["is_case_sensitive"] = sensitive
        yield Case([words], [None], {**attributes, "stopwords": stop})
        yield Case([words[None, :5]], [None], {**attributes, "stopwords": stop})
        yield Case([words], [None], attributes)
    everything = {"stopwords": ["monday"], "is_case_sensitive": 1, "locale": "C"}
    yield Case([texts("monday", "monday")], [None], everything)
    yield Case([texts(["monday", "monday"])], [None], everything)


def string_split(version: int, types: Types) -> Cases:
    for delimiter, most in itertools.product((" ", "-", "b", None, ""), (None, 0, 1, 2)):
        attributes = {} if delimiter is None else {"delimiter": delimiter}
        attributes |= {} if most is None else {"maxsplit": most}
        yield Case([texts([["a b  c", " é ü "], ["a-b-", "x"]])], [None, None], attributes)
        yield Case([np.array("a-b c", object)], [None, None], attributes)
    # ONNX Runtime counts no parts of an empty text; ONNX's text leaves it to its delimiters.
    empty = texts("", "a b")
    right = [texts(["", ""], ["a", "b"]), np.array([1, 2], np.int64)]
    yield Case([empty], right, {"delimiter": " "})
    yield Case([empty[:0]], [None, None], {"delimiter": " "})


def equal_texts(version: int, types: Types) -> Cases:
    yield Case([WORDS, WORDS[:, ::-1]], [None])
    yield Case([WORDS, texts("")], [None])
    yield Case([WORDS[:0], texts("")], [None])
    yield Case([np.array("é", object), np.array("é", object)], [None])


def tf_idf(version: int, types: Types) -> Cases:
    dtype = dtype_of(types["T"])
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]
    flat = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8])
    given = flat.astype(str).astype(object) if dtype.hasobject else flat.astype(dtype)
    named: dict[str, Any] = {"pool_int64s": pool}
    if dtype.hasobject:
        named = {"pool_strings": list(map(str, pool))}
    for mode, skip, least, most, weights in itertools.product(
        ("TF", "IDF", "TFIDF"), (0, 1, 5), (1, 2), (1, 2), (None, [0.5 * i for i in range(7)])
    ):
        if least > most:
            continue
        attributes = {
            "mode": mode,
            "max_skip_count": skip,
            "min_gram_length": least,
            "max_gram_length": most,
            "ngram_counts": [0, 4],
            "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
            **({} if weights is None else {"weights": weights}),
            **named,
        }
        yield Case([given], [None], attributes)
        yield Case([given.reshape(2, 6)], [None], attributes)


def compress(version: int, types: Types) -> Cases:
    dtype = dtype_of(types["T"])
    count = np.arange(24).reshape(2, 3, 4)
    x = count.astype(str).astype(object) if dtype.hasobject else (count % 4).astype(dtype)
    for condition, axis in (
        ([True, False, True], 1),
        ([False, True], 2),
        ([False] * 2, 0),
        ([False, True, True, False, True], None),
        ([True] * 30, None),
        *((([True, False, True], -2),) if version >= 11 else ()),
    ):
        at = np.flatnonzero(condition)
        at = at[at < (24 if axis is None else x.shape[axis])]
        right = x.reshape(-1)[at] if axis is None else np.take(x, at, axis)
        attributes = {} if axis is None else {"axis": axis}
        yield Case([x, np.array(condition[: 24 if axis is None else None])], [right], attributes)
    yield Case([x[:0], np.array([True])], [x[:0, :1]], {"axis": 1})


def non_zero(version: int, types: Types) -> Cases:
    dtype = dtype_of(types["T"])
    for numbers in ([[0, 1, 0], [1, 0, 3]], [0, 0], [[[1]], [[2]]], 0, 1, np.zeros((0, 2))):
        x = np.array(numbers).astype(dtype)
        places = [at for at in np.ndindex(x.shape) if float(np.real(x[at])) != 0]
        yield Case([x], [np.array(places, np.int64).reshape(len(places), x.ndim).T])
    if np.dtype(dtype).kind == "f" or dtype == ml_dtypes.bfloat16:
        yield Case([np.array([np.nan, -0.0, np.inf], dtype)], [np.array([[0, 2]], np.int64)])


def bit_cast(version: int, types: Types) -> Cases:
    source, target = dtype_of(types["T1"]), dtype_of(types["T2"])
    for shape in ((2, 3), (), (0, 2)):
        count = int(np.prod(shape))
        raw = np.random.default_rng(count).integers(0, 256, count * source.itemsize)
        if source == np.bool_ or target == np.bool_:
            raw %= 2
        x = np.frombuffer(raw.astype(np.uint8).tobytes(), source).reshape(shape)
        right = np.frombuffer(x.tobytes(), target).reshape(shape)
        yield Case([x], [right], {"to": CODES[type_from_text(f"tensor({types['T2']})").dtype]})


def eye_like(version: int, types: Types) -> Cases:
    source, target = dtype_of(types["T1"]), dtype_of(types["T2"])
    code = CODES[type_from_text(f"tensor({types['T2']})").dtype]
    for shape, k in itertools.product(((2, 3), (3, 3), (0, 2)), (0, 1, -1, 5)):
        right = np.array([[i + k == j for j in range(shape[1])] for i in range(shape[0])])
        right = right.reshape(shape).astype(target)
        yield Case([np.ones(shape, source)], [right], {"k": k, "dtype": code})
        if source == target:
            yield Case([np.ones(shape, source)], [right], {"k": k})


def mixed_power(version: int, types: Types) -> Cases:
    x = np.array([1.5, -2.0, 0.0, np.inf, 0.1, np.nan], dtype_of(types["T"]))
    y = np.array([2, 3, 0, 1, 7, 0], dtype_of(types["T1"]))
    right = np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    yield Case([x, y], [right])
    yield Case([x, y[1:2]], [np.power(x.astype(np.float64), 3.0).astype(x.dtype)])


def sequence_at(version: int, types: Types) -> Cases:
    items = [np.arange(3.0), np.arange(4.0).reshape(2, 2), np.zeros(0)]
    for at in (0, 2, -1, -3):
        yield Case([boxed(items), np.array(at, np.int64)], [items[at]])
    yield Case([boxed(items), np.array(1, np.int32)], [items[1]])


def sequence_insert(version: int, types: Types) -> Cases:
    items, new = [np.arange(3.0), np.zeros((2, 2))], np.ones(5)
    for at in (0, 1, 2, -1, -2):
        place = at if at >= 0 else at + 2
        right = [*items[:place], new, *items[place:]]
        yield Case([boxed(items), new, np.array(at, np.int64)], [right])
    yield Case([boxed(items), new], [[*items, new]])
    yield Case([boxed([]), new], [[new]])


def concat_from_sequence(version: int, types: Types) -> Cases:
    items = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    for axis in (0, 1, -1, -2):
        yield Case([boxed(items)], [np.concatenate(items, axis)], {"axis": axis})
    for axis in (0, 1, 2, -1):
        yield Case([boxed(items)], [np.stack(items, axis)], {"axis": axis, "new_axis": 1})


def identity(version: int, types: Types) -> Cases:
    for items in ([], [np.arange(3.0), np.zeros((2, 0))]):
        yield Case([boxed(items)], [items])


def boxed(value: Any) -> Array:
    found = np.empty((), object)
    found[()] = value
    return found


def mel_weight_matrix(version: int, types: Types) -> Cases:
    for bins, length, rate, low, high in (
        (8, 16, 8192, 0.0, 4096.0),
        (40, 512, 16000, 20.0, 7600.0),
        (10, 100, 8000, 125.0, 3800.0),
    ):
        sizes = [np.array(n, dtype_of(types["T1"])) for n in (bins, length, rate)]
        given = [*sizes, np.array(low, np.float32), np.array(high, np.float32)]
        yield Case(given, [None], {"output_datatype": 1 if types["T3"] == "float" else 11})


CASES: dict[tuple[str, str], Callable[[int, Types], Cases]] = {
    ("", "BitCast"): bit_cast,
    ("", "Compress"): compress,
    ("", "ConcatFromSequence"): concat_from_sequence,
    ("", "EyeLike"): eye_like,
    ("", "Identity"): identity,
    ("", "MelWeightMatrix"): mel_weight_matrix,
    ("", "NonZero"): non_zero,
    ("", "RegexFullMatch"): regex_full_match,
    ("", "SequenceAt"): sequence_at,
    ("", "SequenceInsert"): sequence_insert,
    ("", "StringConcat"): string_concat,
    ("", "StringNormalizer"): string_normalizer,
    ("", "StringSplit"): string_split,
    ("", "TfIdfVectorizer"): tf_idf,
}
"""By domain and operator: cases of a version and of types."""
