"""Layouts of arrays in device memory. Pure NumPy: knows no GL."""

from glnn.layout.layout import Layout
from glnn.layout.morton import Morton
from glnn.layout.parse import narrowed, parse, resized
from glnn.layout.strip import Strip, alone

__all__ = ["Layout", "Morton", "Strip", "alone", "narrowed", "parse", "resized"]
