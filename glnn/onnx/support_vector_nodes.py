"""Support vector machines of rows of numbers, by NumPy.

One row may be given as a vector, as ONNX Runtime takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.onnx.linear_nodes import labels_of, logistic, rows_of, transform_of, transformed
from glnn.types import Array

Attributes = Mapping[str, Any]
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LEAST_PROBABILITY = 1e-7


def _floats(attributes: Attributes, name: str) -> Array:
    return np.array(attributes.get(name, ()), np.float32)


def _kernel(operator: str, attributes: Attributes, rows: Array, vectors: Array) -> Array:
    """Return the kernel of each row (N, C) and vector (V, C), (N, V)."""
    name = attributes.get("kernel_type", b"LINEAR").decode()
    gamma, offset, degree = attributes.get("kernel_params") or (0.0, 0.0, 0.0)
    if name not in KERNELS:
        raise ShapeError(f"{operator}: kernel_type must be {', '.join(KERNELS)}, got {name}")
    if name == "RBF":
        apart = rows[:, None] - vectors
        return np.asarray(np.exp(np.float32(-gamma) * np.square(apart).sum(-1)))
    products = rows @ vectors.T
    if name == "LINEAR":
        return np.asarray(products)
    products = products * np.float32(gamma) + np.float32(offset)
    return np.asarray(np.tanh(products) if name == "SIGMOID" else products ** np.float32(degree))


def _vectors(operator: str, attributes: Attributes, rows: Array, count: int) -> Array:
    """Return the support vectors (count, C)."""
    found = _floats(attributes, "support_vectors")
    if found.size != count * rows.shape[1]:
        raise ShapeError(
            f"{operator}: support_vectors must be {count} x {rows.shape[1]}, got {found.size}"
        )
    return found.reshape(count, rows.shape[1])


def svm_regressor(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return one score for each row, (N, 1); 1 or -1 by its sign for `one_class`."""
    rows, count = rows_of("SVMRegressor", x), attributes.get("n_supports", 0)
    coefficients, rho = _floats(attributes, "coefficients"), _floats(attributes, "rho")
    if transform_of("SVMRegressor", attributes) != "NONE":
        raise UnsupportedOpError("SVMRegressor: only the post_transform NONE is computed")
    if not count:
        kernels = rows
    else:
        kernels = _kernel(
            "SVMRegressor", attributes, rows, _vectors("SVMRegressor", attributes, rows, count)
        )
    if coefficients.size != kernels.shape[1] or rho.size != 1:
        raise ShapeError(
            f"SVMRegressor: coefficients must be {kernels.shape[1]} and rho one, "
            f"got {coefficients.size} and {rho.size}"
        )
    scores = kernels @ coefficients[:, None] + rho
    if attributes.get("one_class", 0):
        scores = np.where(scores > 0, np.float32(1), np.float32(-1))
    return [scores]


