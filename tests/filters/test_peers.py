"""What filters promise to have in common with OpenCV and scipy, where these are installed."""

from __future__ import annotations

import numpy as np
import pytest

from glnn import filters

SHAPES = [(1, 1), (2, 3), (7, 129), (67, 41, 3), (9, 12, 4)]
MODES = {"reflect": "mirror", "replicate": "nearest", "constant": "constant"}


def images(dtype: str):
    generator = np.random.default_rng(0)
    for shape in SHAPES:
        x = generator.integers(0, 256, shape)
        yield x.astype(np.uint8) if dtype == "uint8" else (x / 255).astype(np.float32)


def differ(got: np.ndarray, expected: np.ndarray) -> float:
    """By how much at the most."""
    wide = got.astype(np.float64)
    return float(np.abs(wide - expected.reshape(got.shape)).max())


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_opencv(dtype: str) -> None:
    cv2 = pytest.importorskip("cv2")
    cv2.setNumThreads(1)
    exact, near = (0, 1) if dtype == "uint8" else (2e-6, 2e-6)  # sums of floats meet halves
    borders = {
        "reflect": cv2.BORDER_REFLECT_101,
        "replicate": cv2.BORDER_REPLICATE,
        "constant": cv2.BORDER_CONSTANT,
    }
    kernel_x, kernel_y = (0.3, -0.2, 0.7), (0.1, 0.5, 0.2, 0.1, 0.3)
    for x in images(dtype):
        for border, theirs in borders.items():
            edge, on = {"borderType": theirs}, {"border": border, "backend": "cpu"}
            for size, sigma in ((3, None), (9, None), (11, None), (7, 1.3), (15, 2.5), (21, 0.4)):
                blurred = cv2.GaussianBlur(x, (size, size), sigma or 0, **edge)
                assert differ(filters.gaussian_blur(x, size, sigma, **on), blurred) <= exact
            if max(x.shape[:2]) > 1:  # else OpenCV takes one pixel for the kernel
                blurred = cv2.GaussianBlur(x, (0, 0), 1.7, **edge)
                assert differ(filters.gaussian_blur(x, None, 1.7, **on), blurred) <= exact
            for size in ((3, 3), (5, 7), (31, 31)):
                assert differ(filters.box(x, size, **on), cv2.blur(x, size, **edge)) <= exact
            passed = cv2.sepFilter2D(x, -1, np.array(kernel_x), np.array(kernel_y), **edge)
            assert differ(filters.separable(x, kernel_x, kernel_y, **on), passed) <= near
            for found, along in zip(filters.scharr(x, **on), ((1, 0), (0, 1)), strict=True):
                assert differ(found, cv2.Scharr(x, cv2.CV_32F, *along, **edge)) <= 8 * exact
            for size in (1, 3):
                found = filters.laplacian(x, size, **on)
                assert differ(found, cv2.Laplacian(x, cv2.CV_32F, ksize=size, **edge)) <= 4 * exact
        assert differ(filters.median(x, backend="cpu"), cv2.medianBlur(x, 3)) == 0


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_opencv_sizes_and_colours(dtype: str) -> None:
    cv2 = pytest.importorskip("cv2")
    near = 1 if dtype == "uint8" else 5e-6
    for x in images(dtype):
        height, width = x.shape[:2]
        for size in ((1, 1), (5, 3), (130, 7), (width, height)):
            for name, theirs, off in (
                ("nearest", cv2.INTER_NEAREST, 0),
                ("linear", cv2.INTER_LINEAR, near),
                ("cubic", cv2.INTER_CUBIC, near),
                ("area", cv2.INTER_AREA, near),
            ):
                if name != "area" or (size[0] <= width and size[1] <= height):
                    found = filters.resize(x, size, name, "cpu")
                    assert differ(found, cv2.resize(x, size, interpolation=theirs)) <= off, name
        if x.ndim == 3:
            code = cv2.COLOR_RGB2GRAY if x.shape[2] == 3 else cv2.COLOR_RGBA2GRAY
            exact = 0 if dtype == "uint8" else 2e-6
            assert differ(filters.grey(x, "cpu"), cv2.cvtColor(x, code)) <= exact


def test_scipy() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    for x in images("float32"):
        for border, mode in MODES.items():
            axes, on = {"axes": (0, 1), "mode": mode}, {"border": border, "backend": "cpu"}
            size = (3, 3, *(1 for _ in x.shape[2:]))
            assert differ(filters.median(x, **on), ndimage.median_filter(x, size, mode=mode)) == 0
            assert differ(filters.box(x, 4, **on), ndimage.uniform_filter(x, 4, **axes)) <= 2e-6
            blurred = ndimage.gaussian_filter(x, 1.5, radius=6, **axes)
            assert differ(filters.gaussian_blur(x, 13, 1.5, **on), blurred) <= 2e-6
            if x.ndim == 2:
                assert differ(filters.laplacian(x, **on), ndimage.laplace(x, mode=mode)) <= 8e-6
