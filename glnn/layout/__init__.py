"""How arrays lie in device memory. Pure NumPy: knows no GL."""

from glnn.layout.layout import Layout, parse

__all__ = ["Layout", "parse"]
