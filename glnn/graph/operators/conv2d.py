"""Convolutions of images: plain, separable, and with a pool behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from glnn.core.symint import common_unit, same
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED, Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.gathering import FEW, Gathering, for_shapes
from glnn.graph.handwritten_operator import ContractionWithPrologue
from glnn.graph.operator import Reference, Shapes, Types, rank
from glnn.graph.operators import depthwise, windows
from glnn.graph.operators.pool2d import MODES, Pool2d
from glnn.graph.operators.windows import Pair, Sides

COLUMN_BYTES = 64 << 20  # of the columns that a gradient has at once: samples are divided by it
BLOCK_BYTES = 1 << 20  # of the columns of a block: they fit a core's cache
LEAST_COLUMNS = 512  # of a block: with fewer, to read the weights takes longer than the product


def correlate(
    x: Array,
    weight: Array,
    out: Pair,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
) -> Array:
    """Return the convolution of x (n, c, h, w) by weight (o, c / groups, kh, kw), (n, o, *out), in
    x's dtype. out: windows down and across.

    The result of a 1 x 1 convolution has the memory order of x.
    """
    n, c = x.shape[:2]
    geometry = stride, padding, dilation
    if (
        n * c * prod(weight.shape[2:]) * prod(out) <= FEW
    ):  # as the product that `correlate_few` makes
        return correlate_columns(np.ascontiguousarray(x), weight, out, *geometry, groups)
    if depthwise.is_supported(x.shape, weight.shape, stride, dilation, groups):
        products = depthwise.DepthwiseProducts(x.shape, weight.shape, out, *geometry)
        if (result := products(x, weight)) is not None:
            return result
    pointwise = is_pointwise(weight.shape, *geometry, groups)
    if pointwise and (matrix := channel_rows(x)) is not None:
        return multiply_rows(matrix, weight, (n, *out))
    return correlate_columns(x, weight, out, *geometry, groups)


def correlate_columns(
    x: Array,
    weight: Array,
    out: Pair,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
) -> Array:
    """Compute `correlate` as a product of the weights and the columns under the windows (im2col).

    Where the window is one pixel, the columns are x itself; else they are copied block by block:
    some rows of the result, groups or samples at a time.
    """
    n, c, o, kernel = len(x), x.shape[1], len(weight), (weight.shape[2], weight.shape[3])
    share, group_results = c // groups, o // groups
    depth, one_pixel = share * prod(kernel), kernel == stride == (1, 1) and not any(padding)
    result = np.empty((n, o, *out), x.dtype)
    flat = weight.reshape(groups, group_results, depth)
    by_group = result.reshape(n, groups, group_results, prod(out))
    if one_pixel:
        np.matmul(flat, x.reshape(n, groups, share, prod(out)), out=by_group)
        return result
    patches = _patches(x, out, kernel, stride, padding, dilation)
    patches = patches.reshape(n, groups, share, *kernel, *out)
    samples, step, rows = _block((groups, *out), flat.shape[2], x.itemsize)
    scratch = np.empty(samples * step * flat.shape[2] * rows * out[1], x.dtype)
    starts = product(range(0, n, samples), range(0, groups, step), range(0, out[0], rows))
    for i, g, y in starts:
        block = patches[i : i + samples, g : g + step, ..., y : y + rows, :]
        columns = scratch[: block.size].reshape(block.shape)
        np.copyto(columns, block)
        columns = columns.reshape(*block.shape[:2], flat.shape[2], block.shape[-2] * out[1])
        pixels = slice(y * out[1], (y + rows) * out[1])
        target = by_group[i : i + samples, g : g + step, :, pixels]
        np.matmul(flat[g : g + step], columns, out=target)
    return result


def is_pointwise(weight: Shape, stride: Pair, padding: Sides, dilation: Pair, groups: int) -> bool:
    """Return True where each pixel of a result is a product of a pixel of x by all weights."""
    return weight[2:] == stride == (1, 1) and not any(padding) and groups == 1


def multiply_rows(matrix: Array, weight: Array, size: Shape) -> Array:
    """Return images (n, o, h, w) with channels innermost in memory: the product of the pixels of
    `matrix`, (n h w, c), by weight (o, c, 1, 1). size: n, h, w.
    """
    o, c, *_ = weight.shape
    made: Array = np.matmul(matrix, weight.reshape(o, c).T).reshape(*size, o)
    return np.transpose(made, (0, 3, 1, 2))


def multiply_pixels(x: Shape, weight: Shape) -> Reference:
    """Return the function of a 1 x 1 convolution of an image x (1, c, h, w) by weight (o, c, 1, 1):
    the most frequent step of networks.
    """
    (_, c, h, w), (o, *_) = x, weight
    pixels, result = h * w, (1, o, h, w)
    flat = (c,) if pixels == 1 else (c, pixels)
    many = c * pixels > FEW

    def multiply(x: Array, weight: Array) -> tuple[Array, ...]:
        if many and (matrix := channel_rows(x)) is not None:
            return (multiply_rows(matrix, weight, (1, h, w)),)
        x = np.ascontiguousarray(x)  # for the same bits as `correlate`
        return (np.matmul(weight.reshape(o, c), x.reshape(flat)).reshape(result),)

    return multiply


def multiply_with_bias(x: Array, weight: Array, bias: Array) -> Array:
    """Return the product of the pixels of images x (n, c, h, w) by weight (o, c, 1, 1) and `bias`
    (o,), which is the weight of a channel of ones.

    To copy x takes less than to add the bias, where there are more channels in the result.
    """
    (n, c, h, w), o = x.shape, len(weight)
    pixels = np.empty((n, c + 1, h * w), x.dtype)
    pixels[:, :c] = x.reshape(n, c, h * w)
    pixels[:, c] = 1
    weights = np.concatenate((weight.reshape(o, c), bias.reshape(o, 1)), 1)
    made: Array = np.matmul(weights, pixels)
    return made.reshape(n, o, h, w)


def channel_rows(x: Array) -> Array | None:
    """Return a view of images x (n, c, h, w) as a matrix (n h w, c); None where their channels are
    not innermost in memory.
    """
    if x.flags.c_contiguous:
        return None
    rows: Array = x.transpose(0, 2, 3, 1)
    if not rows.flags.c_contiguous:
        return None
    matrix: Array = rows.reshape(-1, x.shape[1])
    return matrix


def correlate_few(
    x: Shape,
    weight: Shape,
    out: Pair,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
    dtype: np.dtype[Any],
) -> Callable[[Array, Array], Array] | None:
    """Return a function that computes `correlate` of few numbers, of x and weight of these shapes.

    The indices of the columns' elements are computed only once. None where the columns are large.
    """
    n, share, group_results, kernel = x[0], weight[1], weight[0] // groups, (weight[2], weight[3])
    depth, pixels = share * prod(kernel), prod(out)
    if not 0 < n * groups * depth * pixels <= FEW:
        return None
    (o, *_), shape = weight, (n, groups, depth, pixels)

    def columns(indices: Array) -> Array:
        return np.array(_patches(indices, out, kernel, stride, padding, dilation)).reshape(shape)

    # Counted from 1, as padding has 0: less 1 it is no index of x.
    indices = np.arange(1, prod(x) + 1, dtype=np.int64).reshape(x)
    gather = Gathering(x, columns(indices) - 1, dtype)
    if n == groups == 1:
        return lambda x, weight: np.matmul(
            weight.reshape(o, depth), gather(x).reshape(depth, pixels)
        ).reshape(1, o, *out)
    flat = groups, group_results, depth
    return lambda x, weight: np.matmul(weight.reshape(flat), gather(x)).reshape(n, o, *out)


def _block(sizes: tuple[int, int, int], depth: int, itemsize: int) -> tuple[int, int, int]:
    """Return the numbers of samples, groups and rows of a block: rows of one group, whole groups of
    one sample, or whole samples.

    sizes: groups, rows and columns of the result. depth: elements of a column.
    """
    groups, high, wide = sizes
    columns = max(BLOCK_BYTES // max(depth * itemsize, 1), 1)
    plane = max(high * wide, 1)
    rows = max(columns, LEAST_COLUMNS) // max(wide, 1)
    if rows < high:
        return 1, 1, max(rows, 1)
    count = min(max(columns // plane, 1), max(groups, 1))
    return (1, count, high) if count < groups else (max(columns // plane // count, 1), count, high)


def _patches(
    x: Array, out: Pair, kernel: Pair, stride: Pair, padding: Sides, dilation: Pair
) -> Array:
    """Return the patches under each window, (n, c, *kernel, *out), zeros in the padding: a view."""
    (n, c, h, w), (top, left, bottom, right) = x.shape, padding
    shape = n, c, *kernel, *out
    if any(padding):
        high, wide = h + top + bottom, w + left + right
        if high * wide > prod(kernel) * prod(out):  # long strides: most of x is in no patch
            columns = np.zeros(shape, x.dtype)
            taps = windows.every_tap(x, out, kernel, stride, padding, dilation)
            for (ky, kx), (ys, xs), part in taps:
                columns[:, :, ky, kx, ys, xs] = part
            return columns
        padded = np.zeros((n, c, high, wide), x.dtype)
        padded[:, :, top : top + h, left : left + w] = x
        x = padded
    sample, channel, down, across = x.strides
    steps = down * dilation[0], across * dilation[1], down * stride[0], across * stride[1]
    return as_strided(x, shape, (sample, channel, *steps), writeable=False)


@dataclass(frozen=True)
class Convolving(ContractionWithPrologue):
    """A convolution of x, (n, c, h, w), by windows.

    padding: zeros at the top, left, bottom and right.
    """

    has_epilogue: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    def windows(self, x: Shape, weight: Shape) -> Pair:
        """Return the number of windows down and across `x`, of the last two sizes of `weight`.

        Raises ShapeError where there are none.
        """
        kernel = weight[2], weight[3]
        if min(kernel) < 1:
            raise ShapeError(f"{self.name}: the kernel must be at least 1 x 1, weight is {weight}")
        size = x[2], x[3]
        result = windows.outputs(size, kernel, self.stride, self.padding, self.dilation)
        if any(count < 1 for count in result):
            raise ShapeError(f"{self.name}: the kernel of {weight} is larger than the padded x {x}")
        return result

    def window_defines(self, weight: Shape) -> dict[str, int]:
        """Return the shader macros of the window, from the last two sizes of `weight`."""
        return windows.defines((weight[2], weight[3]), self.stride, self.padding, self.dilation)

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        return (*super().sample_operands(shapes), *self.by_image())

    def fixed_layouts(self) -> Mapping[str, str]:
        return self.layouts_of("nhwC4c")


SCALINGS = call("mul", Arg(0), Arg(1)), call("mul", Arg(1), Arg(0))
"""Prologues that can be applied to the weights instead."""
FEW_CHANNELS = 8  # channels of a result
UNIT = 16  # pixels: as many as one invocation may compute


@dataclass(frozen=True)
class Conv2d(Convolving):
    """The convolution of x by weight; an epilogue does the rest.

    x: (n, c, h, w). weight: (o, c / groups, kh, kw). Result: (n, o, oh, ow).
    """

    name: ClassVar[str] = "conv2d"
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    any_sizes: ClassVar[bool] = True
    fp16_operands: ClassVar[tuple[str, ...]] = ("weight",)
    int8_operands: ClassVar[tuple[str, ...]] = ("weight",)
    groups: int = 1
    exact: bool = False
    """True where sums of integers below 2^24 must be exact, which excludes Winograd."""
    prologue: Prologue | None = None
    """Work on x before it is convolved: an operand by image has a number for each channel of
    each.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        windows.check(self.name, groups=((self.groups,), 1, 1))

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.convolution_shape(shapes)

    def convolution_shape(self, shapes: Shapes) -> Shape:
        """The shape of the convolution itself. Raises ShapeError where the operands do not fit."""
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 4, "(n, c, h, w)")
        rank(self.name, "weight", weight, 4, "(o, c / groups, kh, kw)")
        (n, c, *_), (o, share, *_) = x, weight
        if c != share * self.groups or o % self.groups:
            raise ShapeError(
                f"{self.name}: x {x} and weight {weight} do not fit {self.groups} groups: "
                f"weight must be (multiple of {self.groups}, {c / self.groups:g}, kh, kw)"
            )
        oh, ow = self.windows(x, weight)
        self.check_prologue(shapes)
        return n, o, oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = self.prepared(operands)
        weight = operands["weight"].astype(x.dtype, copy=False)
        *_, oh, ow = self.convolution_shape({k: v.shape for k, v in operands.items()})
        geometry = self.stride, self.padding, self.dilation, self.groups
        return correlate(x, weight, (oh, ow), *geometry)

    def specialize(self, types: Types) -> Reference:
        operands = self.named(types)
        x, weight = operands["x"], operands["weight"]
        if x.dtype is not weight.dtype:
            return self.reference
        if self.prologue is not None:
            plain = replace(self, prologue=None).specialize(types[:2])
            dtypes = [one.dtype.numpy for one in types if one is not None]
            prepare = self.prologue.compiled([dtypes[0], *dtypes[2:]])
            if not (self.groups == 1 and self.prologue.expr in SCALINGS):
                return lambda x, weight, *operands: plain(prepare(x, *operands), weight)

            def scale(x: Array, weight: Array, scales: Array) -> tuple[Array, ...]:
                if len(x) == 1 and weight.size < x.size and scales.size == x.shape[1]:
                    scaled = weight * scales.reshape(1, -1, 1, 1)
                    # zeros of the padding are not scaled: infinite weights would make them NaN
                    if not any(self.padding) or np.isfinite(scaled).all():
                        return plain(x, scaled)
                return plain(prepare(x, scales), weight)

            return scale
        geometry = self.stride, self.padding, self.dilation, self.groups

        def convolve(x: Array, weight: Array) -> tuple[Array, ...]:
            return (correlate(x, weight, self.windows(x.shape, weight.shape), *geometry),)

        def of_shapes(x: Array, weight: Array) -> Reference:
            out = self.windows(x.shape, weight.shape)
            if len(x) == 1 and is_pointwise(weight.shape, *geometry):
                return multiply_pixels(x.shape, weight.shape)
            few = correlate_few(x.shape, weight.shape, out, *geometry, x.dtype)
            if few is not None:
                return lambda x, weight: (few(x, weight),)
            if not depthwise.is_supported(x.shape, weight.shape, self.stride, *geometry[2:]):
                return lambda x, weight: (correlate(x, weight, out, *geometry),)
            products = depthwise.DepthwiseProducts(x.shape, weight.shape, out, *geometry[:3])

            def multiply(x: Array, weight: Array) -> tuple[Array, ...]:
                result = products(x, weight)
                if result is None:
                    result = correlate_columns(x, weight, out, *geometry)
                return (result,)

            return multiply

        return for_shapes(convolve, of_shapes)

    def specialize_with_bias(self, types: Types) -> Reference | None:
        operands = self.named(types)
        x, weight = operands["x"], operands["weight"]
        if self.prologue is not None or x.dtype is not weight.dtype or weight.symbols:
            return None
        geometry = self.stride, self.padding, self.dilation, self.groups
        (o, c, *_), few = weight.shape, not x.symbols and prod(x.shape[2:]) * weight.shape[0] <= FEW
        if few or not is_pointwise(weight.shape, *geometry) or o < 2 * c:
            return None
        plain = self.specialize(types)

        def multiply(bias: Array, x: Array, weight: Array) -> tuple[Array, ...]:
            many = len(weight) * prod(x.shape[2:]) > FEW
            if many and x.flags.c_contiguous:
                return (multiply_with_bias(x, weight, bias),)
            convolved = plain(x, weight)[0]
            if many:
                return (BIASED.evaluate(convolved, bias, in_place=True),)
            return (convolved + bias.reshape(-1, 1, 1),)

        return multiply

    def multiply_adds(self, shapes: Shapes) -> int:
        return prod(self.convolution_shape(shapes)) * prod(shapes["weight"][1:])

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes) + self.prologue_flops(shapes)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, c, h, w = shapes["x"]
        o_group, pixels, depth = o // self.groups, n * oh * ow, self.depth(shapes)
        sizes = {"n": n, "c": c, "h": h, "w": w, "o": o, "oh": oh, "ow": ow}
        sizes |= {"groups": self.groups, "o_group": o_group, "pixels": pixels, "depth": depth}
        return sizes | {"taps": prod(shapes["weight"][2:])}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, o, oh, ow = self.convolution_shape(shapes)
        return n * oh * ow, o // self.groups

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return the kernel's size; "window", the greater extent of a dilated window; "row_unit"
        and "plane_unit", the greatest powers of two up to 16 that divide a row and a plane of the
        result; "follows", 1 where successive pixels of the result read successive pixels of x,
        across rows too; "exact"; "share", the channels of a group, and "ragged", 1 where these end
        within a quad.
        """
        *_, oh, ow = self.shape_of(shapes)
        kernel_h, kernel_w = shapes["weight"][2:]
        along = zip((kernel_h, kernel_w), self.dilation, strict=True)
        return {
            "kernel_h": kernel_h,
            "kernel_w": kernel_w,
            "window": max((k - 1) * d + 1 for k, d in along),
            "row_unit": common_unit(ow, UNIT),
            "plane_unit": common_unit(oh * ow, UNIT),
            "follows": int(self.stride == (1, 1) and same(ow, shapes["x"][3])),
            "exact": int(self.exact),
            "share": shapes["weight"][1],
            "ragged": int(shapes["weight"][1] % 4 > 0),
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        o, share, *_ = weight = shapes["weight"]
        whole = self.groups == 1 or (share % 4 == 0 and o // self.groups % 4 == 0)
        return {
            **self.window_defines(weight),
            "GROUPS": self.groups,
            "WHOLE_QUADS": int(whole),
            "PADDED": int(any(self.padding)),
            "DEPTHWISE": int(self.groups == shapes["x"][1] == o),
        }

    def depth(self, shapes: Shapes) -> int:
        return prod(shapes["weight"][1:])

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, _, h, w = shapes["x"]
        o, share, *kernel = shapes["weight"]
        least = -(-depth // prod(kernel))
        new_share = least + (share - least) % 4 if share > 1 else 1  # whole quads where they were
        new_o = min(o, FEW_CHANNELS + o % 4) if few and self.groups == 1 else o
        operands = self.with_x(shapes, (n, new_share * self.groups, h, w))
        return {**operands, "weight": (new_o, new_share, *kernel)}

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *size = shapes["x"]
        fewer = windows.shrink_sizes(size, self.convolution_shape(shapes)[2:], self.stride)
        return self.with_x(shapes, (n, c, *fewer))


@dataclass(frozen=True)
class SeparableConv2d(Convolving):
    """The pointwise convolution by `weight` of `prologue`(the depthwise one of x by `depthwise`).

    x: (n, c, h, w). depthwise: (c, 1, kh, kw). weight: (o, c, 1, 1). Result: (n, o, oh, ow). The
    window is the depthwise convolution's. Howard et al. 2017, MobileNets, section 3.1.
    """

    name: ClassVar[str] = "separable_conv2d"
    parameters: ClassVar[tuple[str, ...]] = ("depthwise", "weight")
    fp16_operands: ClassVar[tuple[str, ...]] = ("depthwise", "weight")
    int8_operands: ClassVar[tuple[str, ...]] = ("weight",)
    prologue: Prologue | None = None
    """Work on the depthwise convolution's results before they are multiplied."""

    def shape_of(self, shapes: Shapes) -> Shape:
        x, depthwise, weight = (shapes[name] for name in ("x", "depthwise", "weight"))
        rank(self.name, "x", x, 4, "(n, c, h, w)")
        rank(self.name, "depthwise", depthwise, 4, "(c, 1, kh, kw)")
        rank(self.name, "weight", weight, 4, "(o, c, 1, 1)")
        n, c, *_ = x
        if depthwise[:2] != (c, 1) or weight[1:] != (c, 1, 1):
            raise ShapeError(
                f"{self.name}: x {x}, depthwise {depthwise} and weight {weight} do not fit: they "
                "must be (n, c, h, w), (c, 1, kh, kw) and (o, c, 1, 1)"
            )
        oh, ow = self.windows(x, depthwise)
        self.check_prologue(shapes)
        return n, weight[0], oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        depthwise, weight = (operands[name].astype(x.dtype, copy=False) for name in self.parameters)
        out = self.shape_of({name: array.shape for name, array in operands.items()})[2:]
        size, one = (out[0], out[1]), (1, 1)
        window = self.stride, self.padding, self.dilation
        y = correlate(x, depthwise, size, *window, groups=x.shape[1])
        y = self.prepared({**operands, "x": y})
        return correlate(np.ascontiguousarray(y), weight, size, one, (0, 0, 0, 0), one, 1)

    def multiply_adds(self, shapes: Shapes) -> int:
        n, o, oh, ow = self.shape_of(shapes)
        c, *_ = shapes["depthwise"]
        return n * oh * ow * c * (prod(shapes["depthwise"][2:]) + o)

    def flops(self, shapes: Shapes) -> int:
        functions = 0 if self.prologue is None else self.prologue.expr.flops
        n, _, oh, ow = self.shape_of(shapes)
        return 2 * self.multiply_adds(shapes) + n * oh * ow * shapes["depthwise"][0] * functions

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, c, h, w = shapes["x"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "pixels")
        return dict(zip(names, (n, c, h, w, o, oh, ow, n * oh * ow), strict=True))

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, o, oh, ow = self.shape_of(shapes)
        return n * oh * ow, o

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """The depthwise kernel's size."""
        kernel_h, kernel_w = shapes["depthwise"][2:]
        return {"kernel_h": kernel_h, "kernel_w": kernel_w}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return self.window_defines(shapes["depthwise"])

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (n, c, *size), (_, *window) = shapes["x"], shapes["depthwise"]
        channels = depth + (c - depth) % 4  # whole quads where they were
        operands = self.with_x(shapes, (n, channels, *size))
        return {
            **operands,
            "depthwise": (channels, *window),
            "weight": (shapes["weight"][0], channels, 1, 1),
        }

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *size = shapes["x"]
        fewer = windows.shrink_sizes(size, self.shape_of(shapes)[2:], self.stride)
        return self.with_x(shapes, (n, c, *fewer))


