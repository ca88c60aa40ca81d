"""Transposed convolution, as a convolution of images with zeros between their places."""

from __future__ import annotations

from glnn.errors import ShapeError
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.graph import Value
from glnn.graph.operators import Conv2d, Flip, Pad, Transpose, Unsqueeze
from glnn.graph.operators.windows import Pair, Sides


def conv_transpose2d(
    add: Add,
    x: Value,
    weight: Value,
    *,
    stride: Pair = (1, 1),
    padding: Sides = (0, 0, 0, 0),
    output_padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Value:
    """What a convolution's gradient by its input is: (n, groups o, oh, ow), float32.

    x: (n, c, h, w). weight: (c, o, kh, kw). oh = (h - 1) stride - top - bottom + dilation (kh - 1)
    + output_padding + 1, and ow likewise. padding: what is cut off at the top, left, bottom and
    right. Dumoulin and Visin 2016, A guide to convolution arithmetic, relationship 14. Raises
    ShapeError where they do not fit.
    """
    dims, (c, _, *kernel) = x.type.dims, weight.type.shape
    if len(dims) != 4 or dims[1] != c or c % groups:
        raise ShapeError(f"x must have shape (n, {c}, h, w) for {groups} groups, got {dims}")
    turned = add(Flip((3, 4)), parted(add, weight, 0, groups, c // groups))
    turned = joined(add, add(Transpose((0, 2, 1, 3, 4)), turned), 0, 2)
    if stride != (1, 1):
        between = (0, 0, 0, stride[0] - 1, 0, stride[1] - 1)
        apart = add(Pad((0,) * 6, between), add(Unsqueeze((3, 5)), x))
        x = joined(add, joined(add, apart, 4, 2), 2, 2)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    before = [reach[i] - padding[i] for i in (0, 1)]
    after = [reach[i] - padding[2 + i] + output_padding[i] - (stride[i] - 1) for i in (0, 1)]
    if min(*before, *after) < 0:
        low, high = (tuple(min(side, 0) for side in each) for each in (before, after))
        x = add(Pad((0, 0, *low), (0, 0, *high)), x)
    top, left, bottom, right = (max(side, 0) for side in (*before, *after))
    return add(Conv2d((1, 1), (top, left, bottom, right), dilation, groups), x, turned)
