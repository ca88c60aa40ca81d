"""Convolutions, transposed convolutions, pools, unfold and fold: operators of sliding windows, of
any rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.array_functions import window_counts
from glnn.core.symint import holds_symbols
from glnn.core.types import MOST, UNKNOWN, Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.node_adder import AddNode, merge_dims, split_dim
from glnn.graph.composite import Composite
from glnn.graph.expression import SUM, Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Constants, Operator, Types
from glnn.graph.operators import (
    Conv2d,
    Expand,
    Flip,
    Gather,
    Pad,
    Pointwise,
    Pool2d,
    Reshape,
    ScatterND,
    Slice,
    Squeeze,
    Transpose,
    Unflatten,
    Unsqueeze,
)
from glnn.graph.operators.host import ConstantTable
from glnn.graph.operators.windows import output

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """The geometry of sliding windows: a number for each spatial dimension."""

    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    before: Sizes
    """Padding before the first element."""
    after: Sizes
    """Padding behind the last element."""
    ceil: bool = False
    """True where the last window may reach over the end."""

    @property
    def sides(self) -> Sizes:
        """The padding before each dimension, then behind each."""
        return (*self.before, *self.after)

    def outputs(self, sizes: Sizes, least: int = 1) -> Sizes:
        """Return the number of windows along each dimension.

        least: 1 raises ShapeError for an image that is too small for a window; 0 returns 0 there.
        """
        sides, steps = zip(self.before, self.after), zip(self.stride, self.dilation)
        result = tuple(
            output(size, *side, kernel, *step, self.ceil)
            for size, side, kernel, step in zip(sizes, sides, self.kernel, steps, strict=True)
        )
        if least == 0:
            return tuple(max(count, 0) for count in result)
        if any(count < least for count in result):
            raise ShapeError(f"the window {self.kernel} is larger than the padded {sizes}")
        return result

    def covered(self, sizes: Sizes) -> Sizes:
        """Return the padding behind each dimension up to the end of its last window: without `ceil`
        and with this padding there are as many windows.
        """
        spans = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        rows = zip(self.outputs(sizes), self.stride, spans, sizes, self.before, strict=True)
        return tuple(
            max((count - 1) * step + span - size - before, 0)
            for count, step, span, size, before in rows
        )

    def part(self, start: int, stop: int) -> Window:
        """Return the windows along the dimensions from `start` to `stop`."""
        cut = slice(start, stop)
        before, after = self.before[cut], self.after[cut]
        return Window(
            self.kernel[cut], self.stride[cut], self.dilation[cut], before, after, self.ceil
        )

    def with_rows(self) -> Window:
        """Return the windows with another dimension, of size 1, before the others."""
        kernel, stride, dilation = (
            (1, *each) for each in (self.kernel, self.stride, self.dilation)
        )
        return Window(kernel, stride, dilation, (0, *self.before), (0, *self.after), self.ceil)

    def with_columns(self) -> Window:
        """Return the windows with another dimension, of any size, behind the others."""
        kernel, stride, dilation = (
            (*each, 1) for each in (self.kernel, self.stride, self.dilation)
        )
        return Window(kernel, stride, dilation, (*self.before, 0), (*self.after, 0), self.ceil)


def conv(
    add: AddNode,
    x: Value,
    weight: Value,
    *,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
    exact: bool = False,
) -> Value:
    """Add the cross-correlation of x (n, c, ...) by weight (o, c / groups, ...).

    Return (n, o, ...), float32.

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
        return _conv_volumes(add, x, weight, stride, padding, dilation, groups, exact)
    if count == 2:
        op = Conv2d(_pair(stride), _sides(padding), _pair(dilation), groups, exact)
        return add(op, x, weight)
    x, weight = (add(Unsqueeze((2,)), value) for value in (x, weight))
    before, after = padding
    op = Conv2d((1, stride[0]), (0, before, 0, after), (1, dilation[0]), groups, exact)
    return add(Squeeze((2,)), add(op, x, weight))


