"""Layouts of arrays in device memory. Pure NumPy: knows no GL."""

from glnn.core.layout.layout import Layout
from glnn.core.layout.morton import Morton
from glnn.core.layout.parse import narrowed, parse, resized
from glnn.core.layout.strip import Strip, without_strip

__all__ = ["Layout", "Morton", "Strip", "narrowed", "parse", "resized", "without_strip"]
