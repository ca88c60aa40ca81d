"""Linear models of rows of numbers, and what prepares these, by NumPy.

One row may be given as a vector, as ONNX Runtime takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.types import Array

Attributes = Mapping[str, Any]
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
NO_NUMBER = 1e-7
"""Scores nearer to 0 than this are 0 for SOFTMAX_ZERO."""


def rows_of(operator: str, x: Array) -> Array:
    """Return x as float32 rows (N, C), of a vector as one row."""
    if x.ndim not in (1, 2):
        raise ShapeError(f"{operator}: x must have 1 or 2 dimensions, got the shape {x.shape}")
    return np.atleast_2d(x).astype(np.float32)


def transform_of(operator: str, attributes: Attributes) -> str:
    name = str(attributes.get("post_transform", b"NONE").decode())
    if name not in TRANSFORMS:
        raise ShapeError(f"{operator}: post_transform must be {', '.join(TRANSFORMS)}, got {name}")
    return name


def _linear(operator: str, attributes: Attributes, rows: Array, count: int) -> Array:
    """Return float32 scores (N, count): products with the coefficients, and the intercepts."""
    coefficients = np.array(attributes.get("coefficients", ()), np.float32)
    if coefficients.size != count * rows.shape[1]:
        raise ShapeError(
            f"{operator}: coefficients must be {count} x {rows.shape[1]}, got {coefficients.size}"
        )
    scores: Array = rows @ coefficients.reshape(count, rows.shape[1]).T
    intercepts = np.array(attributes.get("intercepts", ()), np.float32)
    if not intercepts.size:
        return scores
    if intercepts.size != count:
        raise ShapeError(f"{operator}: intercepts must be {count}, got {intercepts.size}")
    scores = scores + intercepts
    return scores


def linear_regressor(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return scores (N, targets)."""
    scores = _linear(
        "LinearRegressor", attributes, rows_of("LinearRegressor", x), attributes.get("targets", 1)
    )
    return [transformed(scores, transform_of("LinearRegressor", attributes))]


def linear_classifier(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the label of each row, and scores of each class."""
    rows, transform = rows_of("LinearClassifier", x), transform_of("LinearClassifier", attributes)
    count = len(attributes.get("intercepts", ()))
    count = count or len(attributes.get("coefficients", ())) // max(rows.shape[1], 1)
    scores = _linear("LinearClassifier", attributes, rows, count)
    labels = labels_of(attributes)
    if count == 1 and not len(labels):
        labels = np.arange(2)
        found = transformed(scores, transform)
    elif count == 1 and len(labels) == 2:
        if transform == "PROBIT":
            raise UnsupportedOpError("LinearClassifier: PROBIT of one score for two classes")
        one = logistic(scores) if transform == "LOGISTIC" else scores
        found = np.concatenate([1 - one, one], 1)
    elif 1 < count <= len(labels):
        found = transformed(scores, transform)
    else:
        raise ShapeError(f"LinearClassifier: {len(labels)} labels for {count} scores")
    winners = scores[:, 0] > 0 if count == 1 else scores.argmax(1)
    return [labels[winners.astype(np.int64)], found]


def labels_of(attributes: Attributes) -> Array:
    """Return the labels of classes, numbers or texts."""
    texts = attributes.get("classlabels_strings", ())
    if texts:
        return np.array([one.decode() for one in texts], object)
    return np.array(attributes.get("classlabels_ints", ()), np.int64)


def transformed(scores: Array, transform: str) -> Array:
    """Return scores (N, count) after a post_transform: of one score only PROBIT changes it."""
    if transform == "PROBIT":
        return _probit(scores)
    if transform == "NONE" or scores.shape[1] == 1:
        return scores
    if transform == "LOGISTIC":
        return logistic(scores)
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    if transform == "SOFTMAX":
        return np.asarray(exponents / exponents.sum(1, keepdims=True))
    zero = np.abs(scores) <= NO_NUMBER
    total = np.where(zero, 0, exponents).sum(1, keepdims=True)
    there = np.where(zero, scores * np.exp(-scores.max(1, keepdims=True)), exponents)
    return np.asarray(there / total, np.float32)


def logistic(scores: Array) -> Array:
    found = 1 / (1 + np.exp(-np.abs(scores)))
    return np.where(scores < 0, 1 - found, found)


def _probit(scores: Array) -> Array:
    """Return the inverse of the normal distribution, as ONNX Runtime nears it (Winitzki)."""
    x = 2 * scores - 1
    log = np.log((1 - x) * (1 + x))
    half = np.float32(2 / (np.pi * 0.147)) + np.float32(0.5) * log
    root = np.sqrt(np.sqrt(half * half - np.float32(1 / 0.147) * log) - half)
    return np.asarray(np.float32(1.41421356) * np.where(x < 0, -root, root))


def normalizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return rows divided by their greatest number, their sum of magnitudes or their length; rows
    where that is 0 as they are.
    """
    name = attributes.get("norm", b"MAX").decode()
    rows = rows_of("Normalizer", x)
    if name == "MAX":
        least = np.float32(np.finfo(np.float32).min)
        norm = np.fmax.reduce(rows, 1, keepdims=True, initial=least)
    elif name == "L1":
        norm = np.abs(rows).sum(1, keepdims=True)
    elif name == "L2":
        norm = np.sqrt(np.square(rows).sum(1, keepdims=True))
    else:
        raise ShapeError(f"Normalizer: norm must be MAX, L1 or L2, got {name}")
    return [(rows / np.where(norm == 0, np.float32(1), norm)).reshape(x.shape)]


def imputer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return x with a value in the place of each number that stands for a missing one."""
    if x.ndim not in (1, 2):
        raise ShapeError(f"Imputer: x must have 1 or 2 dimensions, got the shape {x.shape}")
    kind = "float" if x.dtype.kind == "f" else "int64"
    values = np.array(attributes.get(f"imputed_value_{kind}s", ()), x.dtype)
    if values.size not in (1, x.shape[-1]):
        raise ShapeError(
            f"Imputer: imputed_value_{kind}s must be 1 or {x.shape[-1]}, got {values.size}"
        )
    missing = np.array(attributes.get(f"replaced_value_{kind}", 0), x.dtype)
    there = np.isnan(x) if missing != missing else x == missing
    return [np.where(there, values, x)]


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("ai.onnx.ml", "Imputer"): imputer,
    ("ai.onnx.ml", "LinearClassifier"): linear_classifier,
    ("ai.onnx.ml", "LinearRegressor"): linear_regressor,
    ("ai.onnx.ml", "Normalizer"): normalizer,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
