"""Resize, Upsample and GridSample, against ONNX Runtime."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from glnn import InferenceSession
from glnn.errors import DeviceError, GlnnError
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


WAYS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "scales": (["x", "roi", "scales"], {}),
    "sizes": (["x", "roi", "", "sizes"], {"mul": [1, 1, 3, 2], "div": [1, 1, 4, 1], "add": 1}),
    "half": (["x", "roi", "", "sizes"], {"mul": [1, 1, 1, 1], "div": [1, 1, 2, 3], "add": 0}),
    "twice": (["x", "roi", "", "sizes"], {"mul": [1, 1, 2, 3], "div": [1, 1, 1, 1], "add": 0}),
}
"""How sizes are said: the operands, and how they are computed of those of x."""


def resized(way: str, sides: tuple[int | str, int | str], dtype: Any, **attributes: Any) -> bytes:
    """Return a model that resizes x (1, 2, *sides)."""
    operands, how = WAYS[way]
    scales = attributes.pop("scales", [1, 1, 2, 0.5])
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.1], np.float32)
    constants = {"scales": np.array(scales, np.float32), "roi": roi}
    nodes = []
    if how:
        constants |= {name: np.array(number) for name, number in how.items()}
        nodes = [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Mul", ["shape", "mul"], ["more"]),
            helper.make_node("Div", ["more", "div"], ["less"]),
            helper.make_node("Add", ["less", "add"], ["all"]),
            helper.make_node("Slice", ["all", "two", "four"], ["sides"]),
            helper.make_node("Concat", ["first", "sides"], ["sizes"], axis=0),
        ]
        constants |= {"two": np.array([2]), "four": np.array([4]), "first": np.array([1, 2])}
    nodes.append(helper.make_node("Resize", operands, ["y"], **attributes))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "resized",
        [helper.make_tensor_value_info("x", kind, [1, 2, *sides])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [helper.make_opsetid("", 19)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString())


def check_open(backend: str, way: str, dtype: Any = np.float32, **attributes: Any) -> None:
    """Compare one plan for open sizes with ONNX Runtime, or with plans of just these sizes.

    These where ONNX Runtime has other numbers, at the edges of what is cropped, or none of 64 bits.
    """
    model = resized(way, ("H", "W"), dtype, **attributes)
    try:
        session = InferenceSession(model, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    cropped = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    ours = cropped or dtype == np.float64
    for height, width in ((12, 18), (31, 9), (16, 17), (25, 31)):
        x = RNG.standard_normal((1, 2, height, width)).astype(dtype)
        (got,) = session.run(None, {"x": x})
        if ours:
            model = resized(way, (height, width), dtype, **attributes)
            (expected,) = InferenceSession(model, backend).run(None, {"x": x})
        else:
            theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
            (expected,) = theirs.run(None, {"x": x})
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=f"{height}, {width}")
        assert got.dtype == dtype
    executor = session._executor
    assert len(executor.range_plans) == 1 and not executor._plans


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES[:1] + CASES[4:], ids=str)
def test_open_sizes_stay_open(backend: str, way: str, case: dict[str, Any]) -> None:
    modes = ("half_pixel",) if case.get("antialias") else (*HALF, "align_corners")
    coordinates = modes[[*WAYS].index(way) % len(modes)]
    check_open(backend, way, **case, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("mode", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
def test_open_sizes_times_a_scale(nearest: str, mode: str) -> None:
    """By whole factors and their reciprocals no table is needed; 0.7 is no sum of few halves."""
    more = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": mode}
    for scales in ([1, 1, 2, 3], [1, 1, 0.5, 0.25], [1, 1, 1.5, 0.75]):
        check_open("cpu", "scales", scales=scales, **more)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_open_sizes_of_what_is_cropped(mode: str) -> None:
    for way in WAYS:
        check_open(
            "cpu", way, mode=mode, coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=7.0,
        )  # fmt: skip


def test_open_sizes_in_64_bits() -> None:
    for way in WAYS:
        check_open(
            "cpu", way, np.float64, mode="linear", coordinate_transformation_mode="half_pixel"
        )


def test_a_wrong_mode_is_refused_for_open_sizes() -> None:
    model = resized("sizes", ("H", "W"), np.float32, mode="nearest", nearest_mode="middle")
    with pytest.raises(GlnnError, match="nearest_mode must be one of"):
        InferenceSession(model, "cpu").run(None, {"x": floats(1, 2, 9, 9)})
