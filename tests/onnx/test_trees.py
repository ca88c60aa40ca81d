"""Forests of random trees on the host, held against ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper

import glnn
from glnn.core import process as process_module
from glnn.errors import GlnnError, LimitError
from glnn.onnx.delegate import Delegate

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 4
ROWS = 40
CODES = {np.float32: 1, np.float64: 11, np.int64: 7, np.int32: 6}
FLOATS = (np.float32, np.float64)


def nodes(
    rng: np.random.Generator, kind: str, trees: int, ids: range, low: float, whole: bool = False
) -> dict[str, list[Any]]:
    """The attributes of random trees, of which each leaf votes for some of `ids`, or for all where
    they are `whole`, from `low` on.
    """
    names = (
        "treeids nodeids featureids values modes truenodeids falsenodeids missing_value_tracks_true"
    )
    found: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names.split()}
    votes: dict[str, list[Any]] = {
        f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")
    }
    for tree in range(trees):
        inner = int(rng.integers(1, 8))
        slots, rows = [0], []
        for _ in range(inner):  # each takes the place of a leaf
            parent = slots.pop(int(rng.integers(len(slots))))
            count = 1 + 2 * len(rows)
            rows.append((parent, count, count + 1))
            slots += [count, count + 1]
        branches = {parent: (yes, no) for parent, yes, no in rows}
        for node in range(2 * inner + 1):
            yes, no = branches.get(node, (0, 0))
            mode = rng.choice(MODES) if node in branches else "LEAF"
            value = float(np.float32(rng.integers(-3, 4) / 2))
            listed = (tree, node, int(rng.integers(FEATURES)), value, mode, yes, no)
            for name, one in zip(found, (*listed, int(rng.integers(2))), strict=True):
                found[name].append(one)
            if node in branches:
                continue
            count = len(ids) if whole else int(rng.integers(1, len(ids) + 1))
            for number in rng.permutation(ids)[:count]:
                weight = float(np.float32(rng.uniform(low, 1) / trees))
                for name, one in zip(votes, (tree, node, int(number), weight), strict=True):
                    votes[name].append(one)
    return {**found, **votes}


def model_of(op: str, dtype: Any, version: int = 3, **attributes: Any) -> ModelProto:
    texts = "classlabels_strings" in attributes
    classifier = op == "TreeEnsembleClassifier"
    kinds = ([8 if texts else 7] if classifier else []) + [1]
    results = [f"y{i}" for i in range(len(kinds))]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], results, domain=ML, **attributes)],
        op,
        [helper.make_tensor_value_info("x", CODES[dtype], ["N", FEATURES])],
        [helper.make_tensor_value_info(n, k, None) for n, k in zip(results, kinds, strict=True)],
    )
    opsets = [helper.make_opsetid(ML, version), helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def rows_of(rng: np.random.Generator, dtype: Any) -> np.ndarray[Any, Any]:
    x = (rng.integers(-4, 5, (ROWS, FEATURES)) / 2).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(x.shape) < 0.1] = np.nan
    return x


def check(model: ModelProto, x: np.ndarray[Any, Any], rtol: float = 1e-5) -> list[Any]:
    """Hold the results against ONNX Runtime's, and return them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    expected = onnxruntime.InferenceSession(content, options).run(None, {"x": x})
    found = glnn.InferenceSession(content, "cpu").run(None, {"x": x})
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        if ours.dtype == np.float32:
            np.testing.assert_allclose(ours, theirs, rtol, 1e-6)
        else:
            assert ours.tolist() == theirs.tolist()
    return list(found)


@pytest.mark.parametrize("dtype", FLOATS)  # ONNX Runtime has no others
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors(targets: int, how: str, dtype: Any) -> None:
    rng = np.random.default_rng([targets, *how.encode()])
    for trees, base in itertools.product((1, 2, 9), (False, True)):
        # ONNX Runtime adds none to a target that no leaf votes for.
        attributes: dict[str, Any] = nodes(rng, "target", trees, range(targets), -1.0, base)
        if base:
            attributes["base_values"] = rng.normal(size=targets).tolist()
        attributes |= {"n_targets": targets, "aggregate_function": how}
        model = model_of("TreeEnsembleRegressor", dtype, 1, **attributes)
        check(model, rows_of(rng, dtype))


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_transforms_of_targets(transform: str) -> None:
    rng = np.random.default_rng(6)
    for trees in (1, 4):
        low = 0.0 if transform == "PROBIT" else -1.0
        attributes = nodes(rng, "target", trees, range(3), low)
        options = {"n_targets": 3, "post_transform": transform}
        model = model_of("TreeEnsembleRegressor", np.float32, **attributes, **options)
        # ONNX Runtime approximates the quantiles.
        check(model, rows_of(rng, np.float32), 5e-3 if transform == "PROBIT" else 1e-5)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("texts", [False, True])
