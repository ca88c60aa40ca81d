"""Transposed convolution, as a convolution of x, with zeros between its places for strides."""

from __future__ import annotations

from math import prod

from glnn.errors import ShapeError
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.compose.conv import conv
from glnn.graph.compose.window import Sizes
from glnn.graph.graph import Value
from glnn.graph.operators import Flip, Pad, Transpose, Unsqueeze
from glnn.types import TensorType

MOST_PHASED = 2  # dimensions: of three, a weight in phases and groups has too many


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
    """Add a transposed convolution, the gradient of a convolution by its input: (n, groups o, ...),
    float32.

    x: (n, c, ...), of one to three dimensions more. weight: (c, o, ...). A dimension of x of `size`
    becomes (size - 1) stride - padding before - padding behind + dilation (kernel - 1) +
    output_padding + 1. padding: what is cut off at the beginning of each dimension, then at the end
    of each. Dumoulin and Visin 2016, A guide to convolution arithmetic, relationship 14; with
    strides, as many convolutions as there are phases of the result, in one: Shi et al. 2016, Is the
    deconvolution layer the same as a convolutional layer? Raises ShapeError where they do not fit.
    """
    dims, (c, _, *kernel) = x.type.dims, weight.type.shape
    count = len(kernel)
    if len(dims) != count + 2 or dims[1] != c or c % groups:
        more = ", ".join(("d", "h", "w")[-count:])
        raise ShapeError(f"x must have shape (n, {c}, {more}) for {groups} groups, got {dims}")
    weight = parted(add, weight, 0, groups, c // groups)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    ends = tuple(
        reach[i] + output_padding[i] - padding[count + i] - (stride[i] - 1) for i in range(count)
    )
    if max(stride) > 1 and max(dilation) == 1 and count <= MOST_PHASED:
        y = _by_phases(add, x, weight, stride, groups)
        given, whole = (TensorType(value.type.dims[2:]).shape for value in (x, y))
        before = tuple(-side for side in padding[:count])
        after = tuple(given[i] * stride[i] + ends[i] - whole[i] for i in range(count))
        return add(Pad((0, 0, *before), (0, 0, *after)), y) if any((*before, *after)) else y
    before = tuple(reach[i] - padding[i] for i in range(count))
    return _by_zeros(add, x, weight, stride, (before, ends), dilation, groups)


def _by_zeros(
    add: Add,
    x: Value,
    weight: Value,
    stride: Sizes,
    sides: tuple[Sizes, Sizes],
    dilation: Sizes,
    groups: int,
) -> Value:
    """The convolution of x with zeros between its places; sides: and before and behind them."""
    count = len(stride)
    behind = tuple(range(3, count + 3))
    turned = joined(add, add(Transpose((0, 2, 1, *behind)), add(Flip(behind), weight)), 0, 2)
    if max(stride) > 1:
        x = _apart(add, x, stride)
    low, high = (tuple(min(side, 0) for side in each) for each in sides)
    if any((*low, *high)):
        x = add(Pad((0, 0, *low), (0, 0, *high)), x)
    padding = tuple(max(side, 0) for each in sides for side in each)
    ones = (1,) * count
    return conv(add, x, turned, stride=ones, padding=padding, dilation=dilation, groups=groups)


def _by_phases(add: Add, x: Value, weight: Value, stride: Sizes, groups: int) -> Value:
    """The whole result, with zeros behind it, of a weight (groups, c / groups, o, ...).

    A place of the result meets the taps that lie a whole number of strides from it: those of its
    phase. The phases are channels of one convolution, and become places after it.
    """
    count = len(stride)
    kernel = weight.type.shape[3:]
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    more = tuple(t * s - k for t, s, k in zip(taps, stride, kernel, strict=True))
    if any(more):
        weight = add(Pad((0,) * (count + 3), (0, 0, 0, *more)), weight)
    for i in reversed(range(count)):
        weight = parted(add, weight, 3 + i, taps[i], stride[i])
    each, phases = tuple(range(3, 2 * count + 3, 2)), tuple(range(4, 2 * count + 4, 2))
    weight = add(Transpose((0, 2, *phases, 1, *each)), add(Flip(each), weight))
    weight = joined(add, weight, 0, 2 + count)
    sides = tuple(t - 1 for t in taps) * 2
    ones = (1,) * count
    y = conv(add, x, weight, stride=ones, padding=sides, dilation=ones, groups=groups)
    y = parted(add, y, 1, weight.type.shape[0] // prod(stride), *stride)
    order = [place for i in range(count) for place in (2 + count + i, 2 + i)]
    y = add(Transpose((0, 1, *order)), y)
    for axis in reversed(range(2, count + 2)):
        y = joined(add, y, 2 * axis - 2, 2)
    return y


def _apart(add: Add, x: Value, stride: Sizes) -> Value:
    """Insert as many zeros behind each place of x as a step of the stride leaves out."""
    count = len(stride)
    behind = [size for step in stride for size in (0, step - 1)]
    x = add(Unsqueeze(tuple(range(3, 2 * count + 2, 2))), x)
    x = add(Pad((0,) * (2 * count + 2), (0, 0, *behind)), x)
    for axis in reversed(range(2, count + 2)):
        x = joined(add, x, 2 * axis - 2, 2)
    return x
