"""Resize, Upsample and GridSample, against ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from glnn.errors import GlnnError
from tests.onnx.single import BACKENDS, check

RNG = np.random.default_rng(13)
HALF = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric")
CASES: list[dict[str, Any]] = [
    {"mode": "nearest", "nearest_mode": nearest}
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
] + [
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
    {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_coordinates(backend: str, case: dict[str, Any]) -> None:
    x = floats(1, 2, 7, 3)
    for i, mode in enumerate((*HALF, "align_corners")):
        sizes = np.array([1, 2, *((3, 7), (1, 5), (13, 1))[i % 3]], np.int64)
        more = {**case, "coordinate_transformation_mode": mode, "opset": 19, "tolerance": 1e-4}
        check("Resize", [x, None, None, sizes], backend, **more)
        scales = np.array([1, 1, 0.55, 2.3], np.float32)
        check("Resize", [x, None, scales], backend, known=(2,), **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cropped(backend: str) -> None:
    x, sizes = floats(1, 1, 5, 7), np.array([1, 1, 3, 4], np.int64)
    roi = np.array([0, 0, 0.4, -0.2, 1, 1, 1.2, 0.7], np.float32)
    for mode in ("nearest", "linear"):
        more = {"coordinate_transformation_mode": "tf_crop_and_resize", "opset": 13, "mode": mode}
        check("Resize", [x, roi, None, sizes], backend, extrapolation_value=9.0, **more)
        scales = np.array([1, 1, 0.7, 0.3], np.float32)  # 3.5 by 2.1 places, of which 3 by 2 are
        check("Resize", [x, roi, scales], backend, known=(2,), extrapolation_value=9.0, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_is_resized_where_no_region_is_given(backend: str) -> None:
    x, sizes = floats(1, 1, 5, 7), np.array([1, 1, 3, 4], np.int64)
    for mode in ("nearest", "linear"):
        more = {"coordinate_transformation_mode": "tf_crop_and_resize", "opset": 13, "mode": mode}
        check("Resize", [x, None, None, sizes], backend, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_old_versions(backend: str) -> None:
    x, scales = floats(1, 2, 3, 5), np.array([1, 1, 2, 3], np.float32)
    for mode in ("nearest", "linear"):
        check("Upsample", [x], backend, opset=7, scales=scales.tolist(), mode=mode)
        check("Upsample", [x, scales], backend, opset=9, mode=mode)
        check("Resize", [x, scales], backend, opset=10, mode=mode)
    repeated = x.repeat(2, 2).repeat(3, 3)
    check("Upsample", [x], backend, repeated, opset=1, height_scale=2.0, width_scale=3.0)
    bytes_ = RNG.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
    check("Resize", [bytes_, np.array([1, 1, 0.5, 2], np.float32)], backend, opset=10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_stays_where_it_is(backend: str) -> None:
    x = floats(1, 1, 9, 9)
    x[0, 0, 4, 4] = np.inf
    scales = np.array([1, 1, 2, 2], np.float32)
    check("Resize", [x, None, scales], backend, opset=19, mode="linear")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grids(backend: str, mode: str) -> None:
    image, volume = floats(2, 3, 4, 5), floats(1, 2, 3, 1, 4)
    for padding, corners in product(("zeros", "border", "reflection"), (0, 1)):
        more = {"mode": mode, "padding_mode": padding, "align_corners": corners, "opset": 20}
        check("GridSample", [image, floats(2, 3, 7, 2)], backend, tolerance=1e-3, **more)
        if mode != "cubic":
            check("GridSample", [volume, floats(1, 3, 1, 5, 3)], backend, tolerance=1e-3, **more)
    old = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    check("GridSample", [image, floats(2, 3, 7, 2)], backend, tolerance=1e-3, mode=old, opset=16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales_that_leave_nothing(backend: str, mode: str) -> None:
    more = {"mode": mode, "opset": 19, "known": (2,)}
    check("Resize", [floats(1, 4), None, np.array([0.6, 2], np.float32)], backend, **more)
    roi = np.array([0.1, 0.1, 1.03, 0.8], np.float32)
    more["coordinate_transformation_mode"] = "tf_crop_and_resize"
    check("Resize", [floats(1, 4), roi, np.array([0.6, 2], np.float32)], backend, **more)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_no_images_to_a_size(backend: str, mode: str) -> None:
    """An axis of no places stays as it is, and is refused where it is to have some."""
    sizes, more = np.array([0, 2, 5, 7]), {"mode": mode, "opset": 19, "known": (3,)}
    check("Resize", [floats(0, 2, 3, 4), None, None, sizes], backend, **more)
    with pytest.raises(GlnnError, match="has no places"):
        check("Resize", [floats(1, 0, 3, 4), None, None, sizes + 1], backend, floats(1), **more)
