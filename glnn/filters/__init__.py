"""Image filters: NumPy arrays in and out, computed by graphs on any backend."""

from glnn.filters.linear_filters import (
    box,
    gaussian_blur,
    grey,
    laplacian,
    resize,
    scharr,
    separable,
)
from glnn.filters.median import median
from glnn.filters.sobel import sobel

__all__ = [
    "box",
    "gaussian_blur",
    "grey",
    "laplacian",
    "median",
    "resize",
    "scharr",
    "separable",
    "sobel",
]
