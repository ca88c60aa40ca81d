"""TopK on every backend, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import glnn
from tests.onnx.runtime import BACKENDS, node_model, results_of, runtime

INT64 = np.int64
HEAD = '<ir_version: 10, opset_import: ["" : 22]>\n'


def session(model: Any, backend: str) -> glnn.InferenceSession:
    return glnn.InferenceSession(model.SerializeToString(), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(24))
def test_any_axis(backend: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 4)))
    axis = int(rng.integers(-len(shape), len(shape)))
    if seed % 2 == 0:
        n = int(rng.choice([70, 300, 1500]))
        shape = tuple(n if i == axis % len(shape) else size for i, size in enumerate(shape))
    k = min(int(rng.choice([1, 3, 20, 64, 100])), shape[axis])
    dtype = (np.float32, np.float32, np.int64, np.int32, np.float16)[seed % 5]
    x = rng.integers(-99, 99, shape).astype(dtype)  # some are equal
    known = (1,) if seed % 3 else ()
    operands = [x, np.array([k])]
    model = node_model(
        "TopK",
        operands,
        2,
        kinds=(dtype, INT64),
        known=known,
        axis=axis,
        largest=int(rng.integers(2)),
        sorted=1,
        opset=22 if dtype != np.float16 else 24,
    )
    feeds = {f"x{i}": one for i, one in enumerate(operands) if i not in known}
    opened = session(model, backend)
    got = opened.run(None, feeds)
    assert opened.hosted == ()
    attributes = {a.name: a.i for a in model.graph.node[0].attribute}
    rows = np.moveaxis(x, axis, -1).astype(np.float64)
    order = np.argsort(-rows if attributes["largest"] else rows, axis=-1, kind="stable")[..., :k]
    places = np.moveaxis(order, -1, axis)
    expected = [np.take_along_axis(x, places, axis), places]
    if dtype != np.float16:
        for ours, right in zip(expected, runtime(model, operands), strict=True):
            np.testing.assert_array_equal(ours, right)
    for one, right in zip(got, expected, strict=True):
        assert one.dtype == right.dtype and one.shape == right.shape
        np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("largest", [0, 1])
def test_nan_is_the_greatest(backend: str, largest: int) -> None:
    x = np.array([[3, np.nan, -1, np.inf, 2, -np.nan, -np.inf, -0.0, 0.0] * 60], np.float32)
    for k in (9, 60, 300):
        operands = [x, np.array([k])]
        model = node_model("TopK", operands, 2, kinds=(np.float32, INT64), largest=largest)
        numbers, places = session(model, backend).run(None, {"x0": x, "x1": np.array([k])})
        keys = np.where(np.isnan(x), 9e9, np.clip(x, -8e9, 8e9))
        order = np.argsort(-keys if largest else keys, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(numbers, np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_row(backend: str) -> None:
    x = np.random.default_rng(0).integers(-50_000, 50_000, (2, 200_000)).astype(np.float32)
    operands = [x, np.array([50])]
    model = node_model("TopK", operands, 2, kinds=(np.float32, INT64), known=(1,))
    opened = session(model, backend)
    for got, right in zip(opened.run(None, {"x0": x}), runtime(model, operands), strict=True):
        np.testing.assert_array_equal(got, right)
    assert opened.hosted == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_are_read_on_the_gpu(backend: str) -> None:
    """Scores, the best of them, their boxes: nothing is the host's."""
    text = (
        "g (float[1, N, 4] boxes, float[1, N, 3] scores) => (float[A, B, C] y, int64[D, E] kept) "
        "{ best = ReduceMax <axes = [2], keepdims = 0> (scores) "
        "k = Constant <value_ints = [20]> ()  count = Shape <start = 1, end = 2> (scores) "
        "most = Min (k, count)  v, kept = TopK (best, most) "
        "axis = Constant <value_ints = [2]> ()  i = Unsqueeze (kept, axis) "
        "all = Constant <value_ints = [1, 1, 4]> ()  wide = Expand (i, all) "
        "y = GatherElements <axis = 1> (boxes, wide) }"
    )
    model = parser.parse_model(HEAD.replace("22", "17") + text)
    opened = glnn.InferenceSession(model.SerializeToString(), backend)
    rng = np.random.default_rng(1)
    for n in (40, 41, 100, 12, 700, 99):
        feeds = {
            "boxes": rng.random((1, n, 4), np.float32),
            "scores": rng.random((1, n, 3), np.float32),
        }
        boxes, kept = opened.run(None, feeds)
        order = np.argsort(-feeds["scores"].max(2), axis=1, kind="stable")[:, :20]
        np.testing.assert_array_equal(kept, order)
        np.testing.assert_array_equal(boxes[0], feeds["boxes"][0][order[0]])
        assert opened.hosted == ()


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize(
    "node",
    [
        "v, y = TopK <axis = 1> (x, k)",
        "y = ArgMax <axis = 1> (x)",
    ],
)
def test_places_along_an_open_axis_have_one_plan(node: str, backend: str) -> None:
    """Where they lie is said for all sizes: it had pinned the plan to the one at hand."""
    text = (
        "g (float[2, N] x) => (float z) { k = Constant <value_ints = [3]> () "
        f"{node}  f = Cast <to = 1> (y)  z = ReduceSum <keepdims = 0> (f) }}"
    )
    model = parser.parse_model(HEAD + text).SerializeToString()
    opened = glnn.InferenceSession(model, backend)
    for n in (70, 71, 99, 126):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        np.testing.assert_array_equal(opened.run(None, {"x": x}), results_of(model, [x]))
    assert len(opened._executor.range_plans) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_64_bits_are_the_hosts(backend: str) -> None:
    x = np.array([[2**40, 5, 2**40 + 1, -(2**50), 7]])
    operands = [x, np.array([2])]
    model = node_model("TopK", operands, 2, kinds=(INT64, INT64), known=(1,))
    wide = glnn.InferenceSession(model.SerializeToString(), "cpu")
    assert wide.run(None, {"x0": x})[1].tolist() == [[2, 0]]
    doubled = [x.astype(np.float64), np.array([2])]
    model = node_model("TopK", doubled, 2, kinds=(np.float64, INT64), known=(1,))
    opened = session(model, backend)
    assert opened.run(None, {"x0": doubled[0]})[1].tolist() == [[2, 0]]
    assert (opened.hosted != ()) == (backend != "cpu")