def _conv_volumes(
    add: AddNode,
    x: Value,
    weight: Value,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    exact: bool,
) -> Value:
    """Add a 3-D convolution as one 2-D convolution: each depth slice of the result is an image,
    whose channels are the slices of x under the slices of the kernel.
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
    indices = np.add.outer(np.arange(depth) * stride[0], np.arange(kd) * dilation[0])
    slices = add(Gather(2), x, constant(indices.astype(np.int32)))  # (n, c, depth, kd, h, w)
    slices = add(Transpose((0, 3, 1, 4, 2, 5, 6)), add(Unflatten(1, (groups, share)), slices))
    n = slices.type.dims[0]
    images = merge_dims(add, merge_dims(add, slices, 2, 3), 0, 2)
    weight = merge_dims(add, add(Transpose((0, 2, 1, 3, 4)), weight), 1, 2)
    sides = (*padding[1:3], *padding[4:])
    op = Conv2d(_pair(stride[1:]), _sides(sides), _pair(dilation[1:]), groups, exact)
    y = split_dim(add, add(op, images, weight), 0, n, depth)
    return add(Transpose((0, 2, 1, 3, 4)), y)


def _pair(sizes: Sizes) -> tuple[int, int]:
    first, second = sizes
    return first, second


def _sides(sizes: Sizes) -> tuple[int, int, int, int]:
    top, left, bottom, right = sizes
    return top, left, bottom, right


MOST_PHASED = 2  # dimensions: with three, a weight in phases and groups has too many dimensions


def conv_transpose(
    add: AddNode,
    x: Value,
    weight: Value,
    *,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
    bias: Value | None = None,
) -> Value:
    """Add a transposed convolution, the gradient of a convolution by its input: (n, groups o, ...),
    float32.

    x: (n, c, ...), of one to three spatial dimensions. weight: (c, o, ...). bias: (groups o,), for
    each channel. A dimension of x of `size` becomes (size - 1) stride - padding before - padding
    behind + dilation (kernel - 1) + output_padding + 1. padding: cut off at the beginning of each
    dimension, then at the end of each. Dumoulin and Visin 2016, A guide to
    convolution arithmetic, relationship 14; with strides, as many convolutions as there are phases
    of the result, in one: Shi et al. 2016, Is the deconvolution layer the same as a convolutional
    layer? Raises ShapeError where they do not fit.
    """
    dims, (c, _, *kernel) = x.type.dims, weight.type.shape
    count = len(kernel)
    if len(dims) != count + 2 or dims[1] != c or c % groups:
        spatial = ", ".join(("d", "h", "w")[-count:])
        raise ShapeError(f"x must have shape (n, {c}, {spatial}) for {groups} groups, got {dims}")
    weight = split_dim(add, weight, 0, groups, c // groups)
    reach = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    ends = tuple(
        reach[i] + output_padding[i] - padding[count + i] - (stride[i] - 1) for i in range(count)
    )
    if max(stride) > 1 and max(dilation) == 1 and count <= MOST_PHASED:
        size = TensorType(x.type.dims[2:]).shape
        whole = tuple(
            (n + -(-k // s) - 1) * s for n, k, s in zip(size, kernel, stride, strict=True)
        )
        before = tuple(-side for side in padding[:count])
        after = tuple(size[i] * stride[i] + ends[i] - whole[i] for i in range(count))
        # Zeros that are padded behind the phases get the bias, too: it is then added at the end.
        early_bias = None if any(side > 0 for side in after) else bias
        y = _convolve_phases(add, x, weight, stride, groups, early_bias)
        if any((*before, *after)):
            y = add(Pad((0, 0, *before), (0, 0, *after)), y)
        return y if bias is early_bias else _add_bias(add, y, bias)
    before = tuple(reach[i] - padding[i] for i in range(count))
    y = _convolve_with_zeros(add, x, weight, stride, (before, ends), dilation, groups)
    return _add_bias(add, y, bias)


def _add_bias(add: AddNode, y: Value, bias: Value | None) -> Value:
    """Add a bias (c,), if any, to the channels of y (n, c, ...)."""
    if bias is None:
        return y
    return add(Pointwise(SUM), y, add(Reshape((-1, *(1,) * (len(y.type.dims) - 2))), bias))


def _convolve_with_zeros(
    add: AddNode,
    x: Value,
    weight: Value,
    stride: Sizes,
    sides: tuple[Sizes, Sizes],
    dilation: Sizes,
    groups: int,
) -> Value:
    """Add the convolution of x with zeros between its elements.

    sides: the padding before and behind each dimension; negative ones crop.
    """
    count = len(stride)
    behind = tuple(range(3, count + 3))
    flipped = merge_dims(add, add(Transpose((0, 2, 1, *behind)), add(Flip(behind), weight)), 0, 2)
    if max(stride) > 1:
        x = _insert_zeros(add, x, stride)
    crop_before, crop_after = (tuple(min(n, 0) for n in side) for side in sides)
    if any((*crop_before, *crop_after)):
        x = add(Pad((0, 0, *crop_before), (0, 0, *crop_after)), x)
    padding = tuple(max(n, 0) for side in sides for n in side)
    ones = (1,) * count
    return conv(add, x, flipped, stride=ones, padding=padding, dilation=dilation, groups=groups)


def _convolve_phases(
    add: AddNode, x: Value, weight: Value, stride: Sizes, groups: int, bias: Value | None
) -> Value:
    """Add a transposed convolution without padding by a weight (groups, c / groups, o, ...); the
    result is padded behind to whole strides.

    bias: (groups o,), added to each channel, that padding included. An element of the result is a
    sum over the taps of its phase: those at a whole number of strides from it. The phases are
    channels of one convolution, and are interleaved after it.
    """
    count = len(stride)
    kernel = weight.type.shape[3:]
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    zeros = tuple(t * s - k for t, s, k in zip(taps, stride, kernel, strict=True))
    if any(zeros):
        weight = add(Pad((0,) * (count + 3), (0, 0, 0, *zeros)), weight)
    for i in reversed(range(count)):
        weight = split_dim(add, weight, 3 + i, taps[i], stride[i])
    tap_axes, phase_axes = tuple(range(3, 2 * count + 3, 2)), tuple(range(4, 2 * count + 4, 2))
    # Phases come before channels, so that the channels of a phase stay contiguous.
    weight = add(Transpose((0, *phase_axes, 2, 1, *tap_axes)), add(Flip(tap_axes), weight))
    out = weight.type.shape[1 + count]
    weight = merge_dims(add, weight, 0, 2 + count)
    sides = tuple(t - 1 for t in taps) * 2
    ones = (1,) * count
    y = conv(add, x, weight, stride=ones, padding=sides, dilation=ones, groups=groups)
    if bias is not None:  # here it can be fused with the convolution
        each_phase = add(Reshape((groups, 1, out)), bias)
        y = _add_bias(
            add, y, merge_dims(add, add(Expand((groups, prod(stride), out)), each_phase), 0, 3)
        )
    y = split_dim(add, y, 1, groups, *stride, out)
    order = [axis for i in range(count) for axis in (3 + count + i, 2 + i)]
    y = add(Transpose((0, 1, 2 + count, *order)), y)
    for axis in reversed(range(3, count + 3)):
        y = merge_dims(add, y, 2 * axis - 3, 2)
    return merge_dims(add, y, 1, 2)


def _insert_zeros(add: AddNode, x: Value, stride: Sizes) -> Value:
    """Insert stride - 1 zeros behind each element of x along each dimension."""
    count = len(stride)
    zeros = [size for step in stride for size in (0, step - 1)]
    x = add(Unsqueeze(tuple(range(3, 2 * count + 2, 2))), x)
    x = add(Pad((0,) * (2 * count + 2), (0, 0, *zeros)), x)
    for axis in reversed(range(2, count + 2)):
        x = merge_dims(add, x, 2 * axis - 2, 2)
    return x


def unfold(add: AddNode, x: Value, windows: Window) -> Value:
    """Add the patches under each window: (n, c taps, windows), the taps of a channel contiguous.

    x: (n, c, ...), of which only n may be unknown. Raises ShapeError where there is no window.
    """
    sizes = TensorType(x.type.dims[2:]).shape
    count, outs = len(sizes), windows.outputs(sizes)
    if prod(windows.kernel) * prod(outs) > MOST:
        raise ShapeError(f"{prod(outs)} windows {windows.kernel} have more than {MOST} numbers")
    if any(windows.sides):
        x = add(Pad((0, 0, *windows.before), (0, 0, *windows.after)), x)
    for axis in reversed(range(count)):
        x = add(
            Gather(2 + axis), x, constant(window_positions(windows, outs, axis).astype(np.int32))
        )
    tap_axes, window_axes = range(2, 2 * count + 2, 2), range(3, 2 * count + 2, 2)
    x = add(Transpose((0, 1, *tap_axes, *window_axes)), x)
    return merge_dims(add, merge_dims(add, x, count + 2, count), 1, count + 1)


def window_positions(windows: Window, outs: Sizes, axis: int) -> Array:
    """Return the index of each tap of each window in the padded dimension, (taps, windows)."""
    taps = np.arange(windows.kernel[axis]) * windows.dilation[axis]
    return np.add.outer(taps, np.arange(outs[axis]) * windows.stride[axis])


def fold(add: AddNode, x: Value, windows: Window, sizes: Sizes) -> Value:
    """Add the sums of the elements of x (n, c taps, windows) at the position of their tap: the
    inverse of `unfold` but for overlaps, which are summed.

    The result is (n, c, *sizes), without the padding; all sizes of x are known. Raises ShapeError
    where x is not of such windows.
    """
    n, rows, count = x.type.shape
    taps, outs = prod(windows.kernel), windows.outputs(sizes)
    if rows % taps or count != prod(outs):
        raise ShapeError(
            f"x {x.type} is not of windows {windows.kernel} on {sizes}: it must have shape "
            f"(n, c * {taps}, {prod(outs)})"
        )
    channels = rows // taps
    padded = tuple(a + n + b for a, n, b in zip(windows.before, sizes, windows.after, strict=True))
    offsets = np.zeros((1, 1), np.int64)
    for axis, size in enumerate(padded):
        positions = window_positions(windows, outs, axis)
        offsets = (offsets[:, None, :, None] * size + positions[:, None]).reshape(
            len(offsets) * len(positions), -1
        )
    updates = add(Transpose((2, 3, 0, 1)), add(Reshape((n, channels, taps, count), True), x))
    zeros = add(Expand((prod(padded), n, channels)), constant(np.zeros((), x.type.dtype.numpy)))
    index = constant(offsets[..., None].astype(np.int32))
    result = add(Transpose((1, 2, 0)), add(ScatterND("add"), zeros, index, updates))
    result = add(Reshape((n, channels, *padded), True), result)
    if padded == sizes:
        return result
    ends = tuple(a + n for a, n in zip(windows.before, sizes, strict=True))
    axes = tuple(range(2, len(sizes) + 2))
    return add(Slice(windows.before, ends, axes, (1,) * len(sizes)), result)


@dataclass(frozen=True, eq=False)
class FoldWindows(Composite):
    """The composite of `fold`, whose graph is built once all sizes are known."""

    name: ClassVar[str] = "fold"
    variadic: ClassVar[bool] = False
    windows: Window
    into: Sizes
    """The sizes of the result behind n and c."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def required(self) -> tuple[str, ...]:
        return ("x",)

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        first = x.dims[0] if x.ranked and x.dims else UNKNOWN
        return (TensorType((first, UNKNOWN, *self.into), x.dtype),)

    def expand(self, operands: Sequence[Value | None]) -> Graph:
        builder = Builder(self.name)
        x = builder.take(self.named(operands)["x"])
        if len(x.type.dims) != 3:
            raise ShapeError(f"fold: x must have shape (n, c * taps, windows), got {x.type.dims}")

        def add(operator: Operator, *inputs: Value) -> Value:
            return builder.add(operator, *inputs, name=operator.name)[0]

        return builder.graph([fold(add, x, self.windows, self.into)])


