"""TopK, NonMaxSuppression and RoiAlign of the host, against ONNX Runtime."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.errors import GlnnError, LimitError, ShapeError
from glnn.onnx.detection import roi_align
from tests.onnx.runtime import node_model, runtime

INT64, FLOAT = np.int64, np.float32


def found(model: Any, operands: list[Any]) -> list[Any]:
    """Return what the cpu backend gives: the host steps of the others are the same."""
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    pairs = ((f"x{i}", one) for i, one in enumerate(operands) if one is not None)
    return session.run(None, dict(pairs))


@pytest.mark.parametrize("seed", range(60))
def test_top_k(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 9, rng.integers(1, 4)))
    axis = int(rng.integers(-len(shape), len(shape)))
    if seed % 3 == 0:
        shape = tuple(200 if i == axis % len(shape) else size for i, size in enumerate(shape))
    k = int(rng.integers(0, shape[axis] + 1)) if seed % 2 else min(3, shape[axis])
    dtype = (np.float32, np.float64, np.int64, np.int32)[seed % 4]
    x = rng.integers(-5, 6, shape).astype(dtype)  # many are equal
    operands = [x, np.array([k])]
    model = node_model(
        "TopK",
        operands,
        2,
        kinds=(dtype, INT64),
        axis=axis,
        largest=int(rng.integers(2)),
        sorted=1,
    )
    for got, right in zip(found(model, operands), runtime(model, operands), strict=True):
        assert got.dtype == right.dtype and got.shape == right.shape
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_takes_nan_for_the_greatest(largest: int) -> None:
    x = np.array([[3, np.nan, -1, np.inf, 2, 3] * 5], FLOAT)
    operands = [x, np.array([4])]
    model = node_model("TopK", operands, 2, kinds=(FLOAT, INT64), largest=largest)
    values, places = found(model, operands)
    expected = [[np.nan] * 4] if largest else [[-1] * 4]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(places, [[1, 7, 13, 19]] if largest else [[2, 8, 14, 20]])


def test_top_k_beyond_the_axis_is_refused() -> None:
    operands = [np.ones((2, 3), FLOAT), np.array([4])]
    with pytest.raises(GlnnError, match="TopK"):
        found(node_model("TopK", operands, 2, kinds=(FLOAT, INT64)), operands)


@pytest.mark.parametrize("seed", range(60))
def test_non_max_suppression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, classes = rng.integers(1, 4, 2)
    count = int(rng.choice([1, 7, 60, 300]))
    corners = rng.integers(0, 40, (samples, count, 2)).astype(FLOAT)
    boxes = np.concatenate([corners, corners + rng.integers(-3, 15, corners.shape)], 2)
    centered = int(rng.integers(2))
    if centered:
        boxes = np.concatenate([corners, rng.integers(0, 15, corners.shape)], 2)
    scores = rng.integers(0, 12, (samples, classes, count)).astype(FLOAT) / 12  # many are equal
    most = np.array([int(rng.choice([1, 4, 30, 500]))])
    overlap = np.array([rng.choice([0, 0.25, 0.5, 1])], FLOAT)
    least = np.array([rng.choice([0, 0.3, 0.5])], FLOAT)
    optional = [most, overlap, least][: rng.integers(0, 4)]
    if seed % 2:
        optional = [one.reshape(()) for one in optional]
    operands = [boxes.astype(FLOAT), scores, *optional]
    model = node_model("NonMaxSuppression", operands, kinds=[INT64], center_point_box=centered)
    (got,), (right,) = found(model, operands), runtime(model, operands)
    assert got.dtype == right.dtype
    np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("seed", range(80))
def test_roi_align(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, int(rng.integers(1, 5)), 9, 12)).astype(FLOAT)
    corners = rng.uniform(-6, 14, (7, 2))
    regions = np.concatenate([corners, corners + rng.uniform(0.5, 9, (7, 2))], 1).astype(FLOAT)
    operands = [x, regions, rng.integers(0, 2, 7)]
    attributes = {
        "output_height": int(rng.integers(1, 6)),
        "output_width": int(rng.integers(1, 6)),
        "sampling_ratio": int(rng.integers(0, 4)),
        "spatial_scale": float(rng.choice([1.0, 0.5, 0.3])),
        "mode": str(rng.choice(["avg", "max"])),
    }
    opset = 16 if seed % 4 else 10
    if opset == 16 and seed % 3:
        modes = ["half_pixel", "output_half_pixel"]
        attributes["coordinate_transformation_mode"] = str(rng.choice(modes))
    model = node_model("RoiAlign", operands, opset=opset, **attributes)
    (got,), (right,) = found(model, operands), runtime(model, operands)
    np.testing.assert_allclose(got, right, 1e-5, 1e-5, err_msg=str(attributes))


def test_roi_align_keeps_infinities_where_they_are() -> None:
    x = np.zeros((1, 1, 8, 8), FLOAT)
    x[0, 0, 7, 7] = np.inf
    operands = [x, np.array([[0, 0, 3, 3]], FLOAT), np.zeros(1, INT64)]
    model = node_model("RoiAlign", operands, opset=16, output_height=2, output_width=2)
    (got,) = found(model, operands)
    np.testing.assert_array_equal(got, np.zeros((1, 1, 2, 2)))


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_that_are_not_finite_are_refused(number: float, ratio: int) -> None:
    regions = np.array([[0, 0, 2, 2], [0, 0, number, 2]], FLOAT)
    operands = [np.ones((1, 1, 4, 4), FLOAT), regions, np.zeros(2, INT64)]
    model = node_model("RoiAlign", operands, opset=16, sampling_ratio=ratio)
    with pytest.raises(Exception, match="finite"):
        runtime(model, operands)
    with pytest.raises(ShapeError, match=r"RoiAlign: rois must be finite, got .* at \[1\]"):
        found(model, operands)


def test_counts_that_are_several_numbers_are_refused() -> None:
    operands = [np.ones((2, 3), FLOAT), np.array([1, 1])]
    model = node_model("TopK", operands, 2, kinds=(FLOAT, INT64))
    with pytest.raises(ShapeError, match="TopK"):
        found(model, operands)
    boxes, scores = np.ones((1, 3, 4), FLOAT), np.ones((1, 1, 3), FLOAT)
    several = [np.array([1, 1]), np.zeros(2, FLOAT), np.zeros(2, FLOAT)]
    for i in range(3):
        options = [one if i == j else one[:1] for j, one in enumerate(several)]
        operands = [boxes, scores, *options]
        with pytest.raises(ShapeError, match="NonMaxSuppression"):
            found(node_model("NonMaxSuppression", operands, kinds=[INT64]), operands)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("extent", [50.0, 3000.0])
def test_regions_that_are_larger_than_the_image(mode: str, extent: float) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 2, 6, 9)).astype(FLOAT) - (2 if mode == "max" else 0)
    edges = [[-extent, -7, extent, 12], [-9, -extent, 2, extent], [1, 1, 4, 5], [0, 2, extent, 3]]
    operands = [x, np.array(edges, FLOAT), np.zeros(4, INT64)]
    for size in (1, 3, 4):
        for ratio in (0, 3):
            more = {"output_height": size, "output_width": size, "sampling_ratio": ratio}
            model = node_model("RoiAlign", operands, opset=16, mode=mode, **more)
            (got,), (right,) = found(model, operands), runtime(model, operands)
            np.testing.assert_allclose(got, right, 1e-5, 1e-5, err_msg=str(more))


def test_one_large_region_takes_memory_for_itself_alone() -> None:
    regions = np.array([[0, 0, 3, 3]] * 19 + [[-1.5e6, -1.5e6, 1.5e6, 1.5e6]], FLOAT)
    attributes = {"output_height": 2, "output_width": 2}
    x = np.ones((1, 1, 4, 4), FLOAT)
    tracemalloc.start()
    (got,) = roi_align(attributes, 16, x, regions, np.zeros(20, INT64))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20
    np.testing.assert_allclose(got[:19], 1, 1e-6)
    np.testing.assert_allclose(got[19], 0, atol=1e-9)


@pytest.mark.parametrize("edge, ratio", [(1e12, 0), (4.0, 1 << 30)])
def test_regions_of_too_many_places_are_refused(edge: float, ratio: int) -> None:
    operands = [
        np.ones((1, 1, 4, 4), FLOAT),
        np.array([[0, 0, edge, 2]], FLOAT),
        np.zeros(1, INT64),
    ]
    model = node_model("RoiAlign", operands, opset=16, sampling_ratio=ratio)
    with pytest.raises(LimitError, match="RoiAlign: at most"):
        found(model, operands)
