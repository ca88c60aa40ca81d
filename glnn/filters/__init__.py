"""Image filters: NumPy arrays in and out, computed by graphs on any backend."""

from glnn.filters.grey import grey
from glnn.filters.median import median
from glnn.filters.resize import resize
from glnn.filters.separable import box, gaussian_blur, laplacian, scharr, separable
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