def pool(add: AddNode, x: Value, windows: Window, mode: str, divisor: int | None = None) -> Value:
    """Add the maximum of each window, or the sum divided by `divisor`, along one or two dimensions
    at a time: both are separable.

    x: (n, c, ...), float32, of which only n may be unknown. mode: "max", or "average" with a
    divisor. Raises ShapeError where there is no window.
    """
    count = len(windows.kernel)
    if count == 1:
        y = pool(add, add(Unsqueeze((2,)), x), windows.with_rows(), mode, divisor)
        return add(Squeeze((2,)), y)
    if count == 2:
        return pool_images(add, x, windows, mode, divisor)
    c, depth = TensorType(x.type.dims[1:3]).shape
    sums = None if divisor is None else 1
    y = pool(add, merge_dims(add, x, 1, 2), windows.part(1, count), mode, sums)
    outs = TensorType(y.type.dims[2:]).shape
    y = merge_dims(add, split_dim(add, y, 1, c, depth), 3, count - 1)
    y = pool(add, y, windows.part(0, 1).with_columns(), mode, divisor)
    return split_dim(add, y, 3, *outs)


def pool_images(
    add: AddNode, x: Value, windows: Window, mode: str, divisor: int | None, counted: bool = True
) -> Value:
    """Add a pool of images as `pool` does; an average without a divisor is the mean.

    counted: True where the mean counts the padding.
    """
    sides, ceil = windows.sides, windows.ceil
    if not _windows_fit(windows):
        # Pool2d takes no such padding: x is padded with the neutral element.
        fill = 0.0 if mode == "average" else -np.inf
        after = windows.after
        if ceil:
            after, ceil = windows.covered(TensorType(x.type.dims[2:]).shape), False
        x = add(Pad((0, 0, *windows.before), (0, 0, *after), "constant", fill), x)
        sides = (0, 0, 0, 0)
    op = Pool2d(
        mode,
        windows.kernel,  # type: ignore[arg-type]
        windows.stride,  # type: ignore[arg-type]
        sides,  # type: ignore[arg-type]
        windows.dilation,  # type: ignore[arg-type]
        ceil,
        counted,
        divisor,
    )
    return add(op, x)