def svm_classifier(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the class with most votes of each row, and its scores: of each pair of classes, or
    of each class where they are probabilities.
    """
    rows, transform = rows_of("SVMClassifier", x), transform_of("SVMClassifier", attributes)
    counts, labels = attributes.get("vectors_per_class", ()), labels_of(attributes)
    if not counts:
        scores = _class_scores(attributes, rows, len(labels))
        return [labels[scores.argmax(1)], transformed(scores, transform)]
    classes, total = len(counts), sum(counts)
    pairs = [*combinations(range(classes), 2)]
    coefficients, rho = _floats(attributes, "coefficients"), _floats(attributes, "rho")
    if classes < 2 or len(labels) != classes:
        raise ShapeError(f"SVMClassifier: {len(labels)} labels for {classes} classes")
    if coefficients.size != (classes - 1) * total or rho.size != len(pairs):
        raise ShapeError(
            f"SVMClassifier: coefficients must be {classes - 1} x {total} and rho {len(pairs)}, "
            f"got {coefficients.size} and {rho.size}"
        )
    coefficients = coefficients.reshape(classes - 1, total)
    kernels = _kernel(
        "SVMClassifier", attributes, rows, _vectors("SVMClassifier", attributes, rows, total)
    )
    ends = np.cumsum(counts)
    parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    votes = np.zeros((len(rows), classes), np.int64)
    scores = np.zeros((len(rows), len(pairs)), np.float32)
    for at, (i, j) in enumerate(pairs):
        scores[:, at] = rho[at] + (
            kernels[:, parts[i]] @ coefficients[j - 1, parts[i]]
            + kernels[:, parts[j]] @ coefficients[i, parts[j]]
        )
        votes[:, i] += scores[:, at] > 0
        votes[:, j] += ~(scores[:, at] > 0)
    found = labels[votes.argmax(1)]
    if attributes.get("prob_a", ()):
        return [found, transformed(_probabilities(attributes, scores, classes), transform)]
    if classes > 2:
        return [found, transformed(scores, transform)]
    if transform == "PROBIT":
        raise UnsupportedOpError("SVMClassifier: PROBIT of one score for two classes")
    other = 1 - scores if transform.startswith("SOFTMAX") else -scores
    scores = np.concatenate([other, scores], 1)
    return [found, logistic(scores) if transform == "LOGISTIC" else scores]


def _class_scores(attributes: Attributes, rows: Array, classes: int) -> Array:
    """Return a score of each class, linear in the numbers of the row, (N, classes)."""
    coefficients, rho = _floats(attributes, "coefficients"), _floats(attributes, "rho")
    if classes < 3:  # of two ONNX Runtime takes the second where any score is above 0
        raise UnsupportedOpError("SVMClassifier: fewer than 3 classes without vectors_per_class")
    if coefficients.size != classes * rows.shape[1] or not rho.size:
        raise ShapeError(
            f"SVMClassifier: coefficients must be {classes} x {rows.shape[1]} and rho at least 1, "
            f"got {coefficients.size} and {rho.size}"
        )
    return np.asarray(rows @ coefficients.reshape(classes, -1).T + rho[0])


def _probabilities(attributes: Attributes, scores: Array, classes: int) -> Array:
    """Return the probability of each class of each row from the scores of pairs, as LIBSVM does
    (Wu, Lin and Weng, 2004, second approach), (N, classes).
    """
    a, b = _floats(attributes, "prob_a"), _floats(attributes, "prob_b")
    if not a.size == b.size == scores.shape[1]:
        raise ShapeError(
            f"SVMClassifier: prob_a and prob_b must be {scores.shape[1]}, got {a.size} and {b.size}"
        )
    ratios = np.clip(1 - logistic(scores * a + b), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    found = np.empty((len(scores), classes), np.float32)
    for row, given in zip(found, ratios, strict=True):
        r = np.zeros((classes, classes), np.float64)
        for (i, j), ratio in zip(combinations(range(classes), 2), given, strict=True):
            r[i, j], r[j, i] = ratio, 1 - ratio
        row[:] = _coupled(r)
    return found


def _coupled(r: Array) -> Array:
    """Return probabilities p of classes for which p[j] r[i, j] and p[i] r[j, i] are nearest."""
    k = len(r)
    q = -r * r.T
    np.fill_diagonal(q, np.square(r).sum(0))
    p = np.full(k, 1 / k)
    for _ in range(max(100, k)):
        qp = q @ p
        pqp = p @ qp
        if np.abs(qp - pqp).max() < 0.005 / k:
            break
        for t in range(k):
            step = (pqp - qp[t]) / q[t, t]
            p[t] += step
            pqp = (pqp + step * (step * q[t, t] + 2 * qp[t])) / (1 + step) ** 2
            qp = (qp + step * q[t]) / (1 + step)
            p /= 1 + step
    return p


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("ai.onnx.ml", "SVMClassifier"): svm_classifier,
    ("ai.onnx.ml", "SVMRegressor"): svm_regressor,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
