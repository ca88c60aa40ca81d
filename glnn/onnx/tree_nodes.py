"""ONNX's ensembles of decision trees, as random forests, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.host_memory import check_memory
from glnn.types import Array

Attributes = Mapping[str, Any]
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
"""Comparisons of a feature and a node's value, in the order of MODES; True takes the branch for
true.
"""


@dataclass(frozen=True, eq=False)
class Forest:
    """The nodes of all trees of an ONNX node, an array element each."""

    features: Array
    values: Array
    modes: Array
    """Places in MODES."""
    children: Array
    """(2, nodes): by number the node that follows where the comparison is false, and true."""
    missing: Array
    """Flags: True where NaN takes the branch for true."""
    roots: Array
    """The root of each tree, its first node, by the tree's number."""
    numbers: Mapping[tuple[int, int], int]
    """The number of a node, by the ids of its tree and of its own."""

    @classmethod
    def from_attributes(cls, operator: str, attributes: Attributes, dtype: np.dtype[Any]) -> Forest:
        """Read the attributes of a node. dtype: that in which features are compared.

        Raises ShapeError for what is no forest.
        """
        trees = list(attributes.get("nodes_treeids", ()))
        ids = list(zip(trees, attributes.get("nodes_nodeids", ()), strict=False))
        numbers = {one: i for i, one in enumerate(ids)}
        names = list(attributes.get("nodes_modes", ()))
        if not {*names} <= {*MODES}:
            raise ShapeError(f"{operator}: nodes_modes must be BRANCH_LEQ, ... or LEAF")
        modes = np.array([MODES.index(name) for name in names], np.int64)
        features = np.array(list(attributes.get("nodes_featureids", ())), np.int64)
        values = _floats(attributes, "nodes_values").astype(dtype)
        tracks = attributes.get("nodes_missing_value_tracks_true") or [0] * len(ids)
        followers = [
            list(attributes.get(name, ())) for name in ("nodes_falsenodeids", "nodes_truenodeids")
        ]
        counts = {len(one) for one in (trees, modes, features, values, tracks, *followers)}
        if not ids or len(numbers) < len(ids) or counts != {len(ids)}:
            raise ShapeError(
                f"{operator}: nodes must have one of each attribute, and ids of theirs"
            )
        branches = np.flatnonzero(modes)
        children = np.zeros((2, len(ids)), np.int64)
        for way, listed in zip(children, followers, strict=True):
            for i in branches:
                child = numbers.get((trees[i], listed[i]))
                if child is None:
                    raise ShapeError(f"{operator}: the tree {trees[i]} has no node {listed[i]}")
                way[i] = child
        roots = np.sort(np.unique(trees, return_index=True)[1])
        if np.isin(roots, children[:, branches]).any():
            raise ShapeError(f"{operator}: the first node of each tree must be its root")
        return cls(features, values, modes, children, np.array(tracks, bool), roots, numbers)

    def leaves(self, operator: str, x: Array) -> Array:
        """Return by number the leaf that each row of x comes to in each tree: (rows, trees)."""
        branches = self.modes > 0
        wanted = self.features[branches]
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < x.shape[1]:
            raise ShapeError(f"{operator}: nodes ask for features that x, {x.shape}, has not")
        found = np.repeat(self.roots[None], len(x), 0)
        rows = np.arange(len(x))[:, None]
        present = np.unique(self.modes[branches]).tolist()
        for _ in range(len(self.modes)):
            inner = branches[found]
            if not inner.any():
                return found
            features = x[rows, np.where(inner, self.features[found], 0)]
            values, modes = self.values[found], self.modes[found]
            taken = np.isnan(features) & self.missing[found]
            for mode, compare in ((mode, COMPARISONS[mode]) for mode in present):
                taken |= (modes == mode) & compare(features, values)
            found = np.where(inner, self.children[taken.astype(np.int64), found], found)
        raise ShapeError(f"{operator}: a node follows itself")