def average_pool(add: AddNode, x: Value, windows: Window, *, counted: bool) -> Value:
    """Add the mean of each window of x (n, c, ...), float32, of which only n may be unknown.

    counted: whether the mean counts the padding. Raises ShapeError where there is no window.
    """
    sizes = TensorType(x.type.dims[2:]).shape
    if len(sizes) <= 2 and _windows_fit(windows) and set(windows.dilation) == {1}:
        if len(sizes) == 2:
            return pool_images(add, x, windows, "average", None, counted)
        rows = add(Unsqueeze((2,)), x)
        y = pool_images(add, rows, windows.with_rows(), "average", None, counted)
        return add(Squeeze((2,)), y)
    sums = pool(add, x, windows, "average", 1)
    table = WindowCounts(windows, sizes, counted)
    is_open = holds_symbols((windows.sides, sizes))
    counts = add(table) if is_open else constant(table.reference()[0])
    return add(Pointwise(call("div", Arg(0), Arg(1))), sums, counts)


def _windows_fit(windows: Window) -> bool:
    """Return True where Pool2d takes the padding: known sizes, each at most half of the window."""
    pairs = zip(windows.sides, 2 * windows.kernel, strict=True)
    return not holds_symbols(windows.sides) and all(2 * side <= k for side, k in pairs)


