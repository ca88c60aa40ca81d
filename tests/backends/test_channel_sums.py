"""Two sums of each channel: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import ChannelSums
from tests.backends.harness import kernels, run
from tests.backends.test_batch_normalize import SHAPES as IMAGES

SHAPES = [(1, 1, 1, 2), *IMAGES]
KERNELS = kernels("channel_sums")
OF_MATRICES = [one for one in KERNELS if one[1] not in ("nhwc", "two_stage")]
OF_IMAGES = [one for one in KERNELS if "matrix" not in one[1]]


def moments(x: np.ndarray) -> np.ndarray:
    """Means and variances of channels."""
    return np.stack([x.mean((0, 2, 3)), x.var((0, 2, 3))])


def checked(got: np.ndarray, expected: np.ndarray, bound: float) -> None:
    """Compare each row with its own size, and see that there are zeros behind it."""
    channels = expected.shape[1]
    assert got.shape == (2, -(-channels // 64) * 64) and not got[:, channels:].any()
    error = np.abs(got[:, :channels] - expected).max(1) / np.abs(expected).max(1)
    assert (error <= bound).all(), error


@pytest.mark.parametrize(("name", "kernel"), OF_IMAGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_means_and_variances(opened, rng, name, kernel, shape) -> None:
    x = rng(shape)
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)
    checked(got, moments(x.astype(np.float64)), 2e-6)


@pytest.mark.parametrize(("name", "kernel"), OF_IMAGES)
def test_variances_far_from_zero(opened, rng, name, kernel) -> None:
    """Of numbers around 1000, first ones of 0: squares of them would lose all that varies."""
    x = 1000 + rng((3, 70, 17, 9))
    x[0, :, 0, 0] = 0
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)
    checked(got, moments(x.astype(np.float64)), 2e-6)
    x[:, :, 0, 0] = 1000
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)
    expected = moments(x.astype(np.float64))
    np.testing.assert_allclose(got[1, :70], expected[1], rtol=2e-4)


@pytest.mark.parametrize(("name", "kernel"), OF_IMAGES)
@pytest.mark.parametrize("shape", [(1, 8, 1, 3), (2, 8, 10, 10), (1, 8, 1, 131)])
def test_means_whose_squares_leave_float32(opened, rng, name, kernel, shape) -> None:
    """Lanes without a pixel add 0, however far from the mean that is."""
    x = (3e19 * (1 + 1e-3 * rng(shape).astype(np.float64))).astype(np.float32)
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)
    checked(got, moments(x.astype(np.float64)), 1e-3)


@pytest.mark.parametrize(("name", "kernel"), OF_IMAGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_a_gradient(opened, rng, name, kernel, shape) -> None:
    x, dy, mean = rng(shape), rng(shape), rng(shape[1:2])
    got = run(opened(name), ChannelSums(), {"x": x, "dy": dy, "mean": mean}, kernel)
    exact, apart = dy.astype(np.float64), x.astype(np.float64) - mean[:, None, None]
    expected = np.stack([exact.sum((0, 2, 3)), (exact * apart).sum((0, 2, 3))])
    channels = shape[1]
    assert not got[:, channels:].any()
    sizes = np.stack([np.abs(exact).sum((0, 2, 3)), np.abs(exact * apart).sum((0, 2, 3))])
    assert (np.abs(got[:, :channels] - expected) <= 2e-6 * sizes.max(1, keepdims=True)).all()


@pytest.mark.parametrize(("name", "kernel"), OF_MATRICES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (127, 129), (2048, 66), (1031, 4)])
def test_sums_of_the_columns_of_a_matrix(opened, rng, name, kernel, shape) -> None:
    x, dy = rng(shape), rng(shape)
    got = run(opened(name), ChannelSums(), {"x": x, "dy": dy}, kernel)
    exact = dy.astype(np.float64)
    expected = np.stack([exact.sum(0), (exact * x).sum(0)])
    assert got.shape == (2, -(-shape[1] // 64) * 64) and not got[:, shape[1] :].any()
    sizes = np.stack([np.abs(exact).sum(0), np.abs(exact * x).sum(0)])
    assert (np.abs(got[:, : shape[1]] - expected) <= 2e-6 * sizes.max(1, keepdims=True)).all()
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)
    wide = x.astype(np.float64)
    if len(x) > 1:
        checked(got, np.stack([wide.mean(0), wide.var(0)]), 2e-6)


@pytest.mark.parametrize(("name", "kernel"), OF_IMAGES)
def test_what_is_not_finite_makes_nan_of_its_channel_alone(opened, rng, name, kernel) -> None:
    x = rng((2, 6, 5, 3))
    x[1, 4, 2, 2], x[0, 1, 4, 2] = np.nan, np.inf
    got = run(opened(name), ChannelSums(), {"x": x}, kernel)[:, :6]
    assert np.isnan(got[:, [1, 4]]).all() and np.isfinite(got[:, [0, 2, 3, 5]]).all()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (3,)}, r"x must have shape \(n, c, ...\), got \(3,\)"),
        ({"x": (2, 3, 4), "mean": (3,)}, "expected dy beside mean"),
        ({"x": (2, 3, 4), "dy": (2, 3, 5), "mean": (3,)}, r"dy must have shape \(2, 3, 4\)"),
        ({"x": (2, 3, 4), "dy": (2, 3, 4), "mean": (4,)}, r"mean must have shape \(3,\), got"),
    ],
)
def test_wrong_shapes(shapes, message) -> None:
    with pytest.raises(ShapeError, match=message):
        ChannelSums().shape_of(shapes)


@pytest.mark.parametrize(("name", "kernel"), kernels("channel_sums"))
def test_parts_have_rows_of_their_own(opened, rng, name, kernel) -> None:
    if kernel not in ("nhwc", "matrix"):
        pytest.skip("it is for whole sums")
    shape = (6, 66) if kernel == "matrix" else (2, 66, 3, 5)
    x, dy = rng(shape), rng(shape)
    wide = [np.moveaxis(a.astype(np.float64), 1, -1).reshape(3, -1, 66) for a in (x, dy)]
    sums = run(opened(name), ChannelSums(parts=3), {"x": x, "dy": dy}, kernel)
    expected = np.stack([wide[1].sum(1), (wide[0] * wide[1]).sum(1)], 1)
    assert sums.shape == (3, 2, 128) and not sums[:, :, 66:].any()
    np.testing.assert_allclose(sums[:, :, :66], expected, rtol=0, atol=1e-5)
    got = run(opened(name), ChannelSums(parts=3), {"x": x}, kernel)
    expected = np.stack([wide[0].mean(1), wide[0].var(1)], 1)
    np.testing.assert_allclose(got[:, :, :66], expected, rtol=0, atol=1e-6)


def test_pixels_are_divided_evenly() -> None:
    with pytest.raises(ShapeError, match="expected pixels in 4 equal parts, got 30 of x"):
        ChannelSums(parts=4).shape_of({"x": (2, 7, 3, 5)})
