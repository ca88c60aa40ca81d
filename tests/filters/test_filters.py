"""Every filter on every backend against its definition, exactly where it promises so."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from glnn import filters
from glnn.core.types import TensorType
from glnn.errors import LimitError
from glnn.filters import filter
from glnn.filters.linear_filters import Box
from tests.filters import oracle
from tests.oracle import error

CASES = [
    ((1, 1), "reflect"),
    ((2, 3, 3), "replicate"),
    ((7, 129), "constant"),
    ((129, 2, 3), "reflect"),
    ((2, 3, 67, 4), "replicate"),
]
TOLERANCE = 1e-6
BYTES = {  # the weights times 256 of OpenCV 4.10 and 5.0, by size and sigma
    (3, None): (64, 128, 64),
    (7, None): (8, 28, 56, 72, 56, 28, 8),
    (5, 1.0): (14, 62, 104, 62, 14),
    (9, 2.0): (7, 17, 32, 46, 52, 46, 32, 17, 7),
}


@pytest.fixture(params=["uint8", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest, dtype: str):
    """An image and a border."""
    shape, border = request.param
    generator = np.random.default_rng(len(shape) + shape[0])
    if dtype == "uint8":
        return generator.integers(0, 256, shape).astype(np.uint8), border
    return generator.standard_normal(shape).astype(np.float32), border


def check(got, expected, x, off: int = 0) -> None:
    """Bytes no more than `off` from what is expected, rounded; floats nearly that."""
    assert got.dtype == x.dtype
    if x.dtype == np.uint8:
        wanted = oracle.rounded(expected)
        assert got.shape == wanted.shape
        assert np.abs(got.astype(int) - wanted).max() <= off
    else:
        assert error(got, expected) <= TOLERANCE


def test_gaussian_blur(backend, case) -> None:
    x, border = case
    for (size, sigma), weights in BYTES.items():
        if x.dtype == np.uint8 or sigma is None:
            row = np.array(weights) / 256
        else:
            row = oracle.gaussian(size, sigma)
        expected = oracle.correlate(x, np.outer(row, row), border)
        check(filters.gaussian_blur(x, size, sigma, border, backend), expected, x)


def test_gaussian_blur_of_two_sizes(backend, case) -> None:
    x, border = case
    got = filters.gaussian_blur(x, (5, 1), (1.0, 3.0), border, backend)
    row = np.array(BYTES[5, 1.0]) / 256 if x.dtype == np.uint8 else oracle.gaussian(5, 1.0)
    check(got, oracle.correlate(x, row[None], border), x)
    reach = 3 if x.dtype == np.uint8 else 4
    same = filters.gaussian_blur(x, 2 * reach + 1, 1.0, border, backend)
    np.testing.assert_array_equal(filters.gaussian_blur(x, None, 1.0, border, backend), same)


def test_box(backend, case) -> None:
    x, border = case
    for width, height in ((3, 3), (1, 4), (31, 2)):
        weights = np.ones((height, width)) / (width * height)
        expected = oracle.correlate(x, weights, border)
        expected = (
            np.rint(expected * width * height) / (width * height)
            if x.dtype == np.uint8
            else expected
        )
        check(filters.box(x, (width, height), border, backend), expected, x)


def test_derivatives(backend, case) -> None:
    x, border = case
    smooth, first = (3, 10, 3), (-1, 0, 1)
    laplacian = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
    corners = np.array([[2, 0, 2], [0, -8, 0], [2, 0, 2]])
    dx, dy = filters.scharr(x, border, backend)
    one = filters.laplacian(x, border=border, backend=backend)
    three = filters.laplacian(x, 3, border, backend)
    kernels = (np.outer(smooth, first), np.outer(first, smooth), laplacian, corners)
    for got, weights in zip((dx, dy, one, three), kernels, strict=True):
        expected = oracle.correlate(x, weights, border)
        assert got.dtype == np.float32
        if x.dtype == np.uint8:
            np.testing.assert_array_equal(got, expected)
        else:
            scale = np.abs(weights).sum()
            assert np.abs(got - expected).max() <= TOLERANCE * scale * np.abs(x).max()


def test_separable(backend, case) -> None:
    x, border = case
    across, down = (0.25, -0.5, 1.5, 0.125), (0.5, 0.25, 0.5)
    weights = np.outer(down, across)
    expected = oracle.correlate(x, weights, border)
    if x.dtype == np.uint8:
        expected = np.rint(expected)  # halves to the even one
    check(filters.separable(x, across, np.array(down), border, backend), expected, x)


def test_median(backend, case) -> None:
    x, border = case
    got = filters.median(x, border, backend)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, oracle.median(x, border))


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic", "area"])
def test_resize(backend, case, interpolation) -> None:
    x, _ = case
    for width, height in ((1, 5), (130, 2)):
        got = filters.resize(x, (width, height), interpolation, backend)
        expected = oracle.resize(x, width, height, getattr(oracle, interpolation))
        # What float32 makes of a half is rounded either way.
        check(got, expected, x, off=int(interpolation != "nearest"))


def test_grey(backend, dtype) -> None:
    generator = np.random.default_rng(0)
    for shape in ((1, 1, 3), (7, 129, 4), (2, 5, 3, 3)):
        x = generator.integers(0, 256, shape).astype(dtype)
        red, green, blue = (x[..., i].astype(np.int64) for i in range(3))
        got = filters.grey(x, backend)
        if dtype == "uint8":
            expected = (9798 * red + 19235 * green + 3735 * blue + (1 << 14)) >> 15
            np.testing.assert_array_equal(got, expected)
        else:
            assert error(got, 0.299 * red + 0.587 * green + 0.114 * blue) <= TOLERANCE
        assert got.dtype == x.dtype


def test_an_image_lies_as_it_likes(backend) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, 14, 3)).astype(np.uint8)
    turned = x.transpose(1, 0, 2)[::-1]
    np.testing.assert_array_equal(
        filters.box(turned, backend=backend), filters.box(turned.copy(), backend=backend)
    )


def test_bytes_saturate(backend) -> None:
    x = np.array([[0, 0, 255, 255]], np.uint8)
    np.testing.assert_array_equal(
        filters.separable(x, (-1, 2, -1), (1,), backend=backend), [[0, 0, 255, 0]]
    )
    np.testing.assert_array_equal(
        filters.separable(x, (3,), (0.5,), backend=backend), [[0, 0, 255, 255]]
    )


def test_plans_are_dropped_where_memory_is_short(backend, monkeypatch) -> None:
    if backend.device is None:
        pytest.skip("it has no memory of its own")
    kept = filter._Plans()
    monkeypatch.setattr(filter, "_plans", kept)
    images = [np.full((9, n), 7, np.uint8) for n in range(61, 65)]
    need = filter.Filter.plan(
        Box.from_arguments(True, 3, "reflect"), TensorType.from_array(images[-1]), backend
    ).nbytes
    for free, left in ((None, 4), (1 << 30, 4), (need * 3 // 2, 2)):
        monkeypatch.setattr(type(backend), "available", lambda self, free=free: free)
        kept.kept.clear()
        for image in images:
            np.testing.assert_array_equal(filters.box(image, backend=backend), image)
        assert len(kept.kept) == left


@pytest.mark.parametrize("shape", [(7, 5, 3), (3, 4, 5, 4), (9, 30)])
def test_what_is_too_large_is_filtered_in_parts(monkeypatch, shape) -> None:
    whole, most = filter.Filter.plan, 35

    def limited(self, type, backend):
        if prod(type.shape) > most:
            raise LimitError("too large")
        return whole(self, type, backend)

    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    works = [
        lambda x: filters.scharr(x, backend="cpu"),
        lambda x: filters.median(x, backend="cpu"),
        lambda x: filters.resize(x, (3, 2), backend="cpu"),
        *([lambda x: filters.grey(x, "cpu")] if len(shape) > 2 else []),
    ]
    expected = [work(x) for work in works]
    monkeypatch.setattr(filter.Filter, "plan", limited)
    for work, wanted in zip(works, expected, strict=True):
        if len(shape) == 2:
            with pytest.raises(LimitError, match="too large"):
                work(x)
        else:
            np.testing.assert_array_equal(work(x), wanted)
