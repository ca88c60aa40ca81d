"""ONNX-ML by NumPy: linear models, support vector machines, ensembles of decision trees.

A vector is taken for one row, as by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np

from glnn.core.array_functions import softmax
from glnn.core.process import check_memory
from glnn.core.types import Array
from glnn.errors import ShapeError, UnsupportedOpError

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LEAST_PROBABILITY = 1e-7


def _floats(attributes: Attributes, name: str) -> Array:
    return np.array(attributes.get(name, ()), np.float32)


def _kernel(operator: str, attributes: Attributes, rows: Array, vectors: Array) -> Array:
    """Return the kernel function of each row (N, C) and support vector (V, C), (N, V)."""
    name = attributes.get("kernel_type", b"LINEAR").decode()
    gamma, offset, degree = attributes.get("kernel_params") or (0.0, 0.0, 0.0)
    if name not in KERNELS:
        raise ShapeError(f"{operator}: kernel_type must be {', '.join(KERNELS)}, got {name}")
    if name == "RBF":
        differences = rows[:, None] - vectors
        return np.asarray(np.exp(np.float32(-gamma) * np.square(differences).sum(-1)))
    products = rows @ vectors.T
    if name == "LINEAR":
        return np.asarray(products)
    products = products * np.float32(gamma) + np.float32(offset)
    return np.asarray(np.tanh(products) if name == "SIGMOID" else products ** np.float32(degree))


def _vectors(operator: str, attributes: Attributes, rows: Array, count: int) -> Array:
    """Return the support vectors (count, C)."""
    result = _floats(attributes, "support_vectors")
    if result.size != count * rows.shape[1]:
        raise ShapeError(
            f"{operator}: support_vectors must be {count} x {rows.shape[1]}, got {result.size}"
        )
    return result.reshape(count, rows.shape[1])


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
    """Return the class with most votes of each row, and its scores.

    These are of each pair of classes; with `prob_a` they are the probabilities of each class.
    """
    rows, transform = rows_of("SVMClassifier", x), transform_of("SVMClassifier", attributes)
    counts, labels = attributes.get("vectors_per_class", ()), labels_of(attributes)
    if not counts:
        scores = _class_scores(attributes, rows, len(labels))
        return [labels[scores.argmax(1)], transform_scores(scores, transform)]
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
    for pair, (i, j) in enumerate(pairs):
        scores[:, pair] = rho[pair] + (
            kernels[:, parts[i]] @ coefficients[j - 1, parts[i]]
            + kernels[:, parts[j]] @ coefficients[i, parts[j]]
        )
        votes[:, i] += scores[:, pair] > 0
        votes[:, j] += ~(scores[:, pair] > 0)
    result = labels[votes.argmax(1)]
    if attributes.get("prob_a", ()):
        return [result, transform_scores(_probabilities(attributes, scores, classes), transform)]
    if classes > 2:
        return [result, transform_scores(scores, transform)]
    if transform == "PROBIT":
        raise UnsupportedOpError("SVMClassifier: PROBIT of one score for two classes")
    other = 1 - scores if transform.startswith("SOFTMAX") else -scores
    scores = np.concatenate([other, scores], 1)
    return [result, logistic(scores) if transform == "LOGISTIC" else scores]


def _class_scores(attributes: Attributes, rows: Array, classes: int) -> Array:
    """Return linear scores of each class, (N, classes)."""
    coefficients, rho = _floats(attributes, "coefficients"), _floats(attributes, "rho")
    if classes < 3:  # ONNX Runtime takes the second of two if any score is above 0
        raise UnsupportedOpError("SVMClassifier: fewer than 3 classes without vectors_per_class")
    if coefficients.size != classes * rows.shape[1] or not rho.size:
        raise ShapeError(
            f"SVMClassifier: coefficients must be {classes} x {rows.shape[1]} and rho at least 1, "
            f"got {coefficients.size} and {rho.size}"
        )
    return np.asarray(rows @ coefficients.reshape(classes, -1).T + rho[0])


def _probabilities(attributes: Attributes, scores: Array, classes: int) -> Array:
    """Return class probabilities (N, classes) from the scores of pairs of classes.

    As LIBSVM: Wu, Lin and Weng, 2004, second approach.
    """
    a, b = _floats(attributes, "prob_a"), _floats(attributes, "prob_b")
    if not a.size == b.size == scores.shape[1]:
        raise ShapeError(
            f"SVMClassifier: prob_a and prob_b must be {scores.shape[1]}, got {a.size} and {b.size}"
        )
    ratios = np.clip(1 - logistic(scores * a + b), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    result = np.empty((len(scores), classes), np.float32)
    for row, pairwise in zip(result, ratios, strict=True):
        r = np.zeros((classes, classes), np.float64)
        for (i, j), ratio in zip(combinations(range(classes), 2), pairwise, strict=True):
            r[i, j], r[j, i] = ratio, 1 - ratio
        row[:] = _couple_probabilities(r)
    return result


def _couple_probabilities(r: Array) -> Array:
    """Return the class probabilities p that minimise the differences of p[j] r[i, j] and
    p[i] r[j, i].
    """
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


SUPPORT_VECTORS: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("ai.onnx.ml", "SVMClassifier"): svm_classifier,
    ("ai.onnx.ml", "SVMRegressor"): svm_regressor,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""


Attributes = Mapping[str, Any]
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
ZERO_SCORE = 1e-7
"""SOFTMAX_ZERO takes scores of up to this magnitude for 0."""


def rows_of(operator: str, x: Array) -> Array:
    """Return x as float32 rows (N, C); a vector becomes one row."""
    if x.ndim not in (1, 2):
        raise ShapeError(f"{operator}: x must have 1 or 2 dimensions, got the shape {x.shape}")
    return np.atleast_2d(x).astype(np.float32)


def transform_of(operator: str, attributes: Attributes) -> str:
    name = str(attributes.get("post_transform", b"NONE").decode())
    if name not in TRANSFORMS:
        raise ShapeError(f"{operator}: post_transform must be {', '.join(TRANSFORMS)}, got {name}")
    return name


def _linear(operator: str, attributes: Attributes, rows: Array, count: int) -> Array:
    """Return linear float32 scores (N, count)."""
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
    return np.asarray(scores + intercepts)


def linear_regressor(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return scores (N, targets)."""
    scores = _linear(
        "LinearRegressor", attributes, rows_of("LinearRegressor", x), attributes.get("targets", 1)
    )
    return [transform_scores(scores, transform_of("LinearRegressor", attributes))]