def _floats(attributes: Attributes, name: str) -> Array:
    """Return an attribute of floats, or the tensor of doubles that may be in its place."""
    from onnx import numpy_helper

    tensor = attributes.get(f"{name}_as_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1).astype(np.float64)
    return np.array(list(attributes.get(name, ())), np.float32).astype(np.float64)


def _votes(
    operator: str, attributes: Attributes, kind: str, x: Array, count: int
) -> tuple[Array, Array, Array]:
    """Return the weights (nodes, count) of leaves, whether a leaf has one (nodes, count), and the
    leaves (trees, rows) that rows of x come to.

    kind: how the attributes of votes begin. count: classes or targets.
    """
    if x.ndim != 2:
        raise ShapeError(f"{operator}: x must be (rows, features), got {x.shape}")
    dtype = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    forest = Forest.from_attributes(operator, attributes, dtype)
    trees, nodes, ids = (
        list(attributes.get(f"{kind}_{name}", ())) for name in ("treeids", "nodeids", "ids")
    )
    weights = _floats(attributes, f"{kind}_weights")
    if {len(trees), len(nodes), len(ids)} != {len(weights)}:
        raise ShapeError(f"{operator}: votes must have one of each attribute")
    # The table, whether there are votes, and a few arrays of all scores.
    nbytes = count * (9 * len(forest.modes) + 24 * len(x))
    check_memory(nbytes, lambda: f"{operator} of {len(forest.modes)} nodes for {count} results")
    table = np.zeros((len(forest.modes), count))
    voted = np.zeros(table.shape, bool)
    for tree, node, number, weight in zip(trees, nodes, ids, weights, strict=True):
        at = forest.numbers.get((tree, node))
        if at is None or not 0 <= number < count:
            raise ShapeError(f"{operator}: no node {node} of tree {tree}, or no {kind} {number}")
        table[at, number] += weight
        voted[at, number] = True
    return table, voted, forest.leaves(operator, x.astype(dtype)).T


def _summed(weights: Array, leaves: Array) -> Array:
    """Return the sums (rows, count) over all trees."""
    found = np.zeros((leaves.shape[1], weights.shape[1]))
    for tree in leaves:  # a tree at a time: all weights together may be very many
        found += weights[tree]
    return found


def _any_voted(voted: Array, leaves: Array) -> Array:
    """Return whether a tree has a weight for a class or target: (rows, count)."""
    found = np.zeros((leaves.shape[1], voted.shape[1]), bool)
    for tree in leaves:
        found |= voted[tree]
    return found


def _based(operator: str, attributes: Attributes, scores: Array) -> Array:
    """Return scores with the base values added."""
    base = _floats(attributes, "base_values")
    if len(base) not in (0, scores.shape[1]):
        raise ShapeError(f"{operator}: base_values must be {scores.shape[1]}, got {len(base)}")
    return scores + base if len(base) else scores


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _softmax_zero(x: Array) -> Array:
    """Return the softmax of what is not 0."""
    powers = np.where(np.abs(x) > 1e-7, np.exp(x - x.max(1, keepdims=True)), 0)
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _probit(x: Array) -> Array:
    """Return the quantiles of the normal distribution."""
    normal = NormalDist()
    ends = {0.0: -np.inf, 1.0: np.inf}
    found = [
        normal.inv_cdf(one) if 0 < one < 1 else ends.get(one, np.nan) for one in x.ravel().tolist()
    ]
    return np.array(found).reshape(x.shape)


TRANSFORMS: Mapping[bytes, Callable[[Array], Array]] = {
    b"NONE": np.asarray,
    b"LOGISTIC": _logistic,
    b"SOFTMAX": _softmax,
    b"SOFTMAX_ZERO": _softmax_zero,
    b"PROBIT": _probit,
}


def _transform(operator: str, attributes: Attributes) -> bytes:
    name = bytes(attributes.get("post_transform", b"NONE"))
    if name not in TRANSFORMS:
        raise ShapeError(f"{operator}: post_transform must be NONE, LOGISTIC, ..., got {name!r}")
    return name


def tree_ensemble_regressor(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the targets (rows, targets): the sum, mean, least or greatest of the trees' votes."""
    operator = "TreeEnsembleRegressor"
    count, name = attributes.get("n_targets", 1), _transform(operator, attributes)
    how = attributes.get("aggregate_function", b"SUM")
    if how not in (b"SUM", b"AVERAGE", b"MIN", b"MAX"):
        raise ShapeError(
            f"{operator}: aggregate_function must be SUM, AVERAGE, MIN or MAX, got {how!r}"
        )
    if count < 1:
        raise ShapeError(f"{operator}: n_targets must be at least 1, got {count}")
    if count == 1 and name not in (b"NONE", b"PROBIT"):
        what = f"{name.decode()} of one target, which ONNX Runtime leaves out,"
        raise UnsupportedOpError(f"{operator}: {what} is not computed")
    weights, voted, leaves = _votes(operator, attributes, "target", x, count)
    if how in (b"MIN", b"MAX"):
        end, least = (np.inf, np.minimum) if how == b"MIN" else (-np.inf, np.maximum)
        scores = np.full((len(x), count), end)
        for tree in leaves:
            scores = least(scores, np.where(voted[tree], weights[tree], end))
        scores = np.where(_any_voted(voted, leaves), scores, 0)
    else:
        scores = _summed(weights, leaves) / (len(leaves) if how == b"AVERAGE" else 1)
    return [TRANSFORMS[name](_based(operator, attributes, scores)).astype(np.float32)]


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
        best, scores = _of_two(operator, attributes, scores[:, 0], ids)
    else:
        scores = _based(operator, attributes, scores)
        counted = _any_voted(voted, leaves) | bool(len(_floats(attributes, "base_values")))
        best = np.where(counted, scores, -np.inf).argmax(1)
        scores = TRANSFORMS[name](scores)
    return [labels[best], scores.astype(np.float32)]


def _of_two(
    operator: str, attributes: Attributes, scores: Array, ids: set[int]
) -> tuple[Array, Array]:
    """Return the best class and the scores where the only votes are those for the second of two
    classes, which have the number 0, as in exports of scikit-learn, XGBoost and LightGBM.

    They are probabilities where no weight is below 0, else what a logistic function is applied to.
    """
    name, base = _transform(operator, attributes), _floats(attributes, "base_values")
    if ids != {0} or len(base) > 1 or name not in (b"NONE", b"LOGISTIC"):
        raise UnsupportedOpError(
            f"{operator}: votes for one of two classes are computed where that is number 0, there "
            f"is one of base_values or none, and post_transform is NONE or LOGISTIC"
        )
    scores = scores + base.sum()
    is_probability = bool((_floats(attributes, "class_weights") >= 0).all())
    best = (scores > (0.5 if is_probability else 0)).astype(np.int64)
    if name == b"LOGISTIC":
        return best, _logistic(np.stack([-scores, scores], 1))
    return best, np.stack([1 - scores if is_probability else -scores, scores], 1)


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("ai.onnx.ml", "TreeEnsembleClassifier"): tree_ensemble_classifier,
    ("ai.onnx.ml", "TreeEnsembleRegressor"): tree_ensemble_regressor,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
