"""Decompositions of ops into stages that have kernels of their own, by the name that kernels
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from glnn.graph.decompose import conv2d, matmul, rows
from glnn.graph.decompose.stage import Derived, Lowered, Stage
from glnn.graph.operator import Operator, Shapes

__all__ = ["LOWERINGS", "Derived", "Lowered", "Stage"]

LOWERINGS: Mapping[str, Callable[[Operator, Shapes, Mapping[str, int]], Lowered]] = {
    "winograd": conv2d.by_winograd,
    "product": conv2d.by_product,
    "im2col": conv2d.by_im2col,
    "im2row": conv2d.by_im2row,
    "patches": conv2d.by_patches,
    "kn2row": conv2d.by_kn2row,
    "turned_convolution": conv2d.by_turned_convolution,
    "weight_parts": conv2d.by_weight_parts,
    "parts": matmul.by_parts,
    "cronin": matmul.by_cronin,
    "softmax": rows.by_softmax,
    "moments": rows.by_moments,
    "reduce_parts": rows.by_parts,
}
"""Given the op, its operands' shapes, and the kernel's parameters."""
