"""What filters refuse, and what they keep."""

from __future__ import annotations

import re

import numpy as np
import pytest

from glnn import filters
from glnn.errors import ShapeError
from glnn.filters import filter

X = np.zeros((4, 5), np.uint8)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: filters.box([[1]]), "box: image must be an uint8 or a float32 NumPy array, got"),
        (lambda: filters.median(X.astype(float)), "NumPy array, got float64 array"),
        (lambda: filters.median(X[0]), "median: image must be H x W, H x W x C or N x H x W x C"),
        (lambda: filters.median(X[:0]), "none of them 0, got shape (0, 5)"),
        (lambda: filters.box(X, border="wrap"), "box: border must be one of ('reflect', "),
        (lambda: filters.box(X, 0), "box: kernel_size must be one or two whole numbers from 1"),
        (lambda: filters.box(X, (1, 2, 3)), "width first, got (1, 2, 3)"),
        (lambda: filters.gaussian_blur(X, 4), "kernel_size must be one or two whole odd numbers"),
        (lambda: filters.gaussian_blur(X, 3, -1), "sigma must be one or two numbers above 0"),
        (lambda: filters.gaussian_blur(X, None, 1e30), "kernel_size, by sigma, must be one or two"),
        (lambda: filters.gaussian_blur(X, 3, 10**400), "sigma must be one or two numbers above 0"),
        (lambda: filters.box(X, 10**15), "box: kernel_size must be one or two whole numbers from"),
        (lambda: filters.gaussian_blur(X, None), "kernel_size or sigma must be given, got neither"),
        (lambda: filters.separable(X, [], (1,)), "separable: kernel_x must be a row of finite"),
        (lambda: filters.separable(X, (1,), (np.inf,)), "separable: kernel_y must be a row of"),
        (lambda: filters.separable(X, (1e39,), (1,)), "kernel_x must be a row of finite numbers"),
        (lambda: filters.separable(X, (10**400,), (1,)), "kernel_x must be a row of finite"),
        (lambda: filters.laplacian(X, [1]), "laplacian: kernel_size must be 1 or 3, got [1]"),
        (lambda: filters.laplacian(X, 5), "laplacian: kernel_size must be 1 or 3, got 5"),
        (lambda: filters.grey(X), "grey: image must be H x W x 3 or 4, or a batch of such, got"),
        (lambda: filters.resize(X, "3"), "resize: size must be one or two whole numbers from 1"),
        (lambda: filters.resize(X, 10**15), "size must be one or two whole numbers from 1 to"),
        (lambda: filters.resize(X, 3, "lanczos"), "interpolation must be one of ('nearest', "),
    ],
)
def test_mistakes_are_named(call, says) -> None:
    with pytest.raises(ShapeError, match=re.escape(says)):
        call()


def test_a_sigma_of_nearly_nothing_blurs_nothing() -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    for sigma in (5e-324, 1e-300):
        np.testing.assert_array_equal(filters.gaussian_blur(x, 3, sigma, backend="cpu"), x)


def test_a_plan_is_made_once(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(filter, "_plans", filter._Plans())
    monkeypatch.setattr(
        filter, "Plan", lambda *a, plan=filter.Plan, **k: made.append(a) or plan(*a, **k)
    )
    for image in (X, X + 1, X[:3], X, X.astype(np.float32)):
        filters.gaussian_blur(image, 3, backend="cpu")
    filters.gaussian_blur(X, 3, 0.8, backend="cpu")
    assert len(made) == 4
    for size in range(1, 2 * filter.PLANS_KEPT):
        filters.resize(X, size, backend="cpu")
    assert len(filter._plans.kept) == filter.PLANS_KEPT