@dataclass(frozen=True)
class WindowCounts(ConstantTable):
    """The divisor of the mean of each window, float32: its number of elements."""

    name: ClassVar[str] = "window_counts"
    array_function: ClassVar[str] = "window_counts"
    windows: Window
    extents: Sizes
    """Spatial sizes of the tensor, all but the first two."""
    counted: bool
    """True where elements of the padding count."""

    @property
    def display_name(self) -> str:
        return "AveragePool"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.windows.outputs(self.extents), DType.float32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (window_counts(*self.array_attributes),)

    @property
    def array_attributes(self) -> tuple[Any, ...]:
        w = self.windows
        outs, sides = w.outputs(self.extents), (w.before, w.after)
        return self.extents, outs, w.kernel, w.stride, w.dilation, *sides, self.counted


def adaptive_pool(add: AddNode, x: Value, mode: str, counts: tuple[int | None, ...]) -> Value:
    """Add an adaptive pool: the maximum or the mean of `counts` windows that divide each dimension.

    x: (n, c, ...) of one to three spatial dimensions, float32, of which only n may be unknown.
    mode: "max" or "average". counts: None for a dimension's own size. See `Pool2d`.
    """
    if len(counts) == 2:
        return add(Pool2d(mode, None, output=counts), x)
    if len(counts) == 1:
        return add(
            Squeeze((2,)), add(Pool2d(mode, None, output=(1, *counts)), add(Unsqueeze((2,)), x))
        )
    if all(count == 1 for count in counts):
        return add(Unsqueeze((2,)), add(Pool2d(mode, None), merge_dims(add, x, 3, 2)))
    c, depth = TensorType(x.type.dims[1:3]).shape
    down, *others = counts
    y = add(Pool2d(mode, None, output=tuple(others)), merge_dims(add, x, 1, 2))  # type: ignore[arg-type]
    outs = TensorType(y.type.dims[2:]).shape
    y = merge_dims(add, split_dim(add, y, 1, c, depth), 3, 2)
    return split_dim(add, add(Pool2d(mode, None, output=(down, None)), y), 3, *outs)
