"""Convolutions of one to three dimensions, as convolutions of images."""

from __future__ import annotations

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.builder import constant
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.compose.window import Sizes
from glnn.graph.graph import Value
from glnn.graph.operators import Conv2d, Gather, Pad, Squeeze, Transpose, Unflatten, Unsqueeze
from glnn.graph.operators.windows import output
from glnn.symint import holds_symbols
from glnn.types import TensorType


def conv(
    add: Add,
    x: Value,
    weight: Value,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
    exact: bool = False,
) -> Value:
    """The cross-correlation of x (n, c, ...) by weight (o, c / groups, ...): (n, o, ...), float32.

    x has one to three dimensions behind the channels, `stride` and `dilation` a number for each,
    `padding` one for the beginning of each and then one for the end of each. Only n may be unknown.
    exact: see `Conv2d`. Raises ShapeError where they do not fit.
    """
    if holds_symbols(padding):  # Conv2d takes numbers
        half = len(padding) // 2
        x = add(Pad((0, 0, *padding[:half]), (0, 0, *padding[half:])), x)
        padding = (0,) * len(padding)
    count = len(x.type.dims) - 2
    if not 1 <= count <= 3 or len(weight.type.dims) != count + 2:
        raise ShapeError(
            "conv: x must be (n, c, ...) of one to three dimensions more, and weight of as many, "
            f"got {x.type} and {weight.type}"
        )
    if count == 3:
        return _of_volumes(add, x, weight, stride, padding, dilation, groups, exact)
    if count == 2:
        op = Conv2d(_pair(stride), _sides(padding), _pair(dilation), groups, exact)
        return add(op, x, weight)
    x, weight = (add(Unsqueeze((2,)), value) for value in (x, weight))
    before, after = padding
    op = Conv2d((1, stride[0]), (0, before, 0, after), (1, dilation[0]), groups, exact)
    return add(Squeeze((2,)), add(op, x, weight))


def _of_volumes(
    add: Add,
    x: Value,
    weight: Value,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    exact: bool,
) -> Value:
    """Add a 3-D convolution as one 2-D convolution: each slice of the result is an image, and the
    slices of x that meet it, one for each slice of the kernel, are channels.
    """
    _, share, kd, *_ = weight.type.shape
    c, size, _, _ = TensorType(x.type.dims[1:]).shape
    before, after = padding[0], padding[3]
    depth = output(size, before, after, kd, stride[0], dilation[0])
    if depth < 1 or kd < 1:
        raise ShapeError(f"conv: the kernel of {weight.type} is larger than the padded x {x.type}")
    if groups < 1 or c != share * groups:
        raise ShapeError(f"conv: x {x.type} and weight {weight.type} do not fit {groups} groups")
    if before or after:
        x = add(Pad((0, 0, before, 0, 0), (0, 0, after, 0, 0)), x)
    met = np.add.outer(np.arange(depth) * stride[0], np.arange(kd) * dilation[0])
    slices = add(Gather(2), x, constant(met.astype(np.int32)))  # (n, c, depth, kd, h, w)
    slices = add(Transpose((0, 3, 1, 4, 2, 5, 6)), add(Unflatten(1, (groups, share)), slices))
    n = slices.type.dims[0]
    images = joined(add, joined(add, slices, 2, 3), 0, 2)
    weight = joined(add, add(Transpose((0, 2, 1, 3, 4)), weight), 1, 2)
    sides = (*padding[1:3], *padding[4:])
    op = Conv2d(_pair(stride[1:]), _sides(sides), _pair(dilation[1:]), groups, exact)
    y = parted(add, add(op, images, weight), 0, n, depth)
    return add(Transpose((0, 2, 1, 3, 4)), y)


def _pair(sizes: Sizes) -> tuple[int, int]:
    first, second = sizes
    return first, second


def _sides(sizes: Sizes) -> tuple[int, int, int, int]:
    top, left, bottom, right = sizes
    return top, left, bottom, right
