"""Transposed convolution, as a convolution of tensors with zeros between their places."""

from __future__ import annotations

from glnn.errors import ShapeError
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.compose.conv import Sizes, conv
from glnn.graph.graph import Value
from glnn.graph.operators import Flip, Pad, Transpose, Unsqueeze


def conv_transpose(
    add: Add,
    x: Value,
    weight: Value,
    *,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
) -> Value:
    """What a convolution's gradient by its input is: (n, groups o, ...), float32.

    x: (n, c, ...), of one to three dimensions more. weight: (c, o, ...). A dimension of x of `size`
    becomes (size - 1) stride - padding before - padding behind + dilation (kernel - 1) +
    output_padding + 1. padding: what is cut off at the beginning of each dimension, then at the end
    of each. Dumoulin and Visin 2016, A guide to convolution arithmetic, relationship 14. Raises
    ShapeError where they do not fit.
    """
    dims, (c, _, *kernel) = x.type.dims, weight.type.shape
    count = len(kernel)
    if len(dims) != count + 2 or dims[1] != c or c % groups:
        raise ShapeError(
            f"x must have shape (n, {c}, ...) of {count} dimensions more for {groups} groups, "
            f"got {dims}"
        )
    behind = range(3, count + 3)
    turned = add(Flip(tuple(behind)), parted(add, weight, 0, groups, c // groups))
    turned = joined(add, add(Transpose((0, 2, 1, *behind)), turned), 0, 2)
    if any(step != 1 for step in stride):
        x = _apart(add, x, stride)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    before = [reach[i] - padding[i] for i in range(count)]
    after = [
        reach[i] - padding[count + i] + output_padding[i] - (stride[i] - 1) for i in range(count)
    ]
    if min(*before, *after) < 0:
        low, high = (tuple(min(side, 0) for side in each) for each in (before, after))
        x = add(Pad((0, 0, *low), (0, 0, *high)), x)
    sides = tuple(max(side, 0) for side in (*before, *after))
    ones = (1,) * count
    return conv(add, x, turned, stride=ones, padding=sides, dilation=dilation, groups=groups)


def _apart(add: Add, x: Value, stride: Sizes) -> Value:
    """x with as many zeros behind each place as a step of the stride leaves out."""
    count = len(stride)
    behind = [size for step in stride for size in (0, step - 1)]
    x = add(Unsqueeze(tuple(range(3, 2 * count + 2, 2))), x)
    x = add(Pad((0,) * (2 * count + 2), (0, 0, *behind)), x)
    for axis in reversed(range(2, count + 2)):
        x = joined(add, x, 2 * axis - 2, 2)
    return x