SIDE = 2  # of the windows, which do not overlap


@dataclass(frozen=True)
class PooledConv2d(Conv2d):
    """The maximum or average over 2 x 2 windows of a convolution; in all else as `Conv2d`.

    An epilogue is applied before the pool. Result: (n, o, oh // 2, ow // 2).
    """

    name: ClassVar[str] = "pooled_conv2d"
    mode: str = "max"
    """Kind of pooling: "max" or "average"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ShapeError(f"pooled_conv2d: mode must be max or average, got {self.mode!r}")

    @classmethod
    def from_convolution(cls, convolution: Conv2d, mode: str) -> PooledConv2d:
        """Return `convolution` with the pool behind it."""
        return cls(**_attributes(convolution), mode=mode)

    @property
    def convolution(self) -> Conv2d:
        """The convolution before the pooling."""
        return Conv2d(**_attributes(self))

    @property
    def pool(self) -> Pool2d:
        """The pooling after the convolution."""
        return Pool2d(self.mode, (SIDE, SIDE), (SIDE, SIDE))

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.pool.shape_of({"x": self.convolution_shape(shapes)})

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self.pool.compute({"x": super().compute(operands)})

    def reference_with_epilogue(
        self, finish: Callable[[Array], Array], *arrays: Array | None
    ) -> tuple[Array, ...]:
        convolved = super().compute(self.float_operands(arrays))
        return (self.pool.compute({"x": finish(convolved)}),)

    def flops(self, shapes: Shapes) -> int:
        return super().flops(shapes) + self.pool.flops({"x": self.convolution_shape(shapes)})

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {**super().defines(shapes), "POOL": 1 + MODES.index(self.mode)}


def _attributes(convolution: Conv2d) -> dict[str, Any]:
    """Return the attributes of `convolution` that a Conv2d has."""
    return {one.name: getattr(convolution, one.name) for one in fields(Conv2d)}