def test_classifiers(texts: bool, transform: str, dtype: Any) -> None:
    rng = np.random.default_rng([texts, *transform.encode()])
    labels: Any = ["no", "é", "yes"] if texts else [7, -3, 4]
    name = "classlabels_strings" if texts else "classlabels_int64s"
    for trees, low, base in itertools.product((1, 3, 9), (-1.0, 0.0), (False, True)):
        attributes: dict[str, Any] = nodes(rng, "class", trees, range(3), low)
        if base:
            attributes["base_values"] = rng.normal(size=3).tolist()
        attributes |= {name: labels, "post_transform": transform}
        model = model_of("TreeEnsembleClassifier", dtype, 1, **attributes)
        found, _ = check(model, rows_of(rng, dtype))
        assert set(found.tolist()) <= set(labels)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("base", [None, 0.1, -0.2])
def test_two_classes_with_votes_for_one(base: float | None, low: float, transform: str) -> None:
    """As scikit-learn's, XGBoost's and LightGBM's are exported."""
    rng = np.random.default_rng(8)
    for trees in (1, 3, 9):
        attributes: dict[str, Any] = nodes(rng, "class", trees, range(1), low)
        if base is not None:
            attributes["base_values"] = [base]
        attributes |= {"classlabels_int64s": [10, 20], "post_transform": transform}
        model = model_of("TreeEnsembleClassifier", np.float32, **attributes)
        check(model, rows_of(rng, np.float32))


def test_two_classes_with_votes_for_both() -> None:
    """ONNX Runtime has the same scores, and labels 0 and 1 for the sign of the second."""
    rng = np.random.default_rng(9)
    attributes = nodes(rng, "class", 5, range(2), 0.0)
    model = model_of(
        "TreeEnsembleClassifier", np.float32, **attributes, classlabels_int64s=[10, 20]
    )
    x = rows_of(rng, np.float32)
    content = model.SerializeToString()
    found = glnn.InferenceSession(content, "cpu").run(None, {"x": x})
    _, theirs = onnxruntime.InferenceSession(content).run(None, {"x": x})
    np.testing.assert_allclose(found[1], theirs, 1e-5, 1e-6)
    assert found[0].tolist() == [[10, 20][i] for i in np.argmax(theirs, 1)]


def test_doubles_are_compared_as_doubles() -> None:
    attributes: dict[str, Any] = nodes(np.random.default_rng(3), "target", 3, range(1), -1.0)
    values = np.array(attributes.pop("nodes_values")) + 1e-12
    weights = np.array(attributes.pop("target_weights"))
    attributes["nodes_values_as_tensor"] = numpy_helper.from_array(values)
    attributes["target_weights_as_tensor"] = numpy_helper.from_array(weights)
    model = model_of("TreeEnsembleRegressor", np.float64, n_targets=1, **attributes)
    x = np.random.default_rng(4).choice(values, (ROWS, FEATURES))
    check(model, x)
    check(model, x - 1e-12)


STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "target_treeids": [0, 0],
    "target_nodeids": [1, 2],
    "target_ids": [0, 0],
    "target_weights": [1.0, 2.0],
    "n_targets": 1,
}


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_targets_without_votes_have_their_base(how: str) -> None:
    options = {"n_targets": 2, "base_values": [0.5, 3.0], "aggregate_function": how}
    model = model_of("TreeEnsembleRegressor", np.float32, **{**STUMP, **options})
    x = np.array([[0, 0, 0, 0], [1, 0, 0, 0]], np.float32)
    (found,) = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x": x})
    assert found.tolist() == [[1.5, 3.0], [2.5, 3.0]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nodes_truenodeids": [9] * 3}, "the tree 0 has no node 9"),
        ({"nodes_truenodeids": [0] * 3}, "the first node of each tree must be its root"),
        ({"nodes_featureids": [4, 0, 0]}, "features that x"),
        ({"nodes_modes": ["BRANCH", "LEAF", "LEAF"]}, "nodes_modes must be"),
        ({"nodes_values": [0.5]}, "one of each attribute"),
        ({"target_ids": [0, 1]}, "no target 1"),
        ({"base_values": [1.0, 2.0]}, "base_values must be 1, got 2"),
        ({"post_transform": "LOGISTIC"}, "LOGISTIC of one target"),
        ({"aggregate_function": "MEAN"}, "aggregate_function must be"),
    ],
)
def test_what_is_no_forest(change: dict[str, Any], says: str) -> None:
    model = model_of("TreeEnsembleRegressor", np.float32, **{**STUMP, **change})
    with pytest.raises(GlnnError, match=says):
        x = np.zeros((2, FEATURES), np.float32)
        glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x": x})


def test_many_targets_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before a table of all nodes and targets is made."""
    monkeypatch.setattr(process_module, "free_memory", lambda: 1 << 21)
    attributes = {**STUMP, "n_targets": 1 << 17}
    x = np.zeros((2, FEATURES), np.float32)
    node = model_of("TreeEnsembleRegressor", np.float32, **attributes).graph.node[0]
    with pytest.raises(LimitError, match="of 3 nodes for 131072 results needs 9830400 bytes"):
        Delegate(node, {"": 17, ML: 3}, 8).reference(x)
