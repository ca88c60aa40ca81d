"""Nodes of classical models; ONNX Runtime says the results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.onnx.reference_integers import Array, Case, Cases, Types
from tests.onnx.reference_others import dtype_of, texts

ML = "ai.onnx.ml"


def numbers(types: Types, shape: tuple[int, ...], seed: int = 0) -> Array:
    dtype = dtype_of(types.get("T") or types["T1"])
    found = np.random.default_rng(seed).normal(0, 3, shape)
    return found.astype(dtype)


def array_feature_extractor(version: int, types: Types) -> Cases:
    dtype = dtype_of(types["T"])
    x = np.arange(24).reshape(2, 3, 4)
    x = x.astype(str).astype(object) if dtype.hasobject else x.astype(dtype)
    for at in ([0], [3, 1, 1], [[2, 0]]):
        yield Case([x, np.array(at, np.int64)], [None])
        yield Case([x[0], np.array(at, np.int64)], [None])
    yield Case([x[0, 0], np.array([3, 0], np.int64)], [None])


def binarizer(version: int, types: Types) -> Cases:
    x = numbers(types, (3, 4))
    for threshold in (None, 1.0, -2.5):
        right = np.where(x > (threshold or 0), 1, 0).astype(x.dtype)
        yield Case([x], [right], {} if threshold is None else {"threshold": threshold})
    yield Case([x[:0]], [x[:0]], {"threshold": 1.0})
    if x.dtype.kind == "f":
        x = np.array([np.nan, np.inf, -np.inf, 1.0], x.dtype)
        yield Case([x], [np.array([0, 1, 0, 0], x.dtype)], {"threshold": 1.0})


def feature_vectorizer(version: int, types: Types) -> Cases:
    x, y = numbers(types, (3, 4)), numbers(types, (3, 2), 1)
    yield Case([x, y], [None], {"inputdimensions": [4, 2]})
    yield Case([x], [None], {"inputdimensions": [4]})


def imputer(version: int, types: Types) -> Cases:
    x = numbers(types, (4, 3))
    if x.dtype.kind == "f":
        x[0, 1] = x[3, 2] = np.nan
        for missing in (np.nan, 2.0):
            x[1, 1] = 2.0
            for values in ([7.0], [1.0, 2.0, 3.0]):
                attributes = {"replaced_value_float": missing, "imputed_value_floats": values}
                for rows in (x, x[3], x[:0]):
                    yield Case([rows], [None], attributes)
    else:
        x[1, 1] = 2
        for values in ([7], [1, 2, 3]):
            attributes = {"replaced_value_int64": 2, "imputed_value_int64s": values}
            for rows in (x, x[1], x[:0]):
                yield Case([rows], [None], attributes)


def label_encoder(version: int, types: Types) -> Cases:
    floats, ints = [1.0, float("nan"), -0.5], [3, -1, 7]
    words = ["a", "b", "é"]
    named: dict[str, Any] = {"strings": words, "int64s": ints, "floats": floats}
    given = {
        "strings": texts(["b", "z"], ["a", "é"]),
        "int64s": np.array([3, 9, 7], np.int64),
        "floats": np.array([np.nan, 1, 2, -0.5], np.float32),
    }
    defaults = {"strings": "?", "int64s": 42, "floats": 2.5}
    for keys, values in itertools.product(named, named):
        attributes = {f"keys_{keys}": named[keys], f"values_{values}": named[values]}
        yield Case([given[keys]], [None], attributes)
        default = f"default_{values.removesuffix('s')}"
        yield Case([given[keys]], [None], {**attributes, default: defaults[values]})
    yield Case([given["int64s"][:0]], [None], {"keys_int64s": ints, "values_floats": floats})
    if version < 4:
        return
    for key, value in ((np.int64, np.float64), (np.float64, np.int64), (np.float64, np.float64)):
        attributes = {
            "keys_tensor": numpy_helper.from_array(np.array([1, 2, 5], key)),
            "values_tensor": numpy_helper.from_array(np.array([4, 0, 9], value)),
        }
        x = np.array([5, 1, 7], key)
        default = numpy_helper.from_array(np.array([-8], value))
        yield Case([x], [None], {**attributes, "default_tensor": default})
        # ONNX Runtime wants a default tensor; ONNX's defaults are -1 and -0.
        yield Case([x], [np.array([9, 4, -1 if value == np.int64 else -0.0], value)], attributes)
    values = numpy_helper.from_array(np.array([0, 1, 2], np.int16))
    attributes = {"keys_strings": words, "values_tensor": values}
    yield Case([texts("b", "q")], [np.array([1, -1], np.int16)], attributes)


def classifier_labels(count: int) -> list[dict[str, Any]]:
    return [
        {"classlabels_ints": [5, 3, 9][:count]},
        {"classlabels_strings": ["x", "y", "é"][:count]},
    ]


def linear_classifier(version: int, types: Types) -> Cases:
    x = numbers(types, (5, 4))
    rng = np.random.default_rng(1)
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        for classes in (2, 3):
            for labels in classifier_labels(classes):
                attributes = {
                    "coefficients": rng.normal(size=classes * 4).tolist(),
                    "intercepts": rng.normal(size=classes).tolist(),
                    "post_transform": transform,
                    "multi_class": classes % 2,
                    **labels,
                }
                for rows in (x, x[0], x[:0]):
                    yield Case([rows], [None, None], attributes)
    attributes = {"coefficients": [1.0, -2.0, 0.5, 0.0], "intercepts": [0.2]}
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        attributes["post_transform"] = transform
        for rows in (x, x[0], x[:0], np.zeros_like(x)):
            yield Case([rows], [None, None], attributes)
            for labels in classifier_labels(2):
                yield Case([rows], [None, None], {**attributes, **labels})
    # Scores that are probabilities, and one beyond.
    attributes = {"coefficients": [0.1, 0, 0, 0, 0, 0.2, 0, 0], "intercepts": [0.4, 0.6]}
    attributes |= {"post_transform": "PROBIT", "classlabels_ints": [1, 7]}
    yield Case([x], [None, None], attributes)


def linear_regressor(version: int, types: Types) -> Cases:
    x = numbers(types, (5, 4))
    rng = np.random.default_rng(1)
    for transform, targets in itertools.product(
        ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"), (1, 2, 3)
    ):
        attributes = {
            "coefficients": (rng.normal(size=targets * 4) / 9).tolist(),
            "post_transform": transform,
        }
        attributes |= {} if targets == 1 else {"targets": targets}
        for rows in (x, x[0], x[:0]):
            yield Case([rows], [None], attributes)
            attributes["intercepts"] = rng.uniform(0.2, 0.8, targets).tolist()
    # SOFTMAX_ZERO keeps scores of 0.
    attributes = {"coefficients": [0.0] * 4 + [1.0] * 4, "targets": 2}
    yield Case([np.abs(x)], [None], {**attributes, "post_transform": "SOFTMAX_ZERO"})


def normalizer(version: int, types: Types) -> Cases:
    x = numbers(types, (3, 4))
    for norm in ("MAX", "L1", "L2"):
        for rows in (x, -np.abs(x), x[0], x[:0], np.zeros_like(x)):
            yield Case([rows], [None], {"norm": norm})
        if x.dtype.kind == "f":
            yield Case([np.where(x == x[0, 1], x.dtype.type(np.nan), x)], [None], {"norm": norm})
    yield Case([x], [None])


def one_hot_encoder(version: int, types: Types) -> Cases:
    if types["T"] == "string":
        x = texts(["a", "q"], ["é", "b"])
        named: dict[str, Any] = {"cats_strings": ["a", "b", "é"]}
    else:
        x = np.array([[1, 9], [5, 3]], dtype_of(types["T"]))
        named = {"cats_int64s": [3, 1, 5]}
    yield Case([x], [None], named)
    yield Case([x[0]], [None], {**named, "zeros": 1})
    known = x.copy()
    known[known == known[0, 1]] = known[0, 0]
    yield Case([known], [None], {**named, "zeros": 0})


def scaler(version: int, types: Types) -> Cases:
    x = numbers(types, (3, 4))
    for count in (1, 4):
        offset, scale = [0.5, -1.0, 2.0, 0.0][:count], [2.0, 0.5, -1.0, 3.0][:count]
        yield Case([x], [None], {"offset": offset, "scale": scale})


def svm(kernel: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.7, 2.0],
        "support_vectors": rng.normal(size=6 * 4).tolist(),
        "coefficients": rng.normal(size=6).tolist(),
    }


def svm_regressor(version: int, types: Types) -> Cases:
    x = numbers(types, (3, 4))
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        for rows in (x, x[0], x[:0]):
            yield Case([rows], [None], {**svm(kernel, 1), "rho": [0.4], "n_supports": 6})
    one = {**svm("RBF", 2), "rho": [0.4], "n_supports": 6, "one_class": 1}
    yield Case([x], [None], one)


def svm_classifier(version: int, types: Types) -> Cases:
    x = numbers(types, (5, 4))
    kernels = ("LINEAR", "POLY", "RBF", "SIGMOID")
    transforms = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    some = [("LINEAR", transform) for transform in transforms] + [(k, "NONE") for k in kernels]
    for (kernel, transform), counts, likely in itertools.product(
        some, ([2, 4], [1, 3, 2]), (False, True)
    ):
        rng, pairs = np.random.default_rng(7), len(counts) * (len(counts) - 1) // 2
        attributes = {
            **svm(kernel, 1),
            "coefficients": rng.normal(size=6 * (len(counts) - 1)).tolist(),
            "rho": rng.normal(size=pairs).tolist(),
            "vectors_per_class": counts,
            "post_transform": transform,
        }
        if likely:
            attributes["prob_a"] = rng.normal(-1, 0.3, pairs).tolist()
            attributes["prob_b"] = rng.normal(size=pairs).tolist()
        labels, texts_ = classifier_labels(len(counts))
        for rows in (x, x[0], x[:0]):
            yield Case([rows], [None, None], {**attributes, **labels})
        yield Case([x], [None, None], {**attributes, **texts_})
        if not likely:  # no weight is negative
            attributes["coefficients"] = np.abs(attributes["coefficients"]).tolist()
            yield Case([x], [None, None], {**attributes, **labels})
    for transform, labels in itertools.product(transforms, classifier_labels(3)):
        attributes = {
            "coefficients": np.random.default_rng(8).normal(size=3 * 4).tolist(),
            "kernel_params": [0.0, 0.0, 0.0],
            "rho": [0.3, 0.0, 1.0],
            "post_transform": transform,
            **labels,
        }
        for rows in (x, x[0], x[:0]):
            yield Case([rows], [None, None], attributes)


def tree_ensemble(version: int, types: Types) -> Cases:
    x = numbers(types, (6, 4))
    x[0, 1] = x[2, 0] = x[5, 3] = np.nan
    rng = np.random.default_rng(4)
    for mode, how, missing in itertools.product(range(6), (0, 1), (0, 1)):
        splits = rng.normal(size=3).astype(x.dtype)
        weights = rng.normal(size=4).astype(x.dtype)
        yield Case(
            [x],
            [None],
            {
                "n_targets": 2,
                "aggregate_function": how,
                "post_transform": 0,
                "tree_roots": [0],
                "nodes_modes": numpy_helper.from_array(np.full(3, mode, np.uint8)),
                "nodes_featureids": [0, 1, 3],
                "nodes_splits": numpy_helper.from_array(splits),
                "nodes_truenodeids": [1, 0, 1],
                "nodes_trueleafs": [0, 1, 1],
                "nodes_falsenodeids": [2, 2, 3],
                "nodes_falseleafs": [0, 1, 1],
                "nodes_missing_value_tracks_true": [missing] * 3,
                "leaf_targetids": [0, 1, 0, 1],
                "leaf_weights": numpy_helper.from_array(weights),
            },
        )


CASES: dict[tuple[str, str], Callable[[int, Types], Cases]] = {
    (ML, "ArrayFeatureExtractor"): array_feature_extractor,
    (ML, "Binarizer"): binarizer,
    (ML, "FeatureVectorizer"): feature_vectorizer,
    (ML, "Imputer"): imputer,
    (ML, "LabelEncoder"): label_encoder,
    (ML, "LinearClassifier"): linear_classifier,
    (ML, "LinearRegressor"): linear_regressor,
    (ML, "Normalizer"): normalizer,
    (ML, "OneHotEncoder"): one_hot_encoder,
    (ML, "SVMClassifier"): svm_classifier,
    (ML, "SVMRegressor"): svm_regressor,
    (ML, "Scaler"): scaler,
    (ML, "TreeEnsemble"): tree_ensemble,
}
"""By domain and operator: cases of a version and of types."""
