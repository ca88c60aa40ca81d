"""Losses and one-hot numbers where the suite does not look."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.onnx.single import BACKENDS, feeds, model, run, runtime

INT32, INT64, BOOL = (getattr(onnx.TensorProto, name) for name in ("INT32", "INT64", "BOOL"))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_cross_entropy(backend: str, reduction: str, index: type) -> None:
    """By weights, with targets that are ignored though no class has that number."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((3, 7, 5)).astype(np.float32)
    target = rng.integers(0, 7, (3, 5)).astype(index)
    target[0, :2] = -100
    weight = rng.uniform(0.1, 2, 7).astype(np.float32)
    arrays = [scores, target, weight]
    how = {"reduction": reduction, "ignore_index": -100}
    proto = model("SoftmaxCrossEntropyLoss", arrays, outputs=2, **how)
    found = run(proto, feeds(arrays), backend)
    wide = scores.astype(np.float64)
    logarithms = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    own = np.where(target < 0, 0, weight[target.clip(0)])
    lost = -np.take_along_axis(logarithms, np.where(target < 0, 0, target)[:, None], 1)[:, 0] * own
    totals = {"none": lost, "mean": lost.sum() / own.sum(), "sum": lost.sum()}
    np.testing.assert_allclose(found[0], totals[reduction], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], logarithms, rtol=1e-5, atol=1e-6)
    arrays = [found[1], target, weight]
    proto = model("NegativeLogLikelihoodLoss", arrays, **how)
    np.testing.assert_allclose(run(proto, feeds(arrays), backend)[0], totals[reduction], rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.uint8])
def test_one_hot(backend: str, dtype: type) -> None:
    """Indices from the end, and those out of range, by axes from either end."""
    index = np.array([[0, 3, 2], [7, 1, 250 if dtype == np.uint8 else -4]]).astype(dtype)
    values = np.array([-2, 5], np.int32)
    depth = np.array(4, np.int64)
    for axis in (0, 1, -1):
        arrays = [index, depth, values]
        proto = model("OneHot", arrays, {1: depth}, axis=axis, kinds=[INT32])
        (found,) = run(proto, feeds(arrays, {1: depth}), backend)
        whole = index.astype(np.int64)
        here = np.expand_dims(np.where(whole < 0, whole + 4, whole), axis)
        places = np.arange(4).reshape([-1 if i == axis % 3 else 1 for i in range(3)])
        np.testing.assert_array_equal(found, np.where(here == places, 5, -2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_takes_the_first(backend: str, opset: int) -> None:
    x = np.random.default_rng(1).integers(0, 3, (2, 3, 5)).astype(np.float32)
    for axis in (0, 1, 2):
        proto = model("Hardmax", [x], opset=opset, axis=axis)
        (found,) = run(proto, feeds([x]), backend)
        np.testing.assert_array_equal(found, runtime(proto, feeds([x]))[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_of_nothing_is_nothing(backend: str, opset: int) -> None:
    for shape in ((4, 0), (0, 4), (4, 0, 3), (4, 3, 0)):
        x = np.zeros(shape, np.float32)
        for axis in range(len(shape)):
            proto = model("Hardmax", [x], opset=opset, axis=axis)
            (found,) = run(proto, feeds([x]), backend)
            np.testing.assert_array_equal(found, runtime(proto, feeds([x]))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_triangles_of_any_type(backend: str) -> None:
    rng = np.random.default_rng(2)
    for dtype, kind in ((np.bool_, BOOL), (np.int64, INT64), (np.int32, INT32)):
        x = rng.integers(0, 2, (2, 3, 5)).astype(dtype)
        for k in (-3, -1, 0, 2, 5):
            for upper, expected in ((1, np.triu(x, k)), (0, np.tril(x, k))):
                at = np.array(k, np.int64)
                proto = model("Trilu", [x, at], {1: at}, upper=upper, kinds=[kind])
                np.testing.assert_array_equal(run(proto, {"x0": x}, backend)[0], expected)