def linear_classifier(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the label of each row, and scores of each class."""
    rows, transform = rows_of("LinearClassifier", x), transform_of("LinearClassifier", attributes)
    count = len(attributes.get("intercepts", ()))
    count = count or len(attributes.get("coefficients", ())) // max(rows.shape[1], 1)
    scores = _linear("LinearClassifier", attributes, rows, count)
    labels = labels_of(attributes)
    if count == 1 and not len(labels):
        labels = np.arange(2)
        result = transform_scores(scores, transform)
    elif count == 1 and len(labels) == 2:
        if transform == "PROBIT":
            raise UnsupportedOpError("LinearClassifier: PROBIT of one score for two classes")
        second = logistic(scores) if transform == "LOGISTIC" else scores
        result = np.concatenate([1 - second, second], 1)
    elif 1 < count <= len(labels):
        result = transform_scores(scores, transform)
    else:
        raise ShapeError(f"LinearClassifier: {len(labels)} labels for {count} scores")
    winners = scores[:, 0] > 0 if count == 1 else scores.argmax(1)
    return [labels[winners.astype(np.int64)], result]


def labels_of(attributes: Attributes) -> Array:
    """Return the labels of classes, numbers or texts."""
    texts = attributes.get("classlabels_strings", ())
    if texts:
        return np.array([one.decode() for one in texts], object)
    return np.array(attributes.get("classlabels_ints", ()), np.int64)


def transform_scores(scores: Array, transform: str) -> Array:
    """Return scores (N, count) after a post_transform. Only PROBIT changes a single score."""
    if transform == "PROBIT":
        return _probit(scores)
    if transform == "NONE" or scores.shape[1] == 1:
        return scores
    if transform == "LOGISTIC":
        return logistic(scores)
    if transform == "SOFTMAX":
        return softmax(scores)
    exponents = np.exp(scores - scores.max(1, keepdims=True))
    zero = np.abs(scores) <= ZERO_SCORE
    total = np.where(zero, 0, exponents).sum(1, keepdims=True)
    numerators = np.where(zero, scores * np.exp(-scores.max(1, keepdims=True)), exponents)
    return np.asarray(numerators / total, np.float32)


def logistic(scores: Array) -> Array:
    result = 1 / (1 + np.exp(-np.abs(scores)))
    return np.where(scores < 0, 1 - result, result)


def _probit(scores: Array) -> Array:
    """Return quantiles of the normal distribution by ONNX Runtime's approximation (Winitzki)."""
    x = 2 * scores - 1
    log = np.log((1 - x) * (1 + x))
    half = np.float32(2 / (np.pi * 0.147)) + np.float32(0.5) * log
    root = np.sqrt(np.sqrt(half * half - np.float32(1 / 0.147) * log) - half)
    return np.asarray(np.float32(1.41421356) * np.where(x < 0, -root, root))


def normalizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return rows divided by their maximum, L1 norm or L2 norm; where that is 0, unchanged."""
    name = attributes.get("norm", b"MAX").decode()
    rows = rows_of("Normalizer", x)
    if name == "MAX":
        lowest = np.float32(np.finfo(np.float32).min)
        norm = np.fmax.reduce(rows, 1, keepdims=True, initial=lowest)
    elif name == "L1":
        norm = np.abs(rows).sum(1, keepdims=True)
    elif name == "L2":
        norm = np.sqrt(np.square(rows).sum(1, keepdims=True))
    else:
        raise ShapeError(f"Normalizer: norm must be MAX, L1 or L2, got {name}")
    return [(rows / np.where(norm == 0, np.float32(1), norm)).reshape(x.shape)]


def imputer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return x with each number that marks a missing value replaced."""
    if x.ndim not in (1, 2):
        raise ShapeError(f"Imputer: x must have 1 or 2 dimensions, got the shape {x.shape}")
    kind = "float" if x.dtype.kind == "f" else "int64"
    values = np.array(attributes.get(f"imputed_value_{kind}s", ()), x.dtype)
    if values.size not in (1, x.shape[-1]):
        raise ShapeError(
            f"Imputer: imputed_value_{kind}s must be 1 or {x.shape[-1]}, got {values.size}"
        )
    missing = np.array(attributes.get(f"replaced_value_{kind}", 0), x.dtype)
    is_missing = np.isnan(x) if missing != missing else x == missing
    return [np.where(is_missing, values, x)]


MODES = (
    b"LEAF",
    b"BRANCH_LEQ",
    b"BRANCH_LT",
    b"BRANCH_GTE",
    b"BRANCH_GT",
    b"BRANCH_EQ",
    b"BRANCH_NEQ",
)
COMPARISONS: Mapping[int, Callable[[Array, Array], Array]] = {
    1: np.less_equal,
    2: np.less,
    3: np.greater_equal,
    4: np.greater,
    5: np.equal,
    6: np.not_equal,
}
"""Comparisons of a feature with a node's value, by the index in MODES. True takes the true branch.
"""


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees of an ONNX node, as arrays with an element for each tree node."""

    features: Array
    values: Array
    modes: Array
    """Indices into MODES."""
    children: Array
    """(2, nodes): the indices of the children for a comparison that is false, and one that is true.
    """
    missing: Array
    """Flags: True where NaN takes the true branch."""
    roots: Array
    """The index of each tree's root, which is its first node."""
    indices: Mapping[tuple[int, int], int]
    """Indices of nodes by the ids of tree and node."""

    @classmethod
    def from_attributes(cls, operator: str, attributes: Attributes, dtype: np.dtype[Any]) -> Forest:
        """Return the forest in the attributes of an ONNX node. dtype: in which features are
        compared.

        Raises ShapeError for inconsistent attributes.
        """
        trees = list(attributes.get("nodes_treeids", ()))
        ids = list(zip(trees, attributes.get("nodes_nodeids", ()), strict=False))
        indices = {key: i for i, key in enumerate(ids)}
        names = list(attributes.get("nodes_modes", ()))
        if not {*names} <= {*MODES}:
            raise ShapeError(f"{operator}: nodes_modes must be BRANCH_LEQ, ... or LEAF")
        modes = np.array([MODES.index(name) for name in names], np.int64)
        features = np.array(list(attributes.get("nodes_featureids", ())), np.int64)
        values = _tree_floats(attributes, "nodes_values").astype(dtype)
        tracks = attributes.get("nodes_missing_value_tracks_true") or [0] * len(ids)
        child_ids = [
            list(attributes.get(name, ())) for name in ("nodes_falsenodeids", "nodes_truenodeids")
        ]
        counts = {len(one) for one in (trees, modes, features, values, tracks, *child_ids)}
        if not ids or len(indices) < len(ids) or counts != {len(ids)}:
            raise ShapeError(
                f"{operator}: nodes must have one of each attribute, and ids of theirs"
            )
        branches = np.flatnonzero(modes)
        children = np.zeros((2, len(ids)), np.int64)
        for row, node_ids in zip(children, child_ids, strict=True):
            for i in branches:
                child = indices.get((trees[i], node_ids[i]))
                if child is None:
                    raise ShapeError(f"{operator}: the tree {trees[i]} has no node {node_ids[i]}")
                row[i] = child
        roots = np.sort(np.unique(trees, return_index=True)[1])
        if np.isin(roots, children[:, branches]).any():
            raise ShapeError(f"{operator}: the first node of each tree must be its root")
        return cls(features, values, modes, children, np.array(tracks, bool), roots, indices)

    def leaves(self, operator: str, x: Array) -> Array:
        """Return the index of the leaf that each row of x reaches in each tree: (rows, trees)."""
        branches = self.modes > 0
        used = self.features[branches]
        if used.size and not 0 <= used.min() <= used.max() < x.shape[1]:
            raise ShapeError(f"{operator}: nodes ask for features that x, {x.shape}, has not")
        result = np.repeat(self.roots[None], len(x), 0)
        rows = np.arange(len(x))[:, None]
        used_modes = np.unique(self.modes[branches]).tolist()
        for _ in range(len(self.modes)):
            inner = branches[result]
            if not inner.any():
                return result
            features = x[rows, np.where(inner, self.features[result], 0)]
            values, modes = self.values[result], self.modes[result]
            is_true = np.isnan(features) & self.missing[result]
            for mode, compare in ((mode, COMPARISONS[mode]) for mode in used_modes):
                is_true |= (modes == mode) & compare(features, values)
            result = np.where(inner, self.children[is_true.astype(np.int64), result], result)
        raise ShapeError(f"{operator}: a node follows itself")


def _tree_floats(attributes: Attributes, name: str) -> Array:
    """Return an attribute of floats as float64, or the tensor of doubles that may replace it."""
    from onnx import numpy_helper

    tensor = attributes.get(f"{name}_as_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1).astype(np.float64)
    return np.array(list(attributes.get(name, ())), np.float32).astype(np.float64)


def _votes(
    operator: str, attributes: Attributes, kind: str, x: Array, count: int
) -> tuple[Array, Array, Array]:
    """Return the weights of leaves (nodes, count), flags where a leaf has one (nodes, count), and
    the leaves that rows of x reach (trees, rows).

    kind: the prefix of the attributes, "class" or "target". count: of classes or targets.
    """
    if x.ndim != 2:
        raise ShapeError(f"{operator}: x must be (rows, features), got {x.shape}")
    dtype = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    forest = Forest.from_attributes(operator, attributes, dtype)
    trees, nodes, ids = (
        list(attributes.get(f"{kind}_{name}", ())) for name in ("treeids", "nodeids", "ids")
    )
    weights = _tree_floats(attributes, f"{kind}_weights")
    if {len(trees), len(nodes), len(ids)} != {len(weights)}:
        raise ShapeError(f"{operator}: votes must have one of each attribute")
    # The weights, the flags, and a few arrays of all scores.
    nbytes = count * (9 * len(forest.modes) + 24 * len(x))
    check_memory(nbytes, lambda: f"{operator} of {len(forest.modes)} nodes for {count} results")
    table = np.zeros((len(forest.modes), count))
    voted = np.zeros(table.shape, bool)
    for tree, node, number, weight in zip(trees, nodes, ids, weights, strict=True):
        leaf = forest.indices.get((tree, node))
        if leaf is None or not 0 <= number < count:
            raise ShapeError(f"{operator}: no node {node} of tree {tree}, or no {kind} {number}")
        table[leaf, number] += weight
        voted[leaf, number] = True
    return table, voted, forest.leaves(operator, x.astype(dtype)).T


def _summed(weights: Array, leaves: Array) -> Array:
    """Return the sums (rows, count) over all trees."""
    result = np.zeros((leaves.shape[1], weights.shape[1]))
    for tree in leaves:  # one tree at a time, to bound memory
        result += weights[tree]
    return result


def _any_voted(voted: Array, leaves: Array) -> Array:
    """Return flags (rows, count): True where some tree has a weight for the class or target."""
    result = np.zeros((leaves.shape[1], voted.shape[1]), bool)
    for tree in leaves:
        result |= voted[tree]
    return result


def _add_base_values(operator: str, attributes: Attributes, scores: Array) -> Array:
    """Return scores plus the base values."""
    base = _tree_floats(attributes, "base_values")
    if len(base) not in (0, scores.shape[1]):
        raise ShapeError(f"{operator}: base_values must be {scores.shape[1]}, got {len(base)}")
    return scores + base if len(base) else scores


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softmax_zero(x: Array) -> Array:
    """Return the softmax of non-zero scores, 0 for the others."""
    exps = np.where(np.abs(x) > 1e-7, np.exp(x - x.max(1, keepdims=True)), 0)
    return np.asarray(exps / exps.sum(1, keepdims=True))


def _normal_quantiles(x: Array) -> Array:
    """Return the quantiles of the normal distribution."""
    normal = NormalDist()
    bounds = {0.0: -np.inf, 1.0: np.inf}
    result = [
        normal.inv_cdf(one) if 0 < one < 1 else bounds.get(one, np.nan)
        for one in x.ravel().tolist()
    ]
    return np.array(result).reshape(x.shape)


TREE_TRANSFORMS: Mapping[bytes, Callable[[Array], Array]] = {
    b"NONE": np.asarray,
    b"LOGISTIC": _logistic,
    b"SOFTMAX": softmax,
    b"SOFTMAX_ZERO": _softmax_zero,
    b"PROBIT": _normal_quantiles,
}


def _transform(operator: str, attributes: Attributes) -> bytes:
    name = bytes(attributes.get("post_transform", b"NONE"))
    if name not in TREE_TRANSFORMS:
        raise ShapeError(f"{operator}: post_transform must be NONE, LOGISTIC, ..., got {name!r}")
    return name


def tree_ensemble_regressor(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return (rows, targets): the sum, mean, minimum or maximum of the trees' weights."""
    operator = "TreeEnsembleRegressor"
    count, name = attributes.get("n_targets", 1), _transform(operator, attributes)
    aggregate = attributes.get("aggregate_function", b"SUM")
    if aggregate not in (b"SUM", b"AVERAGE", b"MIN", b"MAX"):
        raise ShapeError(
            f"{operator}: aggregate_function must be SUM, AVERAGE, MIN or MAX, got {aggregate!r}"
        )
    if count < 1:
        raise ShapeError(f"{operator}: n_targets must be at least 1, got {count}")
    if count == 1 and name not in (b"NONE", b"PROBIT"):
        what = f"{name.decode()} of one target, which ONNX Runtime leaves out,"
        raise UnsupportedOpError(f"{operator}: {what} is not computed")
    weights, voted, leaves = _votes(operator, attributes, "target", x, count)
    if aggregate in (b"MIN", b"MAX"):
        identity, combine = (np.inf, np.minimum) if aggregate == b"MIN" else (-np.inf, np.maximum)
        scores = np.full((len(x), count), identity)
        for tree in leaves:
            scores = combine(scores, np.where(voted[tree], weights[tree], identity))
        scores = np.where(_any_voted(voted, leaves), scores, 0)
    else:
        scores = _summed(weights, leaves) / (len(leaves) if aggregate == b"AVERAGE" else 1)
    return [
        TREE_TRANSFORMS[name](_add_base_values(operator, attributes, scores)).astype(np.float32)
    ]


def tree_ensemble_classifier(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the best class of each row, and the scores (rows, classes)."""
    operator = "TreeEnsembleClassifier"
    texts = [one.decode() for one in attributes.get("classlabels_strings", ())]
    integers = list(attributes.get("classlabels_int64s", ()))
    if bool(texts) == bool(integers):
        raise ShapeError(f"{operator}: labels must be texts or integers")
    labels = np.array(texts, object) if texts else np.array(integers, np.int64)
    if len(labels) < 2:
        raise UnsupportedOpError(f"{operator}: one class is not computed")
    name = _transform(operator, attributes)
    weights, voted, leaves = _votes(operator, attributes, "class", x, len(labels))
    scores = _summed(weights, leaves)
    ids = {*attributes["class_ids"]}
    if len(labels) == 2 and len(ids) == 1:
        best, scores = _binary_scores(operator, attributes, scores[:, 0], ids)
    else:
        scores = _add_base_values(operator, attributes, scores)
        counted = _any_voted(voted, leaves) | bool(len(_tree_floats(attributes, "base_values")))
        best = np.where(counted, scores, -np.inf).argmax(1)
        scores = TREE_TRANSFORMS[name](scores)
    return [labels[best], scores.astype(np.float32)]


def _binary_scores(
    operator: str, attributes: Attributes, scores: Array, ids: set[int]
) -> tuple[Array, Array]:
    """Return the best of two classes and both scores where all weights are for the second class.

    Such weights have the class id 0, as in exports of scikit-learn, XGBoost and LightGBM. Scores
    are probabilities where no weight is negative, else logits.
    """
    name, base = _transform(operator, attributes), _tree_floats(attributes, "base_values")
    if ids != {0} or len(base) > 1 or name not in (b"NONE", b"LOGISTIC"):
        raise UnsupportedOpError(
            f"{operator}: votes for one of two classes are computed where that is number 0, there "
            f"is one of base_values or none, and post_transform is NONE or LOGISTIC"
        )
    scores = scores + base.sum()
    is_probability = bool((_tree_floats(attributes, "class_weights") >= 0).all())
    best = (scores > (0.5 if is_probability else 0)).astype(np.int64)
    if name == b"LOGISTIC":
        return best, _logistic(np.stack([-scores, scores], 1))
    return best, np.stack([1 - scores if is_probability else -scores, scores], 1)


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    **SUPPORT_VECTORS,
    ("ai.onnx.ml", "Imputer"): imputer,
    ("ai.onnx.ml", "LinearClassifier"): linear_classifier,
    ("ai.onnx.ml", "LinearRegressor"): linear_regressor,
    ("ai.onnx.ml", "Normalizer"): normalizer,
    ("ai.onnx.ml", "TreeEnsembleClassifier"): tree_ensemble_classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): tree_ensemble_regressor,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
