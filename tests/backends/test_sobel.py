"""Every kernel of `sobel` against NumPy's plain loops, of images of any width."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import Array
from glnn.graph.operators import Sobel
from tests.backends.harness import kernels, run

KERNELS = kernels("sobel")
IMAGES, WIDTHS, HEIGHTS = 200, range(1, 68), (3, 5, 1, 4, 7, 2, 19, 6)
ENDS = np.array([0, 255], np.uint8)


def image(number: int) -> Array:
    """The random image of that number; of every fourth the pixels are black or white."""
    generator = np.random.default_rng(number)
    shape = HEIGHTS[number // 7 % len(HEIGHTS)], WIDTHS[number % len(WIDTHS)]
    if number % 4 == 3:
        return generator.choice(ENDS, shape)
    return generator.integers(0, 256, shape, np.uint8)


def gradients(x: Array) -> Array:
    """dx and dy as their definition has them, a tap of the masks after another."""
    found = np.zeros((2, *x.shape), np.int64)
    height, width = x.shape
    masks = np.array([[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], [[1, 2, 1], [0, 0, 0], [-1, -2, -1]]])
    if min(x.shape) < 3:
        return found
    for plane, mask in enumerate(masks):
        for u in range(3):
            for v in range(3):
                seen = x[u : height - 2 + u, v : width - 2 + v].astype(np.int64)
                found[plane, 1:-1, 1:-1] += mask[u, v] * seen
    return found // 8


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_two_hundred_images(opened, name, kernel) -> None:
    backend = opened(name)
    for number in range(IMAGES):
        x = image(number)
        got = run(backend, Sobel(), {"x": x}, kernel)
        np.testing.assert_array_equal(got, gradients(x), f"image {number}, {x.shape}")


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_images_without_interior(opened, name, kernel) -> None:
    for shape in ((1, 1), (1, 17), (5, 1), (2, 2), (2, 35), (9, 2)):
        got = run(opened(name), Sobel(), {"x": np.full(shape, 7, np.uint8)}, kernel)
        np.testing.assert_array_equal(got, np.zeros((2, *shape), np.int8))
