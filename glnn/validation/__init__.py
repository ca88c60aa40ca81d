"""Kernels held against NumPy: operands, reference results, bounds, and what was found."""
