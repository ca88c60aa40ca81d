"""Image filters: NumPy arrays in and out, computed by graphs on any backend."""

from glnn.filters.sobel import sobel

__all__ = ["sobel"]
