"""Attributes of any size are refused, or computed in a time that the result's size bounds."""

from __future__ import annotations

import numpy as np
import pytest

from glnn import layers
from glnn.errors import ShapeError
from glnn.graph.operators import Conv2d, LocalResponseNorm, Pool2d
from glnn.model import Model
from tests import oracle

HUGE = 2**40
INT32 = 2**31 - 1


@pytest.fixture
def x(rng) -> np.ndarray:
    return rng((1, 5, 4, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Conv2d(stride=(HUGE, 1)),
        lambda: Conv2d(padding=(0, 0, 0, HUGE)),
        lambda: Conv2d(dilation=(1, HUGE)),
        lambda: Conv2d(groups=HUGE),
        lambda: Pool2d(kernel=(HUGE, HUGE)),
        lambda: Pool2d(stride=(2**31, 1)),
        lambda: LocalResponseNorm(HUGE),
        lambda: layers.MaxPool2d(HUGE, ceil_mode=True),
        lambda: layers.AvgPool2d(2, HUGE),
        lambda: layers.LocalResponseNorm(HUGE),
        lambda: layers.Conv2d(1, 1, HUGE),
        lambda: layers.Linear(HUGE, 2),
        lambda: layers.Linear(INT32, INT32),
        lambda: layers.Conv2d(2, 2, 2**20),
        lambda: layers.Bias(2**31),
        lambda: layers.Concat(10**9),
        lambda: layers.Subsample2d(3, HUGE),
    ],
)
def test_what_no_int32_holds_is_refused(make) -> None:
    with pytest.raises(ShapeError, match=r"at most|more than"):
        make()


@pytest.mark.parametrize("size", [9, 10, 17, INT32])
def test_response_over_more_channels_than_there_are(x, size) -> None:
    op = LocalResponseNorm(size, alpha=float(size))
    expected = (
        x.astype(np.float64) / (1 + (x.astype(np.float64) ** 2).sum(1, keepdims=True)) ** 0.75
    )
    assert oracle.error(op.compute({"x": x}), expected) <= 1e-6
    assert op.defines({"x": x.shape}) == {"SIZE": 9}
    assert op.flops({"x": x.shape}) == x.size * 22


@pytest.mark.parametrize("mode", ["max", "average"])
def test_a_window_that_hangs_far_over_the_image(x, mode) -> None:
    """PyTorch takes these with ceil_mode: the part inside the image counts."""
    op = Pool2d(mode, (INT32, INT32), (INT32, INT32), ceil_mode=True)
    expected = (np.max if mode == "max" else np.mean)(x, axis=(2, 3), keepdims=True)
    assert oracle.error(op.compute({"x": x}), expected) <= 1e-6
    assert (op.defines({"x": x.shape})["KERNEL_H"], op.flops({"x": x.shape})) == (4, 60)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kernel", [(9, 9), (8, 12), (30, 7)])
def test_windows_larger_than_the_image(x, mode, include, kernel) -> None:
    half = tuple(k // 2 for k in kernel)
    how = {"stride": (2, 3), "padding": (*half, *half), "ceil_mode": True}
    op = Pool2d(mode, kernel, count_include_pad=include, **how)
    expected = oracle.pool2d(x, mode, kernel, count_include_pad=include, **how)
    assert oracle.error(op.compute({"x": x}), expected) <= 1e-6


def test_a_dilation_that_reaches_over_the_image(x) -> None:
    op = Pool2d("max", (3, 2), (5, 5), dilation=(INT32, INT32), ceil_mode=True)
    shapes = {"x": x.shape}
    with pytest.raises(ShapeError, match="larger than x"):
        op.shape_of(shapes)
    reaching = Pool2d("max", (3, 2), (INT32, INT32), dilation=(2**29, 2**29), ceil_mode=True)
    assert np.array_equal(reaching.compute({"x": x}), x[:, :, :1, :1])
    assert (reaching.defines(shapes)["KERNEL_H"], reaching.defines(shapes)["KERNEL_W"]) == (1, 1)


def test_a_pool_that_is_larger_than_the_padded_image(x) -> None:
    with pytest.raises(ShapeError, match="larger than x"):
        Pool2d(kernel=(2**20, 2**20)).shape_of({"x": x.shape})


def test_a_pool_of_little_but_padding(x) -> None:
    sides = (2**29,) * 4
    with pytest.raises(ShapeError, match="padding must be at most 255 or x's height and width"):
        Pool2d(kernel=(2**30, 2**30), padding=sides).shape_of({"x": x.shape})


@pytest.mark.parametrize("padding", [(2**30, 0, 2**30, 0), (2**20,) * 4])
def test_an_image_padded_beyond_an_int32(x, padding) -> None:
    shapes = {"x": x.shape, "weight": (1, 5, 1, 1)}
    with pytest.raises(ShapeError, match="must be at most 2147483647"):
        Conv2d(padding=padding).shape_of(shapes)


@pytest.mark.parametrize("shape", [(2**31,), (10**30, 2), (2**16, 2**16)])
def test_a_sample_beyond_an_int32(shape) -> None:
    with pytest.raises(ShapeError, match="more than 2147483647 numbers"):
        Model.sequential([layers.ReLU()], shape)


@pytest.mark.parametrize("seed", [HUGE, 2**63, 10**30, np.uint64(2**64 - 1)])
def test_seeds_of_any_size(seed) -> None:
    weight = layers.Linear(2, 2, seed=seed).weight
    assert np.array_equal(weight, layers.Linear(2, 2, seed=int(seed)).weight)
    assert not np.array_equal(weight, layers.Linear(2, 2, seed=int(seed) % 2**31).weight)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, None])
def test_what_is_no_seed(seed) -> None:
    with pytest.raises(ShapeError, match="Linear seed must be"):
        layers.Linear(2, 2, seed=seed)
