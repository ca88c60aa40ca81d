"""Layers of windows: convolutions, pooling, sampling."""

from __future__ import annotations

from math import prod

import numpy as np

from glnn.graph.operators import Pool2d, windows
from glnn.layers import Conv2d, ConvTranspose2d, Subsample2d
from glnn.layers.conv2d import PADDING_MODES
from glnn.onnx.export.writer import Place
from glnn.types import Array


def conv2d(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, Conv2d)
    around = layer.around
    if layer.padding_mode != "zeros" and any(around):
        top, left, bottom, right = around
        sides = place.integers(0, 0, top, left, 0, 0, bottom, right)
        x, around = place("Pad", x, sides, mode=PADDING_MODES[layer.padding_mode]), (0, 0, 0, 0)
    return place(
        "Conv",
        x,
        *map(place.parameter, layer.shapes),
        kernel_shape=layer.kernel_size,
        strides=layer.stride,
        pads=around,
        dilations=layer.dilation,
        group=layer.groups,
    )


def conv_transpose2d(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, ConvTranspose2d)
    return place(
        "ConvTranspose",
        x,
        *map(place.parameter, layer.shapes),
        kernel_shape=layer.kernel_size,
        strides=layer.stride,
        pads=(*layer.padding, *layer.padding),
        dilations=layer.dilation,
        output_padding=layer.output_padding,
        group=layer.groups,
    )


def max_pool2d(place: Place, x: str) -> str:
    op, ends = place.layer.op, _ends(place)
    assert isinstance(op, Pool2d)
    pads = (*op.padding[:2], *ends)
    sizes = {"kernel_shape": op.kernel, "strides": op.stride, "dilations": op.dilation}
    return place("MaxPool", x, **sizes, pads=pads)


def avg_pool2d(place: Place, x: str) -> str:
    """Windows that hang over the end count what is inside, with or without the padding's zeros."""
    op, ends = place.layer.op, _ends(place)
    assert isinstance(op, Pool2d) and op.kernel is not None
    counted = op.count_include_pad or op.divisor is not None
    pads: tuple[int, ...] = (*op.padding[:2], *ends)
    if counted and op.divisor is None and ends != op.padding[2:]:
        top, left, bottom, right = op.padding
        x = place("Pad", x, place.integers(0, 0, top, left, 0, 0, bottom, right))
        pads = (0, 0, *(max(0, end - side) for end, side in zip(ends, (bottom, right))))
        counted = False
    sizes = {"kernel_shape": op.kernel, "strides": op.stride, "pads": pads}
    mean = place("AveragePool", x, **sizes, count_include_pad=int(counted))
    if op.divisor is None:
        return mean
    return place("Mul", mean, place.constant(prod(op.kernel) / op.divisor))


def _ends(place: Place) -> tuple[int, int]:
    """The padding at the bottom and on the right that gives as many windows as there are."""
    op = place.layer.op
    assert isinstance(op, Pool2d) and op.kernel is not None
    found = []
    for axis, size in enumerate(place.image):
        kernel, stride, dilation = op.kernel[axis], op.stride[axis], op.dilation[axis]
        before, after = op.padding[axis], op.padding[2 + axis]
        count = windows.output(size, before, after, kernel, stride, dilation, op.ceil_mode)
        if windows.output(size, before, after, kernel, stride, dilation) != count:
            last = (count - 1) * stride + dilation * (kernel - 1) + 1
            after = max(0, last - size - before)
        found.append(after)
    return found[0], found[1]


def _shared(place: Place) -> tuple[int, int]:
    """How many windows share the image, down and across."""
    op = place.layer.op
    assert isinstance(op, Pool2d)
    down, across = (
        size if n is None else n for size, n in zip(place.image, op.output, strict=True)
    )
    return down, across


def adaptive_avg_pool2d(place: Place, x: str) -> str:
    counts, image = _shared(place), place.image
    if counts == (1, 1):
        return place("GlobalAveragePool", x)
    if not any(size % count for size, count in zip(image, counts, strict=True)):
        return _even(place, "AveragePool", x, counts)
    down, across = (_means(size, count) for size, count in zip(image, counts, strict=True))
    rows = place("MatMul", place.constant(down), x)
    return place("MatMul", rows, place.constant(across.T))


def adaptive_max_pool2d(place: Place, x: str) -> str:
    counts, image = _shared(place), place.image
    if counts == (1, 1):
        return place("GlobalMaxPool", x)
    if not any(size % count for size, count in zip(image, counts, strict=True)):
        return _even(place, "MaxPool", x, counts)
    for axis, (size, count) in enumerate(zip(image, counts, strict=True), 2):
        parts = list(_parts(size, count))
        most = max(len(part) for part in parts)
        index = [[*part, *[part[-1]] * (most - len(part))] for part in parts]
        x = place("Gather", x, place.constant(index, np.int64), axis=axis)
        x = place("ReduceMax", x, place.integers(axis + 1), keepdims=0)
    return x


def _even(place: Place, op_type: str, x: str, counts: tuple[int, int]) -> str:
    """Windows of one size, side by side."""
    kernel = tuple(size // count for size, count in zip(place.image, counts, strict=True))
    return place(op_type, x, kernel_shape=kernel, strides=kernel)


def _parts(size: int, count: int) -> list[range]:
    """The places of each of `count` windows that share `size`."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _means(size: int, count: int) -> Array:
    """The matrix whose product with a column is the mean of each window."""
    found = np.zeros((count, size), np.float32)
    for row, part in zip(found, _parts(size, count), strict=True):
        row[part] = 1 / len(part)
    return found


def subsample2d(place: Place, x: str) -> str:
    layer = place.layer
    assert isinstance(layer, Subsample2d)
    sizes = {"kernel_shape": layer.kernel_size, "strides": layer.kernel_size}
    mean = place("AveragePool", x, **sizes)
    return place("Add", place("Mul", mean, place.channels("weight")), place.channels("bias"))
